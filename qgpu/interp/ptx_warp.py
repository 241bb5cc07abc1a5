"""PTX instructions that look across the lanes of a warp or wait for other threads.

A ``.sync`` instruction waits until every living lane that its mask names stands at it. All ones
name the whole warp; else a mask may not name lanes beyond it that the launch has. Without
``.sync`` the lanes that happen to be together take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qgpu.interp.ptx_code import Instruction, Read, Write
from qgpu.interp.ptx_memory import Fault
from qgpu.interp.ptx_threads import Wait
from qgpu.interp.ptx_types import Unsupported
from qgpu.isa import MASK32
from qgpu.ptxir import Operand, Pair, Reg

if TYPE_CHECKING:
    from qgpu.interp.ptx_operands import Operands
    from qgpu.interp.ptx_threads import Lane, Warp

Act = Callable[["Warp", "list[Lane]"], None]
FULL_WARP = 32


def _together(read_mask: Read | None, act: Act) -> Act:
    """``act`` for each set of lanes that meet under one mask; the others stay and wait."""

    def execute(warp: Warp, lanes: list[Lane]) -> None:
        if read_mask is None:
            _advance(lanes)
            act(warp, lanes)
            return
        groups: dict[int, list[Lane]] = {}
        for lane in lanes:
            groups.setdefault(_mask(read_mask, lane), []).append(lane)
        for mask, group in groups.items():
            if all(lane in group for lane in _named(warp, mask)):
                _advance(group)
                act(warp, group)
            else:
                for lane in group:
                    lane.blocked = True

    return execute


def _mask(read_mask: Read, lane: Lane) -> int:
    mask, spec, n_threads = read_mask(lane), lane.machine.spec, lane.machine.shape.n_threads
    beyond = (1 << min(n_threads, FULL_WARP)) - 1 & ~spec.all_lanes
    if mask != MASK32 and mask & beyond:
        raise Fault(f"a mask of lanes beyond the warp, which has {spec.n_lanes} lanes: {mask:#x}")
    mask &= spec.all_lanes
    if not mask >> lane.index & 1:
        raise Fault(f"lane {lane.index} is not in its own mask {mask:#x}")
    return mask


def _named(warp: Warp, mask: int) -> list[Lane]:
    return [lane for lane in warp.lanes if lane.alive and mask >> lane.index & 1]


def _advance(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.frame.pc += 1
        lane.blocked = False


def _mask_operand(operands: Operands, instruction: Instruction, sync: bool) -> Read | None:
    return operands.read(instruction.inst.operands[-1], "b32") if sync else None


def _results(operands: Operands, operand: Operand, type_: str) -> tuple[Write, Write]:
    """The writers of ``d|p``; p may be missing."""
    if isinstance(operand, Pair):
        return operands.write(operand.first, type_), operands.write(operand.second, "pred")
    return operands.write(operand, type_), operands.write(Reg("_"), "pred")


# --- shuffles -----------------------------------------------------------------------------------


def shuffle_source(mode: str, lane: int, b: int, c: int, n_lanes: int) -> tuple[int, bool]:
    """(source lane, predicate) by the PTX ISA, with the segment's end clamped to the warp."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    last = min(lane & segment | clamp & ~segment, n_lanes - 1) if mode != "up" else (
        lane & segment | clamp & ~segment
    )  # fmt: skip
    if mode == "up":
        source, valid = lane - b, lane - b >= last
    elif mode == "down":
        source, valid = lane + b, lane + b <= last
    elif mode == "bfly":
        source, valid = lane ^ b, (lane ^ b) <= last
    elif mode == "idx":
        source = lane & segment | b & ~segment & 31
        valid = source <= last
    else:
        raise Unsupported
    return (source, True) if valid else (lane, False)


def _refuse_wide(lane: Lane, c: int) -> None:
    """A segment of more lanes than a warp has differs from 32-lane hardware: say so."""
    n_lanes, n_threads = lane.machine.spec.n_lanes, lane.machine.shape.n_threads
    width = FULL_WARP - (c >> 8 & 31)
    if width > n_lanes and n_threads > n_lanes:
        raise Fault(f"a shuffle over {width} lanes; a warp has {n_lanes} here")


def _shfl(operands: Operands, instruction: Instruction) -> None:
    inst = instruction.inst
    sync = "sync" in inst.opcode
    mode = inst.opcode[2 if sync else 1]
    target, *sources = inst.operands
    if len(sources) != (4 if sync else 3):
        raise Unsupported
    write, write_p = _results(operands, target, "b32")
    a, b, c = (operands.read(source, "b32") for source in sources[:3])

    def act(warp: Warp, lanes: list[Lane]) -> None:
        values = [a(lane) for lane in warp.lanes]
        for lane in lanes:
            _refuse_wide(lane, c(lane))
            source, valid = shuffle_source(mode, lane.index, b(lane), c(lane), len(warp.lanes))
            write(lane, values[source])
            write_p(lane, int(valid))

    instruction.together = _together(_mask_operand(operands, instruction, sync), act)


# --- votes and matches --------------------------------------------------------------------------


def _ballot(lanes: list[Lane], values: list[int]) -> int:
    return sum(1 << lane.index for lane, value in zip(lanes, values, strict=True) if value)


