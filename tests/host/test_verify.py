"""qgpu verify: every line that it fails with, each on a planted fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qgpu.compiler.checkpoint import CONFIG, MANIFEST, Folder, read_json, write_json
from qgpu.errors import CheckError, CheckpointError, Error
from qgpu.host.verify import verify
from tests.host.small import N_UNNAMED, flip, merge_idle, narrow_base

# --- files: a narrow checkpoint, copied for each fault --------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("narrow")
    merge_idle(narrow_base(path / "base"), path / "model")
    return path / "model"


@pytest.fixture
def copy(narrow: Path, tmp_path: Path) -> Path:
    shutil.copytree(narrow, tmp_path / "copy")
    return tmp_path / "copy"


def flip_tensor(path: Path, name: str, row: int = 0) -> None:
    """Flips the lowest bit of the first number of a row."""
    stored = Folder.open(path).tensors[name]
    flip(stored.file, stored.start + row * stored.n_bytes // stored.shape[0])


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = read_json(path)
    change(data)
    write_json(path, data)


def shard(path: Path) -> Path:
    return next(path.glob("*.safetensors"))


def swap_hashes(manifest: dict[str, Any]) -> None:
    files = manifest["files"]
    files[CONFIG], files["tokenizer.json"] = files["tokenizer.json"], files[CONFIG]


FILES: list[tuple[str, Callable[[Path], Any], str]] = [
    ("a bit of the circuit", lambda p: flip_tensor(p, "model.layers.1.mlp.down_proj.weight"),
     "does not have the hash of the manifest"),
    ("a bit of the base", lambda p: flip_tensor(p, "model.layers.4.mlp.up_proj.weight"),
     "does not have the hash of the manifest"),
    ("a bit of the machine's head rows", lambda p: flip_tensor(p, "lm_head.weight", 600),
     "does not have the hash of the manifest"),
    ("a bit of the base's head rows", lambda p: flip_tensor(p, "lm_head.weight", 3),
     "does not have the hash of the manifest"),
    ("the tokenizer", lambda p: flip(p / "tokenizer.json", 100),
     "tokenizer.json does not have the hash"),
    ("a hash in the manifest", lambda p: edit(p / MANIFEST, swap_hashes),
     "config.json does not have the hash"),
    ("the config", lambda p: edit(p / CONFIG, lambda c: c.update(eos_token_id=1)),
     "config.json does not have the hash"),
    ("a missing shard", lambda p: shard(p).unlink(), "safetensors is missing"),
    ("a missing file", lambda p: (p / "README.md").unlink(),
     "lacks README.md, which its manifest names"),
    ("a file too many", lambda p: (p / "adapter_config.json").write_text("{}"),
     "adapter_config.json is not in the manifest"),
    ("a manifest that forgot a file",
     lambda p: edit(p / MANIFEST, lambda m: m["files"].pop(CONFIG)),
     "config.json is not in the manifest"),
    ("no manifest", lambda p: (p / MANIFEST).unlink(), "has no manifest.json"),
    ("a manifest that is no JSON", lambda p: (p / MANIFEST).write_text("{"), "cannot be read"),
    ("a manifest that is a list", lambda p: (p / MANIFEST).write_text("[]"), "not a JSON object"),
    ("a truncated shard", lambda p: shard(p).write_bytes(shard(p).read_bytes()[:-9]),
     "is truncated"),
    ("a circuit that nobody proved", lambda p: None, "says nothing of silence"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "line"), [row[1:] for row in FILES], ids=[r[0] for r in FILES])
def test_a_folder_that_is_not_what_its_manifest_says(
    copy: Path, fault: Callable[[Path], Any], line: str
) -> None:
    fault(copy)
    with pytest.raises(CheckpointError, match=line) as caught:
        verify(copy)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


# --- the proof: the small machine, faults planted in place and taken back -------------------------


@contextmanager
def planted(stored: Any, change: Callable[[np.ndarray[Any, Any]], None]) -> Iterator[None]:
    """A bf16 tensor changed in its shard, as raw uint16, until the block ends."""
    raw = np.memmap(stored.file, np.uint16, "r+", stored.start, stored.shape)
    before = np.array(raw)
    try:
        change(raw)
        raw.flush()
        yield
    finally:
        raw[:] = before
        raw.flush()


@contextmanager
def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
    before = path.read_bytes()
    try:
        edit(path, change)
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.dense
def test_a_sound_checkpoint_passes_and_the_rows_left_out_are_no_text(small_model: Path) -> None:
    facts = verify(small_model)
    said = read_json(small_model / MANIFEST)["facts"]["silence"]
    assert said["rows_left_out"] == N_UNNAMED
    assert facts["silent rows of text"] == said["rows"] == 2048
    assert facts["largest gate of any row"] <= -512
    assert facts["files with the manifest's hash"] == len(list(small_model.iterdir())) - 1


def first_row(matrix: np.ndarray[Any, Any]) -> int:
    """The first row that is used."""
    return int(np.flatnonzero(matrix.any(1))[0])


@pytest.mark.dense
def test_a_gate_without_the_direction_is_named(small_model: Path) -> None:
    folder = Folder.open(small_model)
    dim = read_json(small_model / MANIFEST)["facts"]["silence"]["dims"][0]

    def turn(raw: np.ndarray[Any, Any]) -> None:
        raw[first_row(raw), dim] ^= 0x8000

    with (
        planted(folder.tensors["model.layers.1.mlp.gate_proj.weight"], turn),
        pytest.raises(CheckError, match="row 0 of the used gate rows does not carry"),
    ):
        verify(small_model, hashes=False)


@pytest.mark.dense
def test_a_norm_of_its_own_is_named(small_model: Path) -> None:
    stored = Folder.open(small_model).tensors["model.layers.2.post_attention_layernorm.weight"]
    with (
        planted(stored, lambda raw: raw.__setitem__(5, 0x3F80)),
        pytest.raises(CheckError, match="has a norm of its own"),
    ):
        verify(small_model, hashes=False)


@pytest.mark.dense
def test_a_machine_token_on_a_guard_dim_is_seen(small_model: Path) -> None:
    folder = Folder.open(small_model)
    dim = read_json(small_model / MANIFEST)["facts"]["silence"]["dims"][0]
    first = folder.config["qgpu"]["first_token"]
    with (
        planted(folder.embedding, lambda raw: raw.__setitem__((first + 3, dim), 0x3F80)),
        pytest.raises(CheckError, match="a machine token does not leave the guard dims at 0"),
    ):
        verify(small_model, hashes=False)


@pytest.mark.dense
def test_a_row_of_text_on_the_wrong_side_is_counted(small_model: Path) -> None:
    def turn(raw: np.ndarray[Any, Any]) -> None:
        raw[7] ^= 0x8000

    with (
        planted(Folder.open(small_model).embedding, turn),
        pytest.raises(CheckError, match="is not silent on text: 1 of 2048 rows leave the circuit"),
    ):
        verify(small_model, hashes=False)


SAID: list[tuple[dict[str, Any], str]] = [
    ({"strength": 2.0**10}, "does not carry the direction of silence"),
    ({"dims": list(range(8))}, "guard dims at 0|does not carry the direction of silence"),
    ({"rows_left_out": N_UNNAMED + 1}, "leaves out rows that the tokenizer names"),
    ({"rows_left_out": 0}, "is not silent on text"),
    ({"equal_rows": 2047}, "says equal_rows 2047, found is 2048"),
    ({"holds": False}, "says holds False, found is True"),
]


@pytest.mark.dense
@pytest.mark.parametrize(("changes", "line"), SAID, ids=[next(iter(row[0])) for row in SAID])
def test_a_manifest_that_says_something_else(
    small_model: Path, changes: dict[str, Any], line: str
) -> None:
    with (
        edited(small_model / MANIFEST, lambda m: m["facts"]["silence"].update(changes)),
        pytest.raises(CheckError, match=line),
    ):
        verify(small_model, hashes=False)


@pytest.mark.dense
def test_a_manifest_of_another_machine_or_without_numbers(small_model: Path) -> None:
    manifest = small_model / MANIFEST
    with edited(manifest, lambda m: m["qgpu"].update(first_token=1)):
        assert_fails(small_model, "describes another machine than config.json")
    with edited(manifest, lambda m: m["facts"]["silence"].pop("w")):
        assert_fails(small_model, "says nothing of the silence's w: build it again")
    assert json.loads(manifest.read_text())["facts"]["silence"]["holds"] is True


def assert_fails(path: Path, line: str) -> None:
    with pytest.raises(Error, match=line):
        verify(path, hashes=False)
