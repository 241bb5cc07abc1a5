"""Integer PTX instruction by instruction: forms that CUDA C reaches seldom or never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from tests.cases import Case
from tests.corpus.build import (
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    CType,
    int_div,
    int_rem,
    ptx_elementwise,
    random_values,
)

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
Model = Callable[..., int]


def edges(ctype: CType, turn: int, n: int, name: str) -> list[int]:
    """Values at the borders of the type, rotated by ``turn`` so that operands mix, then random."""
    some = [0, 1, ctype.wrap(-1), ctype.low, ctype.high, 7, ctype.wrap(-100)]
    some = some[turn:] + some[:turn]
    return (some[: n - n // 3] + random_values(f"{name}{turn}", ctype, n))[:n]


def row(
    text: str, types: Sequence[CType], out: CType, model: Model, *, label: str = "",
    values: Sequence[Sequence[int]] = (), code: str = "",
) -> Case:  # fmt: skip
    """One instruction ``text`` with operands %d, %x, %y, %z; ``code`` replaces the plain form."""
    name = "ptx_" + (label or text).replace(".", "_").replace("::", "_")
    n = 6 if any(t.bits == 64 for t in types) else 8
    if not values:
        values = [edges(t, 2 * place, n, name) for place, t in enumerate(types)]
    inputs = [(t, [t.wrap(x) for x in v]) for t, v in zip(types, values, strict=True)]
    code = code or f"{text} %d, {', '.join('%' + v for v in 'xyz'[: len(types)])};"
    return ptx_elementwise(name, inputs, out, code, model)


def clamp(ctype: CType, value: int) -> int:
    return max(ctype.low, min(ctype.high, value))


def low_bits(x: int, n: int) -> int:
    return x & ((1 << n) - 1)


# --- arithmetic -----------------------------------------------------------------------------------

PLAIN: list[tuple[str, Sequence[CType], CType, Model]] = [
    ("add.s16", [S16, S16], S16, lambda x, y: x + y),
    ("add.u64", [U64, U64], U64, lambda x, y: x + y),
    ("add.sat.s32", [S32, S32], S32, lambda x, y: clamp(S32, x + y)),
    ("sub.sat.s32", [S32, S32], S32, lambda x, y: clamp(S32, x - y)),
    ("sub.s64", [S64, S64], S64, lambda x, y: x - y),
    ("mul.lo.s16", [S16, S16], S16, lambda x, y: x * y),
    ("mul.lo.s64", [S64, S64], S64, lambda x, y: x * y),
    ("mul.hi.s16", [S16, S16], S16, lambda x, y: x * y >> 16),
    ("mul.hi.u16", [U16, U16], U16, lambda x, y: x * y >> 16),
    ("mul.hi.s32", [S32, S32], S32, lambda x, y: x * y >> 32),
    ("mul.hi.u32", [U32, U32], U32, lambda x, y: x * y >> 32),
    ("mul.hi.s64", [S64, S64], S64, lambda x, y: x * y >> 64),
    ("mul.hi.u64", [U64, U64], U64, lambda x, y: x * y >> 64),
    ("mul.wide.s16", [S16, S16], S32, lambda x, y: x * y),
    ("mul.wide.u16", [U16, U16], U32, lambda x, y: x * y),
    ("mul.wide.s32", [S32, S32], S64, lambda x, y: x * y),
    ("mul.wide.u32", [U32, U32], U64, lambda x, y: x * y),
    ("mad.lo.s32", [S32, S32, S32], S32, lambda x, y, z: x * y + z),
    ("mad.lo.u16", [U16, U16, U16], U16, lambda x, y, z: x * y + z),
    ("mad.lo.u64", [U64, U64, U64], U64, lambda x, y, z: x * y + z),
    ("mad.hi.s32", [S32, S32, S32], S32, lambda x, y, z: (x * y >> 32) + z),
    ("mad.hi.u32", [U32, U32, U32], U32, lambda x, y, z: (x * y >> 32) + z),
    ("mad.hi.sat.s32", [S32, S32, S32], S32, lambda x, y, z: clamp(S32, (x * y >> 32) + z)),
    ("mad.wide.s32", [S32, S32, S64], S64, lambda x, y, z: x * y + z),
    ("mad.wide.u32", [U32, U32, U64], U64, lambda x, y, z: x * y + z),
    ("mad.wide.u16", [U16, U16, U32], U32, lambda x, y, z: x * y + z),
    ("mad.wide.s16", [S16, S16, S32], S32, lambda x, y, z: x * y + z),
    ("mul24.lo.s32", [S32, S32], S32, lambda x, y: _s24(x) * _s24(y)),
    ("mul24.lo.u32", [U32, U32], U32, lambda x, y: low_bits(x, 24) * low_bits(y, 24)),
    ("mul24.hi.u32", [U32, U32], U32, lambda x, y: low_bits(x, 24) * low_bits(y, 24) >> 16),
    ("mul24.hi.s32", [S32, S32], S32, lambda x, y: _s24(x) * _s24(y) >> 16),
    ("mad24.lo.u32", [U32, U32, U32], U32, lambda x, y, z: low_bits(x, 24) * low_bits(y, 24) + z),
    ("sad.s16", [S16, S16, U16], U16, lambda x, y, z: abs(x - y) + z),
    ("sad.u32", [U32, U32, U32], U32, lambda x, y, z: abs(x - y) + z),
    ("sad.s32", [S32, S32, U32], U32, lambda x, y, z: abs(x - y) + z),
    ("sad.s64", [S64, S64, U64], U64, lambda x, y, z: abs(x - y) + z),
    ("abs.s16", [S16], S16, abs),
    ("abs.s32", [S32], S32, abs),
    ("abs.s64", [S64], S64, abs),
    ("neg.s16", [S16], S16, lambda x: -x),
    ("neg.s64", [S64], S64, lambda x: -x),
    ("min.s16", [S16, S16], S16, min),
    ("max.u16", [U16, U16], U16, max),
    ("min.u64", [U64, U64], U64, min),
    ("max.s64", [S64, S64], S64, max),
    ("not.b16", [U16], U16, lambda x: ~x),
    ("not.b64", [U64], U64, lambda x: ~x),
    ("cnot.b16", [U16], U16, lambda x: x == 0),
    ("cnot.b32", [U32], U32, lambda x: x == 0),
    ("cnot.b64", [U64], U64, lambda x: x == 0),
    ("and.b64", [U64, U64], U64, lambda x, y: x & y),
    ("xor.b16", [U16, U16], U16, lambda x, y: x ^ y),
    ("popc.b32", [U32], U32, lambda x: x.bit_count()),
    ("popc.b64", [U64], U32, lambda x: x.bit_count()),
    ("clz.b32", [U32], U32, lambda x: 32 - x.bit_length()),
    ("clz.b64", [U64], U32, lambda x: 64 - x.bit_length()),
    ("brev.b64", [U64], U64, lambda x: int(f"{x:064b}"[::-1], 2)),
    ("bfind.u32", [U32], U32, lambda x: x.bit_length() - 1),
    ("bfind.s32", [S32], U32, lambda x: (~x if x < 0 else x).bit_length() - 1),
    ("bfind.shiftamt.u32", [U32], U32, lambda x: 32 - x.bit_length() if x else -1),
    ("bfind.u64", [U64], U32, lambda x: x.bit_length() - 1),
    ("bfind.s64", [S64], U32, lambda x: (~x if x < 0 else x).bit_length() - 1),
    ("dp4a.u32.s32", [U32, S32, S32], S32, lambda x, y, z: _dp4a(x, y, False, True) + z),
    ("dp4a.s32.u32", [S32, U32, S32], S32, lambda x, y, z: _dp4a(x, y, True, False) + z),
    ("dp2a.lo.u32.u32", [U32, U32, U32], U32, lambda x, y, z: _dp2a(x, y, 0, False, False) + z),
    ("dp2a.hi.s32.u32", [S32, U32, S32], S32, lambda x, y, z: _dp2a(x, y, 2, True, False) + z),
]  # fmt: skip


def _s24(x: int) -> int:
    x = low_bits(x, 24)
    return x - (1 << 24) if x >> 23 else x


def _lanes(x: int, size: int, signed: bool) -> list[int]:
    raw = (x & M32).to_bytes(4, "little")
    return [int.from_bytes(raw[i : i + size], "little", signed=signed) for i in range(0, 4, size)]


def _dp4a(x: int, y: int, x_signed: bool, y_signed: bool) -> int:
    return sum(a * b for a, b in zip(_lanes(x, 1, x_signed), _lanes(y, 1, y_signed), strict=True))


def _dp2a(x: int, y: int, start: int, x_signed: bool, y_signed: bool) -> int:
    halves, octets = _lanes(x, 2, x_signed), _lanes(y, 1, y_signed)[start : start + 2]
    return sum(a * b for a, b in zip(halves, octets, strict=True))


def _division(ctype: CType, op: str) -> Case:
    n = 6 if ctype.bits == 64 else 8
    name = f"{op}.{ctype.short}"
    xs = edges(ctype, 3, n, name)
    ys = [y or 3 for y in (v >> 3 for v in edges(ctype, 1, n, name))]
    ys = [3 if (x, y) == (ctype.low, -1) else y for x, y in zip(xs, ys, strict=True)]
    return row(name, [ctype, ctype], ctype, int_div if op == "div" else int_rem, values=[xs, ys])


# --- bits -----------------------------------------------------------------------------------------

AMOUNTS = [0, 1, 15, 31, 32, 33, 63, 0xFFFFFFFF]


def _shift(op: str, ctype: CType) -> Case:
    name = f"{op}.{'b' if op == 'shl' else ctype.short[0]}{ctype.bits}"
    n, bits = len(AMOUNTS), ctype.bits

    def model(x: int, y: int) -> int:
        if op == "shl":
            return x << y if y < bits else 0
        return x >> min(y, bits)

    return row(name, [ctype, U32], ctype, model, label=f"{name}_{ctype.short}",
               values=[edges(ctype, 2, n, name), AMOUNTS])  # fmt: skip


def _bfe(ctype: CType) -> Case:
    """PTX ISA: bits beyond the top read as the sign for signed types, as zero for others."""
    bits = ctype.bits

    def model(x: int, start: int, length: int) -> int:
        start, length = start & 255, length & 255
        if length == 0:
            return 0
        if not ctype.signed:
            return low_bits(x >> start, length) if start < bits else 0
        return _sign_extend(x >> start, length) if start + length <= bits else x >> start

    starts = [0, 4, 31, 8, 0, 30, 40, 200]
    lengths = [8, 0, 1, 16, 64, 10, 20, 5]
    return row(f"bfe.{ctype.short}", [ctype, U32, U32], ctype, model,
               values=[random_values("bfe", ctype, 8), starts, lengths])  # fmt: skip


def _sign_extend(x: int, n: int) -> int:
    x = low_bits(x, n)
    return x - (1 << n) if x >> (n - 1) else x


def _bfi(bits: int) -> Case:
    ctype = U32 if bits == 32 else U64
    starts = [0, 4, 31, 8, 0, 30, 40, 200]
    lengths = [8, 0, 1, 16, 64, 10, 20, 5]
    cases = list(zip(starts, lengths, strict=True))

    def model(x: int, y: int, z: int) -> int:
        start, length = z & 255, z >> 8
        mask = low_bits(low_bits(M64, length) << start, bits)
        return y & ~mask | x << start & mask

    return row(f"bfi.b{bits}", [ctype, ctype, U32], ctype, model,
               values=[random_values("bfi", ctype, 8), random_values("bfi2", ctype, 8),
                       [start | length << 8 for start, length in cases]],
               code=f"and.b32 %r4, %z, 255; shr.u32 %r5, %z, 8; bfi.b{bits} %d, %x, %y, %r4, %r5;")  # fmt: skip


def _lop3(table: int) -> Case:
    def model(x: int, y: int, z: int) -> int:
        return sum((table >> ((x >> n & 1) << 2 | (y >> n & 1) << 1 | (z >> n & 1)) & 1) << n
                   for n in range(32))  # fmt: skip

    return row("lop3.b32", [U32, U32, U32], U32, model, label=f"lop3_{table:02x}",
               code=f"lop3.b32 %d, %x, %y, %z, {table:#x};")  # fmt: skip


def _prmt(mode: str) -> Case:
    """The modes of prmt: c's two low bits pick one of four fixed arrangements."""

    def picked(c: int) -> list[int]:
        c &= 3
        return {
            "f4e": [c, c + 1, c + 2, c + 3],
            "b4e": [c, (c - 1) % 8, (c - 2) % 8, (c - 3) % 8],
            "rc8": [c] * 4,
            "ecl": [max(n, c) for n in range(4)],
            "ecr": [min(n, c) for n in range(4)],
            "rc16": [0, 1, 0, 1] if c % 2 == 0 else [2, 3, 2, 3],
        }[mode]

    def model(x: int, y: int, z: int) -> int:
        source = (y << 32 | x).to_bytes(8, "little")
        return int.from_bytes(bytes(source[n] for n in picked(z)), "little")

    values = [[0x33221100] * 4 + [0x80FF7F01] * 4, [0x77665544] * 4 + [0x11223344] * 4,
              [0, 1, 2, 3, 3, 2, 1, 4]]  # fmt: skip
    return row(f"prmt.b32.{mode}", [U32, U32, U32], U32, model, values=values)


