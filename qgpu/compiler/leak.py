"""What a row of text that the circuit is not silent on becomes: measured, where no proof holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qgpu.compiler.emit import Silence, emit_layer
from qgpu.compiler.evaluate import CompactLayer
from qgpu.compiler.plan import Plan


def leak(plan: Plan, silence: Silence, rows: np.ndarray) -> dict[str, Any]:
    """How far ``rows`` [n, hidden] move through the circuit, fed as one text on an empty state.

    A row's drift is the norm of what was added over its own norm.
    """
    x = before = np.ascontiguousarray(rows.T)
    with np.errstate(all="ignore"):
        for layer in plan.layers:
            weights = emit_layer(plan, layer, silence)
            x = CompactLayer(weights, plan, len(layer.heads), len(layer.neurons)).forward(x)
        moved = np.linalg.norm(x - before, axis=0) / np.linalg.norm(before, axis=0)
    finite = moved[np.isfinite(moved)]
    return {
        "rows": len(rows),
        "not_finite": len(rows) - len(finite),
        "mean": float(finite.mean()) if len(finite) else None,
        "largest": float(finite.max()) if len(finite) else None,
    }


def rows_at(table: Any, numbers: Sequence[int]) -> np.ndarray:
    """Some rows of a table that can only be sliced."""
    return np.concatenate([np.asarray(table[n : n + 1], np.float32) for n in numbers])
