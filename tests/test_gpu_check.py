"""The part of the GPU check that needs no GPU: the prepared folder and the comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import gpu_check
from tests.cases import EXAMPLES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    gpu_check.prepare(out, ["-O1", "-O3"], 0, 0, only="vector_add")
    return out


def test_the_folder_holds_all_that_a_run_needs(folder: Path) -> None:
    first, second = json.loads((folder / "cases.json").read_text())
    assert [first["name"], second["name"]] == ["02_vector_add", "02_vector_add-O3"]
    assert (first["grid"], first["block"], first["shared"]) == ([2, 1, 1], [4, 1, 1], 0)
    a, _, c, n = first["params"]
    assert np.frombuffer(bytes.fromhex(a["bytes"]), np.int32).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert np.frombuffer(bytes.fromhex(c["expect"]), np.int32).tolist()[-1] == 77
    assert n == {"kind": "value", "bytes": "07000000"}
    assert f".entry {first['kernel']}(" in (folder / first["ptx"]).read_text()


def _final(case: gpu_check.Record) -> list[bytes | None]:
    """What a right GPU would hand back."""
    return [
        gpu_check.GUARD + bytes.fromhex(param["expect"]) + gpu_check.GUARD
        if param["kind"] == "array"
        else None
        for param in case["params"]
    ]


def test_right_words_pass_and_are_counted(folder: Path) -> None:
    case = json.loads((folder / "cases.json").read_text())[0]
    assert gpu_check._differences(case, _final(case)) == (21, [])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (len(gpu_check.GUARD) + 5, "argument 2 (int32) from byte 5: "),
        (0, "argument 2: a write outside the array"),
        (-1, "argument 2: a write outside the array"),
    ],
)
def test_a_changed_byte_is_found(folder: Path, at: int, message: str) -> None:
    case = json.loads((folder / "cases.json").read_text())[0]
    final = _final(case)
    changed = bytearray(final[2] or b"")
    changed[at] ^= 1
    final[2] = bytes(changed)
    _, (difference,) = gpu_check._differences(case, final)
    assert difference.startswith(message)


def test_without_a_driver_it_says_so(folder: Path, tmp_path: Path) -> None:
    script = EXAMPLES.parent / "bench" / "gpu_check.py"
    done = subprocess.run(
        [sys.executable, str(script), "run", str(folder), "--out", str(tmp_path / "r.json")],
        capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": ""},
    )  # fmt: skip
    if done.returncode == 0:
        pytest.skip("this machine has an NVIDIA GPU")
    assert done.stderr.strip() == "error: no NVIDIA driver here: libcuda.so.1 is not found"
