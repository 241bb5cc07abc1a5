"""Cleaning the graph: propagation, renaming, simplification, common values, dead code.

Each pass rewrites the graph in place and says whether it changed something; ``optimise`` repeats
them until none does. They count on one fact: a *value* is a virtual register with one definition
that dominates all its uses, so it can be read, replaced and recomputed anywhere below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from qgpu.isa import MASK32, Immediate, Op
from qgpu.ptx.cfg import dominators, drop_unreachable, liveness
from qgpu.ptx.defer import defer_definitions
from qgpu.ptx.fold import Facts, simplify
from qgpu.ptx.mir import ONE, Block, Condition, Graph, Node, Value, Virtual, imm
from qgpu.ptx.shape_graph import if_convert, merge_chains, thread_jumps

Resolve = Callable[[Value], Value]
USES_C = (Op.ADDC, Op.SUBC, Op.PRMT, Op.ST)
MAX_ROUNDS = 40
UNSTABLE = ("volatile", "relaxed", "acquire", "release", "mmio")


def find_values(graph: Graph, n_threads: int) -> Facts:
    """The facts about every value."""
    facts = Facts(n_threads, graph.n_lanes, graph.nodes())
    above = dominators(graph)
    where: dict[Virtual, Block] = {}
    for block in graph.blocks:
        for node in block.nodes:
            if node.dst in facts.single:
                where[node.dst] = block
    bad: set[Virtual] = set()
    for block in graph.blocks:
        seen: set[Virtual] = set()
        for node in block.nodes:
            for reg in node.sources():
                home = where.get(reg)
                if (home is block and reg not in seen) or (home and home not in above[block]):
                    bad.add(reg)
            if node.dst is not None:
                seen.add(node.dst)
        if block.condition is not None:
            home = where.get(block.condition.reg)
            if home and home not in above[block]:
                bad.add(block.condition.reg)
    for reg in bad:
        del facts.single[reg]
        facts.limits.clear()
        facts.several.add(reg)
    return facts


def is_value(value: Value | None, facts: Facts) -> bool:
    return not isinstance(value, Virtual) or value in facts.single


def uses_of(value: Value | None, uses: Counter[Virtual]) -> int:
    return uses[value] if isinstance(value, Virtual) else 0


def is_copy(node: Node, source: Value | None) -> bool:
    return node.op is Op.MOV and node.guard is None and node.a == source


# --- propagation ----------------------------------------------------------------------------------


def propagate(graph: Graph, facts: Facts) -> bool:
    """Read the source of every copy instead of the copy; fold guards and branches."""
    known: dict[Virtual, Value] = {}
    for reg, node in facts.single.items():
        is_move = node.op is Op.MOV and node.guard is None
        if is_move and node.a is not None and is_value(node.a, facts):
            known[reg] = node.a

    def resolve(value: Value) -> Value:
        while isinstance(value, Virtual) and value in known:
            value = known[value]
        return value

    changed = False
    for block in graph.blocks:
        for node in block.nodes:
            for reg in set(node.sources()):
                if reg in known:
                    node.replace(reg, resolve(reg))
                    changed = True
            changed |= _fold_guard(node, resolve, facts)
        changed |= _fold_branch(block, resolve, facts)
    drop_unreachable(graph)
    return changed


def _positive(condition: Condition, facts: Facts) -> Condition:
    """A condition on the opposite of a truth value asks the value itself."""
    node = facts.definition(condition.reg)
    if node is None or not isinstance(node.a, Virtual) or not is_value(node.a, facts):
        return condition
    if node.op is Op.XOR and node.b == ONE:
        return Condition(node.a, not condition.negate)
    if node.op in (Op.EQ, Op.NE) and isinstance(node.b, Immediate) and facts.limit(node.a) <= 1:
        if node.b.value > 1:
            return condition
        flips = (node.op is Op.EQ) == (node.b.value == 0)
        return Condition(node.a, condition.negate ^ flips)
    return condition


def _fold_guard(node: Node, resolve: Resolve, facts: Facts) -> bool:
    if node.guard is None:
        return False
    value = resolve(node.guard.reg)
    if isinstance(value, Virtual):
        better = _positive(node.guard, facts)
        changed = better != node.guard
        node.guard = better
        return changed
    if bool(value.value & 1) != node.guard.negate:
        node.guard = None
        if node.op not in USES_C:
            node.c = None
    elif node.op is Op.ST:
        node.op, node.a, node.b, node.c, node.guard = Op.MOV, imm(0), None, None, None
    else:
        node.op, node.a, node.b, node.c, node.guard = Op.MOV, node.c or imm(0), None, None, None
    return True


def _fold_branch(block: Block, resolve: Resolve, facts: Facts) -> bool:
    if block.condition is None:
        return False
    value = resolve(block.condition.reg)
    if isinstance(value, Virtual):
        better = _positive(Condition(value, block.condition.negate), facts)
        changed = better != block.condition
        block.condition = better
        return changed
    assert block.taken is not None
    if bool(value.value & 1) != block.condition.negate:
        block.target = block.taken
    block.condition = block.taken = None
    return True


# --- within a block -------------------------------------------------------------------------------


def simplify_nodes(graph: Graph, facts: Facts, uses: Counter[Virtual]) -> bool:
    changed = False
    for block in graph.blocks:
        out: list[Node] = []
        recent = Recent(facts)
        for node in block.nodes:
            before = (node.op, node.a, node.b, node.c)
            value = simplify(node, facts) if node.dst is not None else None
            if value is not None:
                node.op, node.a, node.b, node.c = Op.MOV, value, None, None
            _reassociate(node, recent, uses, graph, out)
            changed |= before != (node.op, node.a, node.b, node.c)
            out.append(node)
            recent.add(node)
        block.nodes = out
    return changed


JOINED = {
    Op.ADD: lambda x, y: x + y,
    Op.AND: lambda x, y: x & y,
    Op.OR: lambda x, y: x | y,
    Op.XOR: lambda x, y: x ^ y,
    Op.MUL: lambda x, y: x * y,
    Op.SHL: lambda x, y: min(x, 32) + min(y, 32),
    Op.SHR: lambda x, y: min(x, 32) + min(y, 32),
}


class Recent:
    """What a block's operands were made from, as far as it is still the same at this place: a
    value always is, a variable until it is defined again."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.nodes: dict[Virtual, Node] = {}

    def add(self, node: Node) -> None:
        """The node comes next in the block."""
        dst = node.dst
        if dst is None:
            return
        stale = [reg for reg, made in self.nodes.items() if dst in set(made.sources())]
        for reg in (*stale, dst):
            self.nodes.pop(reg, None)
        if node.guard is None and dst not in set(node.sources()):
            self.nodes[dst] = node

    def definition(self, value: Value | None) -> Node | None:
        """The node whose operands, read here, make the value."""
        made = self.facts.definition(value)
        if made is not None and all(is_value(v, self.facts) for v in (made.a, made.b)):
            return made
        return self.nodes.get(value) if isinstance(value, Virtual) else None


