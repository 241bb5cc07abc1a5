"""What each integer PTX instruction computes, from the PTX ISA's own descriptions.

``rule_of`` turns an opcode into a ``Rule``: the types of its operands and a function over Python
integers (signed values for ``s`` types, unsigned for ``u`` and ``b``). This is the reference that
the lowering is held against, so nothing here knows of machine blocks or 32-bit lanes.
"""

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


def _divide(a: int, b: int, bits: int) -> int:
    """Towards zero. PTX leaves division by zero open; an H200 gives all ones, so do we."""
    if b == 0:
        return (1 << bits) - 1
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _remainder(a: int, b: int, bits: int) -> int:
    return (1 << bits) - 1 if b == 0 else a - b * _divide(a, b, bits)


def _wide(type_: str) -> str:
    return f"{type_[0]}{2 * BITS[type_]}"


def _high(product: int, type_: str) -> int:
    return product >> BITS[type_]


def _two(compute: Callable[[int, int], int]) -> Callable[[list[str], str], Rule]:
    return lambda mods, type_: Rule(type_, (type_, type_), compute)


def _one(compute: Callable[[int, str], int]) -> Callable[[list[str], str], Rule]:
    return lambda mods, type_: Rule(type_, (type_,), lambda a: compute(a, type_))


def _sum(sign: int) -> Callable[[list[str], str], Rule]:
    def make(mods: list[str], type_: str) -> Rule:
        if "sat" in mods:
            return Rule(type_, (type_, type_), lambda a, b: saturate(a + sign * b, type_))
        return Rule(type_, (type_, type_), lambda a, b: a + sign * b)

    return make


def _mul(mods: list[str], type_: str) -> Rule:
    if "wide" in mods:
        return Rule(_wide(type_), (type_, type_), lambda a, b: a * b)
    if "hi" in mods:
        return Rule(type_, (type_, type_), lambda a, b: _high(a * b, type_))
    return Rule(type_, (type_, type_), lambda a, b: a * b)


def _mad(mods: list[str], type_: str) -> Rule:
    if "wide" in mods:
        return Rule(_wide(type_), (type_, type_, _wide(type_)), lambda a, b, c: a * b + c)
    if "hi" in mods and "sat" in mods:
        return Rule(type_, (type_,) * 3, lambda a, b, c: saturate(_high(a * b, type_) + c, type_))
    if "hi" in mods:
        return Rule(type_, (type_,) * 3, lambda a, b, c: _high(a * b, type_) + c)
    return Rule(type_, (type_,) * 3, lambda a, b, c: a * b + c)


def _low24(value: int, type_: str) -> int:
    value = pattern(value, 24)
    return value - (1 << 24) if type_ == "s32" and value >> 23 else value


def _mul24(mods: list[str], type_: str) -> Rule:
    shift = 16 if "hi" in mods else 0
    return Rule(type_, (type_, type_), lambda a, b: _low24(a, type_) * _low24(b, type_) >> shift)


def _mad24(mods: list[str], type_: str) -> Rule:
    shift = 16 if "hi" in mods else 0

    def compute(a: int, b: int, c: int) -> int:
        product = as_type(_low24(a, type_) * _low24(b, type_) >> shift, type_)
        return saturate(product + c, type_) if "sat" in mods else product + c

    return Rule(type_, (type_,) * 3, compute)


def _sad(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_,) * 3, lambda a, b, c: c + abs(a - b))


def _div(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, type_), lambda a, b: _divide(a, b, BITS[type_]))


def _rem(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, type_), lambda a, b: _remainder(a, b, BITS[type_]))


def _extreme(pick: Callable[[int, int], int]) -> Callable[[list[str], str], Rule]:
    def make(mods: list[str], type_: str) -> Rule:
        floor = 0 if "relu" in mods else -(1 << 64)
        return Rule(type_, (type_, type_), lambda a, b: max(floor, pick(a, b)))

    return make


def _count(compute: Callable[[int, int], int]) -> Callable[[list[str], str], Rule]:
    return lambda mods, type_: Rule("u32", (type_,), lambda a: compute(a, BITS[type_]))


def _reverse(a: int, type_: str) -> int:
    return int(f"{a:0{BITS[type_]}b}"[::-1], 2)


def _bfind(mods: list[str], type_: str) -> Rule:
    def compute(a: int) -> int:
        top = (~a if a < 0 else a).bit_length() - 1
        if top < 0:
            return -1
        return BITS[type_] - 1 - top if "shiftamt" in mods else top

    return Rule("u32", (type_,), compute)


def _shl(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, "u32"), lambda a, b: a << b if b < BITS[type_] else 0)


def _shr(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, "u32"), lambda a, b: a >> min(b, BITS[type_]))


def _shf(mods: list[str], type_: str) -> Rule:
    def compute(low: int, high: int, c: int) -> int:
        n = min(c, 32) if "clamp" in mods else c & 31
        both = high << 32 | low
        return both << n >> 32 if "l" in mods else both >> n

    return Rule("b32", ("b32", "b32", "u32"), compute)


