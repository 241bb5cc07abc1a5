"""Loops that wait for other threads: spin locks, flags, tickets.

The machine runs the lanes at the least block first and stays with a warp while it can go on, so a
lane that goes round a loop until another one has done something would go round for ever. The ways
back of such loops *yield* (``isa.Target``): all others that can run go on first. ``mark_waits``
finds them: loops that what a thread reads from memory keeps it in, and nothing that it does itself
gets it out. Yields that are not needed cost tokens and change no result that a program may count
on, so the analysis says yes where it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from qgpu.isa import Op
from qgpu.ptx.cfg import components, lead_through, loop_entry
from qgpu.ptx.mir import Block, Edge, Graph, Node, Value, Virtual
from qgpu.ptx.optimise import UNSTABLE

ARITHMETIC = (Op.ADD, Op.ADDC, Op.SUB, Op.SUBC, Op.MUL, Op.SHL, Op.SHR)
LOGIC = (Op.AND, Op.OR, Op.XOR, Op.MOV)
PRIVATE = ("const", "param", "local")
ORDER = (Op.LTU, Op.GEU, Op.LTS, Op.GES)
STRONG = (*UNSTABLE, "atom", "red", "cv", "cg")
ROUND, OUT = "round", "out"  # how a round ends


def mark_waits(graph: Graph, n_threads: int, has_fence: bool) -> None:
    """Let the ways back of every loop that can wait for another thread yield. ``has_fence``: the
    kernel orders its accesses by fences, so that plain ones may be what a thread waits for."""
    if n_threads == 1:
        return
    n_definitions = Counter(node.dst for node in graph.nodes() if node.dst is not None)
    waiting: list[_Loop] = []
    for loop in list(_loops(graph, graph.blocks, set(), n_definitions)):
        if loop.waits(has_fence):
            waiting.append(loop)
            for block in loop.blocks:
                _yield_to(block, loop.header)
    for loop in waiting:
        if any(inner.header in loop.blocks for inner in waiting if inner is not loop):
            _stand_behind(graph, loop)


def _stand_behind(graph: Graph, loop: _Loop) -> None:
    """Let the lanes that go round stand in a block of their own, numbered behind the loop: those
    that wait in loops inside then go first, and get the lock that they wait for."""
    lead_through(graph.new_block("stand"), loop.blocks, loop.header)


def _yield_to(block: Block, header: Block) -> None:
    block.target = _yielding(block.target, header)
    if block.taken is not None:
        block.taken = _yielding(block.taken, header)


def _yielding(edge: Edge, header: Block) -> Edge:
    return replace(edge, yields=True) if edge.block is header and not edge.barrier else edge


def _onward(block: Block) -> list[Block]:
    """Where lanes go without letting the others go first."""
    return [edge.block for edge in block.edges if edge.block is not None and not edge.waits]


def _loops(
    graph: Graph, blocks: list[Block], headers: set[Block], n_definitions: Counter[Virtual]
) -> Iterator[_Loop]:
    """The loops round which no lane waits anyway, outer ones first."""
    inside = set(blocks)

    def successors(block: Block) -> list[Block]:
        return [s for s in _onward(block) if s in inside and s not in headers]

    for component in components(blocks, successors):
        if len(component) > 1 or component[0] in successors(component[0]):
            header = loop_entry(graph, component)
            yield _Loop(header, component, n_definitions)
            yield from _loops(graph, component, headers | {header}, n_definitions)


class _Loop:
    """What decides whether a lane goes round a loop once more."""

    def __init__(self, header: Block, blocks: list[Block], n_definitions: Counter[Virtual]) -> None:
        self.header, self.blocks = header, blocks
        self.n_definitions = n_definitions
        self.definitions: dict[Virtual, list[tuple[Node, Block]]] = {}
        self.stored: set[tuple[Value | None, Value | None]] = set()
        self.ends = False  # by itself, some time
        self.is_shared = False  # by what it reads and stores, with other threads
        for block in blocks:
            for node in block.nodes:
                if node.dst is not None:
                    self.definitions.setdefault(node.dst, []).append((node, block))
                elif node.op is Op.ST:
                    self.stored.add((node.a, node.b))

    def waits(self, has_fence: bool) -> bool:
        """Whether something that only another thread may change can keep a lane inside."""
        terms = self._terms(
            block.condition.reg
            for block in self.blocks
            if block.condition is not None and self._decides(block)
        )
        behind = [self._behind([term]) for term in terms]
        self.ends = any(self._counts(regs) and not reads for regs, reads in behind)
        self.is_shared = has_fence or any(
            _is_strong(node) for block in self.blocks for node in block.nodes
        )
        return any(self._is_wait(term) for term in terms)

    # --- what decides

    def _decides(self, block: Block) -> bool:
        """Whether one side of the branch can leave or go round where the other cannot."""
        sides = [self._follow(edge) & {ROUND, OUT} for edge in block.edges]
        return any(side != sides[0] for side in sides)

    def _follow(self, edge: Edge, without: Block | None = None) -> set[Block | str]:
        """What a lane can come to in this round along an edge, but not through a block; and
        whether the round can end there by going round or by leaving."""
        seen: set[Block | str] = set()
        work = [edge]
        while work:
            at = work.pop()
            if at.block is None or at.waits or at.block not in self.blocks:
                seen.add(OUT)
            elif at.block is self.header:
                seen.add(ROUND)
            elif at.block not in seen and at.block is not without:
                seen.add(at.block)
                work += at.block.edges
        return seen

    def _terms(self, conditions: Iterable[Virtual]) -> set[Virtual]:
        """What the conditions are put together from; with it what decides which definition of a
        variable behind them a lane comes by."""
        terms: set[Virtual] = set()
        work, seen = list(conditions), set[Virtual]()
        while work:
            reg = work.pop()
            if reg in seen:
                continue
            seen.add(reg)
            made = [node for node, _ in self.definitions.get(reg, [])]
            if made and all(node.op in LOGIC for node in made):
                work += [source for node in made for source in node.sources()]
            else:
                terms.add(reg)
            for inner in self._behind([reg])[0]:
                if self.n_definitions[inner] > 1:
                    places = {block for _, block in self.definitions.get(inner, [])}
                    work += [c for place in places for c in self._controls(place)]
        return terms

    def _controls(self, place: Block) -> list[Virtual]:
        """The conditions that decide whether a round passes a block."""
        return [
            block.condition.reg
            for block in self.blocks
            if block.condition is not None
            and len({place in self._follow(edge) for edge in block.edges}) > 1
        ]

    # --- what a term depends on

    def _behind(self, values: Iterable[Value | None]) -> tuple[set[Virtual], list[Node]]:
        """The registers that the loop computes for these values, and the reads of memory."""
        regs: set[Virtual] = set()
        reads: list[Node] = []
        work = [value for value in values if isinstance(value, Virtual)]
        while work:
            reg = work.pop()
            if reg in regs or reg not in self.definitions:
                continue
            regs.add(reg)
            for node, _ in self.definitions[reg]:
                if node.op is Op.LD:
                    reads.append(node)
                else:
                    work += node.sources()
        return regs, reads

    def _counts(self, regs: set[Virtual]) -> bool:
        """Whether one of the registers moves on in every round by what the thread does itself."""
        return any(self._moves(set(cycle)) for cycle in self._cycles(regs))

    def _cycles(self, regs: set[Virtual]) -> Iterator[list[Virtual]]:
        order = sorted(regs, key=lambda reg: reg.index)
        return _cycles(order, self._made_from)

    def _moves(self, cycle: set[Virtual]) -> bool:
        """Whether registers that are computed from each other are others in every round, and come
        back to no value that they had before long: nothing but arithmetic and copies."""
        made = [part for reg in cycle for part in self.definitions[reg]]
        steps = {node.dst: block for node, block in made if node.op in ARITHMETIC}
        if not all(self._keeps(node, cycle) for node, _ in made):
            return False
        stays = any(_cycles([reg for reg in cycle if reg not in steps], self._made_from))
        return not stays and any(self._is_certain(block) for block in steps.values())

    def _keeps(self, node: Node, cycle: set[Virtual]) -> bool:
        """Whether a node only carries a cycle on: no new start, nothing read from memory."""
        sources = list(node.sources())
        others = [source for source in sources if source not in cycle]
        return (
            (_is_copy(node) or node.op in ARITHMETIC)
            and len(others) < len(sources)
            and not self._behind(others)[1]
        )

    def _made_from(self, reg: Virtual) -> list[Virtual]:
        nodes = [node for node, _ in self.definitions[reg] if node.op is not Op.LD]
        return [source for node in nodes for source in node.sources()]

    def _is_certain(self, place: Block) -> bool:
        """Whether every round passes a block."""
        if place is self.header:
            return True
        return all(ROUND not in self._follow(edge, place) for edge in self.header.edges)

    # --- reads that others may change

    def _is_wait(self, term: Virtual) -> bool:
        regs, reads = self._behind([term])
        if self._is_order(term) and self._counts(regs):
            return False
        if self._is_lock_free(term, reads):
            return False
        return any(self._may_change(read, term) for read in reads)

    def _is_order(self, term: Virtual) -> bool:
        """Whether a term says which of two numbers is less: what moves on gets past the other."""
        return all(node.op in ORDER for node, _ in self.definitions.get(term, []))

    def _may_change(self, read: Node, term: Virtual) -> bool:
        """Whether only another thread may change what a read finds in the next round."""
        parts = read.origin.opcode if read.origin is not None else ()
        if read.spill is not None or any(part.split("::")[0] in PRIVATE for part in parts):
            return False
        regs, reads = self._behind([read.a, read.b])
        if self._counts(regs) or (self.ends and any(self._cycles(regs))):
            return False  # it goes over many places
        if self.is_shared:
            return not self._takes(read, term)
        return not regs and not reads and (read.a, read.b) not in self.stored

    def _takes(self, read: Node, term: Virtual) -> bool:
        """Whether the read is of an atomic addition that hands out numbers up to a bound, as for
        work: then what it finds moves on by itself, unless the loop undoes it."""
        parts = read.origin.opcode if read.origin is not None else ()
        if parts[:1] != ("atom",) or "add" not in parts:
            return False
        nodes = [node for block in self.blocks for node in block.nodes]
        adds = any(
            node.op is Op.ADD and node.origin is read.origin and read.dst in (node.a, node.b)
            for node in nodes
        )
        others = any(
            node.op in (Op.LD, Op.ST)
            and node.origin is not read.origin
            and (node.a, node.b) == (read.a, read.b)
            for node in nodes
        )
        alone = self._behind([term])[1] == [read]
        return adds and alone and not others and self._is_order(term)

    def _is_lock_free(self, term: Virtual, reads: list[Node]) -> bool:
        """Whether the term tells that a compare-and-swap has found what the thread had just read:
        where it has not, another thread has got on."""
        for swap in reads:
            if swap.origin is None or "cas" not in swap.origin.opcode:
                continue
            compared = self._compared(swap)
            leaves = self._leaves(term, compared)
            old = {leaf for leaf in leaves if self._is_from(leaf, swap)}
            expected = leaves - old
            if old and expected and expected <= compared and self._are_read(expected, swap):
                return True
        return False

    def _are_read(self, regs: set[Virtual], swap: Node) -> bool:
        """Whether registers hold, unchanged, what the loop has read of the word of a swap."""
        behind, reads = self._behind(regs)
        made = [node for reg in behind for node, _ in self.definitions[reg]]
        unchanged = all(node.op is Op.LD or _is_copy(node) for node in made)
        return bool(reads) and unchanged and all(_is_same_place(read, swap) for read in reads)

    def _leaves(self, term: Virtual, known: set[Virtual]) -> set[Virtual]:
        """The registers that a comparison is made from; those ``known`` are looked at no closer."""
        leaves: set[Virtual] = set()
        work, seen = [term], set[Virtual]()
        while work:
            reg = work.pop()
            if reg in seen:
                continue
            seen.add(reg)
            made = [node for node, _ in self.definitions.get(reg, [])]
            is_value = len(made) == self.n_definitions[reg] == 1
            if reg not in known and is_value and made[0].op in (*LOGIC, Op.EQ, Op.NE):
                work += made[0].sources()
            else:
                leaves.add(reg)
        return leaves

    def _is_from(self, reg: Virtual, swap: Node) -> bool:
        """Whether a register holds what the swap has found."""
        made = [node for node, _ in self.definitions.get(reg, [])]
        return bool(made) and all(
            node.origin is swap.origin and node.op in (Op.LD, Op.MOV, Op.PRMT) for node in made
        )

    def _compared(self, swap: Node) -> set[Virtual]:
        """What the swap compares the words with that it finds, and what that is a copy of."""
        own = [node for block in self.blocks for node in block.nodes if node.origin is swap.origin]
        made = {node.dst for node in own}
        compared: set[Virtual] = set()
        work = [reg for node in own if node.op in (Op.EQ, Op.XOR) for reg in node.sources()]
        while work:
            reg = work.pop()
            if reg not in made and reg not in compared:
                compared.add(reg)
                copies = [node for node, _ in self.definitions.get(reg, []) if node.op is Op.MOV]
                work += [source for node in copies for source in node.sources()]
        return compared


def _is_same_place(read: Node, swap: Node) -> bool:
    return read.origin is swap.origin or (read.a, read.b) == (swap.a, swap.b)


def _is_copy(node: Node) -> bool:
    return node.op is Op.MOV and node.guard is None


def _is_strong(node: Node) -> bool:
    """Whether other threads are meant to see a node's access."""
    return node.origin is not None and any(part in STRONG for part in node.origin.opcode)


def _cycles(
    regs: list[Virtual], made_from: Callable[[Virtual], list[Virtual]]
) -> Iterator[list[Virtual]]:
    """Registers that are computed from each other, no others in between."""
    inside = set(regs)

    def sources(reg: Virtual) -> list[Virtual]:
        return [source for source in made_from(reg) if source in inside]

    for component in components(regs, sources):
        if len(component) > 1 or component[0] in sources(component[0]):
            yield component