def _prmt_sign() -> Case:
    def model(x: int, y: int, z: int) -> int:
        source, out = (y << 32 | x).to_bytes(8, "little"), b""
        for n in range(4):
            byte = source[z >> (4 * n) & 7]
            out += bytes([255 * (byte >> 7) if z >> (4 * n) & 8 else byte])
        return int.from_bytes(out, "little")

    return row("prmt.b32", [U32, U32, U32], U32, model,
               values=[[0x80FF7F01] * 4, [0x007F80FF] * 4, [0xFEDC, 0x89AB, 0x0F70, 0x3210]])  # fmt: skip


def _shf(side: str, mode: str) -> Case:
    def model(x: int, y: int, z: int) -> int:
        n = z & 31 if mode == "wrap" else min(z, 32)
        return (y << 32 | x) << n >> 32 if side == "l" else (y << 32 | x) >> n

    return row(f"shf.{side}.{mode}.b32", [U32, U32, U32], U32, model,
               values=[[0x12345678] * 8, [0x9ABCDEF0] * 8, [0, 1, 31, 32, 33, 44, 64, M32]])  # fmt: skip


def _bmsk(mode: str) -> Case:
    def model(start: int, length: int) -> int:
        if mode == "wrap":
            start, length = start & 31, length & 31
        return low_bits(low_bits(M64, min(length, 32)) << min(start, 32), 32)

    return row(f"bmsk.{mode}.b32", [U32, U32], U32, model,
               values=[[0, 4, 31, 32, 33, 8], [8, 0, 1, 5, 4, 40]])  # fmt: skip


