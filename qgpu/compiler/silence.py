"""Silence on text: the direction that tells text from machine tokens, and the proof that it holds.

A silent circuit leaves a text token's residual at its embedding row, so every circuit layer sees
text as one of finitely many vectors, the table's rows, and silence can be proven row by row. The
direction ``w`` lives on a few guard dims, chosen where the table's rows lean to one side, which
machine tokens leave at 0: there the term is exactly 0, on text it is far below what silu and
sigmoid round to 0.

Proof. A row h (after the norm) passes if each gate, z, b and a row r of each layer has
r.h = g.h - strength * w.h <= -LIMIT, and g.h <= |g| |h| by Cauchy and Schwarz. So it suffices that
strength * min(w.h / |h|) - max |g| >= LIMIT / min |h|, checked over all layers and all rows. The
run over all rows (``run_rows``) then shows it once more by computing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from qgpu.compiler.emit import LayerWeights, Silence, bf16, circuit_layers
from qgpu.compiler.plan import N_GUARDS, Plan, Widths, build_plan
from qgpu.machine import MachineSpec

LIMIT = 512.0  # silu is 0 in bf16 from -104 down, sigmoid from -240; twice that for bf16's rounding
START_STRENGTH = 2.0**20
MAX_STRENGTH = 2.0**60
CHUNK = 4096
STEPS = 600


@dataclass(frozen=True)
class Direction:
    """A direction on guard dims. ``margin`` is the least w.x over the rows x of unit RMS (zero rows
    left out: every form of a zero row is 0, so the circuit is silent on it by itself);
    ``failing`` counts the rows on the wrong side."""

    dims: tuple[int, ...]
    w: tuple[float, ...]
    margin: float
    failing: int


def unit_rows(table: np.ndarray, eps: float) -> np.ndarray:
    """Rows over their own RMS, as RMSNorm sees them; [n, hidden] float32."""
    mean = (table * table).mean(-1, keepdims=True, dtype=np.float64)
    return (table / np.sqrt(mean + eps)).astype(np.float32)


def chunks(table: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(table), CHUNK):
        yield np.asarray(table[start : start + CHUNK], np.float32)


def find_direction(table: np.ndarray, n_guards: int, eps: float = 1e-6) -> Direction:
    """The guard dims where the rows lean most to one side, and on them the w of unit length with
    the largest least w.x: Adam on a soft minimum (docs/design: 8 dims suffice on real tables)."""
    total, square = np.zeros(table.shape[1]), np.zeros(table.shape[1])
    for part in chunks(table):
        x = unit_rows(part, eps)
        total += x.sum(0)
        square += (x * x).sum(0, dtype=np.float64)
    mean = total / len(table)
    spread = np.sqrt(np.maximum(square / len(table) - mean**2, 1e-12))
    dims = np.sort(np.argsort(-np.abs(mean) / spread)[:n_guards])
    x = np.concatenate([unit_rows(part, eps)[:, dims] for part in chunks(table)])
    live = np.concatenate([(part != 0).any(1) for part in chunks(table)])
    w = bf16(_ascend(x[live], (mean / spread)[dims]))
    sides = x[live] @ w
    margin = float(sides.min()) if len(sides) else np.inf
    return Direction(tuple(map(int, dims)), tuple(map(float, w)), margin, int((sides <= 0).sum()))


def _ascend(x: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Maximises the soft minimum of x.w over unit w; returns the best seen by the true minimum."""
    w = (start / np.linalg.norm(start)).astype(np.float32)
    best, best_margin = w, -np.inf
    first, second = np.zeros_like(w), np.zeros_like(w)
    for step in range(1, STEPS + 1):
        sides = x @ w
        least = float(sides.min()) if len(sides) else 0.0
        if least > best_margin:
            best, best_margin = w, least
        sharpness = 1 + 20 * step / STEPS
        soft = np.exp(-sharpness * (sides - least))
        gradient = (soft @ x) / soft.sum()
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        rate = 0.05 * (1 - step / STEPS)
        w = w + rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        w = (w / np.linalg.norm(w)).astype(np.float32)
    return best


@dataclass(frozen=True)
class RowFacts:
    """Over the rows as the circuit's norm leaves them: least w.h / |h|, least and largest |h|."""

    n_rows: int
    n_zero: int
    least_cosine: float
    least_norm: float
    largest_norm: float


def row_facts(table: np.ndarray, direction: Direction, norm: np.ndarray, eps: float) -> RowFacts:
    cosine, low, high, zero = np.inf, np.inf, 0.0, 0
    w, dims = np.array(direction.w, np.float64), list(direction.dims)
    for part in chunks(table):
        h = normed_rows(part, norm, eps)
        size = np.sqrt((h.astype(np.float64) ** 2).sum(1))
        live = size > 0
        zero += int((~live).sum())
        if live.any():
            cosine = min(cosine, float(((h[live][:, dims] @ w) / size[live]).min()))
            low, high = min(low, float(size[live].min())), max(high, float(size[live].max()))
    return RowFacts(len(table), zero, cosine, low, high)


def normed_rows(rows: np.ndarray, norm: np.ndarray, eps: float) -> np.ndarray:
    """Qwen3_5RMSNorm in bf16: rows [n, hidden] float32; ``norm`` as stored (the module adds 1)."""
    mean = (rows * rows).mean(-1, keepdims=True, dtype=np.float32)
    return bf16(rows * (1 / np.sqrt(mean + np.float32(eps))) * (1 + norm))


def largest_row(layers: Iterable[LayerWeights], dims: tuple[int, ...]) -> float:
    """The largest norm of a gate, z, b or a row, guard dims left out."""
    largest = 0.0
    for layer in layers:
        for matrix in (layer.gate, layer.z, layer.b, layer.a):
            largest = max(largest, _largest_norm(matrix, dims))
    return largest


