"""base + circuit -> checkpoint: bytes, configs, both layouts, and everything that can go wrong."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from qgpu.compiler import checkpoint
from qgpu.compiler.checkpoint import Folder, read_tensors, write_json
from qgpu.errors import CheckpointError
from qgpu.host.model import gpu_config, load_hf, verify_hashes
from qgpu.tokens import tokens
from tests.host.small import N_CIRCUIT, SPEC, merge_idle, multimodal, narrow_base, rewrite


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return narrow_base(tmp_path_factory.mktemp("narrow") / "base")


@pytest.fixture(scope="module")
def merged(base: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("merged") / "model"
    merge_idle(base, target)
    return target


# The machine's rows behind the base's, then spare rows up to a multiple of 128.
N_ROWS = -(-(512 + len(tokens(SPEC))) // 128) * 128


def stored_bytes(tensors: dict[str, Any], name: str) -> bytes:
    return b"".join(tensors[name].read())


def test_base_tensors_are_copied_byte_for_byte(base: Folder, merged: Path) -> None:
    ours = read_tensors(merged)
    rows = base.embedding.n_bytes
    for name in base.tensors:
        new = name
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            new = f"model.layers.{int(number) + N_CIRCUIT}.{rest}"
        assert stored_bytes(ours, new)[: base.tensors[name].n_bytes] == stored_bytes(
            base.tensors, name
        )
    assert stored_bytes(ours, "lm_head.weight")[:rows] == b"".join(base.embedding.read())
    assert len(ours) == len(base.tensors) + 1 + N_CIRCUIT * 14


def test_the_config_names_every_layer_and_both_levels_agree(base: Folder, merged: Path) -> None:
    config = json.loads((merged / "config.json").read_text())
    assert config["layer_types"] == ["linear_attention"] * 6 + ["full_attention"]
    assert config["num_hidden_layers"] == 7
    assert config["vocab_size"] == N_ROWS
    assert config["tie_word_embeddings"] is False
    suppressed = json.loads((merged / "generation_config.json").read_text())["suppress_tokens"]
    assert suppressed == list(range(512, config["vocab_size"]))
    assert gpu_config(Folder.open(merged))["first_token"] == 512


def test_transformers_loads_it_and_text_is_bit_identical(base: Folder, merged: Path) -> None:
    ids = torch.arange(3, 90)[None]
    with torch.inference_mode():
        before = load_hf(base.path, device="cpu")(ids).logits
        after = load_hf(merged, device="cpu")(ids).logits
    assert torch.equal(before, after[..., :512])
    assert after.shape[-1] == N_ROWS
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    assert tokenizer.convert_tokens_to_ids("<|gpu_halt|>") == 512 + len(tokens(SPEC)) - 1


def test_a_second_build_is_byte_identical(base: Folder, merged: Path, tmp_path: Path) -> None:
    merge_idle(base, tmp_path / "again")
    names = sorted(file.name for file in merged.iterdir())
    assert names == sorted(file.name for file in (tmp_path / "again").iterdir())
    for name in names:
        assert (merged / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_shards_are_cut_and_indexed(base: Folder, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(checkpoint.write_shards, "__defaults__",
                        (lambda n: None, 100_000))  # fmt: skip
    merge_idle(base, tmp_path / "cut")
    shards = sorted(tmp_path.glob("cut/*.safetensors"))
    assert len(shards) > 3
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    Folder.open(tmp_path / "cut")
    load_file(shards[0])


def test_a_multimodal_base_keeps_what_is_not_text(base: Folder, tmp_path: Path) -> None:
    both = multimodal(base, tmp_path / "both")
    manifest = merge_idle(both, tmp_path / "merged")
    ours = read_tensors(tmp_path / "merged")
    for name in ("model.visual.patch_embed.proj.weight", "mtp.norm.weight"):
        assert stored_bytes(ours, name) == stored_bytes(both.tensors, name)
    assert f"model.language_model.layers.{N_CIRCUIT}.mlp.up_proj.weight" in ours
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is config["text_config"]["tie_word_embeddings"] is False
    assert config["text_config"]["num_hidden_layers"] == 7
    assert manifest["base"]["model_type"] == "qwen3_5"
    ids = torch.arange(3, 90)[None]
    with torch.inference_mode():
        before = load_hf(base.path, device="cpu")(ids).logits
        after = load_hf(tmp_path / "merged", device="cpu")(ids).logits
    assert torch.equal(before, after[..., :512])


def test_a_base_that_already_holds_a_circuit(merged: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="already holds a circuit"):
        merge_idle(Folder.open(merged), tmp_path / "twice")
    assert not list(tmp_path.iterdir())


def broken(base: Folder, path: Path) -> Path:
    shutil.copytree(base.path, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_base_that_is_not_bf16(base: Folder, tmp_path: Path, dtype: torch.dtype) -> None:
    path = broken(base, tmp_path / "base")
    rewrite(path, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    with pytest.raises(CheckpointError, match="the circuit is proven for bf16 only"):
        merge_idle(Folder.open(path), tmp_path / "out")


def test_a_tensor_missing_from_its_shard(base: Folder, tmp_path: Path) -> None:
    path = broken(base, tmp_path / "base")
    rewrite(path, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match=r"the index names model\.norm\.weight, but no shard"):
        Folder.open(path)


def test_a_tensor_missing_from_the_index(base: Folder, tmp_path: Path) -> None:
    path = broken(base, tmp_path / "base")
    index = json.loads((path / checkpoint.INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    write_json(path / checkpoint.INDEX, index)
    with pytest.raises(CheckpointError, match=r"holds model\.norm\.weight, which the index does"):
        Folder.open(path)


def test_a_tensor_missing_everywhere(base: Folder, tmp_path: Path) -> None:
    path = broken(base, tmp_path / "base")
    rewrite(path, lambda tensors: tensors.pop("model.norm.weight"))
    (path / checkpoint.INDEX).unlink()
    next(path.glob("*.safetensors")).rename(path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.norm\.weight"):
        Folder.open(path)


def test_a_truncated_shard(base: Folder, tmp_path: Path) -> None:
    path = broken(base, tmp_path / "base")
    (shard,) = path.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is truncated"):
        Folder.open(path)


def test_a_wrong_hash(merged: Path, tmp_path: Path) -> None:
    assert verify_hashes(merged) > 5
    copy = tmp_path / "copy"
    shutil.copytree(merged, copy)
    shard = next(copy.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="does not have the hash of the manifest"):
        verify_hashes(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(mamba_ssm_dtype="bfloat16"), "must be float32"),
        (lambda c: c.update(layer_types=["full_attention", *c["layer_types"][1:]]),
         "lacks the tensor|must be linear_attention"),
        (lambda c: c.pop("qgpu"), "has no GPU in it"),
        (lambda c: c.update(model_type="llama"), "holds a llama model"),
        (lambda c: c.update(hidden_size=128), "the config says"),
    ],
)  # fmt: skip
def test_a_config_that_would_break_the_machine(
    merged: Path, tmp_path: Path, change: Any, message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(merged, copy)
    config = json.loads((copy / "config.json").read_text())
    change(config)
    write_json(copy / "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        gpu_config(Folder.open(copy))


def test_a_full_disk_leaves_nothing(base: Folder, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def full(n: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"the disk is full: the checkpoint .* was not writ"):
        merge_idle(base, tmp_path / "model", progress=full)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_build_leaves_the_old_checkpoint(base: Folder, tmp_path: Path) -> None:
    def stop(n: int) -> None:
        raise KeyboardInterrupt

    merge_idle(base, tmp_path / "model")
    before = (tmp_path / "model" / "manifest.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        merge_idle(base, tmp_path / "model", progress=stop)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "manifest.json").read_bytes() == before


def test_a_folder_of_somebody_else_is_not_overwritten(base: Folder, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint of qgpu"):
        merge_idle(base, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
