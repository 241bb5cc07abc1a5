"""The fused decode step: a Qwen3.5 model's next token in a few Triton kernels a layer.

``FusedStep`` works on the model's own parameters, copying none, and on the states of a static
cache. It rounds where transformers' modules round, so the machine, whose sums are exact in any
order, goes on bit for bit; Qwen's own layers may differ in the last bit, which no launch can see.

Rows of a matrix that are all zero are not read: what they give is zero, and stands in the buffers
from the start. Most rows of the circuit are, and so are whole halves of its layers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

KERNELS = ("kernels", "kernels_full")
CHUNK = 2048  # columns of a matrix that a program holds at once
PARTS = 64  # stretches that full attention splits the positions into
BLOCK = 64  # positions at a time in a stretch
PROGRAMS = 1056  # for the head's rows: 8 for each of an H200's 132 multiprocessors

Tuning = dict[str, tuple[int, int]]  # kernel: (rows of the matrix for each program, warps)
TUNED: Tuning = {
    "project_linear": (4, 4), "read_out": (2, 4), "gate_up": (4, 8), "add_rows": (2, 4),
    "project_full": (4, 4), "best_rows": (8, 8),
}  # fmt: skip
DENSE = 0.9  # a matrix with more rows than this part is read whole
VALUE_PART = 32  # value columns of a head for each program of the delta rule


def refusal(hf: Any) -> str | None:
    """Why the fused step cannot run this model; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if hf.device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        return f"it is on {hf.device}, not on a CUDA device"
    if not isinstance(hf, reference.Qwen3_5ForCausalLM):
        return f"a {type(hf).__name__}, not a Qwen3_5ForCausalLM"
    for name, parameter in hf.named_parameters():
        if parameter.dtype != torch.bfloat16 or parameter.device != hf.lm_head.weight.device:
            return f"{name} is {parameter.dtype} on {parameter.device}"
        if not parameter.is_contiguous() or type(parameter) is not torch.nn.Parameter:
            return f"{name} is not a plain tensor"
    for name, module in hf.named_modules():
        if not isinstance(module, PLAIN) or hasattr(module, "_hf_hook"):
            return f"{name} is a {type(module).__name__} of its own kind"
        if getattr(module, "bias", None) is not None:
            return f"{name} has a bias"
    if hf.model.rotary_emb.rope_type != "default":
        return f"its rotary embedding is {hf.model.rotary_emb.rope_type}"
    return _odd_shape(hf.config)


PLAIN = (
    reference.Qwen3_5ForCausalLM, reference.Qwen3_5TextModel, reference.Qwen3_5DecoderLayer,
    reference.Qwen3_5GatedDeltaNet, reference.Qwen3_5Attention, reference.Qwen3_5MLP,
    reference.Qwen3_5RMSNorm, reference.Qwen3_5RMSNormGated,
    reference.Qwen3_5TextRotaryEmbedding, torch.nn.ModuleList, torch.nn.Embedding,
    torch.nn.Linear, torch.nn.Conv1d, torch.nn.SiLU, type(reference.ACT2FN["silu"]),
)  # fmt: skip


def _odd_shape(config: Any) -> str | None:
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    for name in ("head_dim", "linear_key_head_dim", "linear_value_head_dim"):
        size = getattr(config, name)
        if size & (size - 1) or size < 16:
            return f"{name} is {size}, not a power of two from 16 up"
    return None


def power_in(n: int, most: int) -> int:
    """The largest power of two that divides n, ``most`` at most."""
    return min(n & -n, most)


def nonzero(matrix: torch.Tensor) -> torch.Tensor:
    """For each row, whether anything in it is not zero."""
    return (matrix != 0).any(1)


