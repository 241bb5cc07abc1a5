"""64-bit arithmetic on pairs of words, low word first.

Both words are always computed; where nothing reads a high word, dead code elimination takes it
and its whole chain away, which is how 64-bit addresses become 32-bit ones.
"""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx.mir import ONE, ZERO, Condition, Value, Virtual, imm
from qgpu.ptx.select import Selector

Pair = tuple[Value, Value]


def add(s: Selector, a: Pair, b: Pair) -> Pair:
    low = s.emit(Op.ADD, a[0], b[0])
    # The sum wrapped if it is below a summand: a constant one where there is one.
    carry = s.emit(Op.LTU, low, a[0] if isinstance(b[0], Virtual) else b[0])
    if b[0] == ZERO or a[0] == ZERO:
        carry = ZERO
    return low, s.emit(Op.ADDC, a[1], b[1], carry)


def sub(s: Selector, a: Pair, b: Pair) -> Pair:
    borrow = s.emit(Op.LTU, a[0], b[0])
    return s.emit(Op.SUB, a[0], b[0]), s.emit(Op.SUBC, a[1], b[1], borrow)


def neg(s: Selector, a: Pair) -> Pair:
    return sub(s, (ZERO, ZERO), a)


def mul_wide(s: Selector, a: Value, b: Value, is_signed: bool) -> Pair:
    return s.emit(Op.MUL, a, b), s.emit(Op.MULHS if is_signed else Op.MULHU, a, b)


def mul(s: Selector, a: Pair, b: Pair) -> Pair:
    low, high = mul_wide(s, a[0], b[0], False)
    cross = s.emit(Op.ADD, s.emit(Op.MUL, a[0], b[1]), s.emit(Op.MUL, a[1], b[0]))
    return low, s.emit(Op.ADD, high, cross)


def mul_high(s: Selector, a: Pair, b: Pair, is_signed: bool) -> Pair:
    """The high 64 of 128 bits; a signed factor below zero counts 2**64 too much of the other."""
    middle = add(s, (s.emit(Op.MULHU, a[0], b[0]), ZERO), mul_wide(s, a[0], b[1], False))
    other = add(s, (middle[0], ZERO), mul_wide(s, a[1], b[0], False))
    high = add(s, mul_wide(s, a[1], b[1], False), add(s, (middle[1], ZERO), (other[1], ZERO)))
    if not is_signed:
        return high
    for x, y in ((a, b), (b, a)):
        mask = s.emit(Op.SAR, x[1], imm(31))
        high = sub(s, high, (s.emit(Op.AND, y[0], mask), s.emit(Op.AND, y[1], mask)))
    return high


def bitwise(s: Selector, op: Op, a: Pair, b: Pair) -> Pair:
    return s.emit(op, a[0], b[0]), s.emit(op, a[1], b[1])


def _or3(s: Selector, a: Value, b: Value, c: Value) -> Value:
    return s.emit(Op.OR, s.emit(Op.OR, a, b), c)


def _shift_parts(s: Selector, n: Value) -> tuple[Value, Value]:
    """32 - n and n - 32: whichever is negative shifts everything out."""
    return s.emit(Op.SUB, imm(32), n), s.emit(Op.ADD, n, imm(-32))


def shl(s: Selector, a: Pair, n: Value) -> Pair:
    back, over = _shift_parts(s, n)
    high = _or3(
        s, s.emit(Op.SHL, a[1], n), s.emit(Op.SHR, a[0], back), s.emit(Op.SHL, a[0], over)
    )
    return s.emit(Op.SHL, a[0], n), high


def shr(s: Selector, a: Pair, n: Value, is_signed: bool) -> Pair:
    back, over = _shift_parts(s, n)
    low = s.emit(Op.OR, s.emit(Op.SHR, a[0], n), s.emit(Op.SHL, a[1], back))
    if not is_signed:
        return s.emit(Op.OR, low, s.emit(Op.SHR, a[1], over)), s.emit(Op.SHR, a[1], n)
    low = s.select(s.emit(Op.LTU, n, imm(32)), low, s.emit(Op.SAR, a[1], over))
    return low, s.emit(Op.SAR, a[1], n)


def equal(s: Selector, a: Pair, b: Pair) -> Value:
    low, high = bitwise(s, Op.XOR, a, b)
    return s.emit(Op.EQ, s.emit(Op.OR, low, high), ZERO)


def less(s: Selector, a: Pair, b: Pair, is_signed: bool) -> Value:
    """a < b: by the high words, by the low ones where those are equal."""
    low = s.emit(Op.LTU, a[0], b[0])
    differ = s.emit(Op.NE, a[1], b[1])
    op = Op.LTS if is_signed else Op.LTU
    if not isinstance(differ, Virtual):
        return s.emit(op, a[1], b[1]) if differ == ONE else low
    return s.emit(op, a[1], b[1], low, Condition(differ))


def select(s: Selector, condition: Value, yes: Pair, no: Pair) -> Pair:
    return s.select(condition, yes[0], no[0]), s.select(condition, yes[1], no[1])


def absolute(s: Selector, a: Pair) -> Pair:
    return select(s, s.emit(Op.LTS, a[1], ZERO), neg(s, a), a)


def clz(s: Selector, a: Pair) -> Value:
    low = s.emit(Op.ADD, s.emit(Op.CLZ, a[0]), imm(32))
    return s.select(s.emit(Op.EQ, a[1], ZERO), low, s.emit(Op.CLZ, a[1]))


def sign_extended(s: Selector, low: Value, is_signed: bool) -> Pair:
    return low, s.emit(Op.SAR, low, imm(31)) if is_signed else ZERO