def _szext(mode: str, ctype: CType) -> Case:
    def model(x: int, n: int) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        if n == 0:
            return 0
        return _sign_extend(x, n) if ctype.signed else low_bits(x, n)

    return row(f"szext.{mode}.{ctype.short}", [ctype, U32], ctype, model,
               values=[random_values("szext", ctype, 8), [0, 1, 8, 31, 32, 33, 40, 16]])  # fmt: skip


# --- comparison and selection ---------------------------------------------------------------------

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "lo": lambda x, y: x < y, "ls": lambda x, y: x <= y, "hi": lambda x, y: x > y,
    "hs": lambda x, y: x >= y,
}  # fmt: skip


def _setp(op: str, ctype: CType, kind: str) -> Case:
    n = 8
    xs = edges(ctype, 0, n, f"setp{op}{ctype.short}")
    ys = [xs[0], xs[2], xs[1], *xs[3:]][:n]
    ys[4], ys[5] = ys[5], ys[4]
    return row(f"setp.{op}.{kind}{ctype.bits}", [ctype, ctype], U32, COMPARE[op], values=[xs, ys],
               code=f"setp.{op}.{kind}{ctype.bits} %p0, %x, %y; selp.u32 %d, 1, 0, %p0;")  # fmt: skip


COMBINED = [
    row("setp.lt.and.s32", [S32, S32, U32], U32,
        lambda x, y, z: (x < y and z & 1) | (x >= y and z & 1) << 1,
        code="and.b32 %r4, %z, 1; setp.ne.u32 %p2, %r4, 0; setp.lt.and.s32 %p0|%p1, %x, %y, %p2;"
             " selp.u32 %r4, 1, 0, %p0; selp.u32 %r5, 2, 0, %p1; or.b32 %d, %r4, %r5;"),
    row("setp.hi.or.u32", [U32, U32, U32], U32,
        lambda x, y, z: int(x > y or not z & 1),
        code="and.b32 %r4, %z, 1; setp.ne.u32 %p2, %r4, 0; setp.hi.or.u32 %p0, %x, %y, !%p2;"
             " selp.u32 %d, 1, 0, %p0;"),
    row("setp.eq.xor.s32", [S32, S32, U32], U32,
        lambda x, y, z: (x == y) ^ (z & 1), values=[[1, 2, 3, 4], [1, 2, 4, 5], [0, 1, 0, 1]],
        code="and.b32 %r4, %z, 1; setp.ne.u32 %p2, %r4, 0; setp.eq.xor.s32 %p0, %x, %y, %p2;"
             " selp.u32 %d, 1, 0, %p0;"),
    row("set.lt.u32.s32", [S32, S32], U32, lambda x, y: -(x < y)),
    row("set.ge.s32.u32", [U32, U32], S32, lambda x, y: -(x >= y)),
    row("set.ne.u32.s64", [S64, S64], U32, lambda x, y: -(x != y)),
    row("set.gt.and.u32.u32", [U32, U32, U32], U32, lambda x, y, z: -(x > y and z != 0),
        code="setp.ne.u32 %p0, %z, 0; set.gt.and.u32.u32 %d, %x, %y, %p0;"),
    row("slct.s32.s32", [S32, S32, S32], S32, lambda x, y, z: x if z >= 0 else y),
    row("slct.u64.s32", [U64, U64, S32], U64, lambda x, y, z: x if z >= 0 else y),
    row("selp.b16", [U16, U16, U32], U16, lambda x, y, z: x if z & 1 else y,
        code="and.b32 %r4, %z, 1; setp.eq.u32 %p0, %r4, 1; selp.b16 %d, %x, %y, %p0;"),
    row("selp.b64", [U64, U64, U32], U64, lambda x, y, z: x if z & 1 else y,
        code="and.b32 %r4, %z, 1; setp.eq.u32 %p0, %r4, 1; selp.b64 %d, %x, %y, %p0;"),
    row("predicate_logic", [S32, S32], U32,
        lambda x, y: ((x > 0 and y > 0) | (x > 0 or y > 0) << 1 | ((x > 0) ^ (y > 0)) << 2
                      | (x <= 0) << 3),
        code="setp.gt.s32 %p0, %x, 0; setp.gt.s32 %p1, %y, 0; and.pred %p2, %p0, %p1;"
             " selp.u32 %r4, 1, 0, %p2; or.pred %p2, %p0, %p1; selp.u32 %r5, 2, 0, %p2;"
             " or.b32 %r4, %r4, %r5; xor.pred %p2, %p0, %p1; selp.u32 %r5, 4, 0, %p2;"
             " or.b32 %r4, %r4, %r5; not.pred %p2, %p0; selp.u32 %r5, 8, 0, %p2;"
             " or.b32 %d, %r4, %r5;"),
    row("predicated_moves", [S32, S32], S32, lambda x, y: x + 1 if x < y else y - 1,
        code="setp.lt.s32 %p0, %x, %y; mov.b32 %d, 0; @%p0 add.s32 %d, %x, 1;"
             " @!%p0 sub.s32 %d, %y, 1;"),
    row("predicated_store_and_load", [S32, S32], S32, lambda x, y: x if x < y else 77,
        code="setp.lt.s32 %p0, %x, %y; mov.b32 %d, 77; st.global.b32 [%rd1], %x;"
             " @%p0 ld.global.b32 %d, [%rd1];"),
    row("mov_predicate", [S32], U32, lambda x: 5 if x > 3 else 9,
        code="setp.gt.s32 %p0, %x, 3; mov.pred %p1, %p0; selp.u32 %d, 5, 9, %p1;"),
]  # fmt: skip


