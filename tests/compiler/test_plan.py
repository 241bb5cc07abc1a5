"""The plan: it fits, it reports itself, and a base too narrow is refused with the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qgpu.compiler.emit import NO_SILENCE, embedding_rows, emit_layer, head_rows
from qgpu.compiler.plan import N_CIRCUIT_LAYERS, build_plan
from qgpu.compiler.report import layer_uses
from qgpu.errors import CompileError
from qgpu.isa import LINES, Op
from qgpu.machine import REFERENCE, SMALL
from qgpu.tokens import tokens
from tests.compiler.test_machine import QWEN_2B


def test_the_reference_machine_fits_qwen_2b() -> None:
    uses = layer_uses(build_plan(REFERENCE, QWEN_2B))
    assert len(uses) <= N_CIRCUIT_LAYERS
    assert max(use.heads for use in uses) <= 16
    assert max(use.neurons for use in uses) <= 6144
    assert max(use.dims for use in uses) <= 2048
    assert len({use.name for use in uses}) == len(uses)


@pytest.mark.parametrize("hidden", [256, 1024])
def test_a_narrow_base_is_refused(hidden: int) -> None:
    with pytest.raises(CompileError, match=f"hidden size {hidden} is too narrow: .* are free"):
        build_plan(REFERENCE, replace(QWEN_2B, hidden=hidden))


def test_few_neurons_are_refused() -> None:
    with pytest.raises(CompileError, match="neurons in stage0"):
        build_plan(REFERENCE, replace(QWEN_2B, intermediate=3584))


@pytest.mark.parametrize(("hidden", "pins"), [(1024, 4), (2048, 2), (2560, 10), (4096, 4)])
def test_pins(hidden: int, pins: int) -> None:
    """hidden / pins is a power of 4, so that the norm's scale is an exact power of two."""
    assert replace(QWEN_2B, hidden=hidden).n_pins == pins


@pytest.mark.parametrize("hidden", [2560, 4096])
def test_wider_bases_take_the_machine(hidden: int) -> None:
    wide = replace(QWEN_2B, hidden=hidden, intermediate=9216, n_value_heads=32)
    plan = build_plan(SMALL, wide)
    for layer in plan.layers:
        weights = emit_layer(plan, layer, NO_SILENCE)
        assert weights.gate.shape == (9216, hidden)
        assert weights.b.shape == (32, hidden)


def test_every_operation_has_lines_and_a_circuit() -> None:
    """Each control line is read by some neuron, head or key of the first stage."""
    plan = build_plan(SMALL, QWEN_2B)
    used = {line for op in Op for line in op.info.lines}
    assert used == set(LINES)
    read = {
        dim
        for layer in plan.layers
        if layer.name.startswith("stage0")
        for neuron in layer.neurons
        for form in (neuron.gate, neuron.up)
        for dim in form
    }
    plan_layer = next(layer for layer in plan.layers if layer.name == "plan")
    control = next(head for head in plan_layer.heads if head.name == "rom.1")
    for place, line in enumerate(LINES):
        (dim,) = control.out[place]
        assert dim in read, line


def test_token_rows_differ() -> None:
    plan = build_plan(SMALL, QWEN_2B)
    for rows in (embedding_rows(plan), head_rows(plan, 0.05)):
        assert len(np.unique(rows, axis=0)) == len(tokens(SMALL))
