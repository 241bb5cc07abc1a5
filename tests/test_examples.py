"""The examples in the circuit's own weights: every token and word against the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qgpu
from qgpu.host.sparse import Circuit
from tests.cases import Case, example_cases

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("case", example_cases(), ids=lambda case: case.name)
def test_an_example_in_the_weights(case: Case) -> None:
    """check=True compares every token; the arrays are held against NumPy's here."""
    kernel = qgpu.compile(case.source).kernel(case.kernel)
    result = qgpu.launch(
        kernel, grid=case.grid, block=case.block, args=list(case.args), on=Circuit(), check=True,
        shared_words=case.dynamic_shared_words,
    )  # fmt: skip
    assert result.check == "ok"
    for index, wanted in case.expect.items():
        np.testing.assert_array_equal(result.args[index], wanted)


def test_the_python_kernel() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda makes the PTX of this example")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "13_python_kernel.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "check: ok" in done.stdout
