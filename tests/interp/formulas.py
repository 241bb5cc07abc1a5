"""Integer PTX instructions in plain Python, written from the PTX ISA's text and pseudo code.

Each row: opcode, the widths of its sources, the width of its result, and a function over bit
patterns that gives a bit pattern. Where the ISA gives pseudo code the function follows it bit by
bit. Fixed-width arithmetic is NumPy's. All rows were run on an NVIDIA H200 (2026-12-01) over the
edge values of ``test_ptx_alu``: it gives the same, but for 64-bit bfe and bfi with a position or
length above 255 (PTX allows 0 to 255) and fns with the offset -2**31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Formula:
    opcode: str
    sources: tuple[int, ...]
    result: int
    compute: Callable[..., int]
    small: tuple[int, ...] = ()  # sources whose interesting values are small amounts

    def __str__(self) -> str:
        return self.opcode


def signed(value: int, bits: int) -> int:
    return int.from_bytes(value.to_bytes(bits // 8, "little"), "little", signed=True)


def wrap(value: int, bits: int) -> int:
    return value % (1 << bits)


def _numpy(kind: str, bits: int) -> Any:
    return {"s": {16: np.int16, 32: np.int32, 64: np.int64},
            "u": {16: np.uint16, 32: np.uint32, 64: np.uint64}}[kind][bits]  # fmt: skip


def _with_numpy(kind: str, bits: int, compute: Callable[..., Any]) -> Callable[..., int]:
    """The function over NumPy scalars of one type, wrapping as they do."""
    type_ = _numpy(kind, bits)

    def run(*patterns: int) -> int:
        plain = _numpy("u", bits)
        with np.errstate(all="ignore"):
            values = [np.array([p], plain).view(type_) for p in patterns]
            return int(np.asarray(compute(*values), type_).view(plain)[0])

    return run


def _typed(kind: str, bits: int, compute: Callable[..., int]) -> Callable[..., int]:
    """The function over exact integers of one type, wrapped at the end by its caller."""

    def run(*patterns: int) -> int:
        return compute(*(signed(p, bits) if kind == "s" else p for p in patterns))

    return run


def _c_divide(a: int, b: int) -> int:
    return int(np.sign(a)) * int(np.sign(b)) * (abs(a) // abs(b))


FORMULAS: list[Formula] = []


def _add(opcode: str, sources: tuple[int, ...], result: int, compute: Callable[..., int],
         small: tuple[int, ...] = ()) -> None:  # fmt: skip
    FORMULAS.append(Formula(opcode, sources, result, lambda *p: wrap(compute(*p), result), small))


def _clamped(value: int, kind: str, bits: int) -> int:
    low = -(1 << (bits - 1)) if kind == "s" else 0
    high = (1 << (bits - (kind == "s"))) - 1
    return min(max(value, low), high)


def _arithmetic(kind: str, bits: int) -> None:
    t, two, three = f"{kind}{bits}", (bits, bits), (bits, bits, bits)
    _add(f"add.{t}", two, bits, _with_numpy(kind, bits, lambda a, b: a + b))
    _add(f"sub.{t}", two, bits, _with_numpy(kind, bits, lambda a, b: a - b))
    _add(f"mul.lo.{t}", two, bits, _with_numpy(kind, bits, lambda a, b: a * b))
    _add(f"mul.hi.{t}", two, bits, _typed(kind, bits, lambda a, b: a * b // 2**bits))
    _add(f"mad.lo.{t}", three, bits, _with_numpy(kind, bits, lambda a, b, c: a * b + c))
    _add(f"mad.hi.{t}", three, bits, _typed(kind, bits, lambda a, b, c: a * b // 2**bits + c))
    _add(f"min.{t}", two, bits, _with_numpy(kind, bits, np.minimum))
    _add(f"max.{t}", two, bits, _with_numpy(kind, bits, np.maximum))
    _add(f"sad.{t}", three, bits,
         lambda a, b, c: c + abs(_typed(kind, bits, lambda x, y: x - y)(a, b)))  # fmt: skip
    quotient = _typed(kind, bits, _c_divide)
    remainder = _typed(kind, bits, lambda a, b: a - b * _c_divide(a, b))
    _add(f"div.{t}", two, bits, lambda a, b: quotient(a, b) if b else -1)
    _add(f"rem.{t}", two, bits, lambda a, b: remainder(a, b) if b else -1)
    shift = _typed(kind, bits, lambda a, b: a)
    _add(f"shr.{t}", (bits, 32), bits,
         lambda a, b: (shift(a, 0) if kind == "s" else a) // 2 ** min(b, bits), (1,))  # fmt: skip
    if bits < 64:
        _add(f"mul.wide.{t}", two, 2 * bits, _typed(kind, bits, lambda a, b: a * b))
        wide = _typed(kind, bits, lambda a, b: a * b)
        _add(f"mad.wide.{t}", (bits, bits, 2 * bits), 2 * bits, lambda a, b, c: wide(a, b) + c)


def _signed_only(bits: int) -> None:
    _add(f"abs.s{bits}", (bits,), bits, _with_numpy("s", bits, np.abs))
    _add(f"neg.s{bits}", (bits,), bits, _with_numpy("s", bits, np.negative))


def _logic(bits: int) -> None:
    two = (bits, bits)
    _add(f"and.b{bits}", two, bits, lambda a, b: a & b)
    _add(f"or.b{bits}", two, bits, lambda a, b: a | b)
    _add(f"xor.b{bits}", two, bits, lambda a, b: a ^ b)
    _add(f"not.b{bits}", (bits,), bits, lambda a: (1 << bits) - 1 - a)
    _add(f"cnot.b{bits}", (bits,), bits, lambda a: 0 if a else 1)
    _add(f"shl.b{bits}", (bits, 32), bits, lambda a, b: a * 2**b if b < bits else 0, (1,))


def _bit_list(value: int, bits: int) -> list[int]:
    return [value >> n & 1 for n in range(bits)]


def _number(bits: list[int]) -> int:
    return sum(bit << n for n, bit in enumerate(bits))


def _bit_fields(bits: int) -> None:
    msb = bits - 1
    _add(f"popc.b{bits}", (bits,), 32, lambda a: sum(_bit_list(a, bits)))
    _add(f"clz.b{bits}", (bits,), 32, lambda a: [*_bit_list(a, bits)[::-1], 1].index(1))
    _add(f"brev.b{bits}", (bits,), bits, lambda a: _number(_bit_list(a, bits)[::-1]))

    def bfe(kind: str) -> Callable[[int, int, int], int]:
        def run(a: int, b: int, c: int) -> int:
            pos, length = b & 0xFF, c & 0xFF
            source = _bit_list(a, bits)
            sbit = 0 if kind == "u" or length == 0 else source[min(pos + length - 1, msb)]
            return _number(
                [source[pos + i] if i < length and pos + i <= msb else sbit for i in range(bits)]
            )

        return run

    def bfi(a: int, b: int, c: int, d: int) -> int:
        pos, length = c & 0xFF, d & 0xFF
        out, source = _bit_list(b, bits), _bit_list(a, bits)
        i = 0
        while i < length and pos + i <= msb:
            out[pos + i] = source[i]
            i += 1
        return _number(out)

    for kind in "us":
        _add(f"bfe.{kind}{bits}", (bits, 32, 32), bits, bfe(kind), (1, 2))
        for shift in ("", ".shiftamt"):
            _add(f"bfind{shift}.{kind}{bits}", (bits,), 32, _bfind(kind, bits, bool(shift)))
    _add(f"bfi.b{bits}", (bits, bits, 32, 32), bits, bfi, (2, 3))


def _bfind(kind: str, bits: int, shift: bool) -> Callable[[int], int]:
    def run(a: int) -> int:
        if kind == "s" and a >> (bits - 1):
            a = a ^ ((1 << bits) - 1)
        found = next((i for i in range(bits - 1, -1, -1) if a >> i & 1), None)
        if found is None:
            return 0xFFFFFFFF
        return bits - 1 - found if shift else found

    return run


def _shf(direction: str, clamp: bool) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        n = min(c, 32) if clamp else c % 32
        if direction == "l":
            return b * 2**n % 2**32 | a // 2 ** (32 - n)
        return b * 2 ** (32 - n) % 2**32 | a // 2**n

    return run


def _prmt(a: int, b: int, c: int) -> int:
    table = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
    out = []
    for n in range(4):
        selector = c >> (4 * n) & 15
        byte = table[selector % 8]
        out.append((255 if byte > 127 else 0) if selector > 7 else byte)
    return int.from_bytes(bytes(out), "little")


# The ISA's table: selector value -> source bytes of d.b3, d.b2, d.b1, d.b0.
PRMT_TABLE = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def _prmt_mode(mode: str) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        table = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
        return int.from_bytes(bytes(table[int(n)] for n in PRMT_TABLE[mode][c & 3]), "big")

    return run


def _bmsk(clamp: bool) -> Callable[[int, int], int]:
    def run(a: int, b: int) -> int:
        if not clamp:
            a, b = a % 32, b % 32
        return _number([int(a <= i < a + b) for i in range(32)])

    return run


def _szext(clamp: bool, kind: str) -> Callable[[int, int], int]:
    def run(a: int, b: int) -> int:
        b1 = b & 31
        if clamp and b >= 32:
            return a
        sign = kind == "s" and b1 != 0 and a >> (b1 - 1) & 1
        return _number([a >> i & 1 if i < b1 else int(sign) for i in range(32)])

    return run


def _fns(mask: int, base: int, offset: int) -> int:
    bits, offset = _bit_list(mask, 32), signed(offset, 32)
    if offset == 0:
        return base if base < 32 and bits[base] else 0xFFFFFFFF
    pos, count, inc = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= pos < 32:
        if bits[pos]:
            if count == 0:
                return pos
            count -= 1
        pos += inc
    return 0xFFFFFFFF


def _lop3(table: int) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        return _number([table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1
                        for i in range(32)])  # fmt: skip

    return run


def _part(value: int, index: int, bits: int, kind: str) -> int:
    part = value >> bits * index & (1 << bits) - 1
    return part - (1 << bits) if kind == "s" and part >> (bits - 1) else part


def _dot4(left: str, right: str) -> Callable[[int, int, int], int]:
    return lambda a, b, c: c + sum(_part(a, i, 8, left) * _part(b, i, 8, right) for i in range(4))


def _dot2(left: str, right: str, high: int) -> Callable[[int, int, int], int]:
    return lambda a, b, c: (
        c + sum(_part(a, i, 16, left) * _part(b, i + high, 8, right) for i in range(2))
    )


def _m24(value: int, kind: str) -> int:
    return _part(value, 0, 24, kind)


def _multiply24() -> None:
    for kind in "us":
        for part, divisor in (("lo", 1), ("hi", 2**16)):

            def product(a: int, b: int, k: str = kind, d: int = divisor) -> int:
                return _m24(a, k) * _m24(b, k) // d

            _add(f"mul24.{part}.{kind}32", (32, 32), 32, product)
            _add(f"mad24.{part}.{kind}32", (32, 32, 32), 32,
                 lambda a, b, c, p=product: p(a, b) + c)  # fmt: skip


def _can_saturate(source_kind: str, source: int, kind: str, target: int) -> bool:
    """Some source value lies outside the target's range; else PTX has no .sat."""
    if source_kind == "s" and kind == "u":
        return True
    return source - (source_kind == "s") > target - (kind == "s")


