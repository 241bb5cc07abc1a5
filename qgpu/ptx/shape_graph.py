"""The graph's shape: threading jumps, merging chains, if-conversion of short arms."""

from __future__ import annotations

from collections import Counter

from qgpu.isa import Op
from qgpu.ptx.cfg import dominators, drop_unreachable, liveness, loop_depths
from qgpu.ptx.mir import Block, Condition, Edge, Graph, Node, Virtual

CROSS_LANE = (Op.SHFL, Op.BALLOT)


def thread_jumps(graph: Graph) -> bool:
    """Edges to an empty block lead straight on, and equal arms need no branch."""
    changed = False
    above = dominators(graph)
    for block in graph.blocks:
        for edge in block.edges:
            middle = edge.block
            if middle is None or middle.nodes or middle.condition is not None:
                continue
            further = middle.target
            if further.block is middle or (edge.barrier and further.barrier):
                continue
            if block.serial and further.block in above[block]:
                continue  # the lanes have to meet behind a serial block before they go round
            new = further.behind(edge)
            if block.taken is not None and block.taken == edge:
                block.taken = new
            if block.target == edge:
                block.target = new
            changed = True
        if block.taken is not None and block.taken == block.target:
            block.condition = block.taken = None
            changed = True
    drop_unreachable(graph)
    return changed


def merge_chains(graph: Graph) -> bool:
    """A block and its only successor become one where that has no other way in."""
    changed = False
    for block in list(graph.blocks):
        if block not in graph.blocks:
            continue
        while True:
            before, after = block.target, block.target.block
            if block.taken is not None or after is None or after is block or before.yields:
                break
            ways = sum(s is after for b in graph.blocks for s in b.successors)
            if ways != 1 or after is graph.entry or block.serial or after.serial:
                break
            if before.barrier and not _can_wait_later(after):
                break
            block.nodes += after.nodes
            block.condition = after.condition
            block.target = after.target.behind(before)
            block.taken = None if after.taken is None else after.taken.behind(before)
            graph.blocks.remove(after)
            changed = True
    return changed


def _can_wait_later(block: Block) -> bool:
    """Whether the barrier in front of a block can as well stand behind it: what only computes
    does not mind, but an edge can hold one barrier only, and a thread that ends has to wait
    before it does."""
    return all(node.is_pure for node in block.nodes) and not any(
        edge.barrier or edge.block is None for edge in block.edges
    )


def _count_ways(graph: Graph) -> Counter[Block]:
    """How many edges lead to each block; the launch's start is one to the entry."""
    return Counter([graph.entry, *(s for b in graph.blocks for s in b.successors)])


# --- if-conversion ------------------------------------------------------------------------------


def if_convert(graph: Graph, n_stages: int) -> bool:
    """Run a short arm of a branch in all lanes, guarded, instead of branching around it."""
    ways = _count_ways(graph)
    for block in graph.blocks:
        if block.condition is None or block.taken is None or block.serial:
            continue
        for arm, other, condition in (
            (block.taken, block.target, block.condition),
            (block.target, block.taken, Condition(block.condition.reg, not block.condition.negate)),
        ):
            inside = arm.block
            if inside is None or arm.waits or ways[inside] != 1 or inside is block:
                continue
            if inside.condition is not None or inside.target != other or other.block is inside:
                continue
            if _convert(graph, block, inside, other, condition, n_stages):
                return True
    return False


def _convert(
    graph: Graph, block: Block, inside: Block, join: Edge, condition: Condition, n_stages: int
) -> bool:
    """Append the arm to its head if it is short and each of its operations can be guarded."""
    if inside.serial or any(node.op in CROSS_LANE for node in inside.nodes):
        return False
    live = set() if join.block is None else liveness(graph)[0][join.block]
    nodes = _guarded(graph, inside, condition, live)
    if nodes is None or len(nodes) > n_stages:
        return False
    block.nodes += nodes
    block.condition = block.taken = None
    block.target = join
    graph.blocks.remove(inside)
    return True


def _guarded(
    graph: Graph, inside: Block, condition: Condition, live: set[Virtual]
) -> list[Node] | None:
    """The arm's nodes for all lanes: stores and what lives on are guarded, the rest is harmless."""
    out: list[Node] = []
    names: dict[Virtual, Virtual] = {}
    last = {node.dst: node for node in inside.nodes if node.dst is not None}
    for node in inside.nodes:
        copy = Node(node.op, node.a, node.b, node.c, node.guard, node.dst, node.origin, node.epoch)
        for reg in set(copy.sources()):
            if reg in names:
                copy.replace(reg, names[reg])
        dst = copy.dst
        if dst is None:
            if not _guard_store(graph, copy, condition, out):
                return None
            out.append(copy)
            continue
        if condition.reg == dst:
            return None
        fresh = graph.fresh()
        copy.dst = names[dst] = fresh
        out.append(copy)
        if dst in live and last[dst] is node:
            out.append(Node(Op.MOV, fresh, None, dst, condition, dst, node.origin, node.epoch))
            names[dst] = fresh
    return out


def _guard_store(graph: Graph, node: Node, condition: Condition, out: list[Node]) -> bool:
    """Guard a store; where it has a guard already, both must hold."""
    if node.guard is None:
        node.guard = condition
        return True
    both = graph.fresh()
    if not node.guard.negate and not condition.negate:
        out.append(Node(Op.AND, node.guard.reg, condition.reg, dst=both, origin=node.origin))
        node.guard = Condition(both)
        return True
    return False


# --- hoisting -------------------------------------------------------------------------------------


def hoist_arms(graph: Graph, n_stages: int) -> bool:
    """What only computes in one arm of a branch moves before the branch where that saves a
    machine block: it may run in vain, but it harms nothing that the other arm reads."""
    ways = _count_ways(graph)
    live_in, _ = liveness(graph)
    depths = loop_depths(graph)
    for block in graph.blocks:
        if block.condition is None or block.taken is None or block.serial:
            continue
        for edge, other in ((block.taken, block.target), (block.target, block.taken)):
            arm = edge.block
            if arm is None or edge.waits or ways[arm] != 1 or arm is block or arm.serial:
                continue
            if not arm.nodes or arm.condition is not None or depths[arm] < depths[block]:
                continue
            needed = live_in[other.block] if other.block is not None else set()
            defined = {node.dst for node in arm.nodes}
            if defined & {node.dst for node in block.nodes}:
                continue
            if defined & needed or block.condition.reg in defined:
                continue
            if not all(node.is_pure for node in arm.nodes):
                continue
            here, there = len(block.nodes), len(arm.nodes)
            if _n_groups(here + there, n_stages) >= _n_groups(here, n_stages) + _n_groups(
                there, n_stages
            ):
                continue
            block.nodes += arm.nodes
            arm.nodes = []
            thread_jumps(graph)
            return True
    return False


def _n_groups(n_nodes: int, n_stages: int) -> int:
    return max(1, -(-n_nodes // n_stages))