def _bfe(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int) -> int:
        bits = BITS[type_]
        position, length = b & 0xFF, c & 0xFF
        raw = pattern(a, bits)
        if type_[0] == "u" or length == 0:
            sign = 0
        else:
            sign = raw >> min(position + length - 1, bits - 1) & 1
        field_ = pattern(raw >> position, length) if position < bits else 0
        present = max(0, min(length, bits - position))
        return field_ | (-1 << present if sign else 0) if length else 0

    return Rule(type_, (type_, "u32", "u32"), compute)


def _bfi(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 0xFF, d & 0xFF
        mask = pattern(-1, length) << position
        return (b & ~mask) | (a << position & mask)

    return Rule(type_, (type_, type_, "u32", "u32"), compute)


def _bmsk(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int) -> int:
        if "wrap" in mods:
            a, b = a & 31, b & 31
        return pattern(-1, min(b, 32)) << min(a, 32)

    return Rule("b32", ("b32", "b32"), compute)


def _szext(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int) -> int:
        n = b & 31 if "wrap" in mods else b
        if n >= 32:
            return a
        low = pattern(a, n)
        return low - (1 << n) if type_ == "s32" and n and low >> (n - 1) else low

    return Rule(type_, (type_, "u32"), compute)


def _fns(mods: list[str], type_: str) -> Rule:
    def compute(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if mask >> base & 1 else -1
        step = 1 if offset > 0 else -1
        position, left = base, abs(offset)
        while 0 <= position < 32:
            left -= mask >> position & 1
            if left == 0:
                return position
            position += step
        return -1

    return Rule("b32", ("b32", "u32", "s32"), compute)


def _lop3(mods: list[str], type_: str) -> Rule:
    def compute(a: int, b: int, c: int, table: int) -> int:
        out = 0
        for index in range(8):
            if table >> index & 1:
                terms = [x if index >> n & 1 else ~x for x, n in ((a, 2), (b, 1), (c, 0))]
                out |= terms[0] & terms[1] & terms[2]
        return out

    return Rule("b32", ("b32", "b32", "b32", "u32"), compute)


PRMT_MODES: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8],
    "rc8": lambda n: [n, n, n, n],
    "ecl": lambda n: [max(n, i) for i in range(4)],
    "ecr": lambda n: [min(n, i) for i in range(4)],
    "rc16": lambda n: [(n & 1) * 2 + (i & 1) for i in range(4)],
}


def _prmt(mods: list[str], type_: str) -> Rule:
    mode = next((PRMT_MODES[mod] for mod in mods if mod in PRMT_MODES), None)

    def compute(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        if mode is not None:
            return int.from_bytes(bytes(source[n & 7] for n in mode(c & 3)), "little")
        out = 0
        for n in range(4):
            byte = source[c >> 4 * n & 7]
            if c >> 4 * n & 8:
                byte = 0xFF if byte & 0x80 else 0
            out |= byte << 8 * n
        return out

    return Rule("b32", ("b32", "b32", "b32"), compute)


def _dot(width: int) -> Callable[[list[str], str], Rule]:
    """dp4a, dp2a: the products of the parts of a with bytes of b, added to c."""

    def make(mods: list[str], type_: str) -> Rule:
        a_type, b_type = mods[-1], type_
        first = 2 if "hi" in mods else 0
        parts = 32 // width

        def compute(a: int, b: int, c: int) -> int:
            for n in range(parts):
                left = as_type(a >> width * n, f"{a_type[0]}{width}")
                right = as_type(b >> 8 * (n + first), f"{b_type[0]}8")
                c += left * right
            return c

        result = "u32" if (a_type, b_type) == ("u32", "u32") else "s32"
        return Rule(result, ("b32", "b32", result), compute)

    return make


def _cvt(mods: list[str], type_: str) -> Rule:
    target = mods[-1]
    if "pack" in mods:
        return _cvt_pack(mods, type_)
    if "sat" in mods:
        return Rule(target, (type_,), lambda a: saturate(a, target))
    return Rule(target, (type_,), lambda a: a)


def _cvt_pack(mods: list[str], type_: str) -> Rule:
    """cvt.pack.sat.convertType.abType{.cType} d, a, b{, c}."""
    types = [mod for mod in [*mods, type_] if mod[0] in "usb" and mod[1:].isdigit()]
    target, source = types[0], types[1]
    bits = int(target[1:])
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
    )

    def compute(a: int, b: int, c: int = 0) -> int:
        packed = [pattern(max(low, min(high, x)), bits) for x in (a, b)]
        return c << 2 * bits | packed[0] << bits | packed[1]

    return Rule("b32", (source, source, *(["b32"] if len(types) == 3 else [])), compute)


Compare = Callable[[int, int], bool]
Combine = Callable[[int, int], int]
COMPARE: dict[str, Compare] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
}  # fmt: skip
COMBINE: dict[str, Combine] = {
    "and": lambda t, c: t & c, "or": lambda t, c: t | c, "xor": lambda t, c: t ^ c,
}  # fmt: skip