def _cancels(node: Node, recent: Recent) -> bool:
    """y + (x - y), and the two parts of x that a shift and a mask take, are x again."""
    for first, second in ((node.a, node.b), (node.b, node.a)):
        made = recent.definition(second)
        if made is None or made.a is None:
            continue
        whole = made.op is Op.SUB and made.b == first
        up = recent.definition(first)
        if made.op is Op.AND and up is not None and up.op is Op.SHL:
            down = recent.definition(up.a)
            whole = (
                down is not None and down.op is Op.SHR and down.a == made.a and down.b == up.b
                and isinstance(made.b, Immediate) and isinstance(up.b, Immediate)
                and made.b.value == (1 << up.b.value) - 1
            )  # fmt: skip
        if whole:
            node.op, node.a, node.b = Op.MOV, made.a, None
            return True
    return False


def _reassociate(
    node: Node, recent: Recent, uses: Counter[Virtual], graph: Graph, out: list[Node]
) -> None:
    """Gather constants: (x op c) op d, and c in (x + c) << n and in addresses, to the outside."""
    inner = recent.definition(node.a)
    if node.op is Op.ADD and node.guard is None and _cancels(node, recent):
        return
    if inner is None or inner.op not in (Op.ADD, node.op):
        return
    inner_constant, constant = inner.b, node.b
    if node.op in (Op.LD, Op.ST) and inner.op is Op.ADD:
        if isinstance(inner_constant, Immediate) and isinstance(constant, Immediate):
            node.a, node.b = inner.a, imm(constant.value + inner_constant.value)
        elif constant == imm(0) and uses_of(node.a, uses) == 1:
            node.a, node.b = inner.a, inner_constant
        return
    if not (isinstance(inner_constant, Immediate) and isinstance(constant, Immediate)):
        return
    low_bits = node.op is Op.AND and constant.value & (constant.value + 1) == 0
    if low_bits and inner.op is Op.ADD and not inner_constant.value & constant.value:
        node.a = inner.a
    elif inner.op is node.op and node.op in JOINED:
        joined = JOINED[node.op](inner_constant.value, constant.value)
        node.a, node.b = inner.a, imm(joined)
    elif node.op in (Op.SHL, Op.MUL) and node.guard is None and uses_of(node.a, uses) == 1:
        part = Node(node.op, inner.a, constant, None, None, graph.fresh(), node.origin, node.epoch)
        out.append(part)
        recent.facts.add(part)
        scale = 1 << constant.value if node.op is Op.SHL else constant.value
        node.op, node.a, node.b = Op.ADD, part.dst, imm(inner_constant.value * scale)


