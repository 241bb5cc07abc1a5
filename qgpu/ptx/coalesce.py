"""Coalescing: ``t = op ...; v = t`` becomes ``v = op ...``.

A variable's new value is mostly computed into a register of its own and then copied (the phis of
the source). The copy goes where no operation that depends on the new value reads the old one.
"""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx.defer import defer_definitions
from qgpu.ptx.mir import Block, Condition, Graph, Node, Virtual
from qgpu.ptx.optimise import find_values, remove_dead


def coalesce(graph: Graph, n_threads: int) -> None:
    """Do so for every copy of a value that lives in one block only."""
    facts = find_values(graph, n_threads)
    defer_definitions(graph, facts)
    facts = find_values(graph, n_threads)
    homes: dict[Virtual, set[Block]] = {}
    for block in graph.blocks:
        for node in block.nodes:
            for reg in (*node.sources(), *([node.dst] if node.dst else [])):
                homes.setdefault(reg, set()).add(block)
        if block.condition is not None:
            homes.setdefault(block.condition.reg, set()).add(block)
    for block in graph.blocks:
        for copy in [n for n in block.nodes if n.op is Op.MOV and n.guard is None]:
            source = copy.a
            if not isinstance(source, Virtual) or source not in facts.single:
                continue
            if copy.dst is not None and homes[source] == {block}:
                _join(block, copy, source, copy.dst)
    remove_dead(graph)


def _join(block: Block, copy: Node, source: Virtual, variable: Virtual) -> None:
    nodes = block.nodes
    made = next((n for n in nodes if n.dst == source), None)
    if made is None or (made.op is Op.MOV and made.guard is None):
        return
    start, end = nodes.index(made), nodes.index(copy)
    if start > end:
        return
    between = nodes[start + 1 : end]
    dependent: set[Virtual] = {source}
    early: list[Node] = []
    late: list[Node] = []
    for node in between:
        if dependent & set(node.sources()) or _conflicts(node, [made, *late]):
            if variable in node.sources():
                return
            late.append(node)
            if node.dst is not None:
                dependent.add(node.dst)
        else:
            early.append(node)
    if any(node.dst == variable for node in between):
        return
    waiting = [made]
    for node in between:  # what moves ahead must not overtake a reader of what it writes
        if node not in early:
            waiting.append(node)
        elif any(node.dst in set(other.sources()) for other in waiting):
            return
    nodes[start + 1 : end + 1] = late
    nodes[start:start] = early
    for node in nodes[nodes.index(made) + 1 :]:
        node.replace(source, variable)
    made.dst = variable
    if block.condition is not None and block.condition.reg == source:
        block.condition = Condition(variable, block.condition.negate)



def _conflicts(node: Node, late: list[Node]) -> bool:
    """Whether a memory access must not move ahead of those that stay behind."""
    if node.op is Op.LD:
        return any(other.op is Op.ST for other in late)
    return node.op is Op.ST and any(other.op in (Op.LD, Op.ST) for other in late)
