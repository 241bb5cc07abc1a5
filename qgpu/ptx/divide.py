"""Division: the machine has no divider, so quotients come from a loop that is short for small ones.

Unsigned 32 bits: the divisor's four leading bits index a table of eight under-estimates of its
reciprocal. Each turn takes ``max(1, high word of rest * estimate)`` divisors off the rest, so a
turn settles about three bits of the quotient and a quotient of zero costs no turn. The estimate
never exceeds the true reciprocal, so the rest never goes below zero. Division by zero, which PTX
leaves open, gives a quotient and a remainder of all ones, as on NVIDIA hardware.
"""

from __future__ import annotations

from qgpu.isa import MASK32, Immediate, Op, signed
from qgpu.machine import WORD_BITS
from qgpu.ptx import wide
from qgpu.ptx.mir import ONE, ONES, ZERO, Value, Virtual, imm
from qgpu.ptx.select import Selector
from qgpu.ptx.wide import Pair

# floor(256 * 8 / (n + 1)) for leading bits n = 8..15: 256 times the least reciprocal of n.xxx / 8.
RECIPROCALS = tuple(256 * 8 // (n + 1) for n in range(8, 16))
TABLE_LOW, TABLE_HIGH = (
    sum(byte << (8 * n) for n, byte in enumerate(RECIPROCALS[at : at + 4])) for at in (0, 4)
)


def divide(s: Selector, a: Value, b: Value, is_signed: bool, want: str) -> Value:
    """``want`` is "div" or "rem"."""
    if isinstance(a, Immediate) and isinstance(b, Immediate):
        return _fold(a.value, b.value, is_signed, want)
    if is_signed and max(s.facts.limit(a), s.facts.limit(b)) < 1 << 31:
        is_signed = False
    if is_signed:
        quotient, rest = _unsigned(s, _absolute(s, a), _absolute(s, b), want, 1 << 31)
        rest = _with_sign(s, rest, s.emit(Op.LTS, a, ZERO))
        quotient = _with_sign(s, quotient, s.emit(Op.LTS, s.emit(Op.XOR, a, b), ZERO))
    else:
        quotient, rest = _unsigned(s, a, b, want)
    return s.select(s.emit(Op.EQ, b, ZERO), ONES, quotient if want == "div" else rest)


def _fold(a: int, b: int, is_signed: bool, want: str) -> Value:
    if b == 0:
        return ONES
    x, y = (signed(a), signed(b)) if is_signed else (a, b)
    quotient = abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)
    return imm(quotient if want == "div" else x - quotient * y)


def _absolute(s: Selector, value: Value) -> Value:
    if isinstance(value, Immediate):
        return imm(abs(signed(value.value)))
    if s.facts.limit(value) < 1 << 31:
        return value
    # Read unsigned, the smaller of x and -x is |x|, for the most negative number too.
    return s.emit(Op.MINU, value, s.emit(Op.SUB, ZERO, value))


def _with_sign(s: Selector, value: Value, is_negative: Value) -> Value:
    return s.select(is_negative, s.emit(Op.SUB, ZERO, value), value)


def _unsigned(s: Selector, a: Value, b: Value, want: str, largest: int = MASK32) -> Pair:
    if isinstance(b, Immediate) and b.value:
        return _by_constant(s, a, b.value, min(largest, s.facts.limit(a)))
    below = s.emit(Op.ADD, b, ONES)
    quotient, rest = s.graph.fresh(), s.graph.fresh()
    s.move(quotient, ZERO)
    s.move(rest, a)
    setup, turn, done = s.split("divide"), s.split("divide_turn"), s.split("divided")
    # b - 1 wraps for zero, so zero never enters the loop.
    s.branch(s.emit(Op.LTU, below, a), setup, done)
    s.block = setup
    estimate = _reciprocal(s, b)
    s.jump(turn)
    part = s.emit(Op.MAXU, s.emit(Op.MULHU, rest, estimate), ONE)
    new_quotient = s.emit(Op.ADD, quotient, part)
    if want == "div":  # from the quotient, so that nothing else passes between machine blocks
        new_rest = s.emit(Op.SUB, a, s.emit(Op.MUL, new_quotient, b))
    else:
        new_rest = s.emit(Op.SUB, rest, s.emit(Op.MUL, part, b))
    again = s.emit(Op.GEU, new_rest, b)
    s.move(quotient, new_quotient)
    s.move(rest, new_rest)
    s.branch(again, turn, done)
    s.block = done
    return quotient, rest


