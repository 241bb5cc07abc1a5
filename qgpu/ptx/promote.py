"""Promotion: words of local memory that only constant addresses name become registers.

Unoptimised code keeps every variable in its stack frame, and calls pass their arguments there.
Where the address of a variable is computed with (an array, a pointer that escapes), the words
from there to the variable's end stay in memory.
"""

from __future__ import annotations

from qgpu.isa import Immediate, Op
from qgpu.machine import WORD_BYTES
from qgpu.ptx.memory import Memory
from qgpu.ptx.mir import ZERO, Graph, Node, Virtual, imm

OPAQUE = -1  # the epoch of the node that stands for the frame's address


def promote(graph: Graph, memory: Memory) -> bool:
    """Rewrite the loads and stores of promotable words; says whether there were any."""
    base = graph.local_base
    if base is None:
        return False
    changed = _use_alignment(graph, base)
    accesses: dict[int, list[Node]] = {}
    escapes: set[int] = set()
    for node in graph.nodes():
        if base not in set(node.sources()):
            continue
        if node.op in (Op.LD, Op.ST) and node.a == base and isinstance(node.b, Immediate):
            accesses.setdefault(node.b.value // WORD_BYTES, []).append(node)
            if node.c == base:
                escapes.add(0)
        elif node.op is Op.ADD and node.a == base and isinstance(node.b, Immediate):
            escapes.add(node.b.value)
        else:
            escapes.add(0)
    if any(block.condition is not None and block.condition.reg == base for block in graph.blocks):
        return changed
    kept = _kept_words(escapes, memory)
    promoted = {word: graph.fresh() for word in accesses if word not in kept}
    for word, register in promoted.items():
        for node in accesses[word]:
            _as_move(node, register)
    for block in graph.blocks:
        block.serial &= any(node.op in (Op.LD, Op.ST) for node in block.nodes)
    return changed or bool(promoted)


def _use_alignment(graph: Graph, base: Virtual) -> bool:
    """A frame begins with a word: which byte of a word a constant place in it is, is known."""
    known = [
        node
        for node in graph.nodes()
        if node.op is Op.AND
        and node.a == base
        and isinstance(node.b, Immediate)
        and node.b.value < WORD_BYTES
    ]
    for node in known:
        node.op, node.a, node.b = Op.MOV, ZERO, None
    return bool(known)


def opaque_base(base: Virtual) -> Node:
    """Stands for the computation of the frame's address until promotion is over, so that no pass
    mixes the two."""
    return Node(Op.LD, ZERO, ZERO, dst=base, epoch=OPAQUE)


def place_frames(graph: Graph, memory: Memory, n_threads: int) -> None:
    """Compute the frame's address where it is still needed: frames follow each other in memory."""
    for block in graph.blocks:
        for place, node in enumerate(block.nodes):
            if node.epoch == OPAQUE:
                block.nodes[place : place + 1] = _frame_address(graph, memory, n_threads)
                return


def _frame_address(graph: Graph, memory: Memory, n_threads: int) -> list[Node]:
    frames = memory.frames_place()
    assert frames is not None
    base = graph.local_base
    if n_threads == 1:
        return [Node(Op.MOV, imm(frames.address), dst=base)]
    thread, offset = graph.fresh(), graph.fresh()
    return [
        Node(Op.TID, dst=thread),
        Node(Op.MUL, thread, imm(memory.frame_bytes), dst=offset),
        Node(Op.ADD, offset, imm(frames.address), dst=base),
    ]


def _kept_words(escapes: set[int], memory: Memory) -> set[int]:
    """The words that an address which escapes can reach, staying in its variable."""
    kept: set[int] = set()
    places = [place for place in memory.places.values() if place.is_local]
    for address in escapes:
        ends = [p.address + p.n_bytes for p in places if p.address <= address]
        inside = [end for end in ends if address < end]
        end = min(inside, default=memory.frame_bytes)
        kept |= set(range(address // WORD_BYTES, -(-end // WORD_BYTES)))
    return kept


def _as_move(node: Node, register: Virtual) -> None:
    if node.op is Op.LD:
        node.op, node.a, node.b = Op.MOV, register, None
    else:
        node.op, node.a, node.b, node.dst = Op.MOV, node.c, None, register
        node.c = register if node.guard is not None else None
