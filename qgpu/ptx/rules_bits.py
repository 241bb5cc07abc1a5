"""Rules: bit fields, byte permutation and dot products of bytes."""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx import wide
from qgpu.ptx.mir import ONE, ONES, ZERO, Value, imm
from qgpu.ptx.rules_arith import is_signed, operands
from qgpu.ptx.select import Selector, rule, type_bits
from qgpu.ptx.wide import Pair
from qgpu.ptxir import Inst


def low_ones(s: Selector, n: Value, bits: int) -> Pair:
    """A mask of the n lowest bits, all of them from ``bits`` on."""
    if bits == 32:
        return s.emit(Op.ADD, s.emit(Op.SHL, ONE, n), ONES), ZERO
    return wide.add(s, wide.shl(s, (ONE, ZERO), n), (ONES, ONES))


@rule("bfe")
def bfe(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    type_ = s.type_of(inst)
    position = s.emit(Op.AND, s.word(y), imm(0xFF))
    length = s.emit(Op.AND, s.word(z), imm(0xFF))
    if type_bits(type_) == 64:
        s.write(dst, *_bfe64(s, s.wide(x), position, length, is_signed(type_)))
        return
    a = s.word(x)
    if not is_signed(type_):
        mask, _ = low_ones(s, length, 32)
        s.write(dst, s.emit(Op.AND, s.emit(Op.SHR, a, position), mask))
        return
    # The sign is the bit at position + length - 1, at most bit 31: shift it up to bit 31 and back.
    end = s.emit(Op.MINU, s.emit(Op.ADD, position, length), imm(32))
    up = s.emit(Op.SHL, a, s.emit(Op.SUB, imm(32), end))
    down = s.emit(Op.MINU, s.emit(Op.SUB, imm(32), s.emit(Op.SUB, end, position)), imm(31))
    inside = s.emit(Op.SAR, up, down)
    beyond = s.emit(Op.SAR, a, imm(31))
    value = s.select(s.emit(Op.LTU, position, imm(32)), inside, beyond)
    s.write(dst, s.select(s.emit(Op.EQ, length, ZERO), ZERO, value))


def _bfe64(s: Selector, a: Pair, position: Value, length: Value, signed_: bool) -> Pair:
    if not signed_:
        return wide.bitwise(s, Op.AND, wide.shr(s, a, position, False), low_ones(s, length, 64))
    end = s.emit(Op.MINU, s.emit(Op.ADD, position, length), imm(64))
    up = wide.shl(s, a, s.emit(Op.SUB, imm(64), end))
    down = s.emit(Op.MINU, s.emit(Op.SUB, imm(64), s.emit(Op.SUB, end, position)), imm(63))
    sign = s.emit(Op.SAR, a[1], imm(31))
    inside = wide.shr(s, up, down, True)
    value = wide.select(s, s.emit(Op.LTU, position, imm(64)), inside, (sign, sign))
    return wide.select(s, s.emit(Op.EQ, length, ZERO), (ZERO, ZERO), value)


@rule("bfi")
def bfi(s: Selector, inst: Inst) -> None:
    dst, x, y, z, w = operands(inst, 5, s)
    bits = type_bits(s.type_of(inst))
    position = s.emit(Op.AND, s.word(z), imm(0xFF))
    length = s.emit(Op.AND, s.word(w), imm(0xFF))
    field, under = s.read(x, bits), s.read(y, bits)
    low, high = low_ones(s, length, bits)
    if bits == 32:
        mask = s.emit(Op.SHL, low, position)
        moved = s.emit(Op.SHL, field[0], position)
        s.write(dst, _merge(s, under[0], moved, mask))
        return
    mask64 = wide.shl(s, (low, high), position)
    moved64 = wide.shl(s, (field[0], field[1]), position)
    s.write(dst, *(_merge(s, u, m, k) for u, m, k in zip(under, moved64, mask64, strict=True)))


def _merge(s: Selector, under: Value, over: Value, mask: Value) -> Value:
    """``over`` where the mask is set, else ``under``."""
    return s.emit(Op.XOR, under, s.emit(Op.AND, s.emit(Op.XOR, under, over), mask))


@rule("bfind")
def bfind(s: Selector, inst: Inst) -> None:
    dst, x = operands(inst, 2, s)
    type_ = s.type_of(inst)
    if type_bits(type_) == 64:
        low, high = s.wide(x)
        if is_signed(type_):
            sign = s.emit(Op.SAR, high, imm(31))
            low, high = wide.bitwise(s, Op.XOR, (low, high), (sign, sign))
        zeros, bits = wide.clz(s, (low, high)), 64
    else:
        a = s.word(x)
        if is_signed(type_):
            a = s.emit(Op.XOR, a, s.emit(Op.SAR, a, imm(31)))
        zeros, bits = s.emit(Op.CLZ, a), 32
    place = s.emit(Op.SUB, imm(bits - 1), zeros)
    if "shiftamt" in inst.opcode:
        place = s.select(s.emit(Op.EQ, zeros, imm(bits)), ONES, zeros)
    s.write(dst, place)


@rule("fns")
def fns(s: Selector, inst: Inst) -> None:
    raise s.fail("fns is not supported")


@rule("prmt")
def prmt(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    a, b, c = s.word(x), s.word(y), s.word(z)
    mode = next((m for m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16") if m in inst.opcode), None)
    if mode is not None:
        c = _selector(s, mode, s.emit(Op.AND, c, imm(3)))
    s.write(dst, s.emit(Op.PRMT, a, b, c))


SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _selector(s: Selector, mode: str, n: Value) -> Value:
    """The selector of a prmt mode, looked up by n: its two bytes from two tables of four."""
    low = sum((word & 0xFF) << (8 * k) for k, word in enumerate(SELECTORS[mode]))
    high = sum((word >> 8) << (8 * k) for k, word in enumerate(SELECTORS[mode]))
    index = s.emit(Op.ADD, s.emit(Op.MUL, n, imm(0x11)), imm(0x40))
    return s.emit(Op.PRMT, imm(low), imm(high), index)


@rule("dp4a", "dp2a")
def dotproduct(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    a_type, b_type = s.type_of(inst, 0), s.type_of(inst, 1)
    a, b, total = s.word(x), s.word(y), s.word(z)
    is_four = inst.opcode[0] == "dp4a"
    for n in range(4 if is_four else 2):
        at = n if is_four or "hi" not in inst.opcode else n + 2
        left = _byte(s, a, n, a_type) if is_four else _half(s, a, n, a_type)
        total = s.emit(Op.ADD, total, s.emit(Op.MUL, left, _byte(s, b, at, b_type)))
    s.write(dst, total)


def _byte(s: Selector, word: Value, n: int, type_: str) -> Value:
    above = 8 | n if is_signed(type_) else 4
    return s.emit(Op.PRMT, word, ZERO, imm(n | above * 0x1110))


def _half(s: Selector, word: Value, n: int, type_: str) -> Value:
    return s.emit(Op.SAR if is_signed(type_) else Op.SHR,
                  word if n else s.emit(Op.SHL, word, imm(16)), imm(16))  # fmt: skip
