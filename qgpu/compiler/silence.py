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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array, vstack

from qgpu.compiler.emit import Silence, bf16, circuit_layers
from qgpu.compiler.plan import N_GUARDS, Plan, Widths, build_plan
from qgpu.errors import CompileError
from qgpu.machine import MachineSpec

LIMIT = 512.0  # silu is 0 in bf16 from -104 down, sigmoid from -240; twice that for bf16's rounding
START_STRENGTH = 2.0**20
MAX_STRENGTH = 2.0**60
CHUNK = 4096
STEPS = 600
GUARD_CHOICES = (N_GUARDS, 2 * N_GUARDS)
MOVED_KEPT = 256  # rows that are named where the proof fails


class Table(Protocol):
    """An embedding table [rows, hidden]; slices of rows are arrays of bf16 numbers."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


class Gating(Protocol):
    """The part of a circuit layer that silence hangs on: what decides whether anything is added."""

    @property
    def input_norm(self) -> np.ndarray: ...
    @property
    def post_norm(self) -> np.ndarray: ...
    @property
    def gate(self) -> csr_array: ...
    @property
    def z(self) -> csr_array: ...
    @property
    def b(self) -> csr_array: ...
    @property
    def a(self) -> csr_array: ...


@dataclass(frozen=True)
class Direction:
    """A direction on guard dims. ``margin`` is the least w.x over the rows x of unit RMS (zero rows
    left out: no direction tells them from anything); ``failing`` counts the rows on the wrong
    side."""

    dims: tuple[int, ...]
    w: tuple[float, ...]
    margin: float
    failing: int


def unit_rows(table: np.ndarray, eps: float) -> np.ndarray:
    """Rows over their own RMS, as RMSNorm sees them; [n, hidden] float32."""
    mean = (table * table).mean(-1, keepdims=True, dtype=np.float64)
    return (table / np.sqrt(mean + eps)).astype(np.float32)


def chunks(table: Table) -> Iterator[np.ndarray]:
    for start in range(0, len(table), CHUNK):
        yield np.asarray(table[start : start + CHUNK], np.float32)


def find_direction(table: Table, n_guards: int, eps: float = 1e-6) -> Direction:
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


def row_facts(table: Table, direction: Direction, norm: np.ndarray, eps: float) -> RowFacts:
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


def largest_row(layers: Iterable[Gating], dims: tuple[int, ...]) -> float:
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
    <= -LIMIT); ``equal_rows``: rows whose residual left the circuit bit-identical, of those run;
    ``moved``: the first rows that did not."""

    rows: int
    zero_rows: int
    margin: float
    failing_rows: int
    strength: float
    bound: float
    rows_run: int
    equal_rows: int
    state_untouched: bool
    moved: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        ran_well = self.equal_rows == self.rows_run and self.state_untouched
        return self.failing_rows == 0 and self.bound <= -LIMIT and ran_well

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"moved": list(self.moved), "holds": self.holds}


def prove_bound(facts: RowFacts, direction: Direction, strength: float, largest: float) -> float:
    """The largest pre-activation of any silent row on any text row, by Cauchy and Schwarz."""
    if facts.n_rows == facts.n_zero:
        return -np.inf
    per_unit = largest - strength * facts.least_cosine
    return per_unit * (facts.least_norm if per_unit < 0 else facts.largest_norm)


@dataclass(frozen=True)
class RowRun:
    """What running rows through the gates showed. ``moved``: the first rows that do not stay as
    they are, by number; ``untouched``: no row writes to the state or lets it decay."""

    rows: int
    equal: int
    untouched: bool
    moved: tuple[int, ...]


def distinct_rows(matrices: Iterable[csr_array]) -> csr_array:
    """One matrix of the nonempty rows of all matrices, each only once: layers share most."""
    stacked: csr_array = vstack([_nonempty(matrix) for matrix in matrices], format="csr")
    stacked.sort_indices()
    starts = stacked.indptr
    seen: dict[tuple[bytes, bytes], int] = {}
    for row in range(stacked.shape[0]):
        part = slice(starts[row], starts[row + 1])
        seen.setdefault((stacked.indices[part].tobytes(), stacked.data[part].tobytes()), row)
    return stacked[list(seen.values())]


