"""What the operands of an operation must be; each refusal says what would be right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qgpu.host.chat.expression import INT_MAX, ExpressionError

Value = npt.NDArray[np.int32]
MAX_ELEMENTS = 1 << 14
MAX_FIBONACCI = 1_000


def as_value(data: Any) -> Value:
    return np.array(data, dtype=np.int32)


def shape_text(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"a vector of {shape[0]}"
    return f"a {'x'.join(map(str, shape))} matrix"


def check_size(size: int) -> None:
    if size > MAX_ELEMENTS:
        raise ExpressionError(f"too big: {size} elements, at most {MAX_ELEMENTS}")


def check_arity(name: str, arguments: list[Value], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ExpressionError(f"{name} takes {wanted} arguments, not {len(arguments)}")


def numbers(name: str, arguments: list[Value], *, empty: bool = False) -> Value:
    """One vector or matrix, or several scalars, as a flat vector."""
    if len(arguments) > 1 and all(value.ndim == 0 for value in arguments):
        return as_value(arguments)
    check_arity(name, arguments, 1, 1)
    v = arguments[0].ravel()
    if not v.size and not empty:
        raise ExpressionError(f"{name} of no numbers has no value")
    return v


def vector(name: str, arguments: list[Value]) -> Value:
    check_arity(name, arguments, 1, 1)
    if arguments[0].ndim != 1:
        raise ExpressionError(f"{name} needs a vector, such as [3, 1, 2]")
    return arguments[0]


def scalar(name: str, what: str, value: Value) -> int:
    if value.ndim:
        raise ExpressionError(f"{name}: {what} must be a single number")
    return int(value)


def _refuse_where(bad: npt.NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        raise ExpressionError(reason)


RULES: dict[str, Callable[[str, Value], None]] = {
    "": lambda op, v: None,
    "divisor": lambda op, v: _refuse_where(v == 0, f"{op} by zero"),
    "exponent": lambda op, v: _refuse_where(
        v < 0, "a negative exponent would give a fraction: integers only"
    ),
    "shift": lambda op, v: _refuse_where(v < 0, f"{op} by a negative amount"),
    "factorial": lambda op, v: _refuse_where(v < 0, "factorial of a negative number"),
    "fibonacci": lambda op, v: _refuse_where(
        (v < 0) | (v > MAX_FIBONACCI), f"fibonacci needs a number from 0 to {MAX_FIBONACCI}"
    ),
}


# --- how large results can become -----------------------------------------------------------------


def largest(value: Value) -> int:
    """The largest magnitude among the elements."""
    return int(np.abs(value.astype(np.int64)).max(initial=0))


def sums_fit(factors: list[Value], count: int) -> bool:
    """No sum of up to ``count`` products of the factors' elements can leave 32 bits."""
    return math.prod(map(largest, factors)) * count <= INT_MAX


FITS: dict[str, Callable[[Value, Value], bool]] = {
    "add": lambda a, b: largest(a) + largest(b) <= INT_MAX,
    "subtract": lambda a, b: largest(a) + largest(b) <= INT_MAX,
    "multiply": lambda a, b: sums_fit([a, b], 1),
}
"""For each plain elementwise kernel, whether it is right for these operands."""
