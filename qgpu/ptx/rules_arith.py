"""Rules: integer arithmetic, logic, shifts, comparison and selection."""

from __future__ import annotations

from collections.abc import Callable

from qgpu.isa import Op
from qgpu.ptx import wide
from qgpu.ptx.divide import divide, divide_wide
from qgpu.ptx.mir import ONES, ZERO, Value, imm
from qgpu.ptx.select import Selector, rule, type_bits
from qgpu.ptx.wide import Pair
from qgpu.ptxir import Imm, Inst, Not, Operand
from qgpu.ptxir import Pair as Destinations

Binary32 = Callable[[Selector, Value, Value, bool], Value]
Binary64 = Callable[[Selector, Pair, Pair, bool], Pair]


def operands(inst: Inst, count: int, s: Selector) -> tuple[Operand, ...]:
    if len(inst.operands) != count:
        raise s.fail(f"{inst.opcode[0]} takes {count} operands, not {len(inst.operands)}")
    return inst.operands


def is_signed(type_: str) -> bool:
    return type_[0] == "s"


# --- add, sub, mul, mad -----------------------------------------------------------------------


def _saturate(s: Selector, a: Value, b: Value, total: Value, overflow: Value) -> Value:
    """The s32 sum or difference clamped: on overflow the bound on the side of ``a``."""
    bound = s.emit(Op.XOR, s.emit(Op.SAR, a, imm(31)), imm(0x7FFFFFFF))
    return s.select(s.emit(Op.LTS, overflow, ZERO), bound, total)


