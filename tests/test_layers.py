"""The direction of imports, as pyproject.toml states it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_imports_go_one_way() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    run = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_the_interpreter_needs_no_torch() -> None:
    code = (
        "import sys, qgpu\n"
        "k = qgpu.compile('__global__ void k(int *a) { a[0] = 7; }').kernel('k')\n"
        "assert qgpu.launch(k, args=[[0]], check=True).args[0].tolist() == [7]\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
