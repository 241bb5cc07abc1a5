"""C++ names: a function's own name in an Itanium-mangled one."""

from __future__ import annotations

import re

_START = re.compile(r"_ZN?L?(?=\d)")
_LENGTH = re.compile(r"\d+")


def plain_name(mangled: str) -> str:
    """The function's own name in an Itanium-mangled one (``_Z3dotPi`` -> ``dot``)."""
    start = _START.match(mangled)
    if start is None:
        return mangled
    at, name = start.end(), mangled
    while digits := _LENGTH.match(mangled, at):
        end = digits.end() + int(digits[0])
        name, at = mangled[digits.end() : end], end
        if not mangled.startswith("_ZN"):
            break
    return name
