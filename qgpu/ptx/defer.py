"""Deferring: inside a block a variable keeps its old value; new values are copied in at the end.

Every definition of a variable gets a register of its own, reads behind it read that, and one copy
for each variable stands at the block's end. So within a block everything but those copies is a
value, copies in between vanish, and the other passes see through variables. ``coalesce`` removes
what copies it can at last.
"""

from __future__ import annotations

from qgpu.isa import Op
from qgpu.ptx.fold import Facts
from qgpu.ptx.mir import Block, Condition, Graph, Node, Value, Virtual


def defer_definitions(graph: Graph, facts: Facts) -> bool:
    """Bring every block into that form; says whether one was not."""
    changed = False
    for block in graph.blocks:
        if not _is_deferred(block, facts):
            _defer(graph, block, facts)
            changed = True
    return changed


def _is_copy_in(node: Node, facts: Facts) -> bool:
    return node.op is Op.MOV and node.guard is None and node.dst in facts.several


def _is_copy_of_variable(node: Node, facts: Facts) -> bool:
    return node.op is Op.MOV and node.guard is None and node.a in facts.several


def _is_deferred(block: Block, facts: Facts) -> bool:
    """Whether only copies at the end define variables, each once, and nothing reads them there."""
    nodes = block.nodes
    end = len(nodes)
    while end and _is_copy_in(nodes[end - 1], facts):
        end -= 1
    defined: set[Virtual] = set()
    copies: dict[Virtual, Value | None] = {}
    for node in nodes[end:]:
        if node.dst is None or node.dst in defined or node.a in defined or node.a == node.dst:
            return False
        defined.add(node.dst)
    for node in nodes[:end]:
        if node.dst in facts.several or copies.keys() & set(node.sources()):
            return False
        if node.dst is not None and _is_copy_of_variable(node, facts):
            copies[node.dst] = node.a
    if any(node.a in copies for node in nodes[end:]):
        return False
    if block.condition is None:
        return True
    reg = block.condition.reg
    return reg not in defined and (reg not in copies or copies[reg] in defined)


def _defer(graph: Graph, block: Block, facts: Facts) -> None:
    current: dict[Virtual, Value] = {}
    out: list[Node] = []
    last: dict[Virtual, Node] = {}

    def as_register(reg: Virtual, node: Node) -> Virtual:
        """The current value in a register, for a guard or a branch."""
        value = current[reg]
        if not isinstance(value, Virtual):
            fresh = graph.fresh()
            out.append(Node(Op.MOV, value, dst=fresh, origin=node.origin))
            value = current[reg] = fresh
        return value

    for node in block.nodes:
        if node.guard is not None and node.guard.reg in current:
            node.guard = Condition(as_register(node.guard.reg, node), node.guard.negate)
        node.a, node.b, node.c = (
            current.get(v, v) if isinstance(v, Virtual) else v for v in (node.a, node.b, node.c)
        )
        dst = node.dst
        if dst is None or dst not in facts.several:
            out.append(node)
            if dst is not None and _is_copy_of_variable(node, facts) and node.a is not None:
                current[dst] = node.a  # the variable stays as it is up to the block's end
            continue
        last[dst] = node
        if node.op is Op.MOV and node.guard is None and node.a is not None:
            current[dst] = node.a
            continue
        node.dst = graph.fresh()
        current[dst] = node.dst
        out.append(node)
    condition = block.condition
    if condition is not None and condition.reg in current:
        reg = as_register(condition.reg, block.nodes[-1])
        if reg in last:  # an old value that the branch, behind the copies, would miss
            old, reg = reg, graph.fresh()
            out.append(Node(Op.MOV, old, dst=reg, origin=last[old].origin))
        block.condition = Condition(reg, condition.negate)
    block.nodes = out + _copies(graph, current, last)


def _copies(graph: Graph, current: dict[Virtual, Value], last: dict[Virtual, Node]) -> list[Node]:
    """The copies in an order in which none overwrites what another still reads."""
    pending = {dst: value for dst, value in current.items() if dst in last and value != dst}
    before: list[Node] = []
    out: list[Node] = []
    while pending:
        free = [dst for dst in pending if dst not in pending.values()]
        if free:
            dst = free[0]
            out.append(Node(Op.MOV, pending.pop(dst), dst=dst, origin=last[dst].origin))
            continue
        dst = next(iter(pending))  # a cycle: keep one old value aside
        aside = graph.fresh()
        before.append(Node(Op.MOV, dst, dst=aside, origin=last[dst].origin))
        pending = {d: aside if value == dst else value for d, value in pending.items()}
    return before + out