def comparison(
    mods: list[str],
) -> tuple[Callable[[int, int], bool], Callable[[int, int], int] | None]:
    """The comparison of setp or set, and how it combines with operand c."""
    compare = next((COMPARE[mod] for mod in mods if mod in COMPARE), None)
    if compare is None:
        raise Unsupported
    return compare, next((COMBINE[mod] for mod in mods if mod in COMBINE), None)


def _set(mods: list[str], type_: str) -> Rule:
    compare, combine = comparison(mods)
    result = mods[-1]

    def compute(a: int, b: int, c: int = 0) -> int:
        truth = int(compare(a, b))
        return -1 if (combine(truth, c) if combine else truth) else 0

    return Rule(result, (type_, type_, *(["pred"] if combine else [])), compute)


def _selp(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, type_, "pred"), lambda a, b, p: a if p else b)


def _slct(mods: list[str], type_: str) -> Rule:
    if type_ != "s32":
        raise Unsupported
    return Rule(mods[-1], (mods[-1], mods[-1], "s32"), lambda a, b, c: a if c >= 0 else b)


RULES: dict[str, Callable[[list[str], str], Rule]] = {
    "add": _sum(1), "sub": _sum(-1), "mul": _mul, "mad": _mad, "mul24": _mul24, "mad24": _mad24,
    "sad": _sad, "div": _div, "rem": _rem,
    "abs": _one(lambda a, t: abs(a)), "neg": _one(lambda a, t: -a),
    "min": _extreme(min), "max": _extreme(max),
    "popc": _count(lambda a, n: a.bit_count()), "clz": _count(lambda a, n: n - a.bit_length()),
    "brev": _one(_reverse), "bfind": _bfind, "fns": _fns, "bfe": _bfe, "bfi": _bfi,
    "bmsk": _bmsk, "szext": _szext, "dp4a": _dot(8), "dp2a": _dot(16), "prmt": _prmt,
    "and": _two(lambda a, b: a & b), "or": _two(lambda a, b: a | b),
    "xor": _two(lambda a, b: a ^ b), "not": _one(lambda a, t: ~a),
    "cnot": _one(lambda a, t: int(a == 0)), "lop3": _lop3,
    "shl": _shl, "shr": _shr, "shf": _shf, "cvt": _cvt, "set": _set, "selp": _selp, "slct": _slct,
}  # fmt: skip

# Which read or move bits alone, so that a float register may pass through them.
BIT_MOVES = ("selp",)


def rule_of(opcode: tuple[str, ...]) -> Rule:
    """The rule of an arithmetic, logic, shift, compare or conversion instruction."""
    root, mods, type_ = opcode[0], list(opcode[1:-1]), opcode[-1]
    if root == "prmt":  # the one whose mode follows its type
        mods, type_ = list(opcode[2:]), opcode[1]
    make = RULES.get(root)
    floats = any(part in FLOATS for part in opcode[1:])
    if make is None or type_ not in BITS or (floats and root not in BIT_MOVES):
        raise Unsupported
    rule = make(mods, type_)
    if any(name not in BITS for name in (rule.result, *rule.sources)):
        raise Unsupported
    return rule


# --- with the carry flag ------------------------------------------------------------------------


def carry_rule(
    opcode: tuple[str, ...],
) -> tuple[str, int, Callable[[list[int], int], tuple[int, int]]]:
    """(type, number of sources, (sources, carry in) -> (result, carry out)) of add.cc and its kin.

    For sub and subc the flag is the borrow.
    """
    root, mods, type_ = opcode[0], opcode[1:-1], opcode[-1]
    bits = BITS[type_]
    uses = root.endswith("c")

    def add(s: list[int], carry: int) -> tuple[int, int]:
        total = s[0] + s[1] + (carry if uses else 0)
        return total, total >> bits

    def sub(s: list[int], carry: int) -> tuple[int, int]:
        total = s[0] - s[1] - (carry if uses else 0)
        return total, int(total < 0)

    def mad(s: list[int], carry: int) -> tuple[int, int]:
        product = as_type(s[0], type_) * as_type(s[1], type_)
        part = pattern(product >> bits if "hi" in mods else product, bits)
        return add([part, s[2]], carry)

    for name, n_sources, compute in (("add", 2, add), ("sub", 2, sub), ("mad", 3, mad)):
        if root.startswith(name):
            return type_, n_sources, compute
    raise Unsupported


def atomic(op: str, type_: str) -> Callable[[int, int, int], int]:
    """(old, b, c) -> new, over patterns of ``type_``."""
    table: dict[str, Callable[[int, int, int], int]] = {
        "add": lambda old, b, c: old + b,
        "and": lambda old, b, c: old & b,
        "or": lambda old, b, c: old | b,
        "xor": lambda old, b, c: old ^ b,
        "exch": lambda old, b, c: b,
        "cas": lambda old, b, c: c if old == b else old,
        "inc": lambda old, b, c: 0 if old >= b else old + 1,
        "dec": lambda old, b, c: b if old == 0 or old > b else old - 1,
        "min": lambda old, b, c: min(as_type(old, type_), as_type(b, type_)),
        "max": lambda old, b, c: max(as_type(old, type_), as_type(b, type_)),
    }
    if op not in table or type_ not in BITS or type_ in FLOATS:
        raise Unsupported
    return table[op]
