"""What each integer PTX instruction computes, from the PTX ISA's own descriptions.

``rule_of`` turns an opcode into a ``Rule``: the types of its operands and a function over Python
integers (signed values for ``s`` types, unsigned for ``u`` and ``b``). This is the reference that
the lowering is held against, so nothing here knows of machine blocks or 32-bit lanes.
"""

from __future__ import annotations

from collections.abc import Callable

from qgpu.interp import ptx_bits
from qgpu.interp.ptx_types import BITS, FLOATS, Rule, Unsupported, as_type, pattern, saturate


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


def _shl(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, "u32"), lambda a, b: a << b if b < BITS[type_] else 0)


def _shr(mods: list[str], type_: str) -> Rule:
    return Rule(type_, (type_, "u32"), lambda a, b: a >> min(b, BITS[type_]))


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
    "brev": _one(ptx_bits.reverse), "bfind": ptx_bits.bfind, "fns": ptx_bits.fns,
    "bfe": ptx_bits.bfe, "bfi": ptx_bits.bfi, "bmsk": ptx_bits.bmsk, "szext": ptx_bits.szext,
    "dp4a": ptx_bits.dot(8), "dp2a": ptx_bits.dot(16), "prmt": ptx_bits.prmt,
    "and": _two(lambda a, b: a & b), "or": _two(lambda a, b: a | b),
    "xor": _two(lambda a, b: a ^ b), "not": _one(lambda a, t: ~a),
    "cnot": _one(lambda a, t: int(a == 0)), "lop3": ptx_bits.lop3,
    "shl": _shl, "shr": _shr, "shf": ptx_bits.shf,
    "cvt": _cvt, "set": _set, "selp": _selp, "slct": _slct,
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