def fuse_selects(graph: Graph, uses: Counter[Virtual]) -> bool:
    """A guarded move of a result that nothing else reads becomes the guarded operation itself."""
    changed = False
    for block in graph.blocks:
        made: dict[Virtual, tuple[int, Node]] = {}
        written: dict[Virtual, int] = {}
        for place, node in enumerate(block.nodes):
            if node.op is Op.MOV and node.guard is not None:
                for flip in (False, True):
                    value = node.c if flip else node.a
                    found = made.get(value) if isinstance(value, Virtual) else None
                    if found is None or uses_of(value, uses) != 1:
                        continue
                    if not _can_guard(found, written, block):
                        continue
                    source = found[1]
                    other = node.a if flip else node.c
                    guard = Condition(node.guard.reg, node.guard.negate ^ flip)
                    node.op, node.a, node.b, node.c = source.op, source.a, source.b, other
                    node.guard, node.epoch = guard, source.epoch
                    changed = True
                    break
            if node.dst is not None:
                made[node.dst] = (place, node)
                written[node.dst] = place
    return changed


def _can_guard(found: tuple[int, Node], written: dict[Virtual, int], block: Block) -> bool:
    place, node = found
    if node.guard is not None or node.op in USES_C or not (node.is_pure or node.op is Op.LD):
        return False
    if node.op is Op.LD and any(n.op is Op.ST for n in block.nodes[place:]):
        return False
    return all(written.get(reg, -1) < place for reg in node.sources())


def share_values(graph: Graph, facts: Facts) -> bool:
    """The same operation on the same operands twice in a block is computed once."""
    changed = False
    for block in graph.blocks:
        seen: dict[tuple[object, ...], Virtual] = {}
        for node in block.nodes:
            dst = node.dst
            if node.op is Op.ST:
                seen = {key: reg for key, reg in seen.items() if key[0] is not Op.LD}
            if dst is None:
                continue
            key = (node.op, node.a, node.b, node.c, node.guard, _epoch(node))
            can = node.op is not Op.MOV and _is_stable(node)
            if can and key in seen:
                node.op, node.a, node.b, node.c, node.guard = Op.MOV, seen[key], None, None, None
                changed = True
                can = False
            if dst in facts.several:
                seen = {k: reg for k, reg in seen.items() if reg != dst and not _reads(k, dst)}
            if can and dst in facts.single:
                seen[key] = dst
    return changed


