"""PTX function -> graph: selection of every instruction, and the loop over CUDA blocks."""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.kernel import LaunchShape
from qgpu.machine import WORD_BYTES, MachineSpec
from qgpu.ptx import (  # noqa: F401  (importing the rules registers them)
    rules_arith,
    rules_bits,
    rules_carry,
    rules_control,
    rules_convert,
    rules_memory,
    rules_warp,
)
from qgpu.ptx.cfg import drop_unreachable, reachable
from qgpu.ptx.masks import note_ended
from qgpu.ptx.memory import Memory
from qgpu.ptx.mir import ONE, ZERO, Block, Condition, Edge, Graph, Node, Value, Virtual, imm
from qgpu.ptx.promote import opaque_base
from qgpu.ptx.select import Selector, select_instruction
from qgpu.ptxir import Branchtargets, Function, Inst, Label


def n_cuda_blocks(shape: LaunchShape) -> int:
    x, y, z = shape.grid
    return x * y * z


def build_graph(
    function: Function, spec: MachineSpec, shape: LaunchShape, memory: Memory, file: str,
    unmet: frozenset[Inst],
) -> Graph:  # fmt: skip
    """The kernel for all CUDA blocks of the launch. The instructions ``unmet`` check as they run
    that the lanes of their mask are together."""
    selector = Selector(function, spec, shape, memory, file, unmet)
    graph = selector.graph
    head: Block | None = None
    if n_cuda_blocks(shape) > 1:
        index = graph.fresh()
        selector.ctaid = index
        selector.move(index, ZERO)
        head, selector.tail = graph.new_block("cuda_block"), graph.new_block("next_block")
        selector.jump(head)
    elif unmet:
        selector.tail = graph.new_block("end")
    for statement in function.body:
        if isinstance(statement, Label):
            selector.labels[statement.name] = graph.new_block(statement.name)
        elif isinstance(statement, Branchtargets):
            selector.tables[statement.name] = statement.targets
    for statement in function.body:
        if isinstance(statement, Label):
            selector.jump(selector.labels[statement.name])
        elif isinstance(statement, Inst):
            select_instruction(selector, statement)
    selector.block.target = selector.exit_edge
    if graph.local_base is not None:
        graph.entry.nodes.insert(0, opaque_base(graph.local_base))
    if unmet:
        _note_ended(selector)
    if head is not None and isinstance(selector.ctaid, Virtual):
        _grid_loop(selector, head, selector.ctaid)
    drop_unreachable(graph)
    return graph


def _note_ended(selector: Selector) -> None:
    """Behind the kernel: threads that have ended say so to those that look for their lanes."""
    assert selector.tail is not None
    selector.block, selector.inst = selector.tail, Inst((), ())
    note_ended(selector)


def _grid_loop(selector: Selector, head: Block, index: Virtual) -> None:
    """Behind the kernel: count the CUDA block up and start over until all are done.

    Where CUDA blocks share memory, meet at barriers or look for the lanes of a mask, all threads
    wait for each other first. A thread that ended early would pass such a barrier together with
    those that wait inside the kernel; so, where that can happen, it waits with them until all have
    ended.
    """
    graph, tail, memory = selector.graph, selector.tail, selector.memory
    assert tail is not None
    again = graph.new_block("again")
    selector.block = tail
    following = selector.emit(Op.ADD, index, ONE)
    if selector.uses_barrier and _may_end_early(head, tail) and selector.shape.n_threads > 1:
        _wait_for_all(selector, following)
    elif (
        selector.uses_barrier or memory.uses_shared or selector.unmet
    ) and selector.shape.n_threads > 1:
        selector.jump(graph.new_block("all_done"), barrier=True)
    following = selector.emit(Op.ADD, index, ONE)
    more = selector.emit(Op.LTU, following, imm(n_cuda_blocks(selector.shape)))
    selector.move(index, following)
    assert isinstance(more, Virtual)
    selector.block.condition = Condition(more)
    selector.block.taken, selector.block.target = Edge(again), Edge(None)
    again.target = Edge(head)


def _wait_for_all(selector: Selector, following: Value) -> None:
    """Wait again and again until all threads of this CUDA block have ended; all leave together.

    Every thread counts the barriers that it has passed, and all pass the same. Who ends last says
    after which one all leave: the next. Were it only said that all have ended, threads that are
    let go by a barrier could see it before they wait again, or after, as it happens.
    """
    graph = selector.graph
    passed = _count_barriers(graph)
    count, leave = (imm(selector.memory.allocate(WORD_BYTES)) for _ in range(2))
    arrive, check, done = (graph.new_block(n) for n in ("arrive", "check", "all_done"))
    full = selector.emit(Op.MUL, following, imm(selector.shape.n_threads))
    coming = selector.emit(Op.ADD, passed, ONE)
    selector.jump(arrive)
    arrive.serial = True
    ended = selector.emit(Op.ADD, selector.emit(Op.LD, count, ZERO), ONE)
    selector.effect(Op.ST, count, ZERO, ended)
    is_last = selector.emit(Op.EQ, ended, full)
    assert isinstance(is_last, Virtual)
    selector.effect(Op.ST, leave, ZERO, coming, Condition(is_last))
    selector.jump(check, barrier=True)
    check.nodes.append(_one_more(passed))
    stays = selector.emit(Op.NE, selector.emit(Op.LD, leave, ZERO), passed)
    assert isinstance(stays, Virtual)
    check.condition, check.taken, check.target = Condition(stays), Edge(check, True), Edge(done)
    selector.block = done


def _count_barriers(graph: Graph) -> Virtual:
    """A register that every barrier so far counts up by one."""
    passed = graph.fresh()
    edges = [edge for block in graph.blocks for edge in block.edges]
    for block in {edge.block for edge in edges if edge.barrier}:
        assert block is not None
        block.nodes.insert(0, _one_more(passed))
    graph.entry.nodes.insert(0, Node(Op.MOV, ZERO, dst=passed))
    return passed


def _one_more(passed: Virtual) -> Node:
    return Node(Op.ADD, passed, ONE, dst=passed)


def _may_end_early(head: Block, tail: Block) -> bool:
    """Whether a thread can end while others still go to a barrier: some block leads both to the
    end without a barrier and to a barrier."""
    for block in reachable(head) - {tail}:
        if block.taken is not None:
            sides = _fate(block.target, tail) | _fate(block.taken, tail)
            if sides == {"end", "barrier"}:
                return True
    return False


def _fate(edge: Edge, tail: Block) -> set[str]:
    """What a thread can meet first along an edge: a barrier, the end, or both."""
    found: set[str] = set()
    seen: set[Block] = set()
    work = [edge]
    while work:
        at = work.pop()
        if at.barrier:
            found.add("barrier")
        elif at.block is tail or at.block is None:
            found.add("end")
        elif at.block not in seen:
            seen.add(at.block)
            work += at.block.edges
    return found
