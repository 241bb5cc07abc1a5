"""The table that `qgpu build` prints."""

from __future__ import annotations

import io

from rich.console import Console

from qgpu.cli.checkpoint import layer_table
from qgpu.compiler.plan import build_plan
from qgpu.compiler.report import layer_uses
from qgpu.machine import SMALL
from tests.compiler.test_machine import QWEN_2B


def test_every_layer_has_a_row_with_its_use() -> None:
    plan = build_plan(SMALL, QWEN_2B)
    uses = layer_uses(plan)
    assert [use.name for use in uses] == [layer.name for layer in plan.layers]
    assert all(use.dims > 0 and use.heads + use.neurons > 0 for use in uses)
    out = Console(file=io.StringIO(), width=100)
    out.print(layer_table([vars(use) for use in uses]))
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert all(use.name in shown and str(use.neurons) in shown for use in uses)
