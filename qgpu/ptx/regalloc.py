"""Register allocation by graph colouring over machine blocks, and spilling to local memory.

Only values that cross from one machine block to another need a register; a machine block reads
its registers before it writes any, so a value may take the register of one that it is made from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qgpu.isa import Op
from qgpu.ptx.mir import Block, Condition, Graph, Node, Virtual, imm


@dataclass(eq=False)
class Group:
    """One machine block before allocation: its nodes in stage order and where it leads."""

    nodes: list[Node]
    block: Block
    is_last: bool
    successors: list[Group] = field(default_factory=list)
    reads: set[Virtual] = field(default_factory=set)
    writes: set[Virtual] = field(default_factory=set)
    live_in: set[Virtual] = field(default_factory=set)
    live_out: set[Virtual] = field(default_factory=set)

    @property
    def condition(self) -> Condition | None:
        return self.block.condition if self.is_last else None


def find_reads(group: Group) -> None:
    """What the group reads from registers: everything not made at an earlier stage."""
    made: set[Virtual] = set()
    for node in group.nodes:
        group.reads |= set(node.sources()) - made
        if node.dst is not None:
            made.add(node.dst)
    if group.condition is not None and group.condition.reg not in made:
        group.reads.add(group.condition.reg)
    group.writes = made


def find_liveness(groups: list[Group]) -> None:
    changed = True
    while changed:
        changed = False
        for group in reversed(groups):
            out = set().union(*(s.live_in for s in group.successors))
            into = group.reads | (out - group.writes)
            if into != group.live_in or out != group.live_out:
                group.live_in, group.live_out = into, out
                changed = True
    for group in groups:
        group.writes &= group.live_out


def interference(groups: list[Group]) -> dict[Virtual, set[Virtual]]:
    graph: dict[Virtual, set[Virtual]] = {}
    for group in groups:
        for reg in group.live_in | group.writes:
            graph.setdefault(reg, set())
        for reg in group.writes:
            for other in group.live_out:
                if other != reg:
                    graph[reg].add(other)
                    graph.setdefault(other, set()).add(reg)
    return graph


def colour(
    graph: dict[Virtual, set[Virtual]],
    n_colours: int,
    weights: dict[Virtual, float],
    partners: dict[Virtual, set[Virtual]],
) -> tuple[dict[Virtual, int], list[Virtual]]:
    """(register -> 1 .. n_colours, registers that found no place). Copies get their source's
    register where that is free."""
    left = {reg: set(others) for reg, others in graph.items()}
    stack: list[Virtual] = []
    while left:
        reg = min(left, key=lambda r: (len(left[r]), r.index))
        if len(left[reg]) >= n_colours:
            reg = min(left, key=lambda r: (weights.get(r, 0.0) / len(left[r]), r.index))
        stack.append(reg)
        for other in left.pop(reg):
            left[other].discard(reg)
    colours: dict[Virtual, int] = {}
    failed: list[Virtual] = []
    for reg in reversed(stack):
        taken = {colours[o] for o in graph[reg] if o in colours}
        wanted = [colours[p] for p in partners.get(reg, ()) if p in colours]
        free = [c for c in (*wanted, *range(1, n_colours + 1)) if c not in taken]
        if free:
            colours[reg] = free[0]
        else:
            failed.append(reg)
    return colours, failed


def find_partners(groups: list[Group]) -> dict[Virtual, set[Virtual]]:
    partners: dict[Virtual, set[Virtual]] = {}
    for group in groups:
        for node in group.nodes:
            for source in (node.a, node.c) if node.op is Op.MOV else (node.c,):
                if node.dst is not None and isinstance(source, Virtual):
                    partners.setdefault(node.dst, set()).add(source)
                    partners.setdefault(source, set()).add(node.dst)
    return partners


# --- spilling -----------------------------------------------------------------------------------


class Spiller:
    """Moves one register to a word of memory a thread, in the whole graph."""

    def __init__(self, graph: Graph, reg: Virtual, address: int, n_threads: int) -> None:
        self.graph, self.reg, self.address, self.n_threads = graph, reg, address, n_threads
        self.made: set[Virtual] = set()

    def run(self) -> set[Virtual]:
        """Rewrite; returns the short-lived registers made, which must not be spilled again."""
        for block in self.graph.blocks:
            self._rewrite(block)
        return self.made

    def _fresh(self) -> Virtual:
        reg = self.graph.fresh()
        self.made.add(reg)
        return reg

    def _place(self, out: list[Node]) -> Virtual | None:
        if self.n_threads == 1:
            return None
        thread, offset = self._fresh(), self._fresh()
        out += [Node(Op.TID, dst=thread), Node(Op.SHL, thread, imm(2), dst=offset)]
        return offset

    def _load(self, out: list[Node]) -> Virtual:
        place, value = self._place(out), self._fresh()
        out.append(Node(Op.LD, place or imm(0), imm(self.address), dst=value, spill=self.address))
        return value

    def _rewrite(self, block: Block) -> None:
        out: list[Node] = []
        for node in block.nodes:
            if self.reg in node.sources():
                node.replace(self.reg, self._load(out))
            out.append(node)
            if node.dst == self.reg:
                node.dst = self._fresh()
                place = self._place(out)
                out.append(Node(Op.ST, place or imm(0), imm(self.address), node.dst,
                                origin=node.origin, spill=self.address))  # fmt: skip
        if block.condition is not None and block.condition.reg == self.reg:
            block.condition = Condition(self._load(out), block.condition.negate)
        block.nodes = out
