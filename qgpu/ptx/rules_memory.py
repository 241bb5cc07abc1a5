"""Rules: loads, stores, atomics and address queries.

A word is the only size that the machine's memory knows. Narrower loads pick bytes out of the
word; narrower stores and atomics read, change and write it in a serial block, which one lane
after the other runs as a whole, lowest lane first.
"""

from __future__ import annotations

from collections.abc import Callable

from qgpu.isa import Immediate, Op
from qgpu.ptx import wide
from qgpu.ptx.mir import ONE, ONES, ZERO, Value, imm
from qgpu.ptx.select import Selector, rule, type_bits
from qgpu.ptx.wide import Pair
from qgpu.ptxir import TYPE_BYTES, Inst, Mem, Operand, Reg, Sym, Vec

Address = tuple[Value, Immediate]
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def data_type(s: Selector, inst: Inst) -> str:
    """The type moved; the bits of a floating-point number are data like any other."""
    type_ = inst.opcode[-1]
    if type_ in ("f32", "f64", "f16"):
        return "b" + type_[1:]
    if type_ == "b128":
        raise s.fail("this machine has no 128-bit registers")
    return s.type_of(inst)


def address_of(s: Selector, operand: Operand) -> Address:
    """Byte address as a value plus a constant."""
    if not isinstance(operand, Mem):
        raise s.fail("the operand is not an address")
    match operand.base:
        case Reg():
            return s.word(operand.base), imm(operand.offset)
        case Sym(name, offset):
            return s.symbol(name, offset + operand.offset), ZERO
    return ZERO, imm(operand.offset)


def advance(address: Address, n_bytes: int) -> Address:
    return address[0], imm(address[1].value + n_bytes)


def _places(s: Selector, inst: Inst, operand: Operand) -> list[Operand]:
    count = next((VECTORS[part] for part in inst.opcode if part in VECTORS), 1)
    items: list[Operand] = [*operand.items] if isinstance(operand, Vec) else [operand]
    if len(items) != count:
        raise s.fail("the vector's length and the opcode disagree")
    return items


def _sum(s: Selector, address: Address) -> Value:
    return s.emit(Op.ADD, *address)


# --- loads --------------------------------------------------------------------------------------


def _pick(s: Selector, where: Value, type_: str) -> Value:
    """The PRMT selector that takes an 8- or 16-bit value out of its word and extends it."""
    bits, is_signed = type_bits(type_), type_[0] == "s"
    place = s.emit(Op.AND, where, imm(3 if bits == 8 else 2))
    first = 0x4440 if bits == 8 else 0x4410
    step = 1 if bits == 8 else 0x11
    if is_signed:
        first, step = (0x8880 if bits == 8 else 0x9910), 0x1111
    return s.emit(Op.ADD, s.emit(Op.MUL, place, imm(step)), imm(first))


def load(s: Selector, type_: str, address: Address) -> list[Value]:
    """The words of one element."""
    word = s.emit(Op.LD, *address)
    if type_bits(type_) == 64:
        return [word, s.emit(Op.LD, *advance(address, 4))]
    if type_bits(type_) == 32:
        return [word]
    return [s.emit(Op.PRMT, word, ZERO, _pick(s, _sum(s, address), type_))]


def _is_parameter(s: Selector, inst: Inst, operand: Operand) -> bool:
    return (
        any(part.split("::")[0] == "param" for part in inst.opcode)
        and isinstance(operand, Mem)
        and isinstance(operand.base, Sym)
        and operand.base.name in s.memory.parameters
    )


def _parameter(s: Selector, operand: Operand, type_: str, skip: int) -> list[Value]:
    """A kernel parameter is known: the launch is lowered for its arguments."""
    assert isinstance(operand, Mem) and isinstance(operand.base, Sym)
    data = s.memory.parameter_bytes(operand.base.name)
    start = operand.base.offset + operand.offset + skip
    if start < 0 or start + TYPE_BYTES[type_] > len(data):
        raise s.fail("a load beyond the kernel parameter")
    value = int.from_bytes(
        data[start : start + TYPE_BYTES[type_]], "little", signed=type_[0] == "s"
    )
    return [imm(value), *([imm(value >> 32)] if type_bits(type_) == 64 else [])]