def run_rows(
    table: Table,
    layers: Iterable[Gating],
    eps: float,
    progress: Callable[[int], None] = lambda n: None,
) -> RowRun:
    """Runs the gates of all layers over every row; the layers must share one norm.

    A row stays as it is where silu of every gate and of every z is 0 (all that a layer adds goes
    through one of them); the state stays where beta is 0 and g is 0. A zero row has beta 1/2: it
    stays as it is, but the heads that look a token back may then write, so it counts as touching.
    """
    layers = list(layers)
    norm = layers[0].input_norm
    gates = distinct_rows(m for layer in layers for m in (layer.gate, layer.z))
    b, a = (distinct_rows(getattr(layer, name) for layer in layers) for name in "ba")
    moved: list[int] = []
    equal, untouched, first = 0, True, 0
    for part in chunks(table):
        h = np.ascontiguousarray(normed_rows(part, norm, eps).T)
        x = gates @ h
        silent = ((x <= -LIMIT / 2) | (x == 0)).all(0)
        untouched &= bool(((b @ h) <= -LIMIT / 2).all() and ((a @ h) <= 0).all())
        equal += int(silent.sum())
        if len(moved) < MOVED_KEPT:
            moved += [first + int(i) for i in np.flatnonzero(~silent)]
        first += h.shape[1]
        progress(h.shape[1])
    return RowRun(len(table), equal, untouched, tuple(moved[:MOVED_KEPT]))


def _nonempty(matrix: csr_array) -> csr_array:
    return matrix[np.flatnonzero(np.diff(matrix.indptr))]


@dataclass(frozen=True)
class Silent:
    """A plan for one base, with the silence that its table allows and the proof of it."""

    plan: Plan
    silence: Silence
    direction: Direction
    proof: Proof


def make_silent(
    spec: MachineSpec,
    widths: Widths,
    table: Table,
    *,
    weak: frozenset[int] = frozenset(),
    run: bool = True,
    progress: Callable[[int], None] = lambda n: None,
) -> Silent:
    """Finds the direction on the base's embedding ``table``, builds the plan around it, and proves
    the silence. Where no direction exists the circuit is as silent as it can be; the proof says
    that it fails.

    ``weak``: dims to keep the output code off. ``run``: also run every row through the gates;
    ``progress`` is told how many rows each step did.
    """
    direction, plan = _place_guards(spec, widths, table, weak)
    weights = list(circuit_layers(plan, Silence(direction.dims, direction.w, START_STRENGTH)))
    facts = row_facts(table, direction, weights[0].input_norm, widths.eps)
    strength = strength_for(facts, largest_row(weights, direction.dims)) or START_STRENGTH
    silence = Silence(direction.dims, direction.w, strength)
    weights = [w for w in circuit_layers(plan, silence) if w.gate.nnz or w.z.nnz or w.b.nnz]
    proof = prove(weights, direction, strength, table, widths.eps, run, progress)
    return Silent(plan, silence, direction, proof)


def _place_guards(
    spec: MachineSpec, widths: Widths, table: Table, weak: frozenset[int]
) -> tuple[Direction, Plan]:
    """The direction with the fewest failing rows, on more guard dims only where few do not do and
    the circuit leaves room for them."""
    best: tuple[Direction, Plan] | None = None
    for n_guards in GUARD_CHOICES:
        direction = find_direction(table, n_guards, widths.eps)
        if best is None or direction.failing < best[0].failing:
            try:
                best = direction, build_plan(spec, widths, direction.dims, weak)
            except CompileError:
                if best is None:
                    raise
        if not best[0].failing:
            break
    assert best is not None
    return best


def prove(
    layers: Sequence[Gating],
    direction: Direction,
    strength: float,
    table: Table,
    eps: float,
    run: bool = True,
    progress: Callable[[int], None] = lambda n: None,
) -> Proof:
    """The proof for layers as they are, whoever made them; they must carry the direction."""
    check_guards(layers, direction, strength)
    facts = row_facts(table, direction, layers[0].input_norm, eps)
    bound = prove_bound(facts, direction, strength, largest_row(layers, direction.dims))
    ran = run_rows(table, layers, eps, progress) if run else RowRun(0, 0, True, ())
    return Proof(
        facts.n_rows, facts.n_zero, direction.margin, direction.failing, strength, bound,
        ran.rows, ran.equal, ran.untouched, ran.moved,
    )  # fmt: skip


def check_guards(layers: Sequence[Gating], direction: Direction, strength: float) -> None:
    """Every gate, z, b and a row carries exactly -strength * w on the guard dims, and all layers
    have one and the same norm; CompileError where not."""
    wanted = bf16(-np.array(direction.w, np.float32) * np.float32(strength))
    for number, layer in enumerate(layers):
        for norm in (layer.input_norm, layer.post_norm):
            if not np.array_equal(norm, layers[0].input_norm):
                raise CompileError(f"circuit layer {number} has a norm of its own")
        for name in ("gate", "z", "b", "a"):
            rows = _nonempty(getattr(layer, name))[:, list(direction.dims)].toarray()
            wrong = np.flatnonzero((rows != wanted).any(1))
            if len(wrong):
                raise CompileError(
                    f"circuit layer {number}: row {wrong[0]} of the used {name} rows does not "
                    "carry the direction of silence"
                )
