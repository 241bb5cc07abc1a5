"""From a layer of the plan to the matrices of a Qwen3_5 decoder layer, sparse and exact.

Value units become weights here and nowhere else (docs/numerics.md):

- the norms leave data dims as they are stored and turn the pins into the constant 1;
- gates, keys, queries, values and z carry GAIN = 128 a unit; a written row's pin is PIN_VALUE;
- b = 512 * write - 256, so beta is exactly 1 or 0; dt_bias keeps g at exactly 0 except on clear;
- every gate, z, b and a row also carries ``-strength * w`` on the guard dims, which machine tokens
  leave at 0 and on which every text row is far on the silent side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import ml_dtypes
import numpy as np
from scipy.sparse import csr_array

from qgpu.compiler.circuit import GAIN, PIN_DIM, PIN_VALUE, Head, Layer
from qgpu.compiler.embed import token_fields
from qgpu.compiler.plan import N_CIRCUIT_LAYERS, Plan
from qgpu.compiler.space import ONE_DIM, Form, Space
from qgpu.tokens import code_of, tokens

PIN = 512.0  # residual value of a pin
WRITE_GAIN, WRITE_BIAS = 512.0, -256.0
CLEAR_GAIN, CLEAR_BIAS = 2048.0, -1000.0
# For a row of bits at GAIN and one pin of PIN_VALUE: rms = PIN_VALUE / sqrt(128), so a bit leaves
# the gated norm as GAIN * sqrt(128) / PIN_VALUE * weight = 1 (after bf16 rounding).
READ_NORM_WEIGHT = 45.25


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounds to the nearest bf16, ties to even; returns float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True)
class Silence:
    """The separating direction: weights ``w`` on the guard ``dims``, and its ``strength``."""

    dims: tuple[int, ...]
    w: tuple[float, ...]
    strength: float


NO_SILENCE = Silence((), (), 0.0)


@cache
def nearest_bf16(x: float) -> float:
    return float(bf16(np.array([x], np.float32))[0])


@dataclass
class Triplets:
    """A sparse matrix under construction."""

    rows: list[int] = field(default_factory=list)
    cols: list[int] = field(default_factory=list)
    data: list[float] = field(default_factory=list)

    def add(self, row: int, col: int, value: float) -> None:
        self.rows.append(row)
        self.cols.append(col)
        self.data.append(value)

    def matrix(self, shape: tuple[int, int]) -> csr_array:
        """The matrix; every entry must be a bf16 number."""
        out = csr_array((np.array(self.data, np.float32), (self.rows, self.cols)), shape=shape)
        out.sum_duplicates()
        out.eliminate_zeros()
        inexact = out.data != bf16(out.data)
        if inexact.any():
            raise ValueError(f"{out.data[inexact][0]} is not a bf16 number")
        return out


@dataclass
class LayerWeights:
    """One decoder layer. Matrices are [out, in], float32 holding bf16 numbers.

    ``qkv`` rows: queries, keys (n_key_heads * head_dim each), values (n_value_heads * head_dim).
    """

    name: str
    input_norm: np.ndarray
    post_norm: np.ndarray
    qkv: csr_array
    conv: np.ndarray  # [qkv rows, conv_kernel]
    z: csr_array
    b: csr_array
    a: csr_array
    out: csr_array
    gate: csr_array
    up: csr_array
    down: csr_array
    a_log: np.ndarray
    dt_bias: np.ndarray
    read_norm: np.ndarray


class Rows:
    """Adds forms as rows of a matrix that reads the normed residual."""

    def __init__(self, space: Space, silence: Silence) -> None:
        self.space, self.silence = space, silence
        self.triplets = Triplets()

    def add(self, row: int, form: Form, gain: float, bias: float = 0.0, *, silent: bool) -> None:
        constant = form.get(ONE_DIM, 0) * gain + bias
        for dim, c in form.items():
            if dim != ONE_DIM and c:
                place, unit = self.space.place(dim)
                self.triplets.add(row, place, c * gain / unit)
        for pin in self.space.pins:
            if not constant:
                break
            part = nearest_bf16(constant)
            self.triplets.add(row, pin, part)
            constant -= part
        if constant:
            raise ValueError(f"constant of row {row} does not fit into the pins")
        if silent:
            for dim, w in zip(self.silence.dims, self.silence.w, strict=True):
                self.triplets.add(row, dim, -w * self.silence.strength)


def emit_layer(plan: Plan, layer: Layer, silence: Silence) -> LayerWeights:
    w, space = plan.widths, plan.space
    d, hidden = w.head_dim, w.hidden
    n_keys, n_values = w.n_key_heads * d, w.n_value_heads * d
    group = w.n_value_heads // w.n_key_heads
    qkv, z, b, a = (Rows(space, silence) for _ in range(4))
    out = Triplets()
    conv = np.zeros((2 * n_keys + n_values, w.conv_kernel), np.float32)
    conv[:, -1] = 1
    for h, head in enumerate(layer.heads):
        value_head = h * group
        _emit_tables(head, h * d, n_keys + h * d, 2 * n_keys + value_head * d, qkv)
        if head.lag:
            for start in (n_keys + h * d, 2 * n_keys + value_head * d):
                conv[start : start + d] = 0
                conv[start : start + d, -1 - head.lag] = 1
        b.add(value_head, head.write, WRITE_GAIN, WRITE_BIAS, silent=True)
        if head.clear is not None:
            a.add(value_head, head.clear, CLEAR_GAIN, silent=True)
        for dim in head.out:
            z.add(value_head * d + dim, head.read, GAIN, silent=True)
        _emit_out(head.out, value_head * d, space, out)
    gate, up = Rows(space, silence), Rows(space, silence)
    down = Triplets()
    for n, neuron in enumerate(layer.neurons):
        gate.add(n, neuron.gate, GAIN, silent=True)
        up.add(n, neuron.up, 1.0, silent=False)
        for dim, c in neuron.out.items():
            place, unit = space.place(dim)
            down.add(place, n, c * unit / GAIN)
    norm = residual_norm(plan)
    return LayerWeights(
        layer.name, norm, norm, qkv.triplets.matrix((2 * n_keys + n_values, hidden)), conv,
        z.triplets.matrix((n_values, hidden)), b.triplets.matrix((w.n_value_heads, hidden)),
        a.triplets.matrix((w.n_value_heads, hidden)), out.matrix((hidden, n_values)),
        gate.triplets.matrix((w.intermediate, hidden)),
        up.triplets.matrix((w.intermediate, hidden)),
        down.matrix((hidden, w.intermediate)), np.zeros(w.n_value_heads, np.float32),
        np.full(w.n_value_heads, CLEAR_BIAS, np.float32), np.full(d, READ_NORM_WEIGHT, np.float32),
    )  # fmt: skip


def circuit_layers(plan: Plan, silence: Silence) -> Iterator[LayerWeights]:
    """All 45 layers; those behind the plan's are empty and pass everything through."""
    for index in range(N_CIRCUIT_LAYERS):
        layer = plan.layers[index] if index < len(plan.layers) else Layer(f"spare{index}")
        yield emit_layer(plan, layer, silence)