@rule("ld", "ldu")
def ld(s: Selector, inst: Inst) -> None:
    dst, source = inst.operands[:2]
    type_ = data_type(s, inst)
    places = _places(s, inst, dst)
    results: list[tuple[Operand, list[Value]]] = []
    address = None if _is_parameter(s, inst, source) else address_of(s, source)
    for n, place in enumerate(places):
        skip = n * TYPE_BYTES[type_]
        if address is None:
            words = _parameter(s, source, type_, skip)
        else:
            words = load(s, type_, advance(address, skip))
        if len(words) == 1:
            words = [*wide.sign_extended(s, words[0], type_[0] == "s")]
        results.append((place, words))
    s.write_all(results)


# --- stores -------------------------------------------------------------------------------------


def _insert_selector(s: Selector, where: Value, bits: int) -> Value:
    """The PRMT selector that puts a value's low byte or half in its place in the word."""
    if bits == 16:
        place = s.emit(Op.AND, where, imm(2))
        return s.emit(Op.ADD, s.emit(Op.MUL, place, imm(0x10DE)), imm(0x3254))
    # 0x3214, 0x3240, 0x3410, 0x4210: its two bytes looked up in two tables.
    place = s.emit(Op.AND, where, imm(3))
    index = s.emit(Op.ADD, s.emit(Op.MUL, place, imm(0x11)), imm(0x40))
    return s.emit(Op.PRMT, imm(0x10104014), imm(0x42343232), index)


def _store_narrow(
    s: Selector, bits: int, address: Address, value: Value, is_private: bool
) -> None:
    """Change a part of a word; in memory that other lanes can reach, one lane at a time."""
    selector = _insert_selector(s, _sum(s, address), bits)

    def change() -> None:
        old = s.emit(Op.LD, *address)
        s.effect(Op.ST, *address, s.emit(Op.PRMT, old, value, selector))

    if is_private:
        change()
    else:
        _serially(s, change)


@rule("st")
def st(s: Selector, inst: Inst) -> None:
    destination, source = inst.operands[:2]
    type_ = data_type(s, inst)
    bits = type_bits(type_)
    if _is_parameter(s, inst, destination):
        raise s.fail("a kernel parameter cannot be stored to")
    address = address_of(s, destination)
    is_private = any(part.split("::")[0] in ("local", "param") for part in inst.opcode)
    values = [s.read(item, bits) for item in _places(s, inst, source)]
    with s.guarded():
        condition = s.condition
        for n, words in enumerate(values):
            place = advance(address, n * TYPE_BYTES[type_])
            if bits < 32:
                _store_narrow(s, bits, place, words[0], is_private)
                continue
            for k, word in enumerate(words):
                s.effect(Op.ST, *advance(place, 4 * k), word, condition)


def _serially(s: Selector, body: Callable[[], None]) -> None:
    """Run the body in a block that one lane at a time goes through, if there are several."""
    if s.shape.n_threads == 1:
        body()
        return
    serial, after = s.split("serial"), s.split("after")
    s.jump(serial)
    serial.serial = True
    body()
    s.jump(after)


# --- atomics ------------------------------------------------------------------------------------


def _new_word(s: Selector, name: str, type_: str, old: Value, b: Value) -> Value:
    suffix = "S" if type_[0] == "s" else "U"
    match name:
        case "add":
            return s.emit(Op.ADD, old, b)
        case "sub":
            return s.emit(Op.SUB, old, b)
        case "and" | "or" | "xor":
            return s.emit(Op[name.upper()], old, b)
        case "min" | "max":
            return s.emit(Op[name.upper() + suffix], old, b)
        case "exch":
            return b
        case "inc":
            below = s.emit(Op.LTU, old, b)
            return s.select(below, s.emit(Op.ADD, old, ONE), ZERO)
        case "dec":
            # old - 1 wraps for zero, so the smaller of it and b is right in all three cases.
            return s.emit(Op.MINU, s.emit(Op.ADD, old, ONES), b)
    raise s.fail(f"the atomic operation {name} is not supported")


def _new_pair(s: Selector, name: str, type_: str, old: Pair, b: Pair) -> Pair:
    match name:
        case "add":
            return wide.add(s, old, b)
        case "and" | "or" | "xor":
            return wide.bitwise(s, Op[name.upper()], old, b)
        case "min" | "max":
            below = wide.less(s, old, b, type_[0] == "s")
            return wide.select(s, below, *((old, b) if name == "min" else (b, old)))
        case "exch":
            return b
    raise s.fail(f"the 64-bit atomic operation {name} is not supported")