def _conversions() -> None:
    for source_kind in "us":
        for source in (8, 16, 32, 64):
            for kind in "us":
                for target in (8, 16, 32, 64):

                    def convert(a: int, k: str = source_kind, n: int = source) -> int:
                        return signed(a, n) if k == "s" else a

                    def saturated(a: int, c: Any = convert, k: str = kind, n: int = target) -> int:
                        return _clamped(c(a), k, n)

                    name = f"{kind}{target}.{source_kind}{source}"
                    _add(f"cvt.{name}", (source,), target, convert)
                    if _can_saturate(source_kind, source, kind, target):
                        _add(f"cvt.sat.{name}", (source,), target, saturated)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _comparisons(kind: str, bits: int) -> None:
    names = {name: name for name in COMPARISONS} | (UNSIGNED_NAMES if kind == "u" else {})
    for name, same in names.items():

        def run(a: int, b: int, compare: Any = COMPARISONS[same]) -> int:
            return -int(_typed(kind, bits, compare)(a, b))

        _add(f"set.{name}.u32.{kind}{bits}", (bits, bits), 32, run)


for _bits in (16, 32, 64):
    for _kind in "us":
        _arithmetic(_kind, _bits)
        _comparisons(_kind, _bits)
    _signed_only(_bits)
    _logic(_bits)
