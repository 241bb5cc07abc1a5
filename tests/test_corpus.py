"""Every case of the table through the PTX interpreter and through lowering and blocks."""

from __future__ import annotations

import json

import pytest

from bench.tokens import COLUMNS, STORED
from qgpu.machine import SMALL
from tests.cases import Case, all_cases, example_cases
from tests.levels import in_blocks, in_ptx


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_ptx_interpreter(case: Case) -> None:
    assert case.differences(in_ptx(case)) == []


_written: dict[str, int] = {}


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_block_interpreter(case: Case) -> None:
    results, _, run = in_blocks(case)
    assert case.differences(results) == []
    _written[case.name] = len(run.tokens)


def test_the_sum_of_written_tokens_only_falls() -> None:
    """Against bench/tokens.json, which ``bench/tokens.py --update`` writes."""
    stored = json.loads(STORED.read_text())["cases"]
    if len(_written) < len(list(all_cases())):
        pytest.skip("only a part of the corpus ran")
    before = sum(row[COLUMNS.index("written")] for row in stored.values())
    assert sum(_written.get(name, 0) for name in stored) <= before


@pytest.mark.parametrize("case", example_cases(), ids=str)
def test_an_example_fits_the_small_machine(case: Case) -> None:
    results, lowered, _ = in_blocks(case, SMALL)
    assert case.differences(results) == []
    assert len(lowered.blocks) <= SMALL.n_blocks
