"""What CUDA offers and this machine lacks: names in errors become one line that says so."""

from __future__ import annotations

import re

_FLOAT_NAME = (
    r"_*(?:nv_)?(?:"
    r"(?:sqrt|rsqrt|cbrt|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|exp|exp2|exp10|expm1|log"
    r"|log2|log10|log1p|pow|powi|floor|ceil|trunc|round|rint|lround|llround|fabs|fmod|fmin|fmax|fma"
    r"|hypot|erf|erfc|ldexp|frexp|modf|copysign|sincos|saturate|fdividef|isnan|isinf|isfinite"
    r"|signbit)f?"
    r"|(?:float|double|half2?|bfloat16|nv_bfloat16)[1-4]?"
    r"|make_(?:float|double)[1-4]"
    r"|\w*(?:float|double|half|bfloat16)(?:2|_as_)\w*|\w+(?:2|_as_)(?:float|double|half|bfloat16)\w*"
    r"|f(?:add|sub|mul|div|sqrt|rcp|maf|ma)_r[nzud]"
    r")"
)
# (the names, what to say): the first that fits the whole name
ABSENT = [
    (r"v?printf|puts|putchar|fprintf", "there is no {name} here: write to an array instead"),
    (
        r"malloc|free|calloc|realloc|alloca|operator (?:new|delete)(?:\[\])?",
        "there is no {name}, because there is no heap: use an array argument or a local array",
    ),
    (_FLOAT_NAME, "this machine computes integers only: there is no {name}"),
    (r"clock(?:64)?", "this machine cannot tell the time: there is no {name}"),
    (
        r"(?:tex|surf)(?:1D|2D|3D|Cubemap)\w*|texture|surface|cudaTextureObject_t",
        "there are no textures and surfaces here, so no {name}",
    ),
    (r"cooperative_groups|cg", "there are no cooperative groups here: use __syncthreads, __shfl_*"),
    (r"std|thrust|cub|cuda", "there is no C++ library here, so no {name}::"),
    (r"cu(?:da|rand|blas|fft|sparse|dnn)\w*", "there is no {name}: kernels only, no host library"),
    (r"__pipeline_\w+|wmma|nvcuda", "there is no {name} on this machine"),
    (r"__assert_?fail", "there is no {name}: assert() ends the launch with a trap"),
]
_QUOTED = re.compile(
    r"use of undeclared identifier '(\w+)'|unknown type name '(\w+)'|no type named '(\w+)'"
    r"|no member named '(\w+)'|unknown class name '(\w+)'|undeclared variable '(\w+)'"
)
_NAMESPACE = re.compile(r"expected (?:a )?namespace name|use of undeclared namespace")
_OPERATORS = re.compile(r"_Z(nw|na|dl|da)[a-zA-Z0-9_]*")
_OPERATOR_NAMES = {
    "nw": "operator new", "na": "operator new[]", "dl": "operator delete", "da": "operator delete[]"
}  # fmt: skip


def _explain_name(name: str) -> str | None:
    for names, text in ABSENT:
        if re.fullmatch(names, name):
            return text.format(name=name)
    return None


def explain_error(message: str) -> str:
    """clang's error, in the machine's words where it is about something that no GPU here has."""
    if "requires relocatable device code" in message:
        return "a kernel cannot launch a kernel here"
    if _NAMESPACE.search(message):
        return "there is no C++ library here, so no such namespace"
    found = _QUOTED.search(message)
    name = next(filter(None, found.groups()), None) if found else None
    return _explain_name(name) or message if name else message


def explain_call(name: str) -> str:
    """Why a call of a function that the module does not define is refused."""
    operator = _OPERATORS.fullmatch(name)
    known = _explain_name(_OPERATOR_NAMES[operator[1]] if operator else name)
    return known or f"the function {name!r} has no body here"