# --- conversion -----------------------------------------------------------------------------------


def _cvt(to: CType, source: CType, saturate: bool) -> Case:
    name = f"cvt.{'sat.' if saturate else ''}{to.short}.{source.short}"
    values = [*edges(source, 0, 6, name), source.wrap(300), source.wrap(-200)]
    wide_out = {8: U16, 16: U16, 32: U32, 64: U64}[to.bits]

    def model(x: int) -> int:
        return clamp(to, x) if saturate else to.wrap(x)

    # A narrow destination fills its register: the sign (or zeros) shows in 16 bits.
    return row(name, [source], wide_out, model, values=[values])


CONVERSIONS = [
    *(_cvt(to, source, True) for to, source in [
        (U8, S32), (S8, S32), (U16, S32), (S16, S32), (S8, S16), (U8, S16), (U8, U16), (S16, U32),
        (U32, S64), (S32, S64), (S32, U64), (U32, S32), (S32, U32), (U64, S64), (S8, S64)]),
    *(_cvt(to, source, False) for to, source in [
        (S8, S32), (U8, S32), (S16, S32), (U16, U32), (S32, S16), (U32, U16), (S64, S32),
        (U64, U32), (S32, S64), (S64, S16), (U8, U64), (S16, S8), (S32, S8), (U16, U8)]),
]  # fmt: skip


