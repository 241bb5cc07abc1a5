"""Member masks of warp-synchronous instructions.

A warp has ``n_lanes`` lanes, so of a mask the low bits count, and the mask of all ones is the
whole warp. A mask that names lanes beyond it which the launch has would mean other threads on
32-lane hardware: it is refused, a constant one at once, any other as it runs.
"""

from __future__ import annotations

from qgpu.isa import Immediate, Op
from qgpu.machine import WORD_BYTES
from qgpu.ptx.mir import ONE, ONES, ZERO, Edge, Value, imm
from qgpu.ptx.select import Selector
from qgpu.ptxir import Operand

FULL_WARP = 32


def refuse_where(s: Selector, wrong: Value, reason: str) -> None:
    """Where ``wrong`` holds the launch ends, and says why."""
    if wrong == ZERO:
        return
    refused, after = s.split("refused"), s.split("right")
    s.branch(wrong, refused, after)
    s.block = refused
    s.trap(reason)
    s.block.target = s.exit_edge
    s.block = after


def beyond(s: Selector) -> int:
    """The lanes that a warp of 32 would have in this launch and a warp here has not."""
    return (1 << min(s.shape.n_threads, FULL_WARP)) - 1 & ~s.spec.all_lanes


def members(s: Selector, operand: Operand | None) -> Value:
    """The lanes of this warp that a mask names; all for an instruction that has none.

    The lanes that are active are in their own mask, so a mask that is the same in all of them
    takes none away: constants become all ones.
    """
    if operand is None:
        return ONES
    mask, outside = s.word(operand), beyond(s)
    reason = f"a mask of lanes beyond the warp, which has {s.spec.n_lanes} lanes here"
    if isinstance(mask, Immediate):
        if mask != ONES and mask.value & outside:
            raise s.fail(f"{reason}: {mask.value:#x}")
        if not mask.value & s.spec.all_lanes:
            raise s.fail(f"the mask {mask.value:#x} names no lane")
    elif outside and s.facts.limit(mask) > s.spec.all_lanes:
        there = s.emit(Op.AND, mask, imm(outside | s.spec.all_lanes))
        others = s.emit(Op.GEU, there, imm(s.spec.all_lanes + 1))
        refuse_where(s, s.emit(Op.AND, others, s.emit(Op.NE, mask, ONES)), reason)
    if s.inst in s.unmet:
        _meet(s, mask)
    return ONES if isinstance(mask, Immediate) else mask


def _meet(s: Selector, mask: Value) -> None:
    """Go on only with every lane that the mask names and that has not ended; let the others go
    first until then."""
    look, search, after = s.split("meet"), s.split("ended"), s.split("together")
    named = s.emit(Op.AND, mask, _living(s))
    s.jump(look)
    missing = s.emit(Op.AND, named, s.emit(Op.XOR, s.emit(Op.BALLOT, ONE), ONES))
    s.branch(s.emit(Op.NE, missing, ZERO), search, after)
    s.block = search
    s.epoch += 1
    still = s.emit(Op.AND, missing, s.emit(Op.XOR, _ended(s), ONES))
    s.branch(s.emit(Op.NE, still, ZERO), look, after)
    if search.taken is not None:
        search.taken = Edge(look, yields=True)
    s.block = after


def _ended(s: Selector) -> Value:
    """The lanes of this warp that have ended in this CUDA block."""
    address = s.memory.ended_place()
    first = s.emit(Op.AND, s.emit(Op.TID), imm(-s.spec.n_lanes))
    offset, now = s.emit(Op.SHL, first, imm(2)), _round_number(s)
    ended: Value = ZERO
    for lane in range(s.spec.n_lanes):
        word = s.emit(Op.LD, imm(address + WORD_BYTES * lane), offset)
        ended = s.emit(Op.OR, ended, s.emit(Op.SHL, s.emit(Op.EQ, word, now), imm(lane)))
    return ended


def note_ended(s: Selector) -> None:
    """Note that this thread has ended: the number of its CUDA block, from 1, in its own word."""
    offset = s.emit(Op.SHL, s.emit(Op.TID), imm(2))
    s.epoch += 1
    s.effect(Op.ST, imm(s.memory.ended_place()), offset, _round_number(s))


def _round_number(s: Selector) -> Value:
    return s.emit(Op.ADD, s.ctaid, ONE)


def _living(s: Selector) -> Value:
    """The lanes that this warp has; the last warp of the launch may have fewer."""
    n_threads, n_lanes = s.shape.n_threads, s.spec.n_lanes
    rest = n_threads % n_lanes
    if not rest:
        return imm(s.spec.all_lanes)
    if n_threads < n_lanes:
        return imm((1 << rest) - 1)
    is_last = s.emit(Op.GEU, s.emit(Op.TID), imm(n_threads - rest))
    return s.select(is_last, imm((1 << rest) - 1), imm(s.spec.all_lanes))


def ballot(s: Selector, truth: Value, mask: Value) -> Value:
    """The lanes that are active, named by the mask, and whose ``truth`` holds."""
    lanes = s.emit(Op.BALLOT, truth)
    return lanes if mask == ONES else s.emit(Op.AND, lanes, mask)
