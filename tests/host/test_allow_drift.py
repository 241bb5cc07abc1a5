"""A base on which no direction makes the circuit silent: refused, and built only when asked to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from qgpu.compiler.checkpoint import MANIFEST, Folder, read_json
from qgpu.compiler.silence import MOVED_KEPT
from qgpu.errors import CheckError, CheckpointError
from qgpu.host.build import build, reachable_rows, silent_plan
from qgpu.host.model import Model
from qgpu.host.quantise import replay
from qgpu.host.standin import write_standin
from qgpu.host.verify import verify
from qgpu.machine import SMALL
from tests.host.small import N_UNNAMED, with_rows

pytestmark = pytest.mark.dense
N_TURNED = 5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rows of text lie opposite to five others: no direction has all on one side."""
    path = tmp_path_factory.mktemp("drift") / "base"
    write_standin("tiny", path)
    with_rows(path, lambda rows: torch.cat([rows[:-N_TURNED], -rows[:N_TURNED]]))
    return path


def test_it_is_refused_with_the_reason_and_nothing_is_written(base: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        build(base, base.parent / "model", SMALL, pad=False)
    line = str(caught.value)
    assert line.startswith(f"the circuit is NOT silent on text: {N_TURNED} of 2048 rows are on the")
    assert line.endswith("--allow-drift builds it all the same")
    assert "\n" not in line and caught.value.exit_code == 1
    assert [file.name for file in base.parent.iterdir()] == ["base"]


def test_asked_to_it_builds_records_the_drift_and_verify_says_so(base: Path) -> None:
    model = base.parent / "drifting"
    manifest = build(base, model, SMALL, pad=False, allow_drift=True)
    facts = read_json(model / MANIFEST)["facts"]["silence"]
    assert facts == manifest["facts"]["silence"]
    assert facts["holds"] is False
    assert facts["failing_rows"] == N_TURNED
    n_moved = 2048 - facts["equal_rows"]
    assert n_moved >= N_TURNED
    assert len(facts["moved"]) == min(n_moved, MOVED_KEPT)
    drift = facts["drift"]
    assert drift["rows"] == len(facts["moved"])
    assert drift["largest"] > 0 or drift["not_finite"] > 0
    assert "silence on text is NOT proven" in (model / "README.md").read_text()
    with pytest.raises(CheckError, match=f"is not silent on text: {n_moved} of 2048"):
        verify(model)
    replay(Model.load(model, device="cpu"))  # launches are as exact as anywhere


def add_rows(sign: int, rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, sign * rows[:N_UNNAMED]])


def test_rows_that_the_tokenizer_cannot_name_are_left_out_only_where_they_must(
    tmp_path: Path,
) -> None:
    for turned in (False, True):
        path = tmp_path / f"turned-{turned}"
        write_standin("tiny", path)
        sign = -1 if turned else 1
        with_rows(path, partial(add_rows, sign))
        folder = Folder.open(path)
        assert reachable_rows(folder) == 2048
        silent, facts = silent_plan(folder, SMALL, run=False, progress=lambda n: None)
        assert silent.proof.holds
        assert facts["rows_left_out"] == (N_UNNAMED if turned else 0)
        assert facts["rows"] == 2048 + (0 if turned else N_UNNAMED)
