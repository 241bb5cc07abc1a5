"""Lanes in step: that the lanes of a warp come to a warp-synchronous instruction together.

On a GPU a ``.sync`` instruction waits for the lanes that its mask names. Here the lanes at the
least machine block go first, so that all that are still to come arrive before it runs, except
those that have gone past it and come back: round a loop. ``align`` finds the instructions where
that can be, from the branches that can take lanes apart and where these meet again. Where it is
only that lanes go round a loop by several ways, it gives the loop one last block at which they
meet. What is left is returned: such an instruction has to look for its lanes as it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qgpu.isa import Op
from qgpu.ptx.cfg import layout, lead_through, liveness
from qgpu.ptx.mir import ZERO, Block, Graph, Node, Virtual
from qgpu.ptxir import Inst

ACROSS = (Op.SHFL, Op.BALLOT)


def mark(inst: Inst, epoch: int) -> Node:
    """What stands for a barrier until ``align`` has seen it; for a barrier of the warp there is
    nothing else if the lanes are in step. A store to word 0, which nothing else uses."""
    return Node(Op.ST, ZERO, ZERO, ZERO, origin=inst, epoch=epoch)


def barrier_of(node: Node) -> Inst | None:
    """The barrier of the whole CUDA block that a node stands for."""
    return node.origin if _is_mark(node) and not _is_warp_barrier(node.origin) else None


def _is_mark(node: Node) -> bool:
    inst = node.origin
    is_zero = node.op is Op.ST and node.a == ZERO == node.b
    return is_zero and inst is not None and inst.opcode[0] in ("bar", "barrier")


def _is_warp_barrier(inst: Inst | None) -> bool:
    return inst is not None and inst.opcode[0] in ("bar", "barrier") and "warp" in inst.opcode


def is_synchronous(inst: Inst | None) -> bool:
    """Whether the instruction waits for the lanes that its mask names."""
    if inst is None or "sync" not in inst.opcode:
        return False
    return inst.opcode[0] not in ("bar", "barrier") or _is_warp_barrier(inst)


def align(graph: Graph, n_threads: int, is_grid: bool) -> frozenset[Inst]:
    """Give loops a last block where that helps; the instructions whose lanes may still differ."""
    places: dict[Block, list[Inst]] = {}
    for block in graph.blocks:
        insts = [node.origin for node in block.nodes if _looks_across(node)]
        if insts:
            places[block] = [inst for inst in insts if inst is not None]
        block.nodes = [node for node in block.nodes if not _is_mark(node)]
    if n_threads == 1 or not places:
        return frozenset()
    while True:
        partings = list(find_partings(graph, n_threads, is_grid).values())
        unsafe = {block for parting in partings for block in parting.unsafe(places)}
        headers = {
            header for parting in partings if parting.unsafe(places) for header in parting.ahead
        }
        added = [_add_last_block(graph, header) for header in graph.blocks if header in headers]
        if not any(added):
            return frozenset(inst for block in unsafe for inst in places[block])


def _looks_across(node: Node) -> bool:
    return (node.op in ACROSS or _is_mark(node)) and is_synchronous(node.origin)


def _add_last_block(graph: Graph, header: Block) -> bool:
    """Lead the ways back to a loop's header through one block; False if there is only one."""
    order = {block: n for n, block in enumerate(layout(graph))}
    ways = [
        block
        for block in graph.blocks
        if header in block.successors and order[block] >= order[header]
    ]
    if len(ways) < 2:
        return False
    lead_through(graph.new_block("again"), ways, header)
    return True


# --- where lanes part and meet --------------------------------------------------------------------


@dataclass(frozen=True)
class Parting:
    """A branch that can take lanes apart.

    ``between``: the blocks on the ways from it to where the lanes certainly meet again; ``both``:
    those that either side reaches there; ``after``: what can follow the meeting. ``ahead``: blocks
    on every way at which the lanes do not meet, because those that are early go on from there.
    ``comes_back``: lanes can come to the branch again and part anew before they meet.
    ``over_blocks``: where the loop over CUDA blocks begins, behind which other threads run.
    """

    between: frozenset[Block]
    both: frozenset[Block]
    after: frozenset[Block]
    meeting: Block | None
    ahead: tuple[Block, ...]
    comes_back: bool
    over_blocks: Block | None

    def unsafe(self, places: Iterable[Block]) -> set[Block]:
        """Of the places, those that some lanes can run while others come back to them later."""
        again = self.after | (self.both if self.ahead or self.comes_back else frozenset())
        return {block for block in places if block in self.between and block in again}


