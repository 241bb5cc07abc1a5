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

from qgpu.compiler.emit import (
    NO_SILENCE,
    LayerWeights,
    Silence,
    bf16,
    embedding_rows,
    emit_layer,
)
from qgpu.compiler.plan import Plan
from qgpu.errors import LaunchError
from qgpu.tokens import Halt, Token, code_of, offset_of, tokens

L2_EPS = np.float32(1e-6)


# silu(x) is 0 in bf16 from here down.
SILU_FLOOR = -104.0


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) in float32; exactly 0 far below 0 and exactly x far above."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _nonempty(matrix: csr_array) -> tuple[csr_array, np.ndarray]:
    """The matrix without its empty rows, and the numbers of those kept."""
    rows = np.flatnonzero(np.diff(matrix.indptr))
    return matrix[rows], rows


class _Rows:
    """Keys or queries [n, heads, d], l2-normalised and scaled; nearly all of them touch one row."""

    def __init__(self, x: np.ndarray, scale: float) -> None:
        norm = 1 / np.sqrt((x * x).sum(-1, keepdims=True, dtype=np.float32) + L2_EPS)
        self.unit = x * norm * np.float32(scale)
        self.count = np.count_nonzero(x, axis=-1)
        self.first = (x != 0).argmax(-1)
        self.amount = np.take_along_axis(self.unit, self.first[..., None], -1)[..., 0]


