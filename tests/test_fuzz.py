"""Random kernels: two clang levels, the PTX interpreter and the block interpreter agree."""

from __future__ import annotations

import pytest

from bench.fuzz import check, expected
from qgpu.interp.sanitize import Finding
from tests.fuzz import fuzz_case
from tests.levels import findings_of, in_ptx


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_a_random_kernel(seed: int) -> None:
    difference, _, _ = check(seed, ("-O1", "-O3"), None)
    assert difference == ""


@pytest.mark.parametrize("seed", range(2000, 2004))
def test_a_random_kernel_without_optimisation(seed: int) -> None:
    case = expected(fuzz_case(seed))
    assert case.differences(in_ptx(case, "-O0")) == []


@pytest.mark.parametrize("seed", range(3000, 3010))
def test_a_random_kernel_has_no_race(seed: int) -> None:
    found: list[Finding] = findings_of(fuzz_case(seed))
    assert found == []


def test_a_seed_gives_the_same_kernel() -> None:
    assert fuzz_case(5).source == fuzz_case(5).source
    assert fuzz_case(5).source != fuzz_case(6).source
