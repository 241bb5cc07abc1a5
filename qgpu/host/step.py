"""The fused decode step: a Qwen3.5 model's next token in a few Triton kernels a layer.

``FusedStep`` works on the model's own parameters, copying none, and on the states of a static
cache. It rounds where transformers' modules round, so the machine, whose sums are exact in any
order, goes on bit for bit; Qwen's own layers may differ in the last bit, which no launch can see.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from functools import cached_property
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
        self._embed()
        for layer, states in zip(hf.model.layers, cache.layers, strict=True):
            if hasattr(layer, "linear_attn"):
                self._linear(layer, states)
            else:
                self._full(layer, states)
            self._mlp(layer)
        self._head()

    def __call__(self) -> None:
        for launch in self.launches:
            launch()

    def _add(
        self, name: str, grid: tuple[int, ...], *args: Any, warps: int = 4, **sizes: int
    ) -> None:
        """One launch more. ``sizes`` are the kernel's compile-time constants."""
        options: dict[str, Any] = {"PDL": self._pdl, "num_warps": warps, **sizes}
        if self._pdl:
            options["launch_pdl"] = True
        self.launches.append(Launch(name, self._kernels[name], grid, args, options))

    def _matrix(self, name: str, matrix: torch.Tensor, *counts: int) -> tuple[int, dict[str, int]]:
        """Programs that it takes for ``counts`` rows of each of a kernel's matrices, and sizes."""
        rows, warps = self._tuned[name]
        columns = matrix.shape[1]
        sizes = {"K": columns, "CHUNK": power_in(columns, CHUNK), "ROWS": rows, "warps": warps}
        return sum(-(-count // rows) for count in counts), sizes

    def _embed(self) -> None:
        table = self._hf.model.embed_tokens.weight
        chunk = power_in(table.shape[1], 512)
        self._add("embed", (table.shape[1] // chunk,), self.x, table, self._counters.ids,
                  K=table.shape[1], CHUNK=chunk)  # fmt: skip

    def _linear(self, layer: Any, states: Any) -> None:
        gdn, norm = layer.linear_attn, layer.input_layernorm
        n_keys, n_values, n_heads = gdn.key_dim, gdn.value_dim, gdn.num_v_heads
        n_qkv = 2 * n_keys + n_values
        key, value, taps = gdn.head_k_dim, gdn.head_v_dim, gdn.conv_kernel_size
        inputs = self.x.new_zeros(n_qkv + n_values + 2 * n_heads)
        read = self.x.new_zeros(n_values)
        matrix = gdn.in_proj_qkv.weight
        programs, sizes = self._matrix("project_linear", matrix, n_qkv, n_values, n_heads, n_heads)
        self._add(
            "project_linear", (programs,), self.x, norm.weight, matrix, gdn.in_proj_z.weight,
            gdn.in_proj_b.weight, gdn.in_proj_a.weight, states.conv_states[0], gdn.conv1d.weight,
            inputs, norm.eps, n_qkv, n_values, n_heads,
            TAPS=taps, PADDED=1 << (taps - 1).bit_length(), **sizes,
        )  # fmt: skip
        part = min(VALUE_PART, value)
        self._add(
            "delta", (n_heads, value // part), inputs, states.recurrent_states[0], gdn.A_log,
            gdn.dt_bias, read, n_keys, n_heads,
            GROUP=n_heads // gdn.num_k_heads, KEY=key, VALUE=value, PART=part,
        )  # fmt: skip
        matrix = gdn.out_proj.weight
        programs, sizes = self._matrix("read_out", matrix, len(matrix))
        self._add(
            "read_out", (programs,), self.x, read, inputs[n_qkv:], gdn.norm.weight, matrix,
            gdn.norm.variance_epsilon, len(matrix), VALUE=value,
            HEADS=power_in(n_heads, max(1, CHUNK // value)),
            **{name: size for name, size in sizes.items() if name != "CHUNK"},
        )  # fmt: skip

    def _full(self, layer: Any, states: Any) -> None:
        attention, norm = layer.self_attn, layer.input_layernorm
        q, k, v = (getattr(attention, f"{name}_proj").weight for name in "qkv")
        dim = attention.head_dim
        n_heads, n_kv = len(q) // (2 * dim), len(k) // dim
        inputs = self.x.new_zeros(len(q) + 2 * len(k))
        programs, sizes = self._matrix("project_full", q, len(q), len(k), len(k))
        self._add("project_full", (programs,), self.x, norm.weight, q, k, v, inputs, norm.eps,
                  len(q), len(k), **sizes)  # fmt: skip
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
        gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
        active = self.x.new_zeros(len(gate))
        programs, sizes = self._matrix("gate_up", gate, len(gate))
        self._add("gate_up", (programs,), self.x, norm.weight, gate, up, active, norm.eps,
                  len(gate), **sizes)  # fmt: skip
        self._add_rows(mlp.down_proj.weight, active)

    def _add_rows(self, matrix: torch.Tensor, values: torch.Tensor) -> None:
        programs, sizes = self._matrix("add_rows", matrix, len(matrix))
        self._add("add_rows", (programs,), self.x, values, matrix, len(matrix), **sizes)

    def _head(self) -> None:
        norm, matrix = self._hf.model.norm, self._hf.lm_head.weight
        tiles, sizes = self._matrix("best_rows", matrix, len(matrix))
        each = -(-tiles // PROGRAMS)
        programs = -(-tiles // each)
        best = torch.zeros(programs, device=self.x.device)
        where = torch.zeros(programs, dtype=torch.int32, device=self.x.device)
        self._add("best_rows", (programs,), self.x, norm.weight, matrix, best, where, norm.eps,
                  len(matrix), each, **sizes)  # fmt: skip
        c = self._counters
        self._add("pick", (1,), best, where, programs, c.ids, c.written, c.count, c.position,
                  SIZE=1 << (programs - 1).bit_length())  # fmt: skip

    @cached_property
    def _rotary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of every position, [capacity, rotary dims], as the model computes them."""
        places = torch.arange(self._capacity, device=self.x.device).expand(3, 1, -1)
        cos, sin = self._hf.model.rotary_emb(self.x, places)
        return cos[0].contiguous(), sin[0].contiguous()
