"""Rules: moves, packing and unpacking, conversion between integer types."""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx import wide
from qgpu.ptx.mir import ZERO, Value, imm
from qgpu.ptx.rules_arith import is_signed, operands
from qgpu.ptx.rules_bits import low_ones
from qgpu.ptx.select import Selector, rule, type_bits
from qgpu.ptx.wide import Pair
from qgpu.ptxir import Inst, Operand, Vec


@rule("mov")
def mov(s: Selector, inst: Inst) -> None:
    dst, x = operands(inst, 2, s)
    type_ = inst.opcode[-1]
    if type_ not in ("pred", "f32", "f64"):  # moving float bits computes nothing
        s.type_of(inst)
    bits = 1 if type_ == "pred" else type_bits(type_)
    if isinstance(x, Vec):
        s.write(dst, *_packed(s, x, bits))
    elif isinstance(dst, Vec):
        _unpack(s, dst, s.read(x, bits), bits)
    elif type_ == "pred":
        s.write(dst, s.truth(x))
    else:
        s.write(dst, *s.read(x, bits))


def _packed(s: Selector, vector: Vec, bits: int) -> list[Value]:
    width = bits // len(vector.items)
    if width == 32:
        return [s.word(item) for item in vector.items]
    words: list[Value] = []
    per_word = 32 // width
    for start in range(0, len(vector.items), per_word):
        word: Value = ZERO
        for n, item in enumerate(vector.items[start : start + per_word]):
            piece = s.extend(s.word(item), f"u{width}")
            word = s.emit(Op.OR, word, s.emit(Op.SHL, piece, imm(width * n)))
        words.append(word)
    return words


def _unpack(s: Selector, vector: Vec, words: list[Value], bits: int) -> None:
    width = bits // len(vector.items)
    results: list[tuple[Operand, list[Value]]] = []
    for n, item in enumerate(vector.items):
        word = words[n * width // 32]
        results.append((item, [s.emit(Op.SHR, word, imm(n * width % 32))]))
    s.write_all(results)


def _clamp(s: Selector, value: Pair, source: str, target: str) -> Pair:
    """Saturate a 64-bit value of the source's sign to the target's range."""
    bits, signed_ = type_bits(target), is_signed(target)
    low = -(1 << (bits - 1)) if signed_ else 0
    high = (1 << (bits - 1 if signed_ else bits)) - 1

    def pair(n: int) -> Pair:
        return imm(n), imm(n >> 32)

    if is_signed(source):
        if not (signed_ and bits >= type_bits(source)):
            value = wide.select(s, wide.less(s, value, pair(low), True), pair(low), value)
        if bits < 64:
            value = wide.select(s, wide.less(s, pair(high), value, True), pair(high), value)
    else:
        value = wide.select(s, wide.less(s, pair(high), value, False), pair(high), value)
    return value


@rule("cvt")
def cvt(s: Selector, inst: Inst) -> None:
    dst, x = operands(inst, 2, s)
    target, source = s.type_of(inst, 0), s.type_of(inst, 1)
    if type_bits(source) == 64:
        value = s.wide(x)
    else:
        low = s.operand(x, source)
        value = wide.sign_extended(s, low, is_signed(source))
    if "sat" in inst.opcode:
        value = _clamp(s, value, source, target)
    if type_bits(target) < 64:
        low = s.extend(value[0], target)
        value = wide.sign_extended(s, low, is_signed(target))
    s.write(dst, *value)


@rule("cvta")
def cvta(s: Selector, inst: Inst) -> None:
    """Every space is the same flat memory, so an address stays what it is."""
    dst, x = operands(inst, 2, s)
    s.write(dst, *s.read(x, type_bits(s.type_of(inst))))


@rule("szext")
def szext(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    n = s.word(y)
    n = s.emit(Op.AND, n, imm(31)) if "wrap" in inst.opcode else s.emit(Op.MINU, n, imm(32))
    back = s.emit(Op.SUB, imm(32), n)
    up = s.emit(Op.SHL, s.word(x), back)
    if is_signed(s.type_of(inst)):
        value = s.emit(Op.SAR, up, s.emit(Op.MINU, back, imm(31)))
        s.write(dst, s.select(s.emit(Op.EQ, n, ZERO), ZERO, value))
    else:
        s.write(dst, s.emit(Op.SHR, up, back))


@rule("bmsk")
def bmsk(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    position, length = s.word(x), s.word(y)
    if "wrap" in inst.opcode:
        position = s.emit(Op.AND, position, imm(31))
        length = s.emit(Op.AND, length, imm(31))
    s.write(dst, s.emit(Op.SHL, low_ones(s, length, 32)[0], position))
