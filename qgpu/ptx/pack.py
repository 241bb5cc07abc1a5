"""Scheduling: a basic block's nodes -> machine blocks of ``n_stages``, at the least cost in tokens.

A machine block costs one token, and so does each write-back, or more. A value that is used only
in the machine block that makes it costs nothing, so the search looks for the partition with few
machine blocks and few values between them. It is a beam search over schedules; a value that is
cheap to compute again (the thread index and what follows from it) may be cloned into a later
machine block instead of being written back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qgpu.isa import Immediate, Op, Unit
from qgpu.ptx.estimate import write_cost
from qgpu.ptx.fold import Facts
from qgpu.ptx.mir import Block, Node, Virtual

MAX_BEAM = 48
WORK = 2000  # beam width times nodes, for long blocks
MAX_READY = 10
WINDOW = 48
IN_ORDER_BEAM = 4
OVERFLOW_COST = 8.0  # of a value too many: about what a spill costs


@dataclass(frozen=True)
class Limits:
    """What the machine block and the register file hold. ``in_order``: keep the nodes' order,
    which needs the fewest registers."""

    n_stages: int
    n_registers: int
    in_order: bool = False


def may_alias(x: Node, y: Node) -> bool:
    """Whether two accesses of one lane can be to the same word."""
    if x.spill is not None or y.spill is not None:
        return x.spill == y.spill
    if x.epoch != y.epoch:
        return True
    if isinstance(x.b, Immediate) and isinstance(y.b, Immediate):
        if isinstance(x.a, Immediate) and isinstance(y.a, Immediate):
            return (x.a.value + x.b.value) >> 2 == (y.a.value + y.b.value) >> 2
        if x.a == y.a and abs(x.b.value - y.b.value) >= 4:
            return False
    return True


@dataclass
class Dependences:
    """The nodes of one basic block and what must come before each, as bit masks."""

    nodes: list[Node]
    live_out: set[Virtual]
    condition: Virtual | None
    data: list[list[int]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    strictly_before: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    condition_node: int = -1
    readers: dict[Virtual, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made: dict[Virtual, int] = {}
        readers: dict[Virtual, int] = {}
        self.users = [0] * len(self.nodes)
        for n, node in enumerate(self.nodes):
            sources = [made[reg] for reg in dict.fromkeys(node.sources()) if reg in made]
            mask = sum(1 << d for d in sources)
            for d in sources:
                self.users[d] |= 1 << n
            for reg in node.sources():
                readers[reg] = readers.get(reg, 0) | 1 << n
                if reg not in made:
                    self.readers[reg] = self.readers.get(reg, 0) | 1 << n
            if node.dst is not None:
                mask |= readers.get(node.dst, 0) & ~(1 << n)
                assert node.dst not in made, "a block defines a register once"
                made[node.dst] = n
            self.data.append(sources)
            early, strict = self._memory(n, node)
            self.before.append(mask | early)
            self.strictly_before.append(strict)
        if self.condition in made:
            self.condition_node = made[self.condition]

    def _memory(self, n: int, node: Node) -> tuple[int, int]:
        """The accesses that must be no later, and those that must be in an earlier block."""
        early = strict = 0
        if node.op in (Op.LD, Op.ST):
            for m, other in enumerate(self.nodes[:n]):
                if other.op is Op.ST and (node.op is Op.ST or may_alias(node, other)):
                    strict |= 1 << m
                elif other.op is Op.LD and node.op is Op.ST and may_alias(node, other):
                    early |= 1 << m
        return early, strict


# The machine blocks closed so far, as (those before the last, the last).
Closed = tuple["Closed", tuple[int, ...]] | None


@dataclass(frozen=True)
class State:
    """A partial schedule: ``groups`` are closed machine blocks, ``open`` the one being filled
    (node numbers, clones included), ``written`` the nodes whose value is in a register."""

    done: int = 0
    open: tuple[int, ...] = ()
    written: int = 0
    cost: float = 0.0
    groups: Closed = None
    open_mask: int = 0


def _mask(nodes: tuple[int, ...]) -> int:
    mask = 0
    for n in nodes:
        mask |= 1 << n
    return mask


class Packer:
    """The search for one basic block."""

    def __init__(self, deps: Dependences, facts: Facts, limits: Limits) -> None:
        self.deps, self.n_stages, self.limits = deps, limits.n_stages, limits
        self.n = len(deps.nodes)
        self.costs = [write_cost(node, facts) for node in deps.nodes]
        defined = {node.dst for node in deps.nodes}
        self.is_cheap = [
            node.op is Op.TID or (
                node.op.info.unit is Unit.LANE and node.guard is None and node.op is not Op.MOV
                and all(reg in facts.single for reg in node.sources())
                and all(reg in defined for reg in node.sources())
            )
            for node in deps.nodes
        ]  # fmt: skip
        self.needs = [a | b for a, b in zip(deps.before, deps.strictly_before, strict=True)]
        self.sources = [sum(1 << d for d in data) for data in deps.data]
        self.live = [node.dst in deps.live_out for node in deps.nodes]
        passing = deps.live_out - defined
        self.n_passing = len(passing)
        self.readers = [mask for reg, mask in deps.readers.items() if reg not in passing]
        self.may_overflow = self.n_passing + len(self.readers) + self.n > limits.n_registers

    def clones(self, node: int, state: State, mask: int) -> list[int] | None:
        """The nodes to compute again so that ``node``'s value is in the open block, in order."""
        if mask >> node & 1:
            return []
        if not self.is_cheap[node]:
            return None
        out: list[int] = []
        for source in self.deps.data[node]:
            if state.written >> source & 1 or source in out:
                continue
            more = self.clones(source, state, mask)
            if more is None:
                return None
            out += [m for m in more if m not in out]
        return [*out, node]

    def close(self, state: State) -> State:
        """End the open block: pay for it and for the values that go on to later ones."""
        cost, written = state.cost + 1, state.written
        for n in state.open:
            if written >> n & 1:
                continue
            if self.live[n]:
                written |= 1 << n
            elif n == self.deps.condition_node or (
                self.deps.users[n] & ~state.done and not self.is_cheap[n]
            ):
                written |= 1 << n
                cost += self.costs[n]
        if self.may_overflow:
            excess = self.pressure(state.done, written) - self.limits.n_registers
            cost += OVERFLOW_COST * max(0, excess)
        return State(state.done, (), written, cost, (state.groups, state.open))

    def pressure(self, done: int, written: int) -> int:
        """How many registers are live once the nodes ``done`` are."""
        live = self.n_passing + sum(1 for mask in self.readers if mask & ~done)
        for n in range(self.n):
            if written >> n & 1 and (self.live[n] or self.deps.users[n] & ~done):
                live += 1
        return live

    def additions(self, state: State, node: int) -> Iterator[State]:
        """The open block with the node in it, its missing operands cloned or written back."""
        mask = state.open_mask
        if self.deps.strictly_before[node] & (mask | ~state.done):
            return
        if self.deps.nodes[node].op is Op.ST and any(
            self.deps.nodes[n].op is Op.ST for n in state.open
        ):
            return
        missing = [
            d for d in self.deps.data[node] if not (mask >> d & 1 or state.written >> d & 1)
        ]
        done = state.done | 1 << node
        if not missing:
            if len(state.open) < self.n_stages:
                opened = (*state.open, node)
                yield State(done, opened, state.written, state.cost, state.groups, _mask(opened))
            return
        added: list[int] | None = []
        for d in missing:
            more = self.clones(d, state, mask)
            if more is None or added is None:
                added = None
                break
            added += [m for m in more if m not in added]
        if added is not None and len(state.open) + len(added) < self.n_stages:
            opened = (*state.open, *added, node)
            yield State(done, opened, state.written, state.cost, state.groups, _mask(opened))
        if len(state.open) < self.n_stages:
            written, cost = state.written, state.cost
            for d in missing:
                written |= 1 << d
                cost += self.costs[d]
            opened = (*state.open, node)
            yield State(done, opened, written, cost, state.groups, _mask(opened))

    def ready(self, state: State) -> list[int]:
        """Nodes that may come next, the ones that use a value already there first; of a long
        block only the next ``WINDOW`` nodes are looked at."""
        found: list[int] = []
        left = ((1 << self.n) - 1) & ~state.done
        for _ in range(1 if self.limits.in_order else WINDOW):
            if not left:
                break
            n = (left & -left).bit_length() - 1
            left &= left - 1
            if not self.needs[n] & ~state.done:
                found.append(n)
        if len(found) > MAX_READY:
            near = state.open_mask | state.written
            found.sort(key=lambda n: (not self.sources[n] & near, n))
        return found[:MAX_READY]

    def rank(self, state: State) -> float:
        """The cost so far and the least that must follow."""
        left = self.n - state.done.bit_count()
        free = self.n_stages - len(state.open) if state.open else 0
        blocks = max(0, left - free) / self.n_stages + (1 if state.open else 0)
        pending = 0.0
        for n in state.open:
            waiting = (self.deps.users[n] & ~state.done).bit_count()
            if waiting > free and not self.live[n] and not self.is_cheap[n]:
                pending += self.costs[n]
        return state.cost + blocks + pending

    def search(self) -> State:
        """The cheapest schedule found."""
        beam = [State()]
        width = max(2, min(MAX_BEAM, WORK // max(1, self.n)))
        if self.limits.in_order:
            width = min(width, IN_ORDER_BEAM)
        for _ in range(self.n):
            best: dict[tuple[int, int, int], State] = {}
            for state in beam:
                for start in (state, self.close(state)) if state.open else (state,):
                    for node in self.ready(start):
                        for new in self.additions(start, node):
                            key = (new.done, new.open_mask, new.written)
                            if key not in best or new.cost < best[key].cost:
                                best[key] = new
            beam = sorted(best.values(), key=self.rank)[:width]
        return min((self.close_last(state) for state in beam), key=lambda s: s.cost)

    def close_last(self, state: State) -> State:
        """The last block decides the branch, so its own condition needs no register."""
        cost = state.cost + 1
        return State(state.done, (), state.written, cost, (state.groups, state.open))


def pack(block: Block, live_out: set[Virtual], facts: Facts, limits: Limits) -> list[list[Node]]:
    """The block's nodes in groups, one a machine block; at least one group."""
    condition = block.condition.reg if block.condition is not None else None
    deps = Dependences(block.nodes, live_out, condition)
    if not block.nodes:
        return [[]]
    found = Packer(deps, facts, limits).search()
    groups: list[list[Node]] = []
    closed = found.groups
    while closed is not None:
        closed, group = closed
        groups.append([block.nodes[n] for n in group])
    return groups[::-1]


def block_cost(block: Block, live_out: set[Virtual], facts: Facts, limits: Limits) -> float:
    """About how many tokens one run of the block takes, write-backs for later blocks included."""
    condition = block.condition.reg if block.condition is not None else None
    deps = Dependences(block.nodes, live_out, condition)
    kept = sum(write_cost(node, facts) for node in block.nodes if node.dst in live_out)
    return Packer(deps, facts, limits).search().cost + kept


def block_key(block: Block, live_out: set[Virtual], limits: Limits) -> object:
    """Equal for a block that packs the same as before. The nodes themselves are part of it."""
    nodes = tuple((id(n), n.op, n.a, n.b, n.c, n.guard, n.dst) for n in block.nodes)
    return block, nodes, block.condition, frozenset(live_out), limits
