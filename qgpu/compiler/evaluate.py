"""The fast exact executor: the very matrices of the circuit layers, stored sparse.

It rounds to bf16 wherever the dense bf16 model of transformers does (docs/numerics.md), so its
residual stream, its recurrent state and its next token are the dense model's, bit for bit; a test
holds the two against each other. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from qgpu.compiler.emit import LayerWeights, bf16, embedding_rows, emit_layer
from qgpu.compiler.plan import Plan
from qgpu.compiler.silence import Silence
from qgpu.errors import LaunchError
from qgpu.tokens import Halt, Token, code_of, offset_of, tokens

L2_EPS = 1e-6


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) in float32; exactly 0 far below 0 and exactly x far above."""
    with np.errstate(over="ignore"):
        return (x / (1 + np.exp(-x))).astype(np.float32)


def _times(matrix: csr_array, x: np.ndarray) -> np.ndarray:
    """x @ matrix.T in float32, rounded to bf16: a bias-free linear layer on [n, in]."""
    return bf16((matrix @ x.T).T)


class CompactLayer:
    """One layer's matrices cut to the rows that the plan uses, and its state."""

    def __init__(self, weights: LayerWeights, plan: Plan, n_heads: int, n_neurons: int) -> None:
        w = plan.widths
        d, n_keys = w.head_dim, w.n_key_heads * w.head_dim
        group = w.n_value_heads // w.n_key_heads
        self.n_heads, self.d, self.eps = n_heads, d, w.eps
        keys = np.arange(n_heads * d)
        values = np.concatenate(
            [np.arange(h * group * d, h * group * d + d) for h in range(n_heads)] or [keys]
        )
        channels = np.concatenate([keys, n_keys + keys, 2 * n_keys + values])
        heads = np.arange(n_heads) * group
        self.input_norm, self.post_norm = 1 + weights.input_norm, 1 + weights.post_norm
        self.qkv, self.conv = weights.qkv[channels], weights.conv[channels]
        self.z, self.b, self.a = weights.z[values], weights.b[heads], weights.a[heads]
        self.out = weights.out[:, values]
        self.gate, self.up = weights.gate[:n_neurons], weights.up[:n_neurons]
        self.down = weights.down[:, :n_neurons]
        self.decay = -np.exp(weights.a_log[heads]), weights.dt_bias[heads]
        self.read_norm = weights.read_norm
        self.lagged = bool((self.conv[:, :-1] != 0).any())
        self.reset()

    def reset(self) -> None:
        self.history = np.zeros((self.conv.shape[1] - 1, self.conv.shape[0]), np.float32)
        self.table = np.zeros((self.n_heads, self.d, self.d), np.float32)

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True, dtype=np.float32)
        return bf16(x * (1 / np.sqrt(mean + np.float32(self.eps))) * weight)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The residual after this layer; x [n, hidden]."""
        if self.n_heads:
            x = bf16(x + self._mix(self.norm(x, self.input_norm)))
        if self.gate.shape[0]:
            h = self.norm(x, self.post_norm)
            act = bf16(bf16(silu(_times(self.gate, h))) * _times(self.up, h))
            x = bf16(x + _times(self.down, act))
        return x

    def _mix(self, h: np.ndarray) -> np.ndarray:
        n, heads, d = len(h), self.n_heads, self.d
        mixed = _times(self.qkv, h)
        if self.lagged:
            padded = np.concatenate([self.history, mixed])
            self.history = padded[len(padded) - len(self.history) :]
            taps = self.conv.shape[1]
            mixed = sum(padded[t : t + n] * self.conv[:, t] for t in range(taps))
        q, k, v = bf16(silu(mixed)).reshape(n, 3, heads, d).transpose(1, 0, 2, 3)
        z = silu(_times(self.z, h)).reshape(n, heads, d)
        with np.errstate(over="ignore"):
            beta = bf16((1 / (1 + np.exp(-_times(self.b, h)))).astype(np.float32))
            rate, bias = self.decay
            softplus = np.logaddexp(0, _times(self.a, h) + bias).astype(np.float32)
            decay = np.exp(rate * softplus).astype(np.float32)
        reads = np.zeros((n, heads, d), np.float32)
        for t in range(n):
            self._step(q[t], k[t], v[t], z[t], beta[t], decay[t], reads[t])
        reads = bf16(reads)
        mean = (reads * reads).mean(-1, keepdims=True, dtype=np.float32)
        reads = bf16(reads * (1 / np.sqrt(mean + np.float32(self.eps))))
        reads = bf16(bf16(reads * self.read_norm) * z)
        return _times(self.out, reads.reshape(n, heads * d))

    def _step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, z: np.ndarray, beta: np.ndarray,
              decay: np.ndarray, reads: np.ndarray) -> None:  # fmt: skip
        """One token through the delta rule; skips heads that neither write nor are read."""
        table = self.table
        for h in np.flatnonzero(decay != 1):
            table[h] *= decay[h]
        for h in np.flatnonzero(beta):
            rows = np.flatnonzero(k[h])
            if len(rows):
                key = k[h, rows] * (1 / np.sqrt((k[h] * k[h]).sum() + np.float32(L2_EPS)))
                error = (v[h] - key @ table[h, rows]) * beta[h]
                table[h, rows] += key[:, None] * error
        scale = np.float32(self.d**-0.5)
        for h in np.flatnonzero(z.any(-1)):
            rows = np.flatnonzero(q[h])
            if len(rows):
                query = q[h, rows] * (1 / np.sqrt((q[h] * q[h]).sum() + np.float32(L2_EPS)))
                reads[h] = (query * scale) @ table[h, rows]


@dataclass
class ExecutorRun:
    """What one launch wrote, and the memory words after it."""

    trace: list[Token]
    memory: np.ndarray


class Executor:
    """Runs machine tokens through the circuit layers; ``feed`` continues on the kept state."""

    def __init__(self, plan: Plan, weights: Sequence[LayerWeights], embedding: np.ndarray) -> None:
        self.plan, self.embedding = plan, embedding
        self.layers = [
            CompactLayer(w, plan, len(layer.heads), len(layer.neurons))
            for w, layer in zip(weights, plan.layers, strict=True)
        ]

    @classmethod
    def build(cls, plan: Plan, silence: Silence | None = None) -> Executor:
        """Emits every layer of the plan; without a base there is nothing to be silent on."""
        silence = silence or Silence((), (), 0.0)
        weights = [emit_layer(plan, layer, silence) for layer in plan.layers]
        return cls(plan, weights, embedding_rows(plan))

    def reset(self) -> None:
        """Forgets everything: an empty cache."""
        for layer in self.layers:
            layer.reset()

    def feed(self, fed: Sequence[Token]) -> np.ndarray:
        """Feeds tokens; returns the residual stream behind the circuit, [n, hidden] float32."""
        x = self.embedding[[offset_of(self.plan.spec, token) for token in fed]]
        for layer in self.layers:
            x = layer.forward(x)
        return x

    @cached_property
    def _code_dims(self) -> list[int]:
        return [self.plan.space.residual_dims(field)[0] for field in self.plan.code]

    @cached_property
    def _by_code(self) -> dict[int, Token]:
        return {code_of(self.plan.spec, token): token for token in tokens(self.plan.spec)}

    def named(self, residual: np.ndarray) -> Token | None:
        """The token whose output code one residual row [hidden] holds; None if there is none."""
        code = sum(int(residual[d] > 0) << i for i, d in enumerate(self._code_dims))
        return self._by_code.get(code)

    def run(
        self,
        prompt: Sequence[Token],
        max_tokens: int,
        on_token: Callable[[Token], None] | None = None,
    ) -> ExecutorRun:
        """Feeds the prompt, then writes greedily until Halt. LaunchError past the budget."""
        self.reset()
        residual = self.feed(prompt)[-1]
        trace: list[Token] = []
        while len(trace) < max_tokens:
            token = self.named(residual)
            if token is None:
                raise LaunchError(f"after {len(trace)} tokens the weights name no token")
            trace.append(token)
            if on_token is not None:
                on_token(token)
            if isinstance(token, Halt):
                return ExecutorRun(trace, self.memory())
            residual = self.feed([token])[-1]
        raise LaunchError(f"the launch has not ended after {max_tokens} tokens")

    def memory(self) -> np.ndarray:
        """The machine's memory, [n_words] uint32, read out of the recurrent state."""
        place = self.plan.memory_place
        tables = self.layers[place.layer].table[place.heads]
        return place.words(tables)