class CompactLayer:
    """One layer's matrices cut to the rows that the plan uses, and its state.

    Activations are [features, n] throughout, so that sparse products stay contiguous.
    """

    def __init__(self, weights: LayerWeights, plan: Plan, n_heads: int, n_neurons: int) -> None:
        w = plan.widths
        d, n_keys = w.head_dim, w.n_key_heads * w.head_dim
        group = w.n_value_heads // w.n_key_heads
        self.n_heads, self.d, self.eps = n_heads, d, np.float32(w.eps)
        keys = np.arange(n_heads * d)
        values = (keys // d) * group * d + keys % d
        channels = np.concatenate([keys, n_keys + keys, 2 * n_keys + values])
        heads = np.arange(n_heads) * group
        self.input_norm, self.post_norm = 1 + weights.input_norm, 1 + weights.post_norm
        self.conv = weights.conv[channels]
        self.qkv, self.qkv_rows = _nonempty(weights.qkv[channels])
        self.z, self.z_rows = _nonempty(weights.z[values])
        self.b, self.a = weights.b[heads], weights.a[heads]
        self.out = weights.out[:, values]
        self.gate, self.up = weights.gate[:n_neurons], weights.up[:n_neurons]
        self.down_by_neuron = csr_array(weights.down[:, :n_neurons].T)
        self.decay = -np.exp(weights.a_log[heads]), weights.dt_bias[heads]
        self.read_norm = weights.read_norm
        self.lagged = bool((self.conv[:, :-1] != 0).any())
        self.reset()

    def reset(self) -> None:
        self.history = np.zeros((self.conv.shape[0], self.conv.shape[1] - 1), np.float32)
        self.table = np.zeros((self.n_heads, self.d, self.d), np.float32)

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean = (x * x).mean(0, dtype=np.float32)
        return bf16(x * (1 / np.sqrt(mean + self.eps)) * weight[:, None])

    def forward(self, x: np.ndarray) -> np.ndarray:
        """The residual after this layer; x [hidden, n]."""
        if self.n_heads:
            x = bf16(x + self._mix(self.norm(x, self.input_norm)))
        if self.gate.shape[0]:
            x = bf16(x + self._mlp(self.norm(x, self.post_norm)))
        return x

    def _mlp(self, h: np.ndarray) -> np.ndarray:
        """Only neurons whose gate lets something through, at some token, need up and down."""
        gate = self.gate @ h
        live = np.flatnonzero(((gate > SILU_FLOOR) & (gate != 0)).any(1))
        act = bf16(bf16(silu(bf16(gate[live]))) * bf16(self.up[live] @ h))
        return bf16(self.down_by_neuron[live].T @ act)

    def _mix(self, h: np.ndarray) -> np.ndarray:
        n, heads, d = h.shape[1], self.n_heads, self.d
        mixed = bf16(self.qkv @ h)
        if self.lagged:
            mixed = self._scatter(mixed, self.qkv_rows, 3)
            padded = np.concatenate([self.history, mixed], axis=1)
            self.history = padded[:, padded.shape[1] - self.history.shape[1] :]
            taps = self.conv.shape[1]
            mixed = sum(padded[:, t : t + n] * self.conv[:, t, None] for t in range(taps))
            mixed = mixed[self.qkv_rows]
        acted = self._scatter(bf16(silu(mixed)), self.qkv_rows, 3)
        q, k, v = acted.T.reshape(n, 3, heads, d).transpose(1, 0, 2, 3)
        z = self._scatter(silu(bf16(self.z @ h)), self.z_rows, 1).T.reshape(n, heads, d)
        with np.errstate(over="ignore"):
            beta = bf16((1 / (1 + np.exp(-bf16(self.b @ h)))).T)
            rate, bias = self.decay
            softplus = np.logaddexp(0, bf16(self.a @ h).T + bias).astype(np.float32)
            decay = np.exp(rate * softplus).astype(np.float32)
        reads = np.zeros((n, heads, d), np.float32)
        keys, queries = _Rows(k, 1.0), _Rows(q, d**-0.5)
        writing = (beta != 0) & (keys.count > 0)
        reading = z.any(-1) & (queries.count > 0)
        for t in range(n):
            for i in np.flatnonzero(decay[t] != 1):
                self.table[i] *= decay[t, i]
            self._write(keys, t, np.flatnonzero(writing[t]), v[t], beta[t])
            self._read(queries, t, np.flatnonzero(reading[t]), reads[t])
        reads = bf16(reads)
        mean = (reads * reads).mean(-1, keepdims=True, dtype=np.float32)
        reads = bf16(reads * (1 / np.sqrt(mean + self.eps)))
        reads = bf16(bf16(reads * self.read_norm) * z)
        return bf16(self.out @ reads.reshape(n, heads * d).T)

    def _scatter(self, x: np.ndarray, rows: np.ndarray, parts: int) -> np.ndarray:
        """[parts * heads * d, n] with ``x`` in ``rows`` and zeros elsewhere."""
        out = np.zeros((parts * self.n_heads * self.d, x.shape[1]), np.float32)
        out[rows] = x
        return out

    def _write(
        self, keys: _Rows, t: int, heads: np.ndarray, v: np.ndarray, beta: np.ndarray
    ) -> None:
        """The delta rule, table += key (beta (v - key . table)), on the rows of the key."""
        single = heads[keys.count[t, heads] == 1]
        row, size = keys.first[t, single], keys.amount[t, single, None]
        old = self.table[single, row]
        self.table[single, row] = old + size * ((v[single] - size * old) * beta[single, None])
        for head in heads[keys.count[t, heads] > 1]:
            rows = np.flatnonzero(keys.unit[t, head])
            key, table = keys.unit[t, head, rows], self.table[head]
            table[rows] += key[:, None] * ((v[head] - key @ table[rows]) * beta[head])

    def _read(self, queries: _Rows, t: int, heads: np.ndarray, out: np.ndarray) -> None:
        single = heads[queries.count[t, heads] == 1]
        size = queries.amount[t, single, None]
        out[single] = size * self.table[single, queries.first[t, single]]
        for head in heads[queries.count[t, heads] > 1]:
            rows = np.flatnonzero(queries.unit[t, head])
            out[head] = queries.unit[t, head, rows] @ self.table[head, rows]


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
    def build(cls, plan: Plan, silence: Silence = NO_SILENCE) -> Executor:
        """Emits every layer of the plan; without a base there is nothing to be silent on."""
        weights = [emit_layer(plan, layer, silence) for layer in plan.layers]
        return cls(plan, weights, embedding_rows(plan))

    def reset(self) -> None:
        """Forgets everything: an empty cache."""
        for layer in self.layers:
            layer.reset()

    def feed(self, fed: Sequence[Token]) -> np.ndarray:
        """Feeds tokens; returns the residual stream behind the circuit, [n, hidden] float32."""
        x = self.embedding[[offset_of(self.plan.spec, token) for token in fed]]
        x = np.ascontiguousarray(x.T)
        for layer in self.layers:
            x = layer.forward(x)
        return x.T

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