def _largest_norm(matrix: csr_array, dims: tuple[int, ...]) -> float:
    keep = ~np.isin(matrix.indices, dims)
    squares = np.where(keep, matrix.data.astype(np.float64), 0) ** 2
    sums = np.add.reduceat(np.append(squares, 0), np.minimum(matrix.indptr[:-1], len(squares)))
    return float(np.sqrt(np.where(np.diff(matrix.indptr) > 0, sums, 0).max(initial=0)))


def strength_for(facts: RowFacts, largest: float) -> float:
    """The power of two that makes every row silent; 0 where none can (a row on the wrong side)."""
    if facts.least_cosine <= 0 or facts.n_rows == facts.n_zero:
        return 0.0
    need = (LIMIT / facts.least_norm + largest) / facts.least_cosine
    strength = START_STRENGTH
    while strength < 2 * need and strength < MAX_STRENGTH:
        strength *= 2
    return strength


@dataclass(frozen=True)
class Proof:
    """What was proven. ``bound``: the largest pre-activation that any text row can reach (must be
    <= -LIMIT); ``equal_rows``: rows whose residual left the circuit bit-identical, of those run."""

    rows: int
    zero_rows: int
    margin: float
    failing_rows: int
    strength: float
    bound: float
    rows_run: int
    equal_rows: int
    state_untouched: bool

    @property
    def holds(self) -> bool:
        ran_well = self.equal_rows == self.rows_run and self.state_untouched
        return self.failing_rows == 0 and self.bound <= -LIMIT and ran_well

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}


def prove_bound(facts: RowFacts, direction: Direction, strength: float, largest: float) -> float:
    """The largest pre-activation of any silent row on any text row, by Cauchy and Schwarz."""
    if facts.n_rows == facts.n_zero:
        return -np.inf
    per_unit = largest - strength * facts.least_cosine
    return per_unit * (facts.least_norm if per_unit < 0 else facts.largest_norm)


def run_rows(
    table: np.ndarray,
    layers: Iterable[LayerWeights],
    eps: float,
    progress: Callable[[int], None] = lambda n: None,
) -> tuple[int, bool]:
    """Runs the layers' gates over every row: (rows left bit-identical, state untouched).

    A row stays as it is where silu of every gate and of every z is 0 (all that a layer adds goes
    through one of them); the state stays where beta is 0 and g is 0. Zero rows give all-zero keys.
    """
    layers = list(layers)
    equal, untouched = 0, True
    for part in chunks(table):
        h = np.ascontiguousarray(normed_rows(part, layers[0].input_norm, eps).T)
        live = (h != 0).any(0)
        silent = np.ones(h.shape[1], bool)
        for layer in layers:
            for matrix in (layer.gate, layer.z):
                x = _nonempty(matrix) @ h
                silent &= ((x <= -LIMIT / 2) | (x == 0)).all(0)
            b, a = _nonempty(layer.b) @ h, _nonempty(layer.a) @ h
            untouched &= bool(((b <= -LIMIT / 2) | ~live).all() and (a <= 0).all())
        equal += int(silent.sum())
        progress(h.shape[1])
    return equal, untouched


def _nonempty(matrix: csr_array) -> csr_array:
    return matrix[np.flatnonzero(np.diff(matrix.indptr))]


@dataclass(frozen=True)
class Silent:
    """A plan for one base, with the silence that its table allows and the proof of it."""

    plan: Plan
    silence: Silence
    proof: Proof


def make_silent(
    spec: MachineSpec,
    widths: Widths,
    table: np.ndarray,
    *,
    weak: frozenset[int] = frozenset(),
    run: bool = True,
    progress: Callable[[int], None] = lambda n: None,
) -> Silent:
    """Finds the direction on the base's embedding ``table`` [rows, hidden] (anything that slices to
    float32 holding bf16 numbers), builds the plan around it, and proves the silence.

    ``weak``: dims to keep the output code off. ``run``: also run every row through the gates;
    ``progress`` is told how many rows each step did.
    """
    direction = find_direction(table, N_GUARDS, widths.eps)
    plan = build_plan(spec, widths, direction.dims, weak)
    facts, largest, strength = _measure(plan, direction, table)
    # Where no direction exists the circuit is as silent as it can be; the proof says it fails.
    silence = Silence(direction.dims, direction.w, strength or START_STRENGTH)
    bound = prove_bound(facts, direction, silence.strength, largest)
    return Silent(plan, silence, _run(plan, silence, table, direction, facts, bound, run, progress))


def _measure(plan: Plan, direction: Direction, table: np.ndarray) -> tuple[RowFacts, float, float]:
    weights = list(circuit_layers(plan, Silence(direction.dims, direction.w, START_STRENGTH)))
    facts = row_facts(table, direction, weights[0].input_norm, plan.widths.eps)
    largest = largest_row(weights, direction.dims)
    return facts, largest, strength_for(facts, largest)


def _run(plan: Plan, silence: Silence, table: np.ndarray, direction: Direction, facts: RowFacts,
         bound: float, run: bool, progress: Callable[[int], None]) -> Proof:  # fmt: skip
    equal, untouched = 0, True
    if run:
        weights = [w for w in circuit_layers(plan, silence) if w.gate.nnz or w.z.nnz or w.b.nnz]
        equal, untouched = run_rows(table, weights, plan.widths.eps, progress)
    return Proof(
        facts.n_rows, facts.n_zero, direction.margin, direction.failing, silence.strength, bound,
        len(table) if run else 0, equal, untouched,
    )  # fmt: skip
