"""What every stock operation must give, by NumPy and Python's exact integers, and random cases.

Nothing here looks at the kernels: exact values come from unbounded integers and are wrapped to 32
bits, and ``wraps`` says whether that changed anything.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
EDGES = [0, 1, -1, 2, -2, 3, 7, -7, 255, 65535, 65536, -65536, 46341, INT_MAX, INT_MAX - 1,
         INT_MIN, INT_MIN + 1, 1 << 30, -(1 << 30), 0x55555555]  # fmt: skip


def wrap(exact: int) -> int:
    return (exact + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass(frozen=True)
class Expected:
    """The value and whether a result had to wrap to fit 32 bits."""

    value: Any
    wraps: bool


def expected(exact: Any) -> Expected:
    """From exact integers, however deep in lists."""
    if isinstance(exact, list):
        parts = [expected(item) for item in exact]
        return Expected([p.value for p in parts], any(p.wraps for p in parts))
    return Expected(wrap(exact), wrap(exact) != exact)


BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
# What the right operand may be, where not every number will do.
RIGHT: dict[str, list[int]] = {
    "//": [x for x in EDGES if x],
    "%": [x for x in EDGES if x],
    "**": [0, 1, 2, 3, 5, 16, 31, 32, 33, 100],
    "<<": [0, 1, 5, 15, 30, 31, 32, 100],
    ">>": [0, 1, 5, 15, 30, 31, 32, 100],
}


def pairs(op: str, seed: int, count: int) -> list[tuple[int, int]]:
    """Edge values and random ones of every size."""
    rng = random.Random(f"{op}{seed}")
    right = RIGHT.get(op, EDGES)
    out = [(rng.choice(EDGES), rng.choice(right)) for _ in range(count)]
    for _ in range(count):
        b = rng.choice(right) if op in ("**", "<<", ">>") else some_int(rng)
        out.append((some_int(rng), b or 1))
    return out


def some_int(rng: random.Random) -> int:
    return wrap(rng.getrandbits(32) >> rng.randrange(32)) * rng.choice([1, -1]) % (1 << 31)


def is_prime(n: int) -> int:
    return int(n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)))


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


UNARY: dict[str, tuple[Callable[[int], int], list[int]]] = {
    "abs": (abs, EDGES),
    "popcount": (lambda x: (x & 0xFFFFFFFF).bit_count(), EDGES),
    "is_prime": (is_prime, [*range(-3, 130), 997, 1009, 65521, 65519, 32761, INT_MIN]),
    "factorial": (math.factorial, [*range(15), 20, 33, 34, 35, 100]),
    "fibonacci": (fibonacci, [0, 1, 2, 3, 10, 45, 46, 47, 48, 93, 100]),
}
LARGE_PRIMES = [65537, 2147483647, 2147483629, 2147483646, 2147117569, 1000003, 1000001, 49141,
                252601, 3, 7, 61, 2, 9, 1, 0, -5, 3215031751 & INT_MAX, 1373653, 25326001,
                46337 * 46337, 314821, 65536]  # fmt: skip

PAIRED: dict[str, Callable[[int, int], int]] = {"gcd": math.gcd, "lcm": math.lcm}


def dot(a: Iterable[int], b: Iterable[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def matmul(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    return [[dot(row, column) for column in zip(*b, strict=True)] for row in a]


def cumsum(v: list[int]) -> list[int]:
    return [sum(v[: i + 1]) for i in range(len(v))]


REDUCTIONS: dict[str, Callable[[list[int]], Any]] = {
    "sum": sum,
    "prod": lambda v: reduce(lambda a, b: a * b, v, 1),
    "min": min,
    "max": max,
    "argmin": lambda v: int(np.argmin(v)),
    "argmax": lambda v: int(np.argmax(v)),
    "mean": lambda v: sum(v) // len(v),
    "sort": sorted,
    "cumsum": cumsum,
    "reverse": lambda v: v[::-1],
    "count": lambda v: int(np.count_nonzero(v)),
}
VECTORS: dict[str, list[int]] = {
    "one": [5],
    "two": [2, -3],
    "small": [3, 1, 4, 1, 5, 9, 2, 6],
    "equal": [7] * 9,
    "negative": [-5, -1, -9, -1],
    "zeros": [0, 0, 0],
    "zero last": [65536, 65536, 65536, 0],
    "edges": EDGES,
    "sum wraps": [INT_MAX, 1],
    "sum wraps and comes back": [INT_MAX, INT_MAX, INT_MIN, INT_MIN, 5],
    "sum far out": [INT_MIN] * 5,
    "product is INT_MIN": [65536, 32768, -1],
    "product is just too large": [65536, 32768],
    "ones": [1, -1, 1, -1, -1],
    "mean rounds down": [-1, -2],
}
