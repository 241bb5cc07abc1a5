"""The start of a launch: registers and spill space are zero, so zeros need not be written.

A variable that is set to zero where no other definition of it comes before, outside of any loop,
simply is not set: it is then live from the launch's first machine block on, and the allocator
gives it a register that nothing else writes in the meantime.
"""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx.cfg import loop_depths, reachable
from qgpu.ptx.mir import ZERO, Block, Graph, Node, Virtual
from qgpu.ptx.shape_graph import merge_chains, thread_jumps

MAX_ZEROS = 6  # variables that may be live from the start on for this reason


def use_initial_zeros(graph: Graph) -> None:
    """Drop the zeros that are there already, and the blocks that are then empty."""
    depths = loop_depths(graph)
    homes: dict[Virtual, list[Block]] = {}
    for block in graph.blocks:
        for node in block.nodes:
            if node.dst is not None:
                homes.setdefault(node.dst, []).append(block)
    ways = {block: reachable(block) for block in graph.blocks}
    dropped: set[Virtual] = set()

    def is_there(node: Node, block: Block) -> bool:
        dst = node.dst
        if node.op is not Op.MOV or node.guard is not None or node.a != ZERO or dst is None:
            return False
        if depths[block] or len(dropped) >= MAX_ZEROS or len(homes[dst]) < 2:
            return False
        others = [home for home in homes[dst] if home is not block]
        if len(others) != len(homes[dst]) - 1 or any(block in ways[home] for home in others):
            return False
        dropped.add(dst)
        return True

    for block in graph.blocks:
        block.nodes = [node for node in block.nodes if not is_there(node, block)]
    if dropped:
        thread_jumps(graph)
        merge_chains(graph)
    _drop_empty_entry(graph)


def _drop_empty_entry(graph: Graph) -> None:
    """Start at the block that an empty entry leads to."""
    entry, target = graph.entry, graph.entry.target
    first = target.block
    if entry.nodes or entry.condition is not None or target.waits or first is None:
        return
    if first is not entry and not first.serial:
        graph.blocks.remove(entry)
        graph.blocks.remove(first)
        graph.blocks.insert(0, first)
