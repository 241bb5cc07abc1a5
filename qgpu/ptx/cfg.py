"""Graph facts: reachability, dominators, strongly connected components, loops, liveness, layout.

And the one change that several passes make to a loop: ``lead_through``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from qgpu.ptx.mir import Block, Edge, Graph, Virtual

T = TypeVar("T", bound=Hashable)


def components(nodes: Iterable[T], successors: Callable[[T], Iterable[T]]) -> list[list[T]]:
    """Strongly connected components in reverse topological order (Tarjan, without recursion)."""
    index: dict[T, int] = {}
    low: dict[T, int] = {}
    open_: list[T] = []
    is_open: set[T] = set()
    found: list[list[T]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_.append(root)
        is_open.add(root)
        work = [(root, iter(successors(root)))]
        while work:
            node, rest = work[-1]
            for successor in rest:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    open_.append(successor)
                    is_open.add(successor)
                    work.append((successor, iter(successors(successor))))
                    break
                if successor in is_open:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = open_.index(node)
                    component, open_[at:] = open_[at:], []
                    is_open -= set(component)
                    found.append(component)
    return found


def reachable(entry: Block) -> set[Block]:
    seen, work = {entry}, [entry]
    while work:
        for successor in work.pop().successors:
            if successor not in seen:
                seen.add(successor)
                work.append(successor)
    return seen


def drop_unreachable(graph: Graph) -> None:
    alive = reachable(graph.entry)
    graph.blocks = [block for block in graph.blocks if block in alive]


def layout(graph: Graph) -> list[Block]:
    """Blocks in the order of their numbers: topological, every loop in one piece, header first.

    So a join stands behind all that leads to it and a loop's exits stand behind the whole loop;
    lanes that wait at the least block number first then reconverge at post-dominators.
    """

    def order(blocks: list[Block], header: Block | None) -> list[Block]:
        inside = set(blocks)

        def forward(block: Block) -> list[Block]:
            return [s for s in block.successors if s in inside and s is not header]

        out: list[Block] = []
        for component in reversed(components(blocks, forward)):
            if len(component) == 1:
                out += component
            else:
                first = graph.entry if graph.entry in component else None
                loop_header = first or loop_entry(graph, component)
                component.remove(loop_header)
                out += order([loop_header, *component], loop_header)
        return out

    return order(list(graph.blocks), None)


def loop_entry(graph: Graph, component: list[Block]) -> Block:
    """The block by which lanes come into a loop (the first listed one if there are several)."""
    inside = set(component)
    entries = {s for b in graph.blocks if b not in inside for s in b.successors if s in inside}
    return next((block for block in graph.blocks if block in entries), component[0])


def dominators(graph: Graph) -> dict[Block, set[Block]]:
    """Block -> the blocks on every way to it, itself included."""
    order = layout(graph)
    predecessors = graph.predecessors()
    found: dict[Block, set[Block]] = {graph.entry: {graph.entry}}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [found[p] for p in predecessors[block] if p in found]
            new = set.intersection(*known) | {block} if known else {block}
            if found.get(block) != new:
                found[block] = new
                changed = True
    return found


def loop_depths(graph: Graph) -> dict[Block, int]:
    """Block -> the number of loops around it."""
    depths = dict.fromkeys(graph.blocks, 0)

    def descend(blocks: list[Block], without: set[Block]) -> None:
        inside = set(blocks)

        def forward(block: Block) -> list[Block]:
            return [s for s in block.successors if s in inside and s not in without]

        for component in components(blocks, forward):
            if len(component) > 1 or component[0] in forward(component[0]):
                for block in component:
                    depths[block] += 1
                descend(component, {loop_entry(graph, component)})

    descend(list(graph.blocks), set())
    return depths


Liveness = dict[Block, set[Virtual]]


def liveness(graph: Graph) -> tuple[Liveness, Liveness]:
    """The virtual registers that are live into and out of each block."""
    uses: Liveness = {}
    defs: Liveness = {}
    for block in graph.blocks:
        used: set[Virtual] = set()
        defined: set[Virtual] = set()
        for node in block.nodes:
            used |= set(node.sources()) - defined
            if node.dst is not None:
                defined.add(node.dst)
        if block.condition is not None and block.condition.reg not in defined:
            used.add(block.condition.reg)
        uses[block], defs[block] = used, defined
    live_in: Liveness = {block: set() for block in graph.blocks}
    live_out: Liveness = {block: set() for block in graph.blocks}
    changed = True
    while changed:
        changed = False
        for block in reversed(graph.blocks):
            out = set().union(*(live_in[s] for s in block.successors))
            into = uses[block] | (out - defs[block])
            if into != live_in[block] or out != live_out[block]:
                live_in[block], live_out[block] = into, out
                changed = True
    return live_in, live_out


def lead_through(last: Block, blocks: Iterable[Block], header: Block) -> None:
    """Lead every way from the blocks back to a loop's header through one new block."""
    for block in blocks:
        block.redirect(header, Edge(last))
    last.target = Edge(header)