def _vote(operands: Operands, instruction: Instruction) -> None:
    inst = instruction.inst
    sync = "sync" in inst.opcode
    mode, type_ = inst.opcode[2 if sync else 1], inst.opcode[-1]
    write, read = operands.write(inst.operands[0], type_), operands.read(inst.operands[1], "pred")

    def act(warp: Warp, lanes: list[Lane]) -> None:
        values = [read(lane) for lane in lanes]
        result = {
            "all": int(all(values)),
            "any": int(any(values)),
            "uni": int(len(set(values)) == 1),
            "ballot": _ballot(lanes, values),
        }[mode]
        for lane in lanes:
            write(lane, result)

    if mode not in ("all", "any", "uni", "ballot"):
        raise Unsupported
    instruction.together = _together(_mask_operand(operands, instruction, sync), act)


def _match(operands: Operands, instruction: Instruction) -> None:
    inst = instruction.inst
    mode, type_ = inst.opcode[1], inst.opcode[-1]
    write, write_p = _results(operands, inst.operands[0], "b32")
    read = operands.read(inst.operands[1], type_)

    def act(warp: Warp, lanes: list[Lane]) -> None:
        values = [read(lane) for lane in lanes]
        for lane, mine in zip(lanes, values, strict=True):
            same = _ballot(lanes, [int(value == mine) for value in values])
            whole = len(set(values)) == 1
            write(lane, same if mode == "any" or whole else 0)
            write_p(lane, int(whole))

    if mode not in ("any", "all"):
        raise Unsupported
    instruction.together = _together(_mask_operand(operands, instruction, True), act)


def _activemask(operands: Operands, instruction: Instruction) -> None:
    write = operands.write(instruction.inst.operands[0], "b32")

    def act(warp: Warp, lanes: list[Lane]) -> None:
        for lane in lanes:
            write(lane, _ballot(lanes, [1] * len(lanes)))

    instruction.together = _together(None, act)


def _redux(operands: Operands, instruction: Instruction) -> None:
    inst = instruction.inst
    op, type_ = inst.opcode[2], inst.opcode[-1]
    if type_[0] == "f":
        raise Unsupported
    write, read = operands.write(inst.operands[0], type_), operands.read(inst.operands[1], type_)

    def act(warp: Warp, lanes: list[Lane]) -> None:
        result, *others = [read(lane) for lane in lanes]
        for value in others:
            result = REDUCE[op](result, value)
        for lane in lanes:
            write(lane, result)

    if op not in REDUCE:
        raise Unsupported
    instruction.together = _together(_mask_operand(operands, instruction, True), act)


REDUCE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "min": min, "max": max,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip


def _elect(operands: Operands, instruction: Instruction) -> None:
    write, write_p = _results(operands, instruction.inst.operands[0], "b32")

    def act(warp: Warp, lanes: list[Lane]) -> None:
        leader = min(lane.index for lane in lanes)
        for lane in lanes:
            write(lane, leader)
            write_p(lane, int(lane.index == leader))

    instruction.together = _together(_mask_operand(operands, instruction, True), act)


# --- barriers -----------------------------------------------------------------------------------


def _warp_barrier(operands: Operands, instruction: Instruction) -> None:
    """bar.warp.sync: lanes may meet at different ones."""
    read_mask = operands.read(instruction.inst.operands[-1], "b32")
    instructions = operands.code.instructions

    def at_one(lane: Lane) -> bool:
        return lane.blocked and instructions[lane.frame.pc].inst.opcode[:2] == ("bar", "warp")

    def execute(warp: Warp, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.blocked = True
        for lane in lanes:
            named = _named(warp, _mask(read_mask, lane))
            if lane.blocked and all(at_one(other) for other in named):
                _advance(named)

    instruction.together = execute


def _bar(operands: Operands, instruction: Instruction) -> None:
    """bar.sync, bar.arrive, bar.red and their barrier spellings."""
    inst = instruction.inst
    if inst.opcode[1] == "warp":
        _warp_barrier(operands, instruction)
        return
    if "cluster" in inst.opcode:
        raise Unsupported
    reduces, arrives = "red" in inst.opcode, "arrive" in inst.opcode
    numbers = list(inst.operands)
    predicate = operands.read(numbers.pop(), "pred") if reduces else None
    target = numbers.pop(0) if reduces else None
    barrier = operands.read(numbers[0], "u32")
    count = operands.read(numbers[1], "u32") if len(numbers) > 1 else None
    if target is not None:
        instruction.reduce = _reduction(operands, instruction, target)

    def execute(warp: Warp, lanes: list[Lane]) -> None:
        _advance(lanes)
        for lane in lanes:
            index = barrier(lane)
            if arrives:
                lane.machine.arrived[index] = lane.machine.arrived.get(index, 0) + 1
                continue
            value = predicate(lane) if predicate is not None else 0
            lane.waiting = Wait(index, count(lane) if count else None, instruction, value)

    instruction.together = execute


def _reduction(
    operands: Operands, instruction: Instruction, target: Operand
) -> Callable[[Lane, list[int]], None]:
    op, type_ = instruction.inst.opcode[-2], instruction.inst.opcode[-1]
    write = operands.write(target, type_)
    combine: Callable[[list[int]], int] = {
        "popc": sum, "and": lambda v: int(all(v)), "or": lambda v: int(any(v)),
    }[op]  # fmt: skip
    return lambda lane, values: write(lane, combine(values))


WARP_DECODERS: dict[str, Callable[[Operands, Instruction], None]] = {
    "shfl": _shfl, "vote": _vote, "match": _match, "activemask": _activemask,
    "redux": _redux, "elect": _elect, "bar": _bar, "barrier": _bar,
}  # fmt: skip