# --- carry and pieces -----------------------------------------------------------------------------

PIECES = [
    row("add.cc chain of 64 bits", [U64, U64], U64, lambda x, y: x + y, label="add_cc_chain",
        code="mov.b64 {%r4, %r5}, %x; mov.b64 {%r6, %r7}, %y; add.cc.u32 %r4, %r4, %r6;"
             " addc.u32 %r5, %r5, %r7; mov.b64 %d, {%r4, %r5};"),
    row("sub.cc chain of 64 bits", [U64, U64], U64, lambda x, y: x - y, label="sub_cc_chain",
        code="mov.b64 {%r4, %r5}, %x; mov.b64 {%r6, %r7}, %y; sub.cc.u32 %r4, %r4, %r6;"
             " subc.u32 %r5, %r5, %r7; mov.b64 %d, {%r4, %r5};"),
    row("carry out", [U32, U32], U32, lambda x, y: x + y >> 32, label="addc_reads_the_carry",
        code="add.cc.u32 %r4, %x, %y; addc.u32 %d, 0, 0;"),
    row("borrow out", [U32, U32], U32, lambda x, y: -(x < y), label="subc_reads_the_borrow",
        code="sub.cc.u32 %r4, %x, %y; subc.u32 %d, 0, 0;"),
    row("three words", [U32, U32, U32], U32, lambda x, y, z: (x + y >> 32) + z + y,
        label="addc_cc_goes_on", code="add.cc.u32 %r4, %x, %y; addc.cc.u32 %r5, %z, %y;"
                                      " mov.b32 %d, %r5;"),
    row("mad.cc", [U32, U32, U32], U32, lambda x, y, z: x * y + z >> 32, label="madc_wide_high",
        code="mad.lo.cc.u32 %r4, %x, %y, %z; madc.hi.u32 %d, %x, %y, 0;"),
    row("add.cc.u64", [U64, U64], U64, lambda x, y: x + y >> 64, label="add_cc_64",
        code="add.cc.u64 %rd5, %x, %y; addc.u64 %d, 0, 0;"),
    row("mov.b64", [U64], U64, lambda x: x >> 32 | x << 32, label="swap_halves",
        code="mov.b64 {%r4, %r5}, %x; mov.b64 %d, {%r5, %r4};"),
    row("mov.b32", [U32], U32, lambda x: x >> 16 | x << 16, label="swap_halfwords",
        code="mov.b32 {%h0, %h1}, %x; mov.b32 %d, {%h1, %h0};"),
    row("mov.b64 of 4", [U64], U64, lambda x: (x & 0xFFFF) << 48 | x >> 16,
        label="rotate_four_halfwords",
        code="mov.b64 {%h0, %h1, %h2, %h3}, %x; mov.b64 %d, {%h1, %h2, %h3, %h0};"),
    row("sink", [U64], U32, lambda x: x >> 32, label="unpack_with_sink",
        code="mov.b64 {_, %d}, %x;"),
]  # fmt: skip

