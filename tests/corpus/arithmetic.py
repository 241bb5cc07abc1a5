"""Every C operator on every integer type, on edge values and random ones."""

from __future__ import annotations

from collections.abc import Callable

from tests.cases import Case
from tests.corpus.build import (
    S32,
    TYPES,
    CType,
    elementwise,
    int_div,
    int_rem,
    promoted,
    random_values,
)

Binary = Callable[[int, int], int]

# Results wrap into the type that C computes in, then into the type of the output.
WRAPPING: dict[str, tuple[str, Binary]] = {
    "add": ("x + y", lambda x, y: x + y),
    "sub": ("x - y", lambda x, y: x - y),
    "mul": ("x * y", lambda x, y: x * y),
    "and": ("x & y", lambda x, y: x & y),
    "or": ("x | y", lambda x, y: x | y),
    "xor": ("x ^ y", lambda x, y: x ^ y),
    "andnot": ("x & ~y", lambda x, y: x & ~y),
    "min": ("x < y ? x : y", min),
    "max": ("x > y ? x : y", max),
}
COMPARISONS: dict[str, tuple[str, Binary]] = {
    "lt": ("x < y", lambda x, y: x < y),
    "le": ("x <= y", lambda x, y: x <= y),
    "gt": ("x > y", lambda x, y: x > y),
    "ge": ("x >= y", lambda x, y: x >= y),
    "eq": ("x == y", lambda x, y: x == y),
    "ne": ("x != y", lambda x, y: x != y),
}
DIVISIONS: dict[str, tuple[str, Binary]] = {
    "div": ("x / y", int_div),
    "rem": ("x % y", int_rem),
}


def _pairs(name: str, ctype: CType) -> tuple[list[int], list[int]]:
    """Eight pairs (four for 64 bits): edges first, then random values."""
    low, high, half = ctype.low, ctype.high, 1 << (ctype.bits // 2)
    edges = [(low, 1), (high, high), (3, -3), (half, half - 1), (0, high)]
    n = 4 if ctype.bits == 64 else 8
    random = random_values(name, ctype, 2 * n)
    pairs = [*edges[: n - 2], *zip(random[:n], random[n:], strict=True)][:n]
    return [ctype.wrap(x) for x, _ in pairs], [ctype.wrap(y) for _, y in pairs]


def _safe_for(ctype: CType, op: str, x: int, y: int) -> tuple[int, int]:
    """Operands whose result C defines: signed arithmetic of 32 bits and more must not overflow."""
    if not (ctype.signed and ctype.bits >= 32):
        return x, y
    shift = {"mul": ctype.bits // 2 + 1, "add": 1, "sub": 1}.get(op, 0)
    return x >> shift, y >> shift


def _wrapping(ctype: CType, op: str) -> Case:
    name = f"{op}_{ctype.short}"
    expression, model = WRAPPING[op]
    xs, ys = _pairs(name, ctype)
    pairs = [_safe_for(ctype, op, x, y) for x, y in zip(xs, ys, strict=True)]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    return elementwise(name, [(ctype, xs), (ctype, ys)], ctype, expression, model)


def _comparison(ctype: CType, op: str) -> Case:
    name = f"{op}_{ctype.short}"
    expression, model = COMPARISONS[op]
    xs, ys = _pairs(name, ctype)
    ys[-1] = xs[-1]
    return elementwise(name, [(ctype, xs), (ctype, ys)], S32, expression, model)


def _division(ctype: CType, op: str) -> Case:
    name = f"{op}_{ctype.short}"
    expression, model = DIVISIONS[op]
    n = 4 if ctype.bits == 64 else 8
    random = random_values(name, ctype, 2 * n)
    pairs = [(ctype.low, 3), (ctype.high, 7), (ctype.low, ctype.low), (-7, 3), (7, -3)]
    pairs = [*pairs[: n - 1], *zip(random[:n], (v >> 5 for v in random[n:]), strict=True)][:n]
    xs = [ctype.wrap(x) for x, _ in pairs]
    ys = [ctype.wrap(y) or 1 for _, y in pairs]
    return elementwise(name, [(ctype, xs), (ctype, ys)], ctype, expression, model)


def _shift(ctype: CType, op: str) -> Case:
    name = f"{op}_{ctype.short}"
    wide = promoted(ctype)
    amounts = [0, 1, 7, wide.bits - 1] if ctype.bits == 64 else [0, 1, 5, 8, 15, 16, 30, 31]
    xs = [ctype.low, ctype.high, *random_values(name, ctype, 6)][: len(amounts)]
    if op == "shl":
        expression = f"({ctype.c})((unsigned long long)x << y)"
        return elementwise(name, [(ctype, xs), (S32, amounts)], ctype, expression,
                           lambda x, y: x << y)  # fmt: skip
    return elementwise(name, [(ctype, xs), (S32, amounts)], ctype, "x >> y", lambda x, y: x >> y)


def _unary(ctype: CType, op: str) -> Case:
    name = f"{op}_{ctype.short}"
    expression, model = {
        "neg": ("0 - x", lambda x: -x),
        "not": ("~x", lambda x: ~x),
        "lnot": ("!x", lambda x: not x),
        "abs": ("x < 0 ? 0 - x : x", abs),
    }[op]
    xs = [0, 1, ctype.high, ctype.wrap(-5), *random_values(name, ctype, 4)]
    return elementwise(name, [(ctype, xs[: 4 if ctype.bits == 64 else 8])], ctype, expression,
                       model)  # fmt: skip


def _shift_of_register_width() -> list[Case]:
    """Shift of a 32-bit value by a variable amount in its own type (no widening)."""
    amounts = [0, 1, 4, 8, 15, 16, 30, 31]
    xs = random_values("shl32", TYPES[5], 8)
    return [
        elementwise("shl_u32_own", [(TYPES[5], xs), (TYPES[5], amounts)], TYPES[5], "x << y",
                    lambda x, y: x << y),
        elementwise("shl_u64_own", [(TYPES[7], random_values("shl64", TYPES[7], 4)),
                                    (TYPES[5], [0, 31, 32, 63])], TYPES[7], "x << y",
                    lambda x, y: x << y),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (
    *(_wrapping(ctype, op) for op in WRAPPING for ctype in TYPES),
    *(_comparison(ctype, op) for op in COMPARISONS for ctype in TYPES),
    *(_division(ctype, op) for op in DIVISIONS for ctype in TYPES),
    *(_shift(ctype, op) for op in ("shl", "shr") for ctype in TYPES),
    *(_unary(ctype, op) for op in ("neg", "not") for ctype in TYPES),
    *(_unary(ctype, "abs") for ctype in TYPES if ctype.signed),
    *(_unary(ctype, "lnot") for ctype in TYPES),
    *_shift_of_register_width(),
)
