"""Fast decode: the model's one-token forward pass, captured once as a CUDA graph.

The pass is ``FusedStep`` where that can run the model, else the plain ``hf.forward``; the cache is
made static so that a graph can replay it. Linear-attention layers of transformers update their
states in place already; full-attention layers get keys and values of a fixed capacity. The argmax
is part of the graph and feeds the next pass, so the GPU writes many tokens before the host looks.
Passes after Halt change no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicLayer
from transformers.models.qwen3_5 import modeling_qwen3_5

from qgpu.host.step import Counters, FusedStep, refusal

CAPACITY = 4096  # least number of positions; grows by doubling
BURST = 32  # tokens between two looks of the host


class StaticKeys(DynamicLayer):
    """Keys and values [batch, heads, capacity, dim], written at ``position`` (a 0-d tensor)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, capacity: int,
                 position: torch.Tensor) -> None:  # fmt: skip
        super().__init__()
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device
        shape = (*keys.shape[:2], capacity, keys.shape[3])
        self.keys: torch.Tensor = keys.new_zeros(shape)
        self.values: torch.Tensor = values.new_zeros(shape)
        self.position = position

    def load(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        n = keys.shape[2]
        self.keys[:, :, :n].copy_(keys)
        self.values[:, :, :n].copy_(values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.position, key_states)
        self.values.index_copy_(2, self.position, value_states)
        return self.keys, self.values


def conv_step(
    hidden_states: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """One token through the depthwise convolution, [batch, channels, 1]: the reference's sum in
    float32, without the library kernel for grouped convolutions, which is slow at length 1."""
    taps = torch.cat([conv_state, hidden_states], -1)[..., -conv_state.shape[-1] :]
    conv_state.copy_(taps)
    out = (taps.float() * weight.float()).sum(-1, keepdim=True)
    if bias is not None:
        out = out + bias.float()[:, None]
    out = out.to(hidden_states.dtype)
    return out if activation is None else ACT2FN[activation](out)


def delta_step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, initial_state: torch.Tensor, **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One token of the gated delta rule, in place on the state [1, heads, rows, values]: the
    reference's formula as three batched products. q, k, v are [1, 1, heads, dim]."""
    heads = value.shape[2]
    state = initial_state[0]
    q, k = (_unit(x[0, 0].float()).repeat_interleave(heads // x.shape[2], 0) for x in (query, key))
    q = (q * key.shape[-1] ** -0.5)[:, None]
    state.mul_(g[0, 0].float().exp()[:, None, None])
    error = (value[0, 0].float()[:, None] - torch.bmm(k[:, None], state)) * beta[
        0, 0, :, None, None
    ]
    state.baddbmm_(k[:, :, None], error)
    return torch.bmm(q, state).transpose(0, 1)[None].to(query.dtype), initial_state


def _unit(x: torch.Tensor) -> torch.Tensor:
    """l2norm of the reference, with its eps."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


# What a captured step runs in place of the reference's parts: the same formulas, fewer kernels.
STEP_PARTS = {
    "causal_conv1d_update": conv_step,
    "torch_recurrent_gated_delta_rule": delta_step,
}


@contextmanager
def step_parts() -> Iterator[None]:
    """Within the block, transformers' one-token functions are those of ``STEP_PARTS``."""
    plain = {name: getattr(modeling_qwen3_5, name) for name in STEP_PARTS}
    for name, part in STEP_PARTS.items():
        setattr(modeling_qwen3_5, name, part)
    try:
        yield
    finally:
        for name, part in plain.items():
            setattr(modeling_qwen3_5, name, part)


def _is_attention(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer)


class StepGraph:
    """One model's decode step on a static cache that launches load their prefilled state into.

    ``fused`` False keeps to the model's own modules; ``refusal`` says why they are used;
    ``options`` go to the fused step.
    """

    def __init__(
        self, hf: Any, cache: Any, cache_argument: str, capacity: int, *, fused: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        self.hf, self.cache, self.capacity = hf, cache, capacity
        self._argument = cache_argument
        device = hf.get_input_embeddings().weight.device
        self.ids = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.written = torch.zeros(BURST, dtype=torch.long, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self._places = torch.arange(capacity, device=device)
        for index, layer in enumerate(cache.layers):
            if _is_attention(layer):
                static = StaticKeys(layer.keys, layer.values, capacity, self.position)
                static.load(layer.keys, layer.values)
                cache.layers[index] = static
            else:
                layer.recurrent_states[0] = layer.recurrent_states[0].contiguous()
        self.refusal = refusal(hf) if fused else "not asked for"
        self._fused = None if self.refusal else self._fused_step(options)
        self._graph = self._capture() if device.type == "cuda" else None

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Everything that a step changes."""
        yield from (self.ids, self.position, self.written, self.count)
        for layer in self.cache.layers:
            if isinstance(layer, StaticKeys):
                yield from (layer.keys, layer.values)
            else:
                yield from (layer.conv_states[0], layer.recurrent_states[0])

    def _fused_step(self, options: dict[str, Any]) -> FusedStep | None:
        """The fused step, run once; None where Triton cannot build it here, for want of a C
        compiler or of shared memory on the card: then the modules do."""
        counters = Counters(self.ids, self.position, self.written, self.count)
        before = [tensor.clone() for tensor in self._tensors()]
        try:
            step = FusedStep(self.hf, self.cache, self.capacity, counters, **options)
            step()
        except Exception as problem:  # Triton raises what its parts raise
            self.refusal = " ".join(f"Triton: {type(problem).__name__}: {problem}".split())
            return None
        finally:
            self._put(before)
        return step

    def _put(self, values: list[torch.Tensor]) -> None:
        for tensor, old in zip(self._tensors(), values, strict=True):
            tensor.copy_(old)

    def _capture(self) -> torch.cuda.CUDAGraph:
        before = [tensor.clone() for tensor in self._tensors()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self._put(before)
        return graph

    def _step(self) -> None:
        if self._fused is not None:
            self._fused()
            return
        with step_parts():
            self._forward()

    def _forward(self) -> None:
        seen = (self._places <= self.position)[None, None, None]
        dtype = self.hf.get_input_embeddings().weight.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        mask = mask.masked_fill(~seen, torch.finfo(dtype).min)
        out = self.hf(
            input_ids=self.ids,
            attention_mask={"full_attention": mask, "linear_attention": None},
            position_ids=self.position.view(1, 1, 1).expand(4, 1, 1),
            use_cache=True, logits_to_keep=1, **{self._argument: self.cache},
        )  # fmt: skip
        best = out.logits[0, -1].argmax().view(1)
        self.ids.copy_(best.view(1, 1))
        self.written.index_copy_(0, self.count, best)
        self.position.add_(1)
        self.count.add_(1)

    def load(self, cache: Any) -> None:
        """Takes over the state of a prefilled cache."""
        for mine, other in zip(self.cache.layers, cache.layers, strict=True):
            if isinstance(mine, StaticKeys):
                mine.load(other.keys, other.values)
            else:
                mine.conv_states[0].copy_(other.conv_states[0])
                mine.recurrent_states[0].copy_(other.recurrent_states[0])

    @torch.inference_mode()
    def run(self, first: int, position: int) -> Iterator[int]:
        """Ids that the model writes after ``first``, which is fed at ``position``, up to the
        capacity; the caller stops taking them when it has seen enough."""
        self.ids.fill_(first)
        self.position.fill_(position)
        left = self.capacity - position
        while left > 0:
            burst = min(left, BURST)
            self.count.zero_()
            for _ in range(burst):
                if self._graph is None:
                    self._step()
                else:
                    self._graph.replay()
            yield from self.written[:burst].tolist()
            left -= burst
