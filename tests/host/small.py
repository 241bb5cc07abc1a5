"""Small things that several host tests share: a base of a few kilobytes and a made-up circuit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from qgpu.compiler.checkpoint import (
    CONFIG,
    Folder,
    expected_tensors,
    read_json,
    read_tensors,
    write_json,
)
from qgpu.compiler.merge import Circuit, merge
from qgpu.host.build import model_card
from qgpu.host.standin import write_standin
from qgpu.host.tokenizer import add_machine_tokens
from qgpu.machine import MachineSpec
from qgpu.tokens import tokens

SPEC = MachineSpec("mini", n_lanes=2, n_registers=4, n_warps=2, n_blocks=4, n_stages=2, n_words=16)
NARROW: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "num_hidden_layers": 4, "vocab_size": 512,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                        "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]},
    "partial_rotary_factor": 0.5,
}  # fmt: skip
N_CIRCUIT = 3
N_UNNAMED = 64  # rows behind those that the tokenizer names, on the wrong side of any direction


def narrow_base(path: Path, seed: int = 0, **changes: Any) -> Folder:
    """A Qwen3.5-shaped base of half a megabyte."""
    write_standin("tiny", path, seed, changes={**NARROW, **changes})
    return Folder.open(path)


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Saves the tensors of a folder with one shard again, after ``change`` had them."""
    (shard,) = path.glob("*.safetensors")
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard, {"format": "pt"})


def with_rows(path: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Gives a base another embedding table; its head is the same table."""
    name = "model.embed_tokens.weight"
    rewrite(path, lambda tensors: tensors.update({name: change(tensors[name]).contiguous()}))
    config = read_json(path / CONFIG)
    config["vocab_size"] = read_tensors(path)[name].shape[0]
    write_json(path / CONFIG, config)


def multimodal(base: Folder, path: Path) -> Folder:
    """The same base in the layout of Qwen3_5ForConditionalGeneration, with its other tensors."""
    shutil.copytree(base.path, path)
    for file in path.glob("*.safetensors*"):
        file.unlink()
    tensors = {}
    for file in base.path.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            tensors[name.replace("model.", "model.language_model.", 1)] = tensor
    tensors["model.visual.patch_embed.proj.weight"] = torch.ones(4, 3, dtype=torch.bfloat16)
    tensors["mtp.norm.weight"] = torch.full((64,), 0.5, dtype=torch.bfloat16)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    text = {**base.config, "model_type": "qwen3_5_text"}
    write_json(path / "config.json", {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "vision_config": {"depth": 1}, "tie_word_embeddings": True,
    })  # fmt: skip
    return Folder.open(path)


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Flips bits of one byte of a file; once more, and it is as it was."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def idle_circuit(base: Folder, layers: int = N_CIRCUIT) -> Circuit:
    """A circuit of layers that pass everything through: all their outputs are zero."""
    config = {**base.text_config, "num_hidden_layers": 1}
    shapes = expected_tensors(config, ["linear_attention"], "")

    def make() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(layers):
            yield {
                name.removeprefix("layers.0."): torch.zeros(shape, dtype=torch.bfloat16)
                for name, shape in shapes.items()
                if name.startswith("layers.0.")
            }

    rows = torch.zeros(len(tokens(SPEC)), base.embedding.shape[1], dtype=torch.bfloat16)
    rows[:, 0] = torch.arange(len(rows)).bfloat16()
    memory = {"layer": 0, "heads": [0], "n_words": SPEC.n_words}
    return Circuit(SPEC, layers, make, rows, rows * 0, memory, {"made": "up"})


def merge_idle(base: Folder, target: Path, **options: Any) -> dict[str, Any]:
    """The base with the idle circuit in front."""

    def write_tokenizer(source: Path, copy: Path) -> None:
        add_machine_tokens(source, copy, SPEC, base.embedding.shape[0])

    return merge(
        base, idle_circuit(base), target, write_tokenizer=write_tokenizer,
        card=lambda manifest: model_card(manifest, "base"), **options,
    )  # fmt: skip
