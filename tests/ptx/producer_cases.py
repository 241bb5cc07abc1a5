"""PTX files that other producers made, as cases: inputs and the words that must come out.

``producers/<producer>/*.ptx`` are clang 14 to 22 at -O0 to -O3, nvcc 13.0, NVRTC 13.0 (both from
``kernels.cu``), numba-cuda 0.30 (``make_numba.py``) and rustc 1.95 (``kernels.rs``).
All 266 gave the expected words on an NVIDIA H200 too (2026-12-01, CuPy's RawModule).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from tests.cases import Array, Case

PRODUCERS = Path(__file__).parent / "producers"


def _wrap(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _i32(values: list[int]) -> Array:
    return np.array([_wrap(v) for v in values], np.int32)


def _mix(i: int, a: int, b: int) -> int:
    quotient = _divide(a, b)
    first, second, u = _wrap(quotient, 16), a - b * quotient, a & 0xFFFFFFFF
    wide = _wrap(a * b + (second << 33), 64)
    r = first * (3, -1, 4, -5)[i & 3] + second
    r = _wrap(r + (wide >> 31) + _wrap(a, 8) + (b & 0xFFFF))
    r ^= _wrap((u << 7 | u >> 25) + u.bit_count() * 1000 + 32 - u.bit_length())
    return _wrap(r + min(a, b) - max(u, 77) + abs(b))


def _reduce(data: list[int]) -> int:
    return sum(x if x & 1 else -_divide(x, 2) for x in data)


def _steps(x: int, t: int, rounds: int) -> int:
    for r in range(rounds):
        match x - 7 * _divide(x, 7):
            case 0:
                x = _divide(x, 7) + 1
            case 1:
                x = x * 3 + (1, 2, 4, 8, 16, 32)[r % 6]
            case 2:
                x ^= 0x55
            case 3:
                x = ~x & 0xFFFF
            case 4:
                x += 100
                if x > 5000:
                    continue
                x -= t
            case 5:
                x = (x << 2) - 1
            case _:
                x >>= 1
        x = _wrap(x)
        if x < 0:
            break
    return x


def _warp(data: list[int]) -> tuple[list[int], int]:
    total = sum(data)
    ballot = sum(1 << t for t in range(4) if (total + t) & 1)
    return [total * 10 + (data[t - 1] if t else 0) for t in range(4)], ballot


A = [7, -100, 2147483647, -2147483648, 0, 12345678, -1, 65536, -77]
B = [3, 7, -2, 16, -5, -123, 1, 300, 9]
BYTES = [0, 1, 2, 250, 7, 7, 9, 31, 255, 8, 16, 77]
WIDE = [5, -(2**40), 2**62, -1, 0, 77]


def _cuda(name: str, ptx: str) -> Iterator[Case]:
    """The kernels of ``kernels.cu``."""
    n = len(A)
    out = np.zeros(n + 1, np.int32)
    mixed = _i32([_mix(i, a, b) for i, (a, b) in enumerate(zip(A, B, strict=True))] + [0])
    yield Case(f"{name}:mix", ptx, "mix", (3, 1, 1), (4, 1, 1), (_i32(A), _i32(B), out, n),
               {2: mixed})  # fmt: skip
    data = [3, 8, -7, -6, 100, 11, 2, 1, 1, 5, -9]
    yield Case(f"{name}:reduce", ptx, "reduce", (2, 1, 1), (8, 1, 1),
               (_i32(data), np.zeros(2, np.int32), len(data)),
               {1: _i32([_reduce(data)] * 2)})  # fmt: skip
    counts = [sum(byte & 7 == k for byte in BYTES) for k in range(8)]
    folded = 0
    for k, count in enumerate(counts):
        folded ^= count << k
    yield Case(f"{name}:histogram", ptx, "histogram", (1, 1, 1), (10, 1, 1),
               (np.array(BYTES, np.uint8), np.zeros(10, np.uint32), len(BYTES)),
               {1: np.array([*counts, max(counts), folded], np.uint32)})  # fmt: skip
    start = [14, 8, 9, 10, 4999, 12, 13, -3]
    yield Case(f"{name}:steps_of", ptx, "steps_of", (1, 1, 1), (8, 1, 1), (_i32(start), 9),
               {0: _i32([_steps(x, t, 9) for t, x in enumerate(start)])})  # fmt: skip
    shuffled, ballot = _warp([3, 10, -4, 8])
    yield Case(f"{name}:warp", ptx, "warp", (1, 1, 1), (4, 1, 1),
               (_i32([3, 10, -4, 8]), np.zeros(4, np.uint32)),
               {0: _i32(shuffled), 1: np.full(4, ballot, np.uint32)},
               warp_sensitive=True)  # fmt: skip
    v = sorted(WIDE)
    final = [x ^ v[(i + 1) % len(v)] >> 7 for i, x in enumerate(v)]
    yield Case(f"{name}:local_sort", ptx, "local_sort", (1, 1, 1), (2, 1, 1),
               (np.array(WIDE, np.int64), len(WIDE)), {0: np.array(final, np.int64)})  # fmt: skip


def _view(array: Array) -> tuple[Array | int, ...]:
    """A numba array parameter: two object pointers, items, item size, data, shape, stride."""
    return (0, 0, array.size, array.itemsize, array, array.size, array.itemsize)


def _numba(name: str, ptx: str) -> Iterator[Case]:
    found = re.search(r"\.entry (\S+)\(", ptx)
    assert found is not None
    entry, one = found[1], (1, 1, 1)
    a, b, out = _i32(A), _i32([3, 7, -2, 16, -5, -123, 1, 300, -9]), np.zeros(len(A), np.int32)
    # Python's // rounds down and % takes the divisor's sign.
    scaled = _i32([x * 5 + int(y) // 3 - x % 5 for x, y in zip(A, b, strict=True)])
    sums, counts = list(range(3, 11)), [sum(byte & 3 == k for byte in BYTES) for k in range(4)]
    start, lengths = [1, 6, 7, 27], [0, 8, 16, 111]
    yield {
        "vector_scale": Case(
            name, ptx, entry, (3, 1, 1), (4, 1, 1), (*_view(a), *_view(b), *_view(out), 5),
            {18: scaled}),
        "block_sum": Case(
            name, ptx, entry, one, (8, 1, 1), (*_view(_i32(sums)), *_view(_i32([0]))),
            {11: _i32([sum(sums)])}),
        "count_bytes": Case(
            name, ptx, entry, one, (5, 1, 1),
            (*_view(np.array(BYTES, np.uint8)), *_view(np.zeros(4, np.uint32))),
            {11: np.array(counts, np.uint32)}),
        "collatz": Case(
            name, ptx, entry, one, (4, 1, 1),
            (*_view(np.array(start, np.int64)), *_view(_i32([0] * 4))), {11: _i32(lengths)}),
    }[Path(name).name]  # fmt: skip


def _rust(name: str, ptx: str) -> Iterator[Case]:
    out = []
    for a, b in zip(A, B, strict=True):
        turned = (a & 0xFFFFFFFF) << 5 | (a & 0xFFFFFFFF) >> 27
        out.append(a * b + turned - _divide(b, 7) + (a * b >> 32))
    yield Case(f"{name}:mix", ptx, "rust_mix", (3, 1, 1), (4, 1, 1),
               (_i32(A), _i32(B), np.zeros(len(A), np.int32), len(A)), {2: _i32(out)})  # fmt: skip
    yield Case(f"{name}:gcd", ptx, "rust_gcd", (1, 1, 1), (4, 1, 1),
               (_i32([12, 35, 81, 1]), _i32([18, 14, 27, 9])),
               {0: _i32([6, 7, 27, 1])})  # fmt: skip


@cache
def producer_cases() -> tuple[Case, ...]:
    """Every kernel of every file."""
    cases: list[Case] = []
    for path in sorted(PRODUCERS.glob("*/*.ptx")):
        make = {"numba": _numba, "rustc": _rust}.get(path.parent.name, _cuda)
        made = make(f"{path.parent.name}/{path.stem}", path.read_text())
        cases += [replace(case, kind="ptx") for case in made]
    return tuple(cases)
