"""The merged checkpoint in the hands of others: pipeline, generate, save and reload, padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from qgpu.compiler.checkpoint import Folder
from qgpu.host.model import gpu_config, load_hf
from tests.host.small import merge_idle, narrow_base


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("others")
    merge_idle(narrow_base(path / "base"), path / "merged")
    return path / "merged"


@pytest.fixture(scope="module")
def hf(merged: Path) -> Any:
    return load_hf(merged, device="cpu")


def test_a_text_pipeline_writes_no_machine_token(merged: Path) -> None:
    write = transformers.pipeline("text-generation", model=str(merged), device="cpu")
    text = write("abc", max_new_tokens=12, return_full_text=False)[0]["generated_text"]
    assert "gpu_" not in text
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    assert all(number < 512 for number in tokenizer(text)["input_ids"])


def test_suppression_is_what_keeps_them_out(hf: Any) -> None:
    with torch.no_grad():
        kept = hf.lm_head.weight[512:].clone()
        hf.lm_head.weight[512:] = hf.lm_head.weight[:1] * 50
    ids = torch.tensor([[3, 4, 5]])
    try:
        quiet = hf.generate(ids, do_sample=False, max_new_tokens=6, eos_token_id=-1)[0, 3:]
        loud = hf.generate(ids, do_sample=False, max_new_tokens=6, eos_token_id=-1,
                           suppress_tokens=[])[0, 3:]  # fmt: skip
    finally:
        with torch.no_grad():
            hf.lm_head.weight[512:] = kept
    assert (quiet < 512).all()
    assert (loud >= 512).any()


def test_saved_and_loaded_again_it_is_the_same_model(hf: Any, tmp_path: Path) -> None:
    hf.save_pretrained(tmp_path / "again")
    again = Folder.open(tmp_path / "again")
    assert gpu_config(again)["first_token"] == 512
    ids = torch.arange(1, 70)[None]
    with torch.inference_mode():
        assert torch.equal(hf(ids).logits, load_hf(again.path, device="cpu")(ids).logits)


@pytest.mark.parametrize("pads", [1, 3, 4, 7])
def test_left_padding_changes_no_token(hf: Any, pads: int) -> None:
    ids = torch.arange(20, 40)[None]
    padded = torch.cat([torch.full((1, pads), 7), ids], 1)
    mask = torch.cat([torch.zeros(1, pads, dtype=torch.long), torch.ones_like(ids)], 1)
    plain = hf.generate(ids, do_sample=False, max_new_tokens=5, eos_token_id=-1)[0, 20:]
    both = hf.generate(
        padded, attention_mask=mask, do_sample=False, max_new_tokens=5, eos_token_id=-1
    )[0, 20 + pads :]
    assert torch.equal(plain, both)
