"""The executor against stock transformers in bf16: every state and token, on every path."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from qgpu.compiler.plan import build_plan
from qgpu.interp.machine import run_blocks
from qgpu.machine import SMALL
from qgpu.tokens import Mem, Token, offset_of, spell_value
from tests.compiler.dense import circuit_model
from tests.compiler.programs import random_program, word
from tests.compiler.test_machine import QWEN_2B, executor

pytestmark = [pytest.mark.dense, pytest.mark.filterwarnings("ignore")]


@cache
def model() -> Any:
    return circuit_model(build_plan(SMALL, QWEN_2B), torch.bfloat16)


def ids_of(fed: list[Token]) -> torch.Tensor:
    return torch.tensor([[offset_of(SMALL, token) for token in fed]])


def feed(parts: list[list[Token]]) -> tuple[list[int], Any]:
    """Feeds the parts one after another; (argmax at every position, cache)."""
    best: list[int] = []
    cache = None
    with torch.no_grad():
        for part in parts:
            out = model()(ids_of(part), past_key_values=cache, use_cache=True)
            best += out.logits[0].argmax(-1).tolist()
            cache = out.past_key_values
    return best, cache


def states(cache: Any) -> list[np.ndarray]:
    return [
        cache.layers[i].recurrent_states[0][0][: layer.n_heads].numpy()
        for i, layer in enumerate(executor(SMALL).layers)
        if layer.n_heads
    ]


def assert_same_states(cache: Any) -> None:
    mine = [layer.table for layer in executor(SMALL).layers if layer.n_heads]
    for got, want in zip(states(cache), mine, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)


def test_a_launch_by_prefill_and_by_decode() -> None:
    program = random_program(SMALL, random.Random(21), max_blocks=4)
    run = run_blocks(SMALL, program.blocks, program.memory, program.n_threads)
    want, prompt = list(run.tokens), program.prompt
    machine = executor(SMALL)
    machine.reset()
    machine.feed([*prompt, *want[:-1]])
    expected = ids_of(want)[0].tolist()
    best, cache = feed([[*prompt, *want[:-1]]])
    assert best[len(prompt) - 1 :] == expected
    assert_same_states(cache)
    best, cache = feed([prompt, *([token] for token in want[:-1])])
    assert best[len(prompt) - 1 :] == expected
    assert_same_states(cache)


@pytest.mark.parametrize("cuts", [[1, 63, 64, 65], [129, 1, 1]], ids=str)
def test_memory_traffic_in_parts(cuts: list[int]) -> None:
    """Random stores, several to the same words, fed whole and in parts: the same state."""
    rng = random.Random(str(cuts))
    fed: list[Token] = []
    while len(fed) < sum(cuts) + 5:
        mask = rng.randrange(1, 16)
        words = [word(rng) for _ in range(4)]
        fed += [Mem(rng.randrange(SMALL.n_words), mask), *spell_value(SMALL, 0, words, mask)]
    machine = executor(SMALL)
    machine.reset()
    machine.feed(fed)
    parts, at = [], 0
    for cut in [*cuts, len(fed) - sum(cuts)]:
        parts.append(fed[at : at + cut])
        at += cut
    _, cache = feed(parts)
    assert_same_states(cache)
