"""The stock kernels as data: operators and functions, and how each is launched.

The launching itself (splitting, broadcasting, refusals) is ``qgpu.host.chat.calculate``; this table
says which CUDA kernel computes what.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Elementwise:
    """A kernel of one thread an element. ``wraps``: it has a wrapped[] parameter.

    ``plain`` names a shorter kernel without that parameter, for operands that cannot wrap.
    """

    file: str
    kernel: str
    arity: int
    wraps: bool
    rule: str = ""  # what the second (or only) operand must be; see operands.RULES
    plain: str = ""


def _binary(
    kernel: str, wraps: bool, rule: str = "", file: str = "elementwise.cu", plain: str = ""
) -> Elementwise:
    return Elementwise(file, kernel, 2, wraps, rule, plain)


OPERATORS = {
    "+": _binary("add_wide", True, plain="add"),
    "-": _binary("subtract_wide", True, plain="subtract"),
    "*": _binary("multiply_wide", True, plain="multiply"),
    "//": _binary("floor_divide", True, "divisor"),
    "%": _binary("modulo", False, "divisor"),
    "**": _binary("power", True, "exponent"),
    "==": _binary("equal", False),
    "!=": _binary("not_equal", False),
    "<": _binary("less", False),
    "<=": _binary("less_equal", False),
    ">": _binary("greater", False),
    ">=": _binary("greater_equal", False),
    "&": _binary("bit_and", False),
    "|": _binary("bit_or", False),
    "^": _binary("bit_xor", False),
    "<<": _binary("shift_left", True, "shift"),
    ">>": _binary("shift_right", False, "shift"),
}

FUNCTIONS = {
    "gcd": _binary("gcd", True, file="number.cu"),
    "lcm": _binary("lcm", True, file="number.cu"),
    "abs": Elementwise("elementwise.cu", "absolute", 1, True),
    "popcount": Elementwise("elementwise.cu", "popcount", 1, False),
    "is_prime": Elementwise("number.cu", "is_prime", 1, False),
    "factorial": Elementwise("number.cu", "factorial", 1, True, "factorial"),
    "fibonacci": Elementwise("number.cu", "fibonacci", 1, True, "fibonacci"),
}

LARGE_PRIME = Elementwise("number.cu", "is_prime_large", 1, False)
"""Takes over from ``is_prime`` where trial division would be long."""

# Functions that are not elementwise: name -> what a call looks like.
SPECIAL = {
    "sum": "sum(v)",
    "prod": "prod(v)",
    "min": "min(v)",
    "max": "max(v)",
    "argmin": "argmin(v)",
    "argmax": "argmax(v)",
    "mean": "mean(v)",
    "sort": "sort(v)",
    "cumsum": "cumsum(v)",
    "reverse": "reverse(v)",
    "count": "count(v, x)",
    "histogram": "histogram(v, bins)",
    "dot": "dot(a, b)",
    "matmul": "matmul(a, b)",
    "range": "range(start, stop)",
}

NAMES = sorted([*FUNCTIONS, *SPECIAL])
