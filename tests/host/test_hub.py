"""Finding a base: a folder, the hub, or one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from qgpu.errors import CheckpointError
from qgpu.host.hub import cached, resolve_base


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_base(str(tmp_path)) == tmp_path
    for name in ("./none", "/none", "none", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no model folder"):
            resolve_base(name)


def test_an_id_is_fetched_at_the_revision_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert resolve_base("Qwen/Qwen3.5-2B", "abc") == tmp_path
    assert (asked["name"], asked["revision"]) == ("Qwen/Qwen3.5-2B", "abc")
    assert "*.safetensors" in asked["allow_patterns"]


def test_without_a_network_and_a_cache_the_line_says_what_to_do(tmp_path: Path) -> None:
    code = "from qgpu.host.hub import resolve_base; resolve_base('Qwen/Qwen3.5-2B')"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                         text=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert run.stderr.splitlines()[-1] == (
        "qgpu.errors.CheckpointError: Qwen/Qwen3.5-2B is not in the local cache and the hub cannot "
        "be reached (HF_HUB_OFFLINE is set); name a folder with --base, or make a stand-in with "
        "`qgpu standin`"
    )


def test_nothing_is_cached_where_nothing_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert cached("Qwen/none-of-this") is None
