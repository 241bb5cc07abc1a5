"""Sinking: an operation that only a serial block needs moves into that block's free stages.

A serial block runs once for each lane, whatever it holds, so a stage that is free there costs
nothing; in the block before it the operation may cost a machine block or a write-back. Whether it
does is tried out: both ways are packed and the cheaper one stays.
"""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx.cfg import liveness
from qgpu.ptx.fold import Facts
from qgpu.ptx.mir import Block, Graph, Node
from qgpu.ptx.optimise import find_values
from qgpu.ptx.pack import Limits, block_cost


def sink_into_serial(graph: Graph, n_threads: int, limits: Limits) -> None:
    """Try every operation that only a serial block reads, the last ones first."""
    predecessors = graph.predecessors()
    for block in graph.blocks:
        before = predecessors[block]
        if not block.serial or len(before) != 1 or before[0].serial:
            continue
        while len(block.nodes) < limits.n_stages:
            facts = find_values(graph, n_threads)
            if not any(_try(graph, node, before[0], block, facts, limits)
                       for node in reversed(before[0].nodes)):  # fmt: skip
                break


def _cost(graph: Graph, blocks: list[Block], facts: Facts, limits: Limits) -> float:
    _, live_out = liveness(graph)
    return sum(block_cost(block, live_out[block], facts, limits) for block in blocks)


def _try(
    graph: Graph, node: Node, source: Block, target: Block, facts: Facts, limits: Limits
) -> bool:
    """Move the node if that makes the two blocks cheaper."""
    dst = node.dst
    if dst is None or not node.is_pure or node.op is Op.TID or dst not in facts.single:
        return False
    if any(reg not in facts.single for reg in node.sources()):
        return False
    inside = sum(dst in set(other.sources()) for other in target.nodes)
    if not inside or inside != sum(dst in set(n.sources()) for n in graph.nodes()):
        return False
    if any(b.condition is not None and b.condition.reg == dst for b in graph.blocks):
        return False
    old = _cost(graph, [source, target], facts, limits)
    place = source.nodes.index(node)
    source.nodes.remove(node)
    target.nodes.insert(0, node)
    if _cost(graph, [source, target], facts, limits) < old:
        return True
    target.nodes.remove(node)
    source.nodes.insert(place, node)
    return False