def find_partings(
    graph: Graph, n_threads: int, is_grid: bool, across_warps: bool = False
) -> dict[Block, Parting]:
    """Every branch that lanes of a warp (or threads of any warp) can take either way.

    ``is_grid``: the first loop is the one over CUDA blocks; threads do not come back by it.
    """
    ways = _Ways(graph, is_grid)
    varying: set[Virtual] = set()
    n_definitions = Counter(node.dst for node in graph.nodes() if node.dst is not None)
    live_in, _ = liveness(graph)
    partings: dict[Block, Parting] = {}
    changed = True
    while changed:
        before = len(varying), len(partings)
        for block in graph.blocks:
            for node in block.nodes:
                if node.dst is not None and (block.serial or _varies(node, varying, across_warps)):
                    varying.add(node.dst)
            parts = block.condition is not None and block.condition.reg in varying
            if parts and block not in partings:
                partings[block] = parting = ways.parting(block)
                meets = live_in[parting.meeting] if parting.meeting else set()
                for inner in parting.between:
                    for node in inner.nodes:
                        dst = node.dst
                        if dst is not None and (
                            parting.ahead or n_definitions[dst] > 1 or dst in meets
                        ):
                            varying.add(dst)
        changed = before != (len(varying), len(partings))
    return partings


def _varies(node: Node, varying: set[Virtual], across_warps: bool) -> bool:
    """Whether lanes that run the node together can get different results from it."""
    if across_warps and node.op in ACROSS:
        return True
    match node.op:
        case Op.TID:
            return True
        case Op.BALLOT:
            return False
        case Op.SHFL:
            return node.b in varying
    return any(reg in varying for reg in node.sources())


class _Ways:
    """Reachability and post-dominators of a graph, in the order of its blocks."""

    def __init__(self, graph: Graph, is_grid: bool) -> None:
        self.order = {block: n for n, block in enumerate(layout(graph))}
        self.meetings = _post_dominators(graph)
        before = graph.predecessors()
        self.headers = [
            block
            for block in graph.blocks
            if any(self.order[b] >= self.order[block] for b in before[block])
        ]
        self.over_blocks = (
            min(self.headers, key=self.order.__getitem__, default=None) if is_grid else None
        )

    def parting(self, block: Block) -> Parting:
        ahead: list[Block] = []
        if block not in self.meetings:  # in a loop without an end
            ahead += self.headers
        for meeting in [*self.meetings.get(block, []), None]:
            sides = [_reach([successor], meeting) for successor in block.successors]
            between = frozenset().union(*sides)
            ends_here = len(sides) < len(block.edges)
            if meeting is None or self._meet_at(meeting, between | {block}):
                break
            ahead.append(meeting)
        both = frozenset() if ends_here or not sides else frozenset.intersection(*sides)
        after = _reach([meeting], self.over_blocks) if meeting is not None else frozenset()
        return Parting(
            between, both, after, meeting, tuple(ahead), block in between, self.over_blocks
        )

    def _meet_at(self, meeting: Block, before: frozenset[Block]) -> bool:
        """Whether no lane goes on from there while others are still on their way: none that
        comes later is numbered behind it, or lets the others go first."""
        return all(
            self.order[block] < self.order[meeting] and not any(e.yields for e in block.edges)
            for block in before
        )


def _reach(starts: Iterable[Block], without: Block | None) -> frozenset[Block]:
    seen = {block for block in starts if block is not without}
    work = list(seen)
    while work:
        for successor in work.pop().successors:
            if successor is not without and successor not in seen:
                seen.add(successor)
                work.append(successor)
    return frozenset(seen)


def _post_dominators(graph: Graph) -> dict[Block, list[Block]]:
    """Block -> the other blocks on every way from it to the end, nearest first; without those
    from which no way leads to the end."""
    everything = set(graph.blocks)
    found = dict.fromkeys(graph.blocks, everything)
    backwards = list(reversed(layout(graph)))
    changed = True
    while changed:
        changed = False
        for block in backwards:
            ends = any(edge.block is None for edge in block.edges)
            common = set() if ends else set.intersection(*(found[s] for s in block.successors))
            new = common | {block}
            if new != found[block]:
                found[block], changed = new, True
    return {
        block: sorted(after - {block}, key=lambda b: -len(found[b]))
        for block, after in found.items()
        if after is not everything
    }
