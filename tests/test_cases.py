"""The case table itself: the examples' written expectations against NumPy, the loader, sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qgpu.machine import REFERENCE, WORD_BYTES
from tests.cases import Case, all_cases, corpus_cases, example_cases


def _collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def _product(a: Any, b: Any, n: int) -> Any:
    return (a.reshape(n, n) @ b.reshape(n, n)).ravel()


MODELS: dict[str, Callable[..., Any]] = {
    "01_dot": lambda a, b, out: {2: [a @ b]},
    "02_vector_add": lambda a, b, c, n: {2: a + b},
    "03_saxpy": lambda n, a, x, y: {3: a * x + y},
    "04_reverse": lambda data: {0: data[::-1]},
    "05_prefix_sum": lambda data, out: {1: np.cumsum(data)},
    "06_histogram": lambda data, bins, n: {1: np.bincount(data, minlength=len(bins))},
    "07_max_reduction": lambda data, out: {1: [data.max()]},
    "08_gcd": lambda a, b, out: {2: np.gcd(a, b)},
    "09_collatz": lambda start, steps: {1: [_collatz(int(n)) for n in start]},
    "10_matmul": lambda a, b, c, n: {2: _product(a, b, n)},
    "11_bubble_sort": lambda data, n: {0: np.sort(data)},
    "12_fibonacci": lambda out: {0: [_fibonacci(n) for n in range(len(out))]},
}


def test_there_are_twelve_examples() -> None:
    assert [case.name for case in example_cases()] == sorted(MODELS)


@pytest.mark.parametrize("case", example_cases(), ids=str)
def test_an_example_expects_what_numpy_computes(case: Case) -> None:
    computed = MODELS[case.name](*case.args)
    assert {n: list(array) for n, array in computed.items()} == {
        n: list(array) for n, array in case.expect.items()
    }


def test_names_are_unique() -> None:
    twice = [name for name, n in Counter(case.name for case in all_cases()).items() if n > 1]
    assert twice == []


def test_the_corpus_has_three_hundred_kernels() -> None:
    assert len({(case.source, case.name) for case in corpus_cases()}) >= 300


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_a_case_fits_the_machine(case: Case) -> None:
    x, y, z = case.block
    arrays = [arg for arg in case.args if isinstance(arg, np.ndarray)]
    used = sum(-(-array.nbytes // 8) * 8 for array in arrays) // WORD_BYTES
    assert x * y * z <= REFERENCE.n_threads
    assert used + case.dynamic_shared_words <= REFERENCE.n_words - 2
    assert not case.warp_sensitive or x * y * z <= REFERENCE.n_lanes


def test_differences_are_told() -> None:
    case = example_cases()[0]
    assert case.differences(case.final) == []
    wrong = [*case.final[:2], np.array([33], np.int32)]
    assert case.differences(wrong) == ["argument 2: [33], expected [32]"]
    touched = [np.array([1, 2, 4], np.int32), *case.final[1:]]
    assert case.differences(touched) == ["argument 0: [1,2,4], expected [1,2,3]"]


def test_an_expectation_of_another_form_is_refused() -> None:
    case = example_cases()[0]
    with pytest.raises(AssertionError, match="argument 2 changes its form"):
        replace(case, expect={2: np.array([32], np.int64)})
