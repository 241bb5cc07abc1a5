"""Stand-ins: the real shapes, seeds that repeat, and a table with a real one's statistics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qgpu.compiler.checkpoint import Folder, expected_tensors
from qgpu.errors import UsageError
from qgpu.host.model import load_hf
from qgpu.host.standin import embedding_table, layer_types, special_id, text_config
from tests.host.small import narrow_base


def test_the_2b_config_is_the_real_one() -> None:
    config = text_config("2b")
    assert (config["hidden_size"], config["intermediate_size"]) == (2048, 6144)
    assert config["vocab_size"] == 248320
    assert config["layer_types"] == (["linear_attention"] * 3 + ["full_attention"]) * 6
    assert config["eos_token_id"] == 248046
    shapes = expected_tensors(config, config["layer_types"], "model.")
    assert shapes["model.embed_tokens.weight"] == (248320, 2048)
    assert shapes["model.layers.0.linear_attn.in_proj_qkv.weight"] == (6144, 2048)
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (4096, 2048)
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == (512, 2048)
    assert "lm_head.weight" not in shapes
    n_weights = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert 1.8e9 < n_weights < 2.0e9


def test_sizes_and_names() -> None:
    assert text_config("0.8b")["hidden_size"] == 1024
    assert layer_types(2) == ["linear_attention", "full_attention"]
    assert special_id(2048, "<|endoftext|>") == 2048 - 33
    with pytest.raises(UsageError, match="there is no stand-in like 7b"):
        text_config("7b")


def test_a_seed_repeats_and_another_does_not(tmp_path: Path) -> None:
    first, again, other = (
        narrow_base(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    names = [file.name for file in first.path.iterdir()]
    assert all((first.path / n).read_bytes() == (again.path / n).read_bytes() for n in names)
    assert b"".join(first.embedding.read()) != b"".join(other.embedding.read())


def test_it_loads_and_its_folder_is_whole(tmp_path: Path) -> None:
    base = narrow_base(tmp_path / "base")
    assert Folder.open(base.path).layer_types[-1] == "full_attention"
    logits = load_hf(base.path, device="cpu")(torch.tensor([[5, 6, 7]])).logits
    assert logits.isfinite().all()
    assert json.loads((base.path / "generation_config.json").read_text())["do_sample"] is False


def test_the_table_leans_to_one_side_and_its_rows_differ_in_norm() -> None:
    table = embedding_table(4000, 256, seed=3)
    lean = table.mean(0).abs() / table.std(0)
    assert lean.max() > 2
    norms = table.norm(dim=1)
    assert 0.05 < norms.std() / norms.mean() < 0.4
    spread = torch.linalg.svdvals(table - table.mean(0))
    assert spread[0] > 3 * spread[-1]
