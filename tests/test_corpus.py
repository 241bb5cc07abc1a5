"""Every case of the table through the PTX interpreter and through lowering and blocks."""

from __future__ import annotations

import pytest

from qgpu.machine import SMALL
from tests.cases import Case, all_cases, example_cases
from tests.levels import in_blocks, in_ptx


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_ptx_interpreter(case: Case) -> None:
    assert case.differences(in_ptx(case)) == []


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_block_interpreter(case: Case) -> None:
    results, _, _ = in_blocks(case)
    assert case.differences(results) == []


@pytest.mark.parametrize("case", example_cases(), ids=str)
def test_an_example_fits_the_small_machine(case: Case) -> None:
    results, lowered, _ = in_blocks(case, SMALL)
    assert case.differences(results) == []
    assert len(lowered.blocks) <= SMALL.n_blocks
