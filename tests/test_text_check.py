"""The text check goes on where a part fails, and says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import text_check


def test_a_step_that_fails_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    record = text_check.Record(tmp_path / "part.json")
    with record.step("first"):
        raise ValueError("no such thing")
    with record.step("second"):
        record.facts["second"] = 2
    said = json.loads((tmp_path / "part.json").read_text())
    assert said["first: failed"] == "ValueError: no such thing"
    assert said["second"] == 2 and said["second: seconds"] >= 0


def test_parts_without_a_model_leave_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results" / "text.json"
    monkeypatch.setattr(sys, "argv", [
        "text_check.py", "--out", str(out), "--work", str(tmp_path / "work"),
        "--parts", "drift", "fla",
    ])  # fmt: skip
    text_check.main()
    said = json.loads(out.read_text())
    missing = tmp_path / "work" / "base"
    assert said["drift"]["drift: failed"] == f"NoModelError: there is no model folder {missing}"
    assert said["fla"]["not run"] == "flash-linear-attention is not installed"
    assert (
        said["fla"]["memory"]["peak GiB"] >= said["fla"]["memory"]["peak GiB without mapped files"]
    )
    assert {"date", "card", "torch", "transformers"} <= set(said)


def test_parts_that_do_not_run_again_stay_with_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "text.json"
    out.write_text(json.dumps({"dense": {"load": "kept"}, "fla": {"load": "older"}}))
    monkeypatch.setattr(sys, "argv", [
        "text_check.py", "--out", str(out), "--work", str(tmp_path), "--limit", "5",
        "--add", "--parts", "fla",
    ])  # fmt: skip
    text_check.main()
    said = json.loads(out.read_text())
    assert said["dense"] == {"load": "kept"}
    assert said["fla"] == {"not run": "no time was left"}


def test_no_part_starts_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "text.json"
    monkeypatch.setattr(sys, "argv", ["text_check.py", "--out", str(out), "--limit", "5",
                                      "--work", str(tmp_path / "work")])  # fmt: skip
    text_check.main()
    said = json.loads(out.read_text())
    assert all(said[name] == {"not run": "no time was left"} for name in text_check.PARTS)