def _live_heads(gdn: Any, used: torch.Tensor) -> torch.Tensor:
    """The value heads whose state can be anything but zero: those with a key and a value. ``used``
    tells which rows of q, k and v are."""
    keys = used[gdn.key_dim : 2 * gdn.key_dim].view(gdn.num_k_heads, -1).any(1)
    values = used[2 * gdn.key_dim :].view(gdn.num_v_heads, -1).any(1)
    return (keys.repeat_interleave(gdn.num_v_heads // gdn.num_k_heads) & values).nonzero().flatten()


@dataclass(frozen=True)
class Rows:
    """Programs for each matrix of a kernel, the rows that they take (``LISTED``), and sizes."""

    programs: list[int]
    listed: torch.Tensor
    sizes: dict[str, int]


@dataclass(frozen=True)
class Counters:
    """Where a step finds the token to feed and its place, and leaves the next one."""

    ids: torch.Tensor  # the token to feed; then the next
    position: torch.Tensor  # its place in the sequence; goes up by one
    written: torch.Tensor  # [burst]: the next token goes to [count]
    count: torch.Tensor


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid, its arguments and its compile-time constants and options."""

    name: str
    layer: int  # -1: not in a layer
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> None:
        self.kernel[self.grid](*self.args, **self.options)


class FusedStep:
    """Kernels with their arguments, in order; calling it runs them once.

    ``cache`` holds the states, full-attention layers with ``keys`` and ``values`` of ``capacity``.
    """

    def __init__(
        self, hf: Any, cache: Any, capacity: int, counters: Counters,
        tuned: Tuning | None = None, pdl: bool = True,
    ) -> None:  # fmt: skip
        # Only here, since importing the kernels takes Triton.
        modules = (importlib.import_module(f"qgpu.host.{name}") for name in KERNELS)
        self._kernels = {name: it for module in modules for name, it in vars(module).items()}
        self._hf, self._counters, self._capacity = hf, counters, capacity
        self._tuned = {**TUNED, **(tuned or {})}
        weight = hf.lm_head.weight
        on_hopper = weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= (9, 0)
        self._pdl = pdl and on_hopper
        self.launches: list[Launch] = []
        self.x = weight.new_zeros(hf.config.hidden_size)
        self._nothing = torch.zeros(1, dtype=torch.int32, device=weight.device)
        self._layer = -1
        self._embed()
        for layer, states in zip(hf.model.layers, cache.layers, strict=True):
            self._layer += 1
            if hasattr(layer, "linear_attn"):
                self._linear(layer, states)
            else:
                self._full(layer, states)
            self._mlp(layer)
        self._layer = -1
        self._head()

    def __call__(self) -> None:
        for launch in self.launches:
            launch()

    def _add(
        self, name: str, grid: tuple[int, ...], *args: Any, warps: int = 4, **sizes: int
    ) -> None:
        """One launch more. ``sizes`` are the kernel's compile-time constants."""
        if not all(grid):
            return
        options: dict[str, Any] = {"PDL": self._pdl, "num_warps": warps, **sizes}
        if self._pdl:
            options["launch_pdl"] = True
        self.launches.append(Launch(name, self._layer, self._kernels[name], grid, args, options))

    def _rows(self, name: str, matrix: torch.Tensor, *used: torch.Tensor) -> Rows:
        """How a kernel goes over rows: ``used`` tells of each of its matrices the rows to read."""
        rows, warps = self._tuned[name]
        columns = matrix.shape[1]
        sizes = {"K": columns, "CHUNK": power_in(columns, CHUNK), "ROWS": rows, "warps": warps}
        numbers = [flags.nonzero().flatten() for flags in used]
        sizes["LISTED"] = sum(map(len, numbers)) < DENSE * sum(map(len, used))
        if not sizes["LISTED"]:
            return Rows([-(-len(flags) // rows) for flags in used], self._nothing, sizes)
        lists = [
            torch.nn.functional.pad(some, (0, -len(some) % rows), value=len(flags))
            for some, flags in zip(numbers, used, strict=True)
        ]
        return Rows([len(some) // rows for some in lists], torch.cat(lists).int(), sizes)

    def _embed(self) -> None:
        table = self._hf.model.embed_tokens.weight
        chunk = power_in(table.shape[1], 512)
        self._add("embed", (table.shape[1] // chunk,), self.x, table, self._counters.ids,
                  K=table.shape[1], CHUNK=chunk)  # fmt: skip

    def _linear(self, layer: Any, states: Any) -> None:
        gdn, norm = layer.linear_attn, layer.input_layernorm
        n_keys, n_values, n_heads = gdn.key_dim, gdn.value_dim, gdn.num_v_heads
        n_qkv = 2 * n_keys + n_values
        qkv, z, b, a = (getattr(gdn, f"in_proj_{name}").weight for name in ("qkv", "z", "b", "a"))
        used = [nonzero(matrix) for matrix in (qkv, z, b, a)]
        if not used[0].any():
            return  # nothing is written or read: queries, keys and values are zero
        taps = gdn.conv_kernel_size
        inputs = self.x.new_zeros(n_qkv + n_values + 2 * n_heads)
        rows = self._rows("project_linear", qkv, *used)
        ends = list(accumulate(rows.programs))
        self._add(
            "project_linear", (ends[-1],), self.x, norm.weight, qkv, z, b, a,
            states.conv_states[0], gdn.conv1d.weight, inputs, rows.listed, norm.eps, n_qkv,
            n_values, n_heads, *ends[:-1], TAPS=taps, PADDED=1 << (taps - 1).bit_length(),
            **rows.sizes,
        )  # fmt: skip
        heads = _live_heads(gdn, used[0])
        if not len(heads):
            return
        read = self.x.new_zeros(n_values)
        part = min(VALUE_PART, gdn.head_v_dim)
        self._add(
            "delta", (len(heads), gdn.head_v_dim // part), inputs, states.recurrent_states[0],
            gdn.A_log, gdn.dt_bias, read, heads.int(), n_keys, n_heads,
            GROUP=n_heads // gdn.num_k_heads, KEY=gdn.head_k_dim, VALUE=gdn.head_v_dim, PART=part,
        )  # fmt: skip
        self._read_out(gdn, read, inputs[n_qkv:])

    def _read_out(self, gdn: Any, read: torch.Tensor, z: torch.Tensor) -> None:
        matrix, value = gdn.out_proj.weight, gdn.head_v_dim
        rows = self._rows("read_out", matrix, nonzero(matrix))
        sizes = {name: size for name, size in rows.sizes.items() if name != "CHUNK"}
        self._add(
            "read_out", (rows.programs[0],), self.x, read, z, gdn.norm.weight, matrix,
            gdn.norm.variance_epsilon, rows.listed, len(matrix), VALUE=value,
            HEADS=power_in(gdn.num_v_heads, max(1, CHUNK // value)), **sizes,
        )  # fmt: skip

    def _full(self, layer: Any, states: Any) -> None:
        attention, norm = layer.self_attn, layer.input_layernorm
        q, k, v = (getattr(attention, f"{name}_proj").weight for name in "qkv")
        if not attention.o_proj.weight.any():
            return
        dim = attention.head_dim
        n_heads, n_kv = len(q) // (2 * dim), len(k) // dim
        inputs = self.x.new_zeros(len(q) + 2 * len(k))
        rows = self._rows("project_full", q, *map(nonzero, (q, k, v)))
        ends = list(accumulate(rows.programs))
        self._add("project_full", (ends[-1],), self.x, norm.weight, q, k, v, inputs, rows.listed,
                  norm.eps, len(q), len(k), *ends[:-1], **rows.sizes)  # fmt: skip
        queries, read = self.x.new_zeros(n_heads * dim), self.x.new_zeros(n_heads * dim)
        cos, sin = self._rotary
        position = self._counters.position
        self._add(
            "place_keys", (n_heads + n_kv,), inputs, attention.q_norm.weight,
            attention.k_norm.weight, cos, sin, position, queries, states.keys, states.values,
            attention.q_norm.eps, n_heads, n_kv, self._capacity, DIM=dim, ROTARY=cos.shape[1],
        )  # fmt: skip
        parts = torch.zeros(n_heads, PARTS, dim, device=self.x.device)
        top, mass = torch.zeros(2, n_heads, PARTS, device=self.x.device)
        group = n_heads // n_kv
        self._add(
            "attend", (n_kv, PARTS), queries, states.keys, states.values, position, parts, top,
            mass, attention.scaling, self._capacity, GROUP=group,
            PADDED=max(16, 1 << (group - 1).bit_length()), DIM=dim, BLOCK=BLOCK, PARTS=PARTS,
        )  # fmt: skip
        self._add("combine", (n_heads,), parts, top, mass, inputs, read, DIM=dim, PARTS=PARTS)
        self._add_rows(attention.o_proj.weight, read)

    def _mlp(self, layer: Any) -> None:
        mlp, norm = layer.mlp, layer.post_attention_layernorm
        gate, up, down = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
        used = nonzero(gate) & nonzero(up)
        if not used.any() or not down.any():
            return
        active = self.x.new_zeros(len(gate))
        rows = self._rows("gate_up", gate, used)
        self._add("gate_up", (rows.programs[0],), self.x, norm.weight, gate, up, active,
                  norm.eps, rows.listed, len(gate), **rows.sizes)  # fmt: skip
        self._add_rows(down, active)

    def _add_rows(self, matrix: torch.Tensor, values: torch.Tensor) -> None:
        rows = self._rows("add_rows", matrix, nonzero(matrix))
        self._add("add_rows", (rows.programs[0],), self.x, values, matrix, rows.listed,
                  len(matrix), **rows.sizes)  # fmt: skip

    def _head(self) -> None:
        norm, matrix = self._hf.model.norm, self._hf.lm_head.weight
        rows, warps = self._tuned["best_rows"]
        tiles = -(-len(matrix) // rows)
        each = -(-tiles // PROGRAMS)
        programs = -(-tiles // each)
        best = torch.zeros(programs, device=self.x.device)
        where = torch.zeros(programs, dtype=torch.int32, device=self.x.device)
        self._add("best_rows", (programs,), self.x, norm.weight, matrix, best, where, norm.eps,
                  len(matrix), each, K=matrix.shape[1], CHUNK=power_in(matrix.shape[1], CHUNK),
                  ROWS=rows, warps=warps)  # fmt: skip
        c = self._counters
        self._add("pick", (1,), best, where, programs, c.ids, c.written, c.count, c.position,
                  SIZE=1 << (programs - 1).bit_length())  # fmt: skip

    @cached_property
    def _rotary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of every position, [capacity, rotary dims], as the model computes them."""
        places = torch.arange(self._capacity, device=self.x.device).expand(3, 1, -1)
        cos, sin = self._hf.model.rotary_emb(self.x, places)
        return cos[0].contiguous(), sin[0].contiguous()
