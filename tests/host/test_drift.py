"""The figures of the drift, on logits whose answer is known, and on a base with idle layers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from qgpu.host.drift import Drift, TextRun, built_in_text, new_cache, run_text
from qgpu.host.drift import compare as compare_runs
from qgpu.host.model import load_hf
from tests.host.small import merge_idle, narrow_base


def compare(base: torch.Tensor, merged: torch.Tensor) -> Drift:
    """The drift between logits, where every state is the same."""
    states = torch.zeros(len(base), 3)
    return compare_runs(TextRun(base, states), TextRun(merged, states))


def test_states_are_counted_apart_from_logits() -> None:
    logits, states = torch.zeros(5, 4), torch.ones(5, 3)
    other = states.clone()
    other[2, 1] = 2
    drift = compare_runs(TextRun(logits, states), TextRun(logits + 1, other))
    assert (drift.identical, drift.identical_states) == (0, 4)


def test_equal_logits_have_no_drift() -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    drift = compare(logits, logits)
    assert (drift.identical, drift.positions, drift.top1, drift.max) == (7, 7, 1.0, 0.0)


def test_new_rows_cost_their_share_of_the_probability() -> None:
    base = torch.zeros(3, 4)
    merged = torch.zeros(3, 8)
    drift = compare(base, merged)
    assert drift.identical == 3
    assert drift.mean == pytest.approx(math.log(2))
    assert drift.median == drift.p99 == drift.max == pytest.approx(math.log(2))


def test_a_known_divergence_is_found_at_its_position() -> None:
    base = torch.zeros(4, 2)
    merged = base.clone()
    merged[2] = torch.tensor([math.log(3), 0.0])
    drift = compare(base, merged)
    wanted = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert drift.max == pytest.approx(wanted, rel=1e-6)
    assert drift.mean == pytest.approx(wanted / 4, rel=1e-6)
    assert drift.median == 0
    assert drift.identical == 3
    merged[1] = torch.tensor([0.0, 1.0])
    assert compare(base, merged).top1 == 0.75


def test_idle_layers_change_no_bit_in_either_mode(tmp_path: Path) -> None:
    base = narrow_base(tmp_path / "base")
    merge_idle(base, tmp_path / "merged")
    ids = [int(i) for i in torch.arange(1, 41) * 7 % 512]
    before, after = (load_hf(path, device="cpu") for path in (base.path, tmp_path / "merged"))
    for step in (16, 1):
        texts = [
            run_text(hf, ids, new_cache(hf), step, lambda done: None) for hf in (before, after)
        ]
        drift = compare_runs(*texts)
        assert drift.identical == drift.identical_states == len(ids)


def test_the_built_in_text_has_several_scripts_code_and_turns() -> None:
    text = built_in_text()
    for part in ("<|im_start|>user", "春", "सुबह", "__global__", "\\sum", "Быстрая", "العربية"[:2]):
        assert part in text
