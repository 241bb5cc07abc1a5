"""PTX of every producer parses, and the PTX interpreter computes what its kernels mean."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from qgpu.interp.ptx import run_ptx
from qgpu.kernel import LaunchShape
from qgpu.ptx.parse import parse_ptx
from qgpu.ptxir import Module
from tests.cases import Array, Case
from tests.ptx.producer_cases import producer_cases


@cache
def _module(name: str, source: str) -> Module:
    return parse_ptx(source, name)


def interpret(case: Case) -> list[Array | None]:
    """The arguments of a PTX case after it ran in the PTX interpreter."""
    memory, params, places = bytearray(8), list[int](), list[int | None]()
    for arg in case.args:
        if isinstance(arg, np.ndarray):
            params.append(len(memory))
            places.append(len(memory))
            memory += arg.tobytes()
            memory += bytes(-len(memory) % 8)
        else:
            params.append(arg)
            places.append(None)
    module = _module(case.name.partition(":")[0], case.source)
    shape = LaunchShape(case.grid, case.block, tuple(params), 4 * case.dynamic_shared_words)
    out = run_ptx(module, case.kernel, shape, memory)
    return [
        np.frombuffer(out, arg.dtype, arg.size, place).reshape(arg.shape)
        if isinstance(arg, np.ndarray) and place is not None
        else None
        for arg, place in zip(case.args, places, strict=True)
    ]


@pytest.mark.parametrize("case", producer_cases(), ids=str)
def test_a_producers_kernel(case: Case) -> None:
    assert case.differences(interpret(case)) == []


def test_every_producer_is_there() -> None:
    producers = Counter(case.name.partition("/")[0] for case in producer_cases())
    assert set(producers) == {"clang", "nvcc", "nvrtc", "numba", "rustc"}
    versions = {case.name[:13] for case in producer_cases() if case.name.startswith("clang")}
    assert versions == {f"clang/clang{version}" for version in range(14, 23)}
