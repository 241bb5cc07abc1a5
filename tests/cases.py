"""The one case table: examples and corpus as ``Case`` objects, for the tests of every level.

A case is a kernel with inputs and the words that it must leave. The expectation comes from a
NumPy or plain Python model beside the kernel, so no part of qgpu has a say in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Dim = tuple[int, int, int]
EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Case:
    """A kernel, its launch, and what it must leave.

    ``expect`` maps the index of an argument to its final array; arrays that it does not name must
    stay as they were. ``warp_sensitive`` cases have at most 4 threads a CUDA block and shuffles of
    width 4 or less, so that a warp of 32 lanes gives the same.
    """

    name: str
    source: str
    kernel: str
    grid: Dim
    block: Dim
    args: tuple[Array | int, ...]
    expect: Mapping[int, Array]
    dynamic_shared_words: int = 0
    kind: str = "cuda"
    warp_sensitive: bool = False

    def __post_init__(self) -> None:
        for index, array in self.expect.items():
            given = self.args[index]
            assert isinstance(given, np.ndarray), f"{self.name}: argument {index} is no array"
            same = (array.dtype, array.shape) == (given.dtype, given.shape)
            assert same, f"{self.name}: argument {index} changes its form"

    def __str__(self) -> str:
        return self.name

    @property
    def final(self) -> list[Array | None]:
        """What each argument must be after the launch; None for a scalar."""
        return [
            self.expect.get(index, arg) if isinstance(arg, np.ndarray) else None
            for index, arg in enumerate(self.args)
        ]

    def differences(self, args: Sequence[Array | None]) -> list[str]:
        """One line for each argument that is not what it must be.

        An array passed by value (a structure) does not come back: it may be None.
        """
        found = []
        for index, (have, want) in enumerate(zip(args, self.final, strict=True)):
            if want is None or (have is None and index not in self.expect):
                continue
            if have is None or not np.array_equal(have, want):
                found.append(f"argument {index}: {_short(have)}, expected {_short(want)}")
        return found


def _short(array: Array | None) -> str:
    return np.array2string(np.asarray(array), threshold=64, separator=",")


def dim(size: int | Sequence[int]) -> Dim:
    """1 -> (1, 1, 1); (2, 3) -> (2, 3, 1)."""
    given = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


# --- examples/*.cu --------------------------------------------------------------------------------
#
# The comment at the head of an example says how to launch it and what comes out:
#   // qgpu: kernel=NAME grid=X[,Y[,Z]] block=X[,Y[,Z]] [shared=WORDS]
#   // arg: SPEC              one for each parameter, as for `qgpu run --arg`
#   // expect N: [1,2,3]      the final contents of argument N; other arrays stay unchanged

_LINE = re.compile(r"// (qgpu|arg|expect (\d+)): (.*)")


def _argument(spec: str) -> Array | int:
    if spec.startswith("["):
        return np.array([int(item) for item in spec[1:-1].split(",")], dtype=np.int32)
    if spec.startswith("zeros:"):
        return np.zeros(int(spec.removeprefix("zeros:")), dtype=np.int32)
    return int(spec, 0)


def load_example(path: Path) -> Case:
    """The case that the head of an example describes."""
    source = path.read_text()
    launch: dict[str, str] = {}
    args: list[Array | int] = []
    expect: dict[int, Array] = {}
    for line in source.splitlines():
        if (match := _LINE.fullmatch(line)) is None:
            continue
        kind, index, text = match.groups()
        if kind == "qgpu":
            launch = dict(item.split("=", 1) for item in text.split())
        elif kind == "arg":
            args.append(_argument(text))
        else:
            final = _argument(text)
            assert isinstance(final, np.ndarray), f"{path.name}: {line}"
            expect[int(index)] = final
    sizes = {key: dim([int(n) for n in launch[key].split(",")]) for key in ("grid", "block")}
    shared = int(launch.get("shared", "0"))
    return Case(path.stem, source, launch["kernel"], sizes["grid"], sizes["block"], tuple(args),
                expect, shared)  # fmt: skip


@cache
def example_cases() -> tuple[Case, ...]:
    return tuple(load_example(path) for path in sorted(EXAMPLES.glob("*.cu")))


@cache
def corpus_cases() -> tuple[Case, ...]:
    from tests.corpus import CASES

    return CASES


def all_cases() -> Iterator[Case]:
    yield from example_cases()
    yield from corpus_cases()