def _emit_tables(head: Head, q: int, k: int, v: int, rows: Rows) -> None:
    tables: Iterable[tuple[int, Mapping[int, Form]]] = (
        (q, head.query), (k, head.key), (v, head.value),
    )  # fmt: skip
    for start, table in tables:
        for row, form in table.items():
            rows.add(start + row, form, GAIN, silent=False)
    rows.add(v + PIN_DIM, head.pin, PIN_VALUE, silent=False)


def _emit_out(targets: Mapping[int, Form], start: int, space: Space, out: Triplets) -> None:
    for dim, form in targets.items():
        for target, c in form.items():
            place, unit = space.place(target)
            out.add(place, start + dim, c * unit / GAIN)


def residual_norm(plan: Plan) -> np.ndarray:
    """RMSNorm weight (the module adds 1): data dims keep their stored value, pins become 1."""
    w = plan.widths
    gain = PIN * (w.n_pins / w.hidden) ** 0.5
    norm = np.full(w.hidden, gain - 1, np.float32)
    norm[plan.space.pins] = gain / PIN - 1
    return norm


def embedding_rows(plan: Plan) -> np.ndarray:
    """The machine tokens' embedding rows, [n_tokens, hidden] float32 (bf16 numbers)."""
    all_tokens = tokens(plan.spec)
    rows = np.zeros((len(all_tokens), plan.widths.hidden), np.float32)
    rows[:, plan.space.pins] = PIN
    places = {n: plan.space.residual_dims(f) for n, f in plan.embedding.fields.items()}
    for row, token in zip(rows, all_tokens, strict=True):
        for name, bits in token_fields(plan.spec, token).items():
            row[places[name]] = bits
    return rows


def head_rows(plan: Plan, size: float) -> np.ndarray:
    """The machine tokens' lm_head rows: +-size on the dims of the output code."""
    all_tokens = tokens(plan.spec)
    codes = np.array([code_of(plan.spec, t) for t in all_tokens])
    rows = np.zeros((len(all_tokens), plan.widths.hidden), np.float32)
    for bit, dims in enumerate(plan.code):
        rows[:, plan.space.residual_dims(dims)] = np.where(codes >> bit & 1, size, -size)[:, None]
    return rows
