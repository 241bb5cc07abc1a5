"""The lowering's own IR: machine operations over virtual registers, in a graph of basic blocks.

Every value is one 32-bit word a lane; 64-bit PTX data are pairs of virtual registers. A virtual
register with a single definition behaves as a value; one with several (the phis of the source)
is a variable. Passes rewrite this graph in place; ``pack`` turns it into machine blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qgpu.isa import MASK32, Immediate, Op, Unit
from qgpu.ptxir import Inst


@dataclass(frozen=True)
class Virtual:
    """A virtual register."""

    index: int

    def __str__(self) -> str:
        return f"v{self.index}"


Value = Virtual | Immediate


@dataclass(frozen=True)
class Condition:
    """Bit 0 of a virtual register, or its opposite."""

    reg: Virtual
    negate: bool = False

    def __str__(self) -> str:
        return f"{'!' if self.negate else ''}{self.reg}"


@dataclass(eq=False)
class Node:
    """One machine operation. Memory accesses of different ``epoch`` keep their order, whatever
    their addresses: a fence stands between them. ``spill``: the slot of a spilled register, which
    nothing else can name."""

    op: Op
    a: Value | None = None
    b: Value | None = None
    c: Value | None = None
    guard: Condition | None = None
    dst: Virtual | None = None
    origin: Inst | None = None
    epoch: int = 0
    spill: int | None = None

    def sources(self) -> Iterator[Virtual]:
        """Every virtual register that is read, the guard last."""
        for value in (self.a, self.b, self.c):
            if isinstance(value, Virtual):
                yield value
        if self.guard is not None:
            yield self.guard.reg

    def replace(self, old: Virtual, new: Value) -> None:
        """Read ``new`` where ``old`` was read as data; the guard only if ``new`` is a register."""
        if self.a == old:
            self.a = new
        if self.b == old:
            self.b = new
        if self.c == old:
            self.c = new
        if self.guard is not None and self.guard.reg == old and isinstance(new, Virtual):
            self.guard = Condition(new, self.guard.negate)

    @property
    def is_pure(self) -> bool:
        """Its result depends on the operands and the lane alone, and it has no effect."""
        return self.op.info.unit is Unit.LANE or self.op is Op.TID

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        values = ", ".join(str(v) if v is not None else "-" for v in (self.a, self.b, self.c))
        return f"{guard}{self.op.name.lower()} {values}" + (f" -> {self.dst}" if self.dst else "")


@dataclass(frozen=True)
class Edge:
    """Where lanes go; ``block`` None ends them. ``barrier``: they wait for all others first.
    ``yields``: they let all others that can run go on first (``isa.Target``)."""

    block: Block | None
    barrier: bool = False
    yields: bool = False

    @property
    def waits(self) -> bool:
        return self.barrier or self.yields

    def behind(self, first: Edge) -> Edge:
        """This edge for lanes that have come along ``first``; who waits at a barrier lets the
        others go on anyway."""
        barrier = self.barrier or first.barrier
        return Edge(self.block, barrier, not barrier and (self.yields or first.yields))

    def __str__(self) -> str:
        name = "exit" if self.block is None else self.block.name
        return f"{'barrier ' * self.barrier}{'yield ' * self.yields}{name}"


@dataclass(eq=False)
class Block:
    """A basic block; lanes go along ``taken`` where ``condition`` holds, else along ``target``.

    ``serial``: one lane at a time runs it from its first to its last machine block.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    target: Edge = Edge(None)
    condition: Condition | None = None
    taken: Edge | None = None
    serial: bool = False

    @property
    def edges(self) -> list[Edge]:
        return [self.target] if self.taken is None else [self.target, self.taken]

    @property
    def successors(self) -> list[Block]:
        return [edge.block for edge in self.edges if edge.block is not None]

    def redirect(self, old: Block, new: Edge) -> None:
        """Lead the edges to ``old`` along ``new`` instead; what either waits for stays."""
        if self.target.block is old:
            self.target = new.behind(self.target)
        if self.taken is not None and self.taken.block is old:
            self.taken = new.behind(self.taken)

    def __str__(self) -> str:
        lines = [f"{self.name}:{' serial' if self.serial else ''}"]
        lines += [f"  {node}" for node in self.nodes]
        if self.condition is not None:
            lines.append(f"  {self.condition} -> {self.taken}")
        lines.append(f"  -> {self.target}")
        return "\n".join(lines)


@dataclass
class Graph:
    """A kernel: its entry block, every block in source order, and the count of registers made.

    A warp has ``n_lanes`` lanes. ``local_base`` is the address of the thread's own local memory,
    where something uses it.
    """

    n_lanes: int
    blocks: list[Block] = field(default_factory=list)
    n_virtual: int = 0
    n_names: int = 0
    local_base: Virtual | None = None

    @property
    def entry(self) -> Block:
        return self.blocks[0]

    def fresh(self) -> Virtual:
        self.n_virtual += 1
        return Virtual(self.n_virtual)

    def new_block(self, hint: str, after: Block | None = None) -> Block:
        """A new block, listed behind ``after`` or at the end."""
        self.n_names += 1
        block = Block(f"{hint}.{self.n_names}")
        place = len(self.blocks) if after is None else self.blocks.index(after) + 1
        self.blocks.insert(place, block)
        return block

    def nodes(self) -> Iterator[Node]:
        for block in self.blocks:
            yield from block.nodes

    def predecessors(self) -> dict[Block, list[Block]]:
        found: dict[Block, list[Block]] = {block: [] for block in self.blocks}
        for block in self.blocks:
            for successor in block.successors:
                found[successor].append(block)
        return found

    def __str__(self) -> str:
        return "\n".join(str(block) for block in self.blocks)


def imm(value: int) -> Immediate:
    return Immediate(value & MASK32)


ZERO, ONE, ONES = imm(0), imm(1), imm(-1)
