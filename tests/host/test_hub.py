"""Finding a base: a folder, the hub, or one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from qgpu.errors import CheckpointError
from qgpu.host.hub import cached, commit_of, read_lock, resolve_base
from tests.host.fake_hub import Hub, serving


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_base(str(tmp_path)) == tmp_path
    for name in ("./none", "/none", "none", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no model folder"):
            resolve_base(name)


NAME = "Qwen/Qwen3.5-2B"
OLD, NEW = "a" * 40, "b" * 40
PART = 10 * 2**20  # what huggingface_hub keeps of a download that breaks off is a multiple
LARGE = bytes(2 * PART + 5)


@pytest.fixture
def hub() -> Iterator[Hub]:
    commits = {OLD: {"config.json": b"{}", "model.safetensors": LARGE, "video.mp4": b"no"},
               NEW: {"config.json": b"{ }", "model.safetensors": b"new"}}  # fmt: skip
    with serving(Hub(NAME, commits, {"main": OLD})) as served:
        yield served


def fetch(folder: Path, url: str, more: str = "", **environment: str) -> tuple[str, str]:
    """(the snapshot's name, the last line of an error) of a build's first step in ``folder``."""
    code = f"from qgpu.host.hub import resolve_base; print(resolve_base({NAME!r}{more}))"
    env = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1",
           "PATH": "/usr/bin", "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    run = subprocess.run([sys.executable, "-c", code], env=env | environment, cwd=folder,
                         capture_output=True, text=True)  # fmt: skip
    return Path(run.stdout.strip()).name, run.stderr.strip().splitlines()[-1] if run.stderr else ""


def test_the_first_fetch_pins_the_commit_for_those_that_follow(tmp_path: Path, hub: Hub) -> None:
    assert fetch(tmp_path, hub.url)[0] == OLD
    assert read_lock(tmp_path / "qgpu.lock.json") == {NAME: OLD}
    snapshot = tmp_path / "hf/hub/models--Qwen--Qwen3.5-2B/snapshots" / OLD
    assert sorted(file.name for file in snapshot.iterdir()) == ["config.json", "model.safetensors"]
    assert commit_of(snapshot) == OLD and commit_of(tmp_path) is None
    hub.branches["main"] = NEW
    assert fetch(tmp_path, hub.url)[0] == OLD
    assert fetch(tmp_path, hub.url, ", 'main'")[0] == NEW
    assert read_lock(tmp_path / "qgpu.lock.json") == {NAME: OLD}
    assert fetch(tmp_path, hub.url, HF_HUB_OFFLINE="1")[0] == OLD
    assert fetch(tmp_path, hub.url, ", 'none'")[1].startswith(
        f"qgpu.errors.CheckpointError: {NAME} at none cannot be fetched: 404"
    )
    (tmp_path / "qgpu.lock.json").unlink()
    assert fetch(tmp_path, hub.url)[0] == NEW


def test_a_download_that_breaks_off_goes_on_where_it_ended(tmp_path: Path, hub: Hub) -> None:
    hub.break_after, hub.breaks = PART + 100, 1
    assert fetch(tmp_path, hub.url)[0] == OLD
    assert hub.ranges == [f"bytes={PART}-"]
    whole = tmp_path / "hf/hub/models--Qwen--Qwen3.5-2B/snapshots" / OLD / "model.safetensors"
    assert whole.read_bytes() == LARGE


def test_a_line_that_stays_dead_keeps_the_files_that_came_whole(tmp_path: Path, hub: Hub) -> None:
    hub.break_after, hub.breaks = 100, 10**6
    name, error = fetch(tmp_path, hub.url)
    assert name == ""
    assert error.startswith(f"qgpu.errors.CheckpointError: the download of {NAME} broke off (")
    assert not (tmp_path / "qgpu.lock.json").exists()
    hub.breaks, hub.served = 0, []
    assert fetch(tmp_path, hub.url)[0] == OLD
    assert hub.served == ["model.safetensors"]


def test_a_pinned_commit_that_is_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "qgpu.lock.json").write_text(json.dumps({NAME: NEW}))
    _, error = fetch(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert error.startswith(f"qgpu.errors.CheckpointError: {NAME} at {NEW} is not in the local ")


@pytest.mark.parametrize("text", ["{", "[1]", '{"a/b": "main"}', '{"a/b": 3}', '"x"', "\xff"])
def test_a_lock_file_that_pins_nothing_is_refused(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "lock.json"
    lock.write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"lock\.json"):
        resolve_base(NAME, lock=lock)


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
