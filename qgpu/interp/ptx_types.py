"""Types of integer PTX, and what the rules of instructions are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BITS = {"pred": 1, **{f"{kind}{n}": n for kind in "busf" for n in (8, 16, 32, 64)}, "b128": 128}
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "tf32", "f32", "f64", "e4m3x2", "e5m2x2")


class Unsupported(Exception):
    """The instruction is not one of integer PTX."""


@dataclass(frozen=True)
class Rule:
    """``compute`` takes the sources, read by their types, and gives the result before wrapping."""

    result: str
    sources: tuple[str, ...]
    compute: Callable[..., int]


def pattern(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def as_type(value: int, type_: str) -> int:
    """The low bits of ``value`` read as ``type_``."""
    bits = BITS[type_]
    value = pattern(value, bits)
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value


def saturate(value: int, type_: str) -> int:
    top = 1 << BITS[type_] - 1
    low, high = (-top, top - 1) if type_[0] == "s" else (0, 2 * top - 1)
    return max(low, min(high, value))