def _reciprocal(s: Selector, b: Value) -> Value:
    """At most 2**32 / b, at least 0.44 of it."""
    zeros = s.emit(Op.CLZ, b)
    leading = s.emit(Op.AND, s.emit(Op.SHR, s.emit(Op.SHL, b, zeros), imm(28)), imm(7))
    entry = s.emit(Op.PRMT, imm(TABLE_LOW), imm(TABLE_HIGH), leading)
    top = s.emit(Op.SHL, entry, imm(24))
    return s.emit(Op.SHR, top, s.emit(Op.SUB, imm(31), zeros))


def _by_constant(s: Selector, a: Value, divisor: int, largest: int) -> Pair:
    """By a shift or a multiplication, for dividends up to ``largest``.

    With m = (2**k + e) / divisor, a * m >> k is the quotient as long as a * e < 2**k. Where no m
    of 32 bits will do, one of 33 (Granlund and Montgomery, 1994, figure 4.1).
    """
    if divisor.bit_count() == 1:
        shift = imm(divisor.bit_length() - 1)
        return s.emit(Op.SHR, a, shift), s.emit(Op.AND, a, imm(divisor - 1))
    bits = (divisor - 1).bit_length()
    for shift_ in range(bits):
        power = 1 << (WORD_BITS + shift_)
        multiplier = -(-power // divisor)
        if multiplier <= MASK32 and (multiplier * divisor - power) * largest < power:
            quotient = s.emit(Op.SHR, s.emit(Op.MULHU, a, imm(multiplier)), imm(shift_))
            return quotient, s.emit(Op.SUB, a, s.emit(Op.MUL, quotient, imm(divisor)))
    high = s.emit(Op.MULHU, a, imm(((1 << WORD_BITS) * ((1 << bits) - divisor)) // divisor + 1))
    half = s.emit(Op.SHR, s.emit(Op.SUB, a, high), ONE)
    quotient = s.emit(Op.SHR, s.emit(Op.ADD, high, half), imm(bits - 1))
    return quotient, s.emit(Op.SUB, a, s.emit(Op.MUL, quotient, imm(divisor)))


# --- 64 bits ----------------------------------------------------------------------------------


def divide_wide(s: Selector, a: Pair, b: Pair, is_signed: bool, want: str) -> Pair:
    """Bit by bit from the quotient's highest bit down."""
    if is_signed:
        quotient, rest = _unsigned_wide(s, wide.absolute(s, a), wide.absolute(s, b))
        rest = wide.select(s, s.emit(Op.LTS, a[1], ZERO), wide.neg(s, rest), rest)
        differ = s.emit(Op.LTS, s.emit(Op.XOR, a[1], b[1]), ZERO)
        quotient = wide.select(s, differ, wide.neg(s, quotient), quotient)
    else:
        quotient, rest = _unsigned_wide(s, a, b)
    wanted = quotient if want == "div" else rest
    return wide.select(s, wide.equal(s, b, (ZERO, ZERO)), (ONES, ONES), wanted)


def _variable(s: Selector, value: Pair) -> tuple[Virtual, Virtual]:
    low, high = s.graph.fresh(), s.graph.fresh()
    s.move(low, value[0])
    s.move(high, value[1])
    return low, high


def _set(s: Selector, variable: tuple[Virtual, Virtual], value: Pair) -> None:
    s.move(variable[0], value[0])
    s.move(variable[1], value[1])


def _unsigned_wide(s: Selector, a: Pair, b: Pair) -> tuple[Pair, Pair]:
    quotient, rest = _variable(s, (ZERO, ZERO)), _variable(s, a)
    setup, turn, done = s.split("divide"), s.split("divide_turn"), s.split("divided")
    below = wide.sub(s, b, (ONE, ZERO))
    s.branch(wide.less(s, below, a, False), setup, done)
    s.block = setup
    count = s.graph.fresh()
    difference = s.emit(Op.SUB, wide.clz(s, b), wide.clz(s, a))
    s.move(count, difference)
    part = _variable(s, wide.shl(s, b, difference))
    s.jump(turn)
    fits = s.negate(wide.less(s, rest, part, False))
    new_rest = wide.select(s, fits, wide.sub(s, rest, part), rest)
    new_quotient = wide.shl(s, quotient, ONE)
    new_quotient = s.emit(Op.OR, new_quotient[0], fits), new_quotient[1]
    new_part = wide.shr(s, part, ONE, False)
    left = s.emit(Op.ADD, count, ONES)
    again = s.emit(Op.GES, left, ZERO)
    _set(s, quotient, new_quotient)
    _set(s, rest, new_rest)
    _set(s, part, new_part)
    s.move(count, left)
    s.branch(again, turn, done)
    s.block = done
    return quotient, rest
