"""The text check goes on where a part fails, and says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import text_check, text_loading
from bench.text_record import Options, Record
from qgpu.compiler.checkpoint import Stored


def test_a_step_that_fails_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    record = Record(tmp_path / "part.json")
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


def test_vllm_needs_a_python_that_has_it(tmp_path: Path) -> None:
    record = Record(tmp_path / "part.json")
    text_loading.part_vllm(record, Options(tmp_path))
    assert record.facts == {"not run": "--vllm names no Python that has vLLM"}


@pytest.mark.parametrize(("said", "wrong"), [
    ([7, 8, 9], None), ([7, 5, 9], 1), ([7, 8], 2), ([7, 8, 9, 9], 3), ([], 0),
])  # fmt: skip
def test_the_first_wrong_token_is_named(said: list[int], wrong: int | None) -> None:
    found = text_loading.compared({"said": said, "seconds": 2.0}, [7, 8, 9])
    assert (found["exact"], found["first wrong"]) == (wrong is None, wrong)


def test_stored_tensors_are_compared_by_type_shape_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes([1, 2, 3, 4, 1, 2, 3, 5]))

    def stored(start: int, dtype: str = "BF16", shape: tuple[int, ...] = (2,)) -> Stored:
        return Stored(tmp_path / "bytes", start, start + 4, dtype, shape)

    assert text_loading.same_bytes(stored(0), stored(0))
    assert not text_loading.same_bytes(stored(0), stored(4))
    assert not text_loading.same_bytes(stored(0), stored(0, "F16"))
    assert not text_loading.same_bytes(stored(0), stored(0, shape=(1, 2)))