ATOMICS = ("add", "sub", "and", "or", "xor", "min", "max", "exch", "inc", "dec", "cas")


@rule("atom", "red")
def atom(s: Selector, inst: Inst) -> None:
    dst = inst.operands[0] if inst.opcode[0] == "atom" else Reg("_")
    where, *sources = inst.operands[inst.opcode[0] == "atom" :]
    name = next((part for part in inst.opcode if part in ATOMICS), "")
    type_ = s.type_of(inst)
    bits = type_bits(type_)
    if not name or bits == 8 or len(sources) < (2 if name == "cas" else 1):
        raise s.fail("an atomic operation that is not supported")
    address = address_of(s, where)
    values = [s.read(source, bits) for source in sources[: 2 if name == "cas" else 1]]
    with s.guarded(branch=True):
        _serially(s, lambda: _atomic(s, dst, name, type_, address, values))


def _atomic(
    s: Selector, dst: Operand, name: str, type_: str, address: Address, values: list[list[Value]]
) -> None:
    bits = type_bits(type_)
    if bits == 16:
        _atomic_half(s, dst, name, address, values)
        return
    old = load(s, type_, address)
    if name == "cas":
        same = (
            s.emit(Op.EQ, old[0], values[0][0])
            if bits == 32
            else wide.equal(s, (old[0], old[1]), (values[0][0], values[0][1]))
        )
        new = [s.select(same, n, o) for n, o in zip(values[1], old, strict=True)]
    elif bits == 32:
        new = [_new_word(s, name, type_, old[0], values[0][0])]
    else:
        b = values[0]
        new = [*_new_pair(s, name, type_, (old[0], old[1]), (b[0], b[1]))]
    for n, word in enumerate(new):
        s.effect(Op.ST, *advance(address, 4 * n), word)
    s.write(dst, *old)  # last: the destination may be an operand too


def _atomic_half(
    s: Selector, dst: Operand, name: str, address: Address, values: list[list[Value]]
) -> None:
    if name not in ("cas", "exch"):
        raise s.fail("a 16-bit atomic other than cas and exch is not supported")
    where = _sum(s, address)
    word = s.emit(Op.LD, *address)
    old = s.emit(Op.PRMT, word, ZERO, _pick(s, where, "u16"))
    new = values[-1][0]
    if name == "cas":
        same = s.emit(Op.EQ, old, s.extend(values[0][0], "u16"))
        new = s.select(same, new, old)
    s.effect(Op.ST, *address, s.emit(Op.PRMT, word, new, _insert_selector(s, where, 16)))
    s.write(dst, old)


# --- the rest -----------------------------------------------------------------------------------


@rule("isspacep")
def isspacep(s: Selector, inst: Inst) -> None:
    """Whether an address lies in the variables of a space; global is what no other space has."""
    dst, source = inst.operands
    space = inst.opcode[1].split("::")[0]
    address = s.word(source)
    inside: dict[str, Value] = {"shared": ZERO, "local": ZERO, "const": ZERO, "param": ZERO}
    if space not in (*inside, "global"):
        raise s.fail(f"isspacep.{space} is not supported")
    for name in s.memory.variables:
        place = s.memory.place(name, s.fail)
        if place.space in inside and not place.is_local:
            offset = s.emit(Op.SUB, address, imm(place.address))
            found = s.emit(Op.LTU, offset, imm(place.n_bytes))
            inside[place.space] = s.emit(Op.OR, inside[place.space], found)
    frame = s.memory.frames_place()
    if frame is not None:
        offset = s.emit(Op.SUB, address, imm(frame.address))
        inside["local"] = s.emit(Op.LTU, offset, imm(frame.n_bytes))
    if space == "global":
        others = s.emit(Op.OR, inside["shared"], inside["local"])
        others = s.emit(Op.OR, others, s.emit(Op.OR, inside["const"], inside["param"]))
        s.write(dst, s.negate(others))
    else:
        s.write(dst, inside[space])


@rule("membar", "fence", "prefetch", "prefetchu", "applypriority", "discard", "pragma", "nanosleep")
def no_operation(s: Selector, inst: Inst) -> None:
    """Memory is one and in order, and there is nothing to wait for; accesses stay in place."""
    s.epoch += 1
