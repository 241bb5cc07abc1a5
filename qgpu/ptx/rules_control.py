"""Rules: branches, the end of a thread, barriers."""

from __future__ import annotations

from qgpu.isa import Immediate, Op
from qgpu.ptx.align import mark
from qgpu.ptx.masks import members
from qgpu.ptx.mir import ZERO, Block, Edge, Value, imm
from qgpu.ptx.select import Selector, rule
from qgpu.ptxir import Imm, Inst, Sym


def label_block(s: Selector, name: str) -> Block:
    if name not in s.labels:
        raise s.fail(f"there is no label {name!r}")
    return s.labels[name]


def _leave(s: Selector, edge: Edge) -> None:
    """End the current block along the edge where the guard holds; else go on behind it."""
    condition, old = s.condition, s.block
    after = s.split("next")
    if condition is None:
        old.target = edge
    else:
        old.condition, old.taken, old.target = condition, edge, Edge(after)
    s.block = after


@rule("bra")
def bra(s: Selector, inst: Inst) -> None:
    target = inst.operands[-1]
    if not isinstance(target, Sym):
        raise s.fail("a branch to something that is not a label")
    _leave(s, Edge(label_block(s, target.name)))


@rule("brx")
def brx(s: Selector, inst: Inst) -> None:
    """An indexed branch as a binary decision tree over the index."""
    index, table = inst.operands[:2]
    names = s.tables.get(table.name) if isinstance(table, Sym) else None
    if not names:
        raise s.fail("brx without its .branchtargets")
    after = s.split("next")
    value = s.word(index)
    if s.condition is not None:
        inside = s.split("switch")
        s.block.condition, s.block.taken = s.condition, Edge(inside)
        s.block.target = Edge(after)
        s.block = inside
    _decide(s, value, [label_block(s, name) for name in names], 0)
    s.block = after


def _decide(s: Selector, value: Value, targets: list[Block], first: int) -> None:
    """Lead the current block on to ``targets[value - first]``."""
    if len(set(targets)) == 1:
        s.block.target = Edge(targets[0])
        return
    half = len(targets) // 2
    low, high = s.split("switch"), s.split("switch")
    s.branch(s.emit(Op.LTU, value, imm(first + half)), low, high)
    for block, part, start in ((low, targets[:half], first), (high, targets[half:], first + half)):
        s.block = block
        _decide(s, value, part, start)


@rule("exit", "ret")
def leave_kernel(s: Selector, inst: Inst) -> None:
    _leave(s, s.exit_edge)


@rule("trap", "brkpt")
def trap(s: Selector, inst: Inst) -> None:
    """Mark the launch as trapped, where the host finds it, and end the thread."""
    with s.guarded(branch=True):
        s.trap("trap")
        _leave(s, s.exit_edge)


# --- barriers -----------------------------------------------------------------------------------


@rule("bar", "barrier")
def barrier(s: Selector, inst: Inst) -> None:
    if "warp" in inst.opcode:
        with s.guarded(branch=True):
            members(s, inst.operands[-1])
            s.epoch += 1
            s.block.nodes.append(mark(inst, s.epoch))
        return
    if "arrive" in inst.opcode or "cluster" in inst.opcode:
        raise s.fail("only barriers at which every thread waits are supported")
    is_reduction = "red" in inst.opcode
    operands = list(inst.operands)
    if is_reduction:
        dst, *operands, source = operands
    if not isinstance(s.word(operands[0]), Immediate):
        raise s.fail("a barrier whose number is known only as the kernel runs is not supported")
    for count in operands[1:]:
        warps = -(-s.shape.n_threads // 32) * 32
        if not isinstance(count, Imm) or count.value not in (s.shape.n_threads, warps):
            raise s.fail("a barrier for a part of the threads is not supported")
    if not is_reduction:
        with s.guarded(branch=True):
            note(s, inst)
            wait(s)
        return
    if s.inst.guard is not None:
        raise s.fail("a predicated bar.red is not supported")
    note(s, inst)
    s.write(dst, _reduce(s, inst, s.truth(source)))


def note(s: Selector, inst: Inst) -> None:
    """Let ``named`` see a barrier where there are several."""
    if s.names_barriers:
        s.block.nodes.append(mark(inst, s.epoch))


def wait(s: Selector) -> None:
    s.uses_barrier = True
    s.epoch += 1
    s.jump(s.split("barrier"), barrier=True)


def _reduce(s: Selector, inst: Inst, truth: Value) -> Value:
    """Every thread writes its predicate, waits, sums all of them, waits, and clears its own; a
    thread that has ended has left a zero."""
    n_threads = s.shape.n_threads
    base = s.memory.flags(n_threads)
    place = s.emit(Op.SHL, s.emit(Op.TID), imm(2))
    counts_false = "and" in inst.opcode
    s.effect(Op.ST, place, imm(base), s.negate(truth) if counts_false else truth)
    wait(s)
    total: Value = ZERO
    for thread in range(n_threads):
        total = s.emit(Op.ADD, total, s.emit(Op.LD, imm(base + 4 * thread), ZERO))
    wait(s)
    s.effect(Op.ST, place, imm(base), ZERO)
    if "popc" in inst.opcode:
        return total
    return s.emit(Op.EQ if counts_false else Op.NE, total, ZERO)