def _epoch(node: Node) -> int:
    return node.epoch if node.op is Op.LD else 0


def _reads(key: tuple[object, ...], reg: Virtual) -> bool:
    guard = key[4]
    return reg in key[1:4] or (isinstance(guard, Condition) and guard.reg == reg)


def _is_stable(node: Node) -> bool:
    if node.op is Op.LD and node.origin is not None:
        return not any(part in UNSTABLE for part in node.origin.opcode)
    return node.op is not Op.ST


# --- dead code --------------------------------------------------------------------------------


def count_uses(graph: Graph) -> Counter[Virtual]:
    uses: Counter[Virtual] = Counter()
    for block in graph.blocks:
        for node in block.nodes:
            uses.update(node.sources())
        if block.condition is not None:
            uses[block.condition.reg] += 1
    return uses


def remove_dead(graph: Graph) -> bool:
    """Keep what stores and branches need, and nothing else; cycles of unread variables go too."""
    definitions: dict[Virtual, list[Node]] = {}
    for node in graph.nodes():
        if node.dst is not None:
            definitions.setdefault(node.dst, []).append(node)
    needed: set[Virtual] = set()
    work = [reg for node in graph.nodes() if node.op is Op.ST for reg in node.sources()]
    work += [block.condition.reg for block in graph.blocks if block.condition is not None]
    while work:
        reg = work.pop()
        if reg not in needed:
            needed.add(reg)
            for node in definitions.get(reg, ()):
                work += node.sources()
    changed = False
    for block in graph.blocks:
        kept = [
            n for n in block.nodes
            if n.op is Op.ST or (n.dst in needed and not is_copy(n, n.dst))
        ]  # fmt: skip
        changed |= len(kept) != len(block.nodes)
        block.nodes = kept
    return _remove_overwritten(graph) or changed


def _remove_overwritten(graph: Graph) -> bool:
    """Definitions that no way reads before the next one."""
    changed = False
    _, live_out = liveness(graph)
    for block in graph.blocks:
        live = set(live_out[block])
        if block.condition is not None:
            live.add(block.condition.reg)
        kept: list[Node] = []
        for node in reversed(block.nodes):
            if node.op is Op.ST or node.dst in live:
                kept.append(node)
                live -= {node.dst}
                live |= set(node.sources())
        changed |= len(kept) != len(block.nodes)
        block.nodes = kept[::-1]
    return changed


def fold_constant_loads(graph: Graph, constants: dict[int, int]) -> bool:
    """A load from a constant address in memory that nothing can change is known."""
    changed = False
    for node in graph.nodes():
        a, b = node.a, node.b
        if node.op is not Op.LD or node.guard is not None:
            continue
        if isinstance(a, Immediate) and isinstance(b, Immediate):
            word = (a.value + b.value & MASK32) >> 2
            if word in constants:
                node.op, node.a, node.b = Op.MOV, imm(constants[word]), None
                changed = True
    return changed


def optimise(graph: Graph, n_threads: int, n_stages: int, constants: dict[int, int]) -> None:
    """Repeat the passes until the graph stays as it is."""
    remove_dead(graph)
    for _ in range(MAX_ROUNDS):
        changed = _one_round(graph, n_threads, constants)
        changed |= thread_jumps(graph) | merge_chains(graph)
        if changed:
            continue
        while if_convert(graph, n_stages):
            changed = True
        if not changed:
            break


def _one_round(graph: Graph, n_threads: int, constants: dict[int, int]) -> bool:
    facts = find_values(graph, n_threads)
    changed = defer_definitions(graph, facts)
    facts = find_values(graph, n_threads)
    changed |= propagate(graph, facts)
    facts = find_values(graph, n_threads)
    changed |= simplify_nodes(graph, facts, count_uses(graph))
    changed |= fold_constant_loads(graph, constants)
    facts = find_values(graph, n_threads)
    changed |= share_values(graph, facts)
    changed |= fuse_selects(graph, count_uses(graph))
    return remove_dead(graph) | changed