for _bits in (32, 64):
    _bit_fields(_bits)
for _direction in "lr":
    for _mode in ("clamp", "wrap"):
        _add(f"shf.{_direction}.{_mode}.b32", (32, 32, 32), 32, _shf(_direction, _mode == "clamp"),
             (2,))  # fmt: skip
_add("prmt.b32", (32, 32, 32), 32, _prmt)
for _name in PRMT_TABLE:
    _add(f"prmt.b32.{_name}", (32, 32, 32), 32, _prmt_mode(_name))
for _mode in ("clamp", "wrap"):
    _add(f"bmsk.{_mode}.b32", (32, 32), 32, _bmsk(_mode == "clamp"), (0, 1))
    for _kind in "us":
        _add(f"szext.{_mode}.{_kind}32", (32, 32), 32, _szext(_mode == "clamp", _kind), (1,))
_add("fns.b32", (32, 32, 32), 32, _fns, (1, 2))
for _left in "us":
    for _right in "us":
        _types = f"{_left}32.{_right}32"
        _add(f"dp4a.{_types}", (32, 32, 32), 32, _dot4(_left, _right))
        _add(f"dp2a.lo.{_types}", (32, 32, 32), 32, _dot2(_left, _right, 0))
        _add(f"dp2a.hi.{_types}", (32, 32, 32), 32, _dot2(_left, _right, 2))
_multiply24()
_conversions()
_add("add.sat.s32", (32, 32), 32,
     lambda a, b: _clamped(signed(a, 32) + signed(b, 32), "s", 32))  # fmt: skip
_add("sub.sat.s32", (32, 32), 32,
     lambda a, b: _clamped(signed(a, 32) - signed(b, 32), "s", 32))  # fmt: skip
_add("mad.hi.sat.s32", (32, 32, 32), 32, lambda a, b, c: _clamped(
    signed(a, 32) * signed(b, 32) // 2**32 + signed(c, 32), "s", 32))  # fmt: skip
_add("mad24.hi.sat.s32", (32, 32, 32), 32, lambda a, b, c: _clamped(
    _m24(a, "s") * _m24(b, "s") // 2**16 + signed(c, 32), "s", 32))  # fmt: skip
_add("slct.b32.s32", (32, 32, 32), 32, lambda a, b, c: a if signed(c, 32) >= 0 else b)
_add("slct.u64.s32", (64, 64, 32), 64, lambda a, b, c: a if signed(c, 32) >= 0 else b)
LOP3_TABLES = {table: _lop3(table) for table in (0x00, 0x96, 0xCA, 0xE8, 0x1B, 0xFF)}
