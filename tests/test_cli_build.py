"""``qgpu build`` and its kin on what is broken: one line, the exit code, nothing half-written."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from qgpu.cli import main
from qgpu.compiler.checkpoint import CONFIG, INDEX, MANIFEST, Folder, read_json, write_json
from tests.host.small import flip, merge_idle, narrow_base, rewrite


def call(*argv: Any) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in argv])


def only_shard(path: Path) -> Path:
    (shard,) = path.glob("*.safetensors")
    return shard


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = read_json(path)
    change(data)
    write_json(path, data)


def to_dtype(path: Path, dtype: torch.dtype, part: str = "") -> None:
    rewrite(path, lambda t: t.update({k: v.to(dtype) for k, v in t.items() if part in k}))


def cut(path: Path, size: int) -> None:
    only_shard(path).write_bytes(only_shard(path).read_bytes()[:size])


NORM = "model.norm.weight"
# What is wrong with a base, and the line that says so.
BASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda p: cut(p, -100), "is truncated"),
    "cut in its header": (lambda p: cut(p, 50), "is truncated or not a safetensors file"),
    "an empty shard": (lambda p: cut(p, 0), "is truncated or not a safetensors file"),
    "a header of junk": (lambda p: flip(only_shard(p), 8, 0xFF), "is not a safetensors file"),
    "no shard": (lambda p: only_shard(p).unlink(), "is missing"),
    "no index": (lambda p: (p / INDEX).unlink(), f"has no model.safetensors and no {INDEX}"),
    "an index of junk": (lambda p: (p / INDEX).write_text("{]"), f"{INDEX} cannot be read"),
    "an index without a map": (lambda p: write_json(p / INDEX, {"weight_map": [1]}),
                               f"{INDEX} has no weight_map of names"),
    "an index into a parent": (
        lambda p: edit(p / INDEX, lambda i: i["weight_map"].update({NORM: "../x.safetensors"})),
        f"{INDEX} names ../x.safetensors, which is no file of this folder"),
    "a tensor not in its shard": (lambda p: rewrite(p, lambda t: t.pop(NORM)),
                                  f"the index names {NORM}, but no shard holds it"),
    "a tensor not in the index": (
        lambda p: edit(p / INDEX, lambda i: i["weight_map"].pop(NORM)),
        f"holds {NORM}, which the index does not"),
    "a tensor nowhere": (
        lambda p: (edit(p / INDEX, lambda i: i["weight_map"].pop(NORM)),
                   rewrite(p, lambda t: t.pop(NORM))), f"lacks the tensor {NORM}"),
    "another shape": (lambda p: rewrite(p, lambda t: t.update({NORM: t[NORM][:8].clone()})),
                      f"{NORM} has shape [8], the config says [64]"),
    "fp32": (lambda p: to_dtype(p, torch.float32), "in F32; the circuit is proven for bf16 only"),
    "fp16": (lambda p: to_dtype(p, torch.float16), "in F16; the circuit is proven for bf16 only"),
    "fp16 in one layer": (lambda p: to_dtype(p, torch.float16, "layers.2.mlp.up_proj"),
                          "stores model.layers.2.mlp.up_proj.weight in F16"),
    "an fp32 table": (lambda p: to_dtype(p, torch.float32, "embed_tokens"),
                      "stores model.embed_tokens.weight in F32"),
    "quantised": (lambda p: edit(p / CONFIG, lambda c: c.update(quantization_config={})),
                  "is quantised; give the bf16 checkpoint"),
    "no config": (lambda p: (p / CONFIG).unlink(), f"has no {CONFIG}"),
    "a config of junk": (lambda p: (p / CONFIG).write_bytes(b"\xff\xfe{"), "cannot be read"),
    "a config that is a list": (lambda p: (p / CONFIG).write_text("[]"), "is not a JSON object"),
    "another model": (lambda p: edit(p / CONFIG, lambda c: c.update(model_type="qwen3_5_moe_text")),
                      "holds a qwen3_5_moe_text model; qgpu needs a dense Qwen3.5"),
    "no layer count": (
        lambda p: edit(p / CONFIG, lambda c: (c.pop("num_hidden_layers"), c.pop("layer_types"))),
        "the config says neither layer_types nor num_hidden_layers"),
    "a width of text": (lambda p: edit(p / CONFIG, lambda c: c.update(hidden_size="wide")),
                        "the config does not describe a Qwen3.5 model"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BASES)
def test_a_base_that_cannot_be_built_on(tmp_path: Path, kind: str) -> None:
    narrow_base(tmp_path / "base")
    spoil, line = BASES[kind]
    spoil(tmp_path / "base")
    result = call("build", "--base", tmp_path / "base", "--out", tmp_path / "out", "--json")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.stderr
    assert line in result.stderr
    assert f"error: {json.loads(result.stdout)['error']}\n" == result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["base"]


def test_a_base_that_holds_a_circuit_already(tmp_path: Path) -> None:
    merge_idle(narrow_base(tmp_path / "base"), tmp_path / "model")
    result = call("build", "--base", tmp_path / "model", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "already holds a circuit; give the checkpoint before it" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base", "model"]


def test_a_target_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    narrow_base(tmp_path / "base")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for out, code, line in (("base", 2, "is what is read"), ("mine", 1, "choose another")):
        result = call("build", "--base", tmp_path / "base", "--out", tmp_path / out)
        assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
        assert line in result.stderr


def test_a_hub_that_cannot_be_reached_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def unreachable(*args: Any, **options: Any) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("nothing here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    result = call("build", "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "not in the local cache and the hub cannot be reached (no connection)" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_stand_in_onto_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qgpu.host import standin

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(standin, "write_shards", full)
    result = call("standin", "--like", "tiny", "--out", tmp_path / "out")
    assert result.exit_code == 1
    line = f"the disk is full: the stand-in {tmp_path}/out was not written"
    assert result.stderr == f"error: {line}\n"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    merge_idle(narrow_base(tmp_path / "base"), tmp_path / "model")
    return tmp_path / "model"


# What is wrong with a merged checkpoint, and the line that `verify` says.
MODELS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (lambda p: flip(only_shard(p), -1 + only_shard(p).stat().st_size),
                      "does not have the hash of the manifest"),
    "no shard": (lambda p: only_shard(p).unlink(), "is missing"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), f"has no {MANIFEST}"),
    "no machine": (lambda p: edit(p / CONFIG, lambda c: c.pop("qgpu")), "has no GPU in it"),
    "half a machine": (lambda p: edit(p / CONFIG, lambda c: c["qgpu"].pop("circuit_layers")),
                       "says nothing of the machine's circuit_layers"),
    "half a spec": (lambda p: edit(p / CONFIG, lambda c: c["qgpu"]["spec"].update(n_wheels=4)),
                    "does not describe a machine"),
    "a bf16 state": (lambda p: edit(p / CONFIG, lambda c: c.update(mamba_ssm_dtype="bfloat16")),
                     "must be float32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_not_sound(model: Path, kind: str) -> None:
    spoil, line = MODELS[kind]
    spoil(model)
    result = call("verify", "--model", model, "--json")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.stderr
    assert line in result.stderr
    assert f"error: {json.loads(result.stdout)['error']}\n" == result.stderr


def test_a_tokenizer_of_junk_is_one_line(model: Path) -> None:
    (model / "tokenizer.json").write_text("{")
    result = call("kl", "--base", model.parent / "base", "--model", model, "--positions", 3)
    assert "unexpected" not in result.stderr
    result = call("chat", "--model", model, "--once", "1+1?")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "has no tokenizer that loads" in result.stderr


def test_qgpu_model_names_the_default(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Folder.open(model)
    monkeypatch.setenv("QGPU_MODEL", str(model))
    for command in ("verify", "doctor"):
        assert str(model) in call(command, "--json").stdout
