"""Rules: special registers, shuffles, votes and matches among the lanes of a warp.

A warp is ``n_lanes`` wide; lane numbers beyond it name no lane. The lanes that execute the
instruction together take part, those of one member mask with each other.
"""

from __future__ import annotations

from qgpu.isa import Immediate, Op
from qgpu.ptx.masks import FULL_WARP, ballot, members, refuse_where
from qgpu.ptx.mir import ONE, ONES, ZERO, Value, imm
from qgpu.ptx.rules_arith import is_signed as _is_signed
from qgpu.ptx.select import Selector, rule, type_bits
from qgpu.ptxir import Inst, Operand
from qgpu.ptxir import Pair as Destinations

AXES = "xyz"


def divide_small(s: Selector, value: Value, divisor: int, bound: int) -> Value:
    """value // divisor for 0 <= value < bound, by one multiplication."""
    if divisor == 1:
        return value
    if divisor >= bound:
        return ZERO
    if divisor.bit_count() == 1:
        return s.emit(Op.SHR, value, imm(divisor.bit_length() - 1))
    if bound * divisor > 1 << 32:
        raise s.fail("a grid of so many blocks is not supported")
    return s.emit(Op.MULHU, value, imm(-(-(1 << 32) // divisor)))


def _coordinate(s: Selector, linear: Value, sizes: tuple[int, int, int], axis: int) -> Value:
    """One coordinate of a linear index, x fastest."""
    inner = sizes[0] ** (axis > 0) * sizes[1] ** (axis > 1)
    total = sizes[0] * sizes[1] * sizes[2]
    if sizes[axis] == 1:
        return ZERO
    outer = divide_small(s, linear, inner, total)
    if inner * sizes[axis] == total:
        return outer
    if sizes[axis].bit_count() == 1:
        return s.emit(Op.AND, outer, imm(sizes[axis] - 1))
    above = divide_small(s, outer, sizes[axis], total // inner)
    return s.emit(Op.SUB, outer, s.emit(Op.MUL, above, imm(sizes[axis])))


def _tid(s: Selector) -> Value:
    return s.emit(Op.TID) if s.shape.n_threads > 1 else ZERO


def lane(s: Selector) -> Value:
    n_lanes = s.spec.n_lanes
    if s.shape.n_threads <= n_lanes:
        return _tid(s)
    if n_lanes.bit_count() == 1:
        return s.emit(Op.AND, _tid(s), imm(n_lanes - 1))
    warp = divide_small(s, _tid(s), n_lanes, s.spec.n_threads)
    return s.emit(Op.SUB, _tid(s), s.emit(Op.MUL, warp, imm(n_lanes)))


def _lane_mask(s: Selector, name: str) -> Value:
    all_lanes = s.spec.all_lanes
    match name:
        case "eq":
            return s.emit(Op.SHL, ONE, lane(s))
        case "lt":
            return s.emit(Op.ADD, s.emit(Op.SHL, ONE, lane(s)), ONES)
        case "le":
            return s.emit(Op.ADD, s.emit(Op.SHL, imm(2), lane(s)), ONES)
        case "ge":
            return s.emit(Op.AND, s.emit(Op.SHL, ONES, lane(s)), imm(all_lanes))
    return s.emit(Op.AND, s.emit(Op.SHL, imm(-2), lane(s)), imm(all_lanes))


def _size(sizes: tuple[int, int, int], axis: str) -> Value:
    return imm(sizes[AXES.index(axis)]) if axis in AXES else ZERO


def special_register(s: Selector, name: str) -> Value | None:
    """The value of ``%tid.x`` and its like; None for a name that is not one of them."""
    base, _, axis = name.removeprefix("%").partition(".")
    shape = s.shape
    n_warps = -(-shape.n_threads // s.spec.n_lanes)
    constants = {
        "WARP_SZ": s.spec.n_lanes, "nwarpid": n_warps, "smid": 0, "nsmid": 1, "gridid": 0,
        "dynamic_smem_size": shape.dynamic_shared_bytes,
    }  # fmt: skip
    if base in constants:
        return imm(constants[base])
    match base:
        case "tid" | "ctaid" if axis in ("x", "y", "z"):
            sizes = shape.block if base == "tid" else shape.grid
            linear = _tid(s) if base == "tid" else s.ctaid
            return _coordinate(s, linear, sizes, AXES.index(axis))
        case "ntid":
            return _size(shape.block, axis)
        case "nctaid":
            return _size(shape.grid, axis)
        case "laneid":
            return lane(s)
        case "warpid":
            return divide_small(s, _tid(s), s.spec.n_lanes, s.spec.n_threads)
    if base.startswith("lanemask_"):
        return _lane_mask(s, base.removeprefix("lanemask_"))
    return None


# --- shuffles -----------------------------------------------------------------------------------


def _mask(s: Selector, inst: Inst) -> Value:
    """The lanes that the instruction speaks of."""
    return members(s, inst.operands[-1] if "sync" in inst.opcode else None)


@rule("shfl")
def shfl(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        _shuffle(s, inst)


def _shuffle(s: Selector, inst: Inst) -> None:
    dst, source, x, y = inst.operands[:4]
    mode = next((m for m in ("up", "down", "bfly", "idx") if m in inst.opcode), "")
    if not mode:
        raise s.fail("a shuffle of an unknown mode")
    a = s.word(source)
    b = s.emit(Op.AND, s.word(x), imm(31))
    c = s.word(y)
    _refuse_wide(s, c)
    _mask(s, inst)
    me = lane(s)
    clamp = s.emit(Op.AND, c, imm(31))
    segment = s.emit(Op.AND, s.emit(Op.SHR, c, imm(8)), imm(31))
    outside = s.emit(Op.XOR, segment, imm(31))
    base = s.emit(Op.AND, me, segment)
    last = s.emit(Op.OR, base, s.emit(Op.AND, clamp, outside))
    match mode:
        case "up":
            other = s.emit(Op.SUB, me, b)
            valid = s.emit(Op.GES, other, last)
        case "down":
            other = s.emit(Op.ADD, me, b)
            valid = _within(s, other, last)
        case "bfly":
            other = s.emit(Op.XOR, me, b)
            valid = _within(s, other, last)
        case _:
            other = s.emit(Op.OR, base, s.emit(Op.AND, b, outside))
            valid = _within(s, other, last)
    taken = s.select(valid, other, me)
    value = s.emit(Op.SHFL, a, taken)
    if isinstance(dst, Destinations):
        s.write_all([(dst.first, [value]), (dst.second, [valid])])
    else:
        s.write(dst, value)


def _refuse_wide(s: Selector, c: Value) -> None:
    """A segment of more lanes than a warp has moves other values than on 32-lane hardware."""
    if s.shape.n_threads <= s.spec.n_lanes:
        return
    if isinstance(c, Immediate):
        width = FULL_WARP - (c.value >> 8 & 31)
        if width > s.spec.n_lanes:
            raise s.fail(f"a shuffle over {width} lanes; a warp has {s.spec.n_lanes} here")
        return
    segment = s.emit(Op.AND, c, imm(31 << 8))
    wide = s.emit(Op.LTU, segment, imm(FULL_WARP - s.spec.n_lanes << 8))
    refuse_where(s, wide, f"a shuffle over more lanes than a warp has here, {s.spec.n_lanes}")


def _within(s: Selector, other: Value, last: Value) -> Value:
    """other <= last, where lanes beyond the warp are never reached."""
    last = s.emit(Op.MINU, last, imm(s.spec.n_lanes - 1))
    return s.emit(Op.GEU, last, other)


# --- votes and matches ------------------------------------------------------------------------


@rule("vote")
def vote(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        s.write(inst.operands[0], _vote(s, inst))


def _vote(s: Selector, inst: Inst) -> Value:
    truth, mask = s.truth(inst.operands[1]), _mask(s, inst)
    if "ballot" in inst.opcode:
        return ballot(s, truth, mask)
    if "any" in inst.opcode:
        return s.emit(Op.NE, ballot(s, truth, mask), ZERO)
    none_false = s.emit(Op.EQ, ballot(s, s.negate(truth), mask), ZERO)
    if "all" in inst.opcode:
        return none_false
    if "uni" in inst.opcode:
        return s.emit(Op.OR, s.emit(Op.EQ, ballot(s, truth, mask), ZERO), none_false)
    raise s.fail("a vote of an unknown mode")


@rule("activemask")
def activemask(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        s.write(inst.operands[0], ballot(s, ONE, ONES))


def _equal_lanes(s: Selector, words: list[Value], here: Value) -> Value:
    """The mask of the lanes ``here`` whose words all equal this lane's."""
    mask: Value = ZERO
    for other in range(s.spec.n_lanes):
        same: Value = ONE
        for word in words:
            theirs = s.emit(Op.SHFL, word, imm(other))
            same = s.emit(Op.AND, same, s.emit(Op.EQ, word, theirs))
        mask = s.emit(Op.OR, mask, s.emit(Op.SHL, same, imm(other)))
    return s.emit(Op.AND, mask, here)


@rule("match")
def match_(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        _match(s, inst)


def _match(s: Selector, inst: Inst) -> None:
    dst, source = inst.operands[:2]
    words = s.read(source, type_bits(s.type_of(inst)))
    here = ballot(s, ONE, _mask(s, inst))
    mask = _equal_lanes(s, words, here)
    if "any" in inst.opcode:
        s.write(dst, mask)
        return
    together = s.emit(Op.EQ, mask, here)
    value = s.select(together, mask, ZERO)
    if isinstance(dst, Destinations):
        s.write_all([(dst.first, [value]), (dst.second, [together])])
    else:
        s.write(dst, value)


def _reduce_step(s: Selector, name: str, signed: bool, total: Value, theirs: Value) -> Value:
    ops = {"add": Op.ADD, "and": Op.AND, "or": Op.OR, "xor": Op.XOR}
    suffix = "S" if signed else "U"
    ops |= {"min": Op["MIN" + suffix], "max": Op["MAX" + suffix]}
    return s.emit(ops[name], total, theirs)


@rule("redux")
def redux(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        _reduce(s, inst)


def _reduce(s: Selector, inst: Inst) -> None:
    """Over the lanes of the mask, in lane order."""
    dst, source = inst.operands[:2]
    name = inst.opcode[2] if len(inst.opcode) > 2 else ""
    if name not in ("add", "and", "or", "xor", "min", "max"):
        raise s.fail("a reduction of an unknown operation")
    type_ = s.type_of(inst)
    signed = _is_signed(type_)
    neutral = {"and": ONES, "min": imm(0x7FFFFFFF) if signed else ONES,
               "max": imm(0x80000000) if signed else ZERO}.get(name, ZERO)  # fmt: skip
    value = s.word(source)
    active = ballot(s, ONE, _mask(s, inst))
    total: Value = neutral
    for other in range(s.spec.n_lanes):
        there = s.emit(Op.AND, s.emit(Op.SHR, active, imm(other)), ONE)
        theirs = s.select(there, s.emit(Op.SHFL, value, imm(other)), neutral)
        total = _reduce_step(s, name, signed, total, theirs)
    s.write(dst, total)


@rule("elect")
def elect(s: Selector, inst: Inst) -> None:
    with s.guarded(branch=True):
        _elect(s, inst)


def _elect(s: Selector, inst: Inst) -> None:
    dst = inst.operands[0]
    active = ballot(s, ONE, _mask(s, inst))
    low = s.emit(Op.AND, active, s.emit(Op.SUB, ZERO, active))
    leader = s.emit(Op.SUB, imm(31), s.emit(Op.CLZ, low))
    chosen = s.emit(Op.EQ, lane(s), leader)
    results: list[tuple[Operand, list[Value]]] = []
    if isinstance(dst, Destinations):
        results = [(dst.first, [leader]), (dst.second, [chosen])]
    else:
        results = [(dst, [chosen])]
    s.write_all(results)
