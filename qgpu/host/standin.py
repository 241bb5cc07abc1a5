"""Stand-ins: seeded checkpoints with Qwen3.5's real shapes, for machines without the weights.

The embedding table is drawn with the statistics of a real one: a mean that all rows share and
that is large on a few dims, a falling spectrum, and norms that differ from row to row. As in real
models one neuron of the first layer turns that mean into a component that every later state
shares (a "massive activation"); without it random layers wash the mean out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qgpu.compiler.checkpoint import (
    CONFIG,
    MANIFEST,
    Entry,
    expected_tensors,
    write_json,
    write_shards,
)
from qgpu.compiler.merge import STANDIN_KEY, entry, staged
from qgpu.errors import UsageError
from qgpu.host.tokenizer import SPECIAL, save_qwen_tokenizer

PREFIX = "model."
MEAN_NORM, MEAN_SPREAD, SPECTRUM, NORM_SPREAD = 0.91, 0.65, 0.22, 0.175
SHARED_GAIN = 9.0  # with a mean of half a row's norm the neuron's pre-activation is about 4.5
SHARED_SPREAD = 2.0  # of its column next to the other neurons' columns
INTERVAL = 4  # every fourth layer of Qwen3.5 is full attention
# What differs between the stand-ins; ``tokens`` is the tokenizer's size where the table is small.
SIZES: dict[str, dict[str, int]] = {
    "2b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
           "vocab_size": 248320},
    "0.8b": {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
             "vocab_size": 248320},
    "demo": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
             "vocab_size": 8192},
    "tiny": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 2,
             "vocab_size": 2048},
}  # fmt: skip


def text_config(like: str) -> dict[str, Any]:
    """The config of Qwen3.5's text model in one of the sizes."""
    if like not in SIZES:
        raise UsageError(f"there is no stand-in like {like}: one of {', '.join(SIZES)}")
    size = SIZES[like]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **size,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "layer_types": layer_types(size["num_hidden_layers"]),
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02,
        "attention_bias": False, "attention_dropout": 0.0, "max_position_embeddings": 262144,
        "partial_rotary_factor": 0.25, "tie_word_embeddings": True, "use_cache": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
                            "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                            "mrope_section": [11, 11, 10]},
        "mamba_ssm_dtype": "float32", "dtype": "bfloat16",
        "eos_token_id": special_id(size["vocab_size"], "<|im_end|>"),
    }  # fmt: skip


def layer_types(count: int) -> list[str]:
    """Every fourth layer is full attention, and the last of a shorter stack."""
    every = min(INTERVAL, count)
    return ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]


def special_id(vocab_size: int, name: str) -> int:
    """The id of one of Qwen's special tokens in a stand-in's tokenizer."""
    full = 248044  # merges and bytes of the whole vocabulary
    first = min(full, vocab_size - len(SPECIAL))
    return first + SPECIAL.index(name)


def _generator(seed: int, name: str) -> torch.Generator:
    """Each tensor has a stream of its own, so that order and shards do not matter."""
    return torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))


def shared_mean(hidden: int, seed: int) -> np.ndarray:
    """The unit direction that all rows of the table lean to; a few dims carry most of it."""
    rng = np.random.default_rng([seed, hidden])
    shared = rng.standard_normal(hidden) * np.exp(rng.standard_normal(hidden))
    unit: np.ndarray = shared / np.linalg.norm(shared)
    return unit


def embedding_table(
    rows: int, hidden: int, seed: int, *, mean: float = 0.6, spectrum: float = 0.35
) -> torch.Tensor:
    """A table like a real one, in fp32.

    ``mean`` is the norm of the shared mean next to the noise's. ``spectrum`` is the exponent at
    which the dims' deviations fall. Norms are lognormal.
    """
    rng = np.random.default_rng([seed, rows, hidden])
    shared = shared_mean(hidden, seed) * mean
    scale = rng.permutation(np.arange(1, hidden + 1) ** -spectrum)
    scale /= np.linalg.norm(scale)
    g = _generator(seed, "embedding")
    table = torch.randn(rows, hidden, generator=g)
    table *= torch.from_numpy(scale.astype(np.float32))
    table += torch.from_numpy(shared.astype(np.float32))
    norms = torch.exp(0.15 * torch.randn(rows, 1, generator=g))
    return table.mul_(norms).mul_(0.02 * hidden**0.5)


def seeded_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """One tensor with the spread that such a tensor has in a trained model, in bf16."""
    g = _generator(seed, name)
    if name.endswith("embed_tokens.weight"):
        rows, hidden = shape
        return embedding_table(rows, hidden, seed).bfloat16()
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(0.01, 16, generator=g).log_().bfloat16()
    noise = torch.randn(shape, generator=g)
    if name.endswith(("dt_bias", "linear_attn.norm.weight")):
        return noise.mul_(0.1).add_(1).bfloat16()
    if "norm.weight" in name:
        return noise.mul_(0.1).bfloat16()
    spread = 0.3 if "conv1d" in name else 0.02
    noise = noise.mul_(spread)
    if "layers.0." in name:
        _share_the_mean(name, noise, seed)
    return noise.bfloat16()


def _share_the_mean(name: str, weight: torch.Tensor, seed: int) -> None:
    """The first layer's neuron 0 fires on the shared mean, whatever the token; its mixer is faint,
    so that the mean is still there."""
    if name.endswith(("out_proj.weight", "o_proj.weight")):
        weight *= 0.02
    elif name.endswith(("gate_proj.weight", "up_proj.weight")):
        hidden = weight.shape[1]
        row = shared_mean(hidden, seed) * SHARED_GAIN / hidden**0.5
        weight[0] = torch.from_numpy(row.astype(np.float32))
    elif name.endswith("down_proj.weight"):
        weight[:, 0] *= SHARED_SPREAD


def _entries(config: dict[str, Any], seed: int) -> Iterator[Entry]:
    expected = expected_tensors(config, config["layer_types"], PREFIX)

    def lazy(name: str, shape: tuple[int, ...]) -> Entry:
        return Entry(
            name, "BF16", shape, lambda: entry(name, seeded_tensor(name, shape, seed)).read()
        )

    for name, shape in expected.items():
        yield lazy(name, shape)


def write_standin(
    like: str,
    target: Path,
    seed: int = 0,
    *,
    changes: dict[str, Any] | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> None:
    """Write a stand-in to ``target``; ``changes`` replace fields of its config."""
    config = {**text_config(like), **(changes or {})}
    rows = config["vocab_size"]
    config["eos_token_id"] = special_id(rows, "<|im_end|>")
    with staged(target, f"the stand-in {target}") as work:
        hashes = write_shards(work, _entries(config, seed), progress)
        save_qwen_tokenizer(work, None if rows >= 248320 else rows)
        write_json(work / "generation_config.json", {
            "do_sample": False, "eos_token_id": config["eos_token_id"],
            "pad_token_id": special_id(rows, "<|endoftext|>"),
        })  # fmt: skip
        write_json(work / CONFIG, config)
        write_json(work / MANIFEST, {STANDIN_KEY: like, "seed": seed, "files": hashes})
