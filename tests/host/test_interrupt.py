"""Writes that end early: a full disk, Ctrl-C, a killed process. Nothing half-written ever loads."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qgpu.compiler import merge as module
from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.merge import staged
from qgpu.errors import CheckpointError, NoModelError, UsageError
from qgpu.host.model import gpu_config, verify_hashes
from tests.host.small import merge_idle, narrow_base

# Merges into argv[2]; says so when it comes to the argv[3]-th piece of a shard, and waits there.
SLOW = """
import sys, time
from pathlib import Path
from qgpu.compiler.checkpoint import Folder
from tests.host.small import merge_idle
seen = 0
def progress(n):
    global seen
    seen += 1
    if seen == int(sys.argv[3]):
        print("writing", flush=True)
        time.sleep(60)
merge_idle(Folder.open(sys.argv[1]), Path(sys.argv[2]), progress=progress)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return narrow_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def whole(base: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "model"
    merge_idle(base, path)
    return contents(path)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def stop_a_merge(base: Folder, target: Path, how: signal.Signals, piece: int) -> int:
    """Runs a merge in a process of its own and sends it a signal in the middle of a shard."""
    argv = [sys.executable, "-c", SLOW, str(base.path), str(target), str(piece)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          cwd=Path(__file__).parents[2]) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(how)
        return process.wait(30)


@pytest.mark.parametrize(
    ("how", "piece"), [(signal.SIGINT, 20), (signal.SIGTERM, 5), (signal.SIGKILL, 60)]
)
@pytest.mark.parametrize("old", [False, True], ids=["", "over an old one"])
def test_a_stopped_build_leaves_nothing_that_loads_and_the_next_one_is_whole(
    base: Folder, whole: dict[str, bytes], tmp_path: Path, how: signal.Signals, piece: int,
    old: bool,
) -> None:  # fmt: skip
    target = tmp_path / "model"
    if old:
        merge_idle(base, target)
    assert stop_a_merge(base, target, how, piece) != 0
    if old:
        assert contents(target) == whole
    else:
        with pytest.raises(NoModelError):
            Folder.open(target)
    for left in tmp_path.glob(".*"):
        with pytest.raises(CheckpointError):
            Folder.open(left)
    merge_idle(base, target)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert contents(target) == whole


def full(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


WRITES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "shards": lambda patch: patch.setattr(module, "write_shards", full),
    "JSON": lambda patch: patch.setattr(module, "write_json", full),
    "copies": lambda patch: patch.setattr(module.shutil, "copyfile", full),
    "texts": lambda patch: patch.setattr(Path, "write_text", full),
    "folder": lambda patch: patch.setattr(Path, "mkdir", full),
    "name": lambda patch: patch.setattr(Path, "rename", full),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_disk_that_is_full_at_any_write_leaves_nothing(
    base: Folder, tmp_path: Path, write: str
) -> None:
    (base.path / "LICENSE").touch()  # something that is copied
    with pytest.MonkeyPatch.context() as patch:
        WRITES[write](patch)
        with pytest.raises(CheckpointError, match=r"^the disk is full: the checkpoint .* written$"):
            merge_idle(base, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    (base.path / "LICENSE").unlink()


def test_a_new_checkpoint_that_cannot_take_the_name_leaves_the_old_one(
    base: Folder, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_idle(base, tmp_path / "model")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda self, to: refuse(self, to)
                      if self.parent == tmp_path else rename(self, to))  # fmt: skip
        with pytest.raises(CheckpointError, match="was not written: Permission denied"):
            merge_idle(base, tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert contents(tmp_path / "model") == whole


def test_a_process_that_died_between_the_two_renames_is_recovered_from(
    base: Folder, whole: dict[str, bytes], tmp_path: Path
) -> None:
    merge_idle(base, tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model.old")
    with pytest.raises(RuntimeError), staged(tmp_path / "model", "it"):
        raise RuntimeError
    assert contents(tmp_path / "model") == whole


def test_what_is_read_is_not_written_over(base: Folder, tmp_path: Path) -> None:
    before = contents(base.path)
    (tmp_path / "link").symlink_to(base.path)
    for target in (base.path, tmp_path / "link", base.path / "." / ".." / base.path.name):
        with pytest.raises(UsageError, match="is what is read: name another folder to write"):
            merge_idle(base, target)
    assert contents(base.path) == before


@pytest.mark.parametrize("manifest", ["{}", '{"name": "an app"}', "{", "[]"])
def test_a_manifest_of_something_else_protects_its_folder(
    base: Folder, tmp_path: Path, manifest: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint of qgpu"):
        merge_idle(base, tmp_path / "app")
    assert (tmp_path / "app" / "manifest.json").read_text() == manifest
    (tmp_path / "file").write_text("text")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint of qgpu"):
        merge_idle(base, tmp_path / "file")
    with pytest.raises(CheckpointError, match="was not written: Not a directory"):
        merge_idle(base, tmp_path / "file" / "model")


def test_the_present_folder_and_an_old_stand_in_may_be_written(
    base: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    merge_idle(base, Path())
    assert verify_hashes(tmp_path) > 5
    narrow_base(tmp_path.parent / f"{tmp_path.name}-standin")
    target = tmp_path.parent / f"{tmp_path.name}-standin"
    merge_idle(base, target)
    assert gpu_config(Folder.open(target))["first_token"] == 512
