"""A checkpoint of the small machine that several modules look at; built once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qgpu.host.build import build
from qgpu.host.standin import write_standin
from qgpu.machine import SMALL
from tests.host.small import N_UNNAMED, with_rows


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Qwen3.5-2B's widths, two layers of base, and rows that the proof leaves out."""
    path = tmp_path_factory.mktemp("small")
    write_standin("tiny", path / "base")
    with_rows(path / "base", lambda rows: torch.cat([rows, -rows[:N_UNNAMED]]))
    build(path / "base", path / "model", SMALL, pad=False)
    return path / "model"