CASES: tuple[Case, ...] = (
    *(row(*spec) for spec in PLAIN),
    *(_division(t, op) for t, op in product((S16, U16, S32, U32, S64, U64), ("div", "rem"))),
    *(_shift(op, t) for op, t in [("shl", U16), ("shl", U32), ("shl", U64), ("shr", U16),
                                  ("shr", S16), ("shr", U32), ("shr", S32), ("shr", U64),
                                  ("shr", S64)]),
    *(_bfe(t) for t in (U32, S32, U64, S64)),
    _bfi(32), _bfi(64),
    *(_lop3(table) for table in (0x80, 0xFE, 0x96, 0xCA, 0xE8, 0x1D, 0x00, 0x57)),
    *(_prmt(mode) for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
    _prmt_sign(),
    *(_shf(side, mode) for side in "lr" for mode in ("clamp", "wrap")),
    _bmsk("clamp"), _bmsk("wrap"),
    *(_szext(mode, t) for mode in ("clamp", "wrap") for t in (U32, S32)),
    *(_setp(op, t, t.short[0]) for op in ("eq", "ne", "lt", "le", "gt", "ge")
      for t in (S16, U16, S32, U32, S64, U64)),
    *(_setp(op, t, "u") for op in ("lo", "ls", "hi", "hs") for t in (U16, U32, U64)),
    *COMBINED, *CONVERSIONS, *PIECES,
)  # fmt: skip