@rule("add", "sub")
def add_sub(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    type_, is_add = s.type_of(inst), inst.opcode[0] == "add"
    if type_bits(type_) == 64:
        s.write(dst, *(wide.add if is_add else wide.sub)(s, s.wide(x), s.wide(y)))
        return
    a, b = s.word(x), s.word(y)
    total = s.emit(Op.ADD if is_add else Op.SUB, a, b)
    if "sat" in inst.opcode:
        with_a = s.emit(Op.XOR, a, total)
        other = s.emit(Op.XOR, b, total) if is_add else s.emit(Op.XOR, a, b)
        total = _saturate(s, a, b, total, s.emit(Op.AND, with_a, other))
    s.write(dst, total)


def product(s: Selector, inst: Inst, x: Operand, y: Operand, bits24: bool = False) -> list[Value]:
    """The words of mul.{lo,hi,wide} in the type of the result."""
    type_ = s.type_of(inst)
    signed_ = is_signed(type_)
    if type_bits(type_) == 64:
        a, b = s.wide(x), s.wide(y)
        return [*(wide.mul_high(s, a, b, signed_) if "hi" in inst.opcode else wide.mul(s, a, b))]
    if bits24:
        a32, b32 = (_extend24(s, s.word(v), signed_) for v in (x, y))
        if "hi" in inst.opcode:
            low, high = wide.mul_wide(s, a32, b32, signed_)
            return [s.emit(Op.OR, s.emit(Op.SHR, low, imm(16)), s.emit(Op.SHL, high, imm(16)))]
        return [s.emit(Op.MUL, a32, b32)]
    a32, b32 = s.operand(x, type_), s.operand(y, type_)
    if type_bits(type_) == 16:
        full = s.emit(Op.MUL, a32, b32)
        return [s.emit(Op.SHR, full, imm(16)) if "hi" in inst.opcode else full]
    if "wide" in inst.opcode:
        return [*wide.mul_wide(s, a32, b32, signed_)]
    if "hi" in inst.opcode:
        return [s.emit(Op.MULHS if signed_ else Op.MULHU, a32, b32)]
    return [s.emit(Op.MUL, a32, b32)]


def _extend24(s: Selector, value: Value, signed_: bool) -> Value:
    if not signed_:
        return s.emit(Op.AND, value, imm(0xFFFFFF))
    return s.emit(Op.SAR, s.emit(Op.SHL, value, imm(8)), imm(8))


@rule("mul", "mul24")
def mul(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    s.write(dst, *product(s, inst, x, y, inst.opcode[0] == "mul24"))


@rule("mad", "mad24")
def mad(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    words = product(s, inst, x, y, inst.opcode[0] == "mad24")
    if len(words) == 2:
        s.write(dst, *wide.add(s, (words[0], words[1]), s.wide(z)))
        return
    c = s.word(z)
    total = s.emit(Op.ADD, words[0], c)
    if "sat" in inst.opcode:
        changed = s.emit(Op.AND, s.emit(Op.XOR, c, total), s.emit(Op.XOR, words[0], total))
        total = _saturate(s, c, c, total, changed)
    s.write(dst, total)


@rule("sad")
def sad(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    type_ = s.type_of(inst)
    if type_bits(type_) == 64:
        a, b = s.wide(x), s.wide(y)
        below = wide.less(s, a, b, is_signed(type_))
        distance = wide.select(s, below, wide.sub(s, b, a), wide.sub(s, a, b))
        s.write(dst, *wide.add(s, distance, s.wide(z)))
        return
    c, d = s.operand(x, type_), s.operand(y, type_)
    low, high = (Op.MINS, Op.MAXS) if is_signed(type_) else (Op.MINU, Op.MAXU)
    distance32 = s.emit(Op.SUB, s.emit(high, c, d), s.emit(low, c, d))
    s.write(dst, s.emit(Op.ADD, distance32, s.word(z)))


# --- division ---------------------------------------------------------------------------------


@rule("div", "rem")
def div_rem(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    type_, want = s.type_of(inst), inst.opcode[0]
    if type_bits(type_) == 64:
        s.write(dst, *divide_wide(s, s.wide(x), s.wide(y), is_signed(type_), want))
    else:
        a, b = s.operand(x, type_), s.operand(y, type_)
        s.write(dst, divide(s, a, b, is_signed(type_), want))


# --- one operand ------------------------------------------------------------------------------


def _unary32(s: Selector, name: str, a: Value) -> Value:
    match name:
        case "neg":
            return s.emit(Op.SUB, ZERO, a)
        case "abs":
            return s.emit(Op.MAXS, a, s.emit(Op.SUB, ZERO, a)) if a != imm(1 << 31) else a
        case "not":
            return s.emit(Op.XOR, a, ONES)
        case "cnot":
            return s.emit(Op.EQ, a, ZERO)
        case "popc":
            return s.emit(Op.POPC, a)
        case "clz":
            return s.emit(Op.CLZ, a)
    return s.emit(Op.BREV, a)


def _unary64(s: Selector, name: str, a: Pair) -> list[Value]:
    match name:
        case "neg":
            return [*wide.neg(s, a)]
        case "abs":
            return [*wide.absolute(s, a)]
        case "not":
            return [*wide.bitwise(s, Op.XOR, a, (ONES, ONES))]
        case "cnot":
            return [wide.equal(s, a, (ZERO, ZERO)), ZERO]
        case "popc":
            return [s.emit(Op.ADD, s.emit(Op.POPC, a[0]), s.emit(Op.POPC, a[1]))]
        case "clz":
            return [wide.clz(s, a)]
    return [s.emit(Op.BREV, a[1]), s.emit(Op.BREV, a[0])]


@rule("neg", "abs", "not", "cnot", "popc", "clz", "brev")
def unary(s: Selector, inst: Inst) -> None:
    dst, x = operands(inst, 2, s)
    type_, name = s.type_of(inst), inst.opcode[0]
    if type_ == "pred":
        s.write(dst, s.negate(s.truth(x)))
    elif type_bits(type_) == 64:
        s.write(dst, *_unary64(s, name, s.wide(x)))
    else:
        if name == "cnot" and type_bits(type_) == 16:
            type_ = "u16"
        s.write(dst, _unary32(s, name, s.operand(x, type_)))


# --- logic, shifts, min, max ------------------------------------------------------------------


@rule("and", "or", "xor")
def logic(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    op, type_ = Op[inst.opcode[0].upper()], s.type_of(inst)
    if type_ == "pred":
        s.write(dst, s.emit(op, s.truth(x), s.truth(y)))
    elif type_bits(type_) == 64:
        s.write(dst, *wide.bitwise(s, op, s.wide(x), s.wide(y)))
    else:
        s.write(dst, s.emit(op, s.word(x), s.word(y)))


@rule("shl", "shr")
def shift(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    type_, n = s.type_of(inst), s.word(y)
    is_left = inst.opcode[0] == "shl"
    if type_bits(type_) == 64:
        a = s.wide(x)
        s.write(dst, *(wide.shl(s, a, n) if is_left else wide.shr(s, a, n, is_signed(type_))))
    elif is_left:
        s.write(dst, s.emit(Op.SHL, s.word(x), n))
    else:
        op = Op.SAR if is_signed(type_) else Op.SHR
        narrow = type_.replace("b", "u")
        s.write(dst, s.emit(op, s.operand(x, narrow), n))


@rule("min", "max")
def min_max(s: Selector, inst: Inst) -> None:
    dst, x, y = operands(inst, 3, s)
    type_, name = s.type_of(inst), inst.opcode[0]
    if type_bits(type_) == 64:
        a, b = s.wide(x), s.wide(y)
        first = wide.less(s, a, b, is_signed(type_))
        result = wide.select(s, first, a, b) if name == "min" else wide.select(s, first, b, a)
        if "relu" in inst.opcode:
            below = wide.less(s, result, (ZERO, ZERO), True)
            result = wide.select(s, below, (ZERO, ZERO), result)
        s.write(dst, *result)
        return
    op = Op[name.upper() + ("S" if is_signed(type_) else "U")]
    value = s.emit(op, s.operand(x, type_), s.operand(y, type_))
    s.write(dst, s.emit(Op.MAXS, value, ZERO) if "relu" in inst.opcode else value)


@rule("lop3")
def lop3(s: Selector, inst: Inst) -> None:
    *_, table = inst.operands
    if not isinstance(table, Imm) or len(inst.operands) != 5:
        raise s.fail("lop3 with a predicate or a table that is not a constant is not supported")
    dst, *sources = inst.operands[:4]
    a, b, c = (s.word(v) for v in sources)
    s.write(dst, _lookup(s, a, b, c, table.value & 0xFF))


def _lookup(s: Selector, a: Value, b: Value, c: Value, table: int) -> Value:
    """The bitwise function of three inputs: by c between two functions of a and b."""
    with_c, without = (
        _lookup2(s, a, b, sum((table >> (2 * n + bit) & 1) << n for n in range(4)))
        for bit in (1, 0)
    )
    differ = s.emit(Op.XOR, with_c, without)
    return s.emit(Op.XOR, without, s.emit(Op.AND, differ, c))


def _lookup2(s: Selector, a: Value, b: Value, table: int) -> Value:
    """Bit n of the table: the result for a = n >> 1, b = n & 1; as a sum modulo 2 of products."""
    value: Value = imm(-(table & 1))
    for bit, term in (
        (table ^ table >> 1, b),
        (table ^ table >> 2, a),
        (table ^ table >> 1 ^ table >> 2 ^ table >> 3, None),
    ):
        if bit & 1:
            value = s.emit(Op.XOR, value, s.emit(Op.AND, a, b) if term is None else term)
    return value


@rule("shf")
def funnel_shift(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    low, high, n = s.word(x), s.word(y), s.word(z)
    n = s.emit(Op.AND, n, imm(31)) if "wrap" in inst.opcode else s.emit(Op.MINU, n, imm(32))
    back = s.emit(Op.SUB, imm(32), n)
    if "l" in inst.opcode:
        s.write(dst, s.emit(Op.OR, s.emit(Op.SHL, high, n), s.emit(Op.SHR, low, back)))
    else:
        s.write(dst, s.emit(Op.OR, s.emit(Op.SHR, low, n), s.emit(Op.SHL, high, back)))


# --- comparison and selection -----------------------------------------------------------------

UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", *UNSIGNED_NAMES)


def compare(s: Selector, name: str, type_: str, x: Operand, y: Operand) -> Value:
    """The truth of a comparison, 0 or 1."""
    signed_ = is_signed(type_) and name not in UNSIGNED_NAMES
    name = UNSIGNED_NAMES.get(name, name)
    if type_bits(type_) == 64:
        return _compare64(s, name, signed_, s.wide(x), s.wide(y))
    narrow = type_.replace("b", "u")
    a, b = s.operand(x, narrow), s.operand(y, narrow)
    if name in ("eq", "ne"):
        return s.emit(Op[name.upper()], a, b)
    less, not_less = (Op.LTS, Op.GES) if signed_ else (Op.LTU, Op.GEU)
    if name in ("gt", "le"):
        a, b = b, a
    return s.emit(less if name in ("lt", "gt") else not_less, a, b)


def _compare64(s: Selector, name: str, signed_: bool, a: Pair, b: Pair) -> Value:
    if name in ("eq", "ne"):
        same = wide.equal(s, a, b)
        return same if name == "eq" else s.negate(same)
    if name in ("gt", "le"):
        a, b = b, a
    below = wide.less(s, a, b, signed_)
    return below if name in ("lt", "gt") else s.negate(below)


def _comparison(s: Selector, inst: Inst, type_: str, sources: tuple[Operand, ...]) -> Value:
    """Comparison and, where the opcode names one, its combination with a predicate."""
    name = next((part for part in inst.opcode if part in COMPARISONS), None)
    if name is None:
        raise s.fail("a comparison that integers do not have")
    truth = compare(s, name, type_, sources[0], sources[1])
    combine = next((part for part in inst.opcode[2:] if part in ("and", "or", "xor")), None)
    if combine is not None:
        truth = s.emit(Op[combine.upper()], truth, s.truth(sources[2]))
    return truth


@rule("setp")
def setp(s: Selector, inst: Inst) -> None:
    dst, *sources = inst.operands
    type_ = s.type_of(inst)
    if not isinstance(dst, Destinations):
        s.write(dst, _comparison(s, inst, type_, tuple(sources)))
        return
    first = _comparison(s, inst, type_, tuple(sources))
    name = next(part for part in inst.opcode if part in COMPARISONS)
    other = s.negate(compare(s, name, type_, sources[0], sources[1]))
    combine = next((part for part in inst.opcode[2:] if part in ("and", "or", "xor")), None)
    if combine is not None:
        other = s.emit(Op[combine.upper()], other, s.truth(sources[2]))
    s.write_all([(dst.first, [first]), (dst.second, [other])])


@rule("set")
def set_(s: Selector, inst: Inst) -> None:
    dst, *sources = inst.operands
    if s.type_of(inst, 0) not in ("u32", "s32"):
        raise s.fail("set to a type other than u32 or s32 is not supported")
    s.write(dst, s.emit(Op.SUB, ZERO, _comparison(s, inst, s.type_of(inst), tuple(sources))))


@rule("selp")
def selp(s: Selector, inst: Inst) -> None:
    dst, x, y, p = operands(inst, 4, s)
    bits = type_bits(s.type_of(inst))
    truth = s.truth(p)
    if isinstance(p, Not):
        truth, x, y = s.truth(p.reg), y, x
    pairs = zip(s.read(x, bits), s.read(y, bits), strict=True)
    s.write(dst, *(s.select(truth, a, b) for a, b in pairs))


@rule("slct")
def slct(s: Selector, inst: Inst) -> None:
    dst, x, y, z = operands(inst, 4, s)
    bits = type_bits(s.type_of(inst, 0))
    if s.type_of(inst) != "s32":
        raise s.fail("slct by a type other than s32 is not supported")
    truth = s.emit(Op.GES, s.word(z), ZERO)
    pairs = zip(s.read(x, bits), s.read(y, bits), strict=True)
    s.write(dst, *(s.select(truth, a, b) for a, b in pairs))
