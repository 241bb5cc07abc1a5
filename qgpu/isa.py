"""The instruction set: THE table of operations, and the machine block that carries them.

One ``Op`` row declares an operation once: its operands, its meaning over 32-bit lanes and its
encoding. The encoding is horizontal microcode: the set of control lines that the circuit reads.
The interpreter runs ``Op.semantics``, the lowering builds ``Instruction``s, the compiler wires
the lines; all three read this file.

A machine block is up to ``n_stages`` instructions that execute in ONE forward pass, in order.
A source operand is a register, an immediate, or the result of an earlier stage of the same block
(``Forward``). Results live only inside the block unless ``dst`` names a register (write-back).

Guard: where an instruction has one and it is false in a lane, the lane's result is operand C
(zero if there is none), a load reads nothing and a store does nothing. So ``selp`` is a guarded
MOV, and a predicated instruction takes its own old destination as C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from qgpu.machine import WORD_BITS, MachineSpec

MASK32 = 0xFFFFFFFF


def signed(x: int) -> int:
    """A 32-bit pattern read as two's complement."""
    return x - (1 << 32) if x & 0x80000000 else x


def _prmt(a: int, b: int, selector: int) -> int:
    """PTX ``prmt.b32`` in its default mode (PTX ISA, prmt)."""
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    out = 0
    for n in range(4):
        nibble = selector >> (4 * n) & 0xF
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << (8 * n)
    return out


class Unit(Enum):
    """Which part of the machine executes an operation."""

    LANE = "one lane's ALU: semantics(a, b, c)"
    WARP = "across the lanes of the warp"
    MEMORY = "the memory: address is a + b"


# Control lines, in the order of their ROM bits. Each is read by name in the circuit.
LINES = (
    "MOV", "SUM", "INV_B", "CIN_1", "CIN_C", "CIN_NOT_C", "SIGNED",
    "LT", "GE", "EQ", "NE", "MIN", "MAX", "AND", "OR", "XOR", "SHL", "SHR", "SAR",
    "MUL", "MUL_SIGNED", "MUL_LO", "MUL_HI", "POPC", "CLZ", "BREV", "PRMT",
    "SHFL", "BALLOT", "TID", "LD", "ST",
)  # fmt: skip


@dataclass(frozen=True)
class OpInfo:
    """One row of the table. ``operands`` names which of A, B, C are read as data."""

    operands: str
    lines: frozenset[str]
    unit: Unit
    semantics: Callable[[int, int, int], int] | None
    doc: str


def _lane(operands: str, lines: str, semantics: Callable[[int, int, int], int], doc: str) -> OpInfo:
    return OpInfo(operands, frozenset(lines.split()), Unit.LANE, semantics, doc)


def _sh(a: int, b: int) -> int:
    return (a << b) & MASK32 if b < WORD_BITS else 0


class Op(Enum):
    """Every machine operation. Semantics take and return 32-bit patterns (0 <= x < 2**32)."""

    MOV = _lane("A", "MOV", lambda a, b, c: a, "a")
    ADD = _lane("AB", "SUM", lambda a, b, c: (a + b) & MASK32, "a + b")
    SUB = _lane("AB", "SUM INV_B CIN_1", lambda a, b, c: (a - b) & MASK32, "a - b")
    ADDC = _lane(
        "ABC", "SUM CIN_C", lambda a, b, c: (a + b + (c & 1)) & MASK32, "a + b + bit 0 of c"
    )
    SUBC = _lane(
        "ABC", "SUM INV_B CIN_1 CIN_NOT_C", lambda a, b, c: (a - b - (c & 1)) & MASK32,
        "a - b - bit 0 of c",
    )  # fmt: skip
    AND = _lane("AB", "AND", lambda a, b, c: a & b, "a & b")
    OR = _lane("AB", "OR", lambda a, b, c: a | b, "a | b")
    XOR = _lane("AB", "XOR", lambda a, b, c: a ^ b, "a ^ b")
    SHL = _lane("AB", "SHL", lambda a, b, c: _sh(a, b), "a << b, 0 from 32 on")
    SHR = _lane("AB", "SHR", lambda a, b, c: a >> b if b < 32 else 0, "logical a >> b, clamped")
    SAR = _lane(
        "AB", "SAR", lambda a, b, c: (signed(a) >> min(b, 31)) & MASK32,
        "arithmetic a >> b, clamped",
    )  # fmt: skip
    MUL = _lane("AB", "MUL MUL_LO", lambda a, b, c: (a * b) & MASK32, "low word of a * b")
    MULHU = _lane("AB", "MUL MUL_HI", lambda a, b, c: (a * b) >> 32, "high word, unsigned")
    MULHS = _lane(
        "AB", "MUL MUL_SIGNED MUL_HI", lambda a, b, c: (signed(a) * signed(b) >> 32) & MASK32,
        "high word, signed",
    )  # fmt: skip
    EQ = _lane("AB", "INV_B EQ", lambda a, b, c: int(a == b), "a == b, 0 or 1")
    NE = _lane("AB", "INV_B NE", lambda a, b, c: int(a != b), "a != b, 0 or 1")
    LTU = _lane("AB", "INV_B CIN_1 LT", lambda a, b, c: int(a < b), "unsigned a < b")
    GEU = _lane("AB", "INV_B CIN_1 GE", lambda a, b, c: int(a >= b), "unsigned a >= b")
    LTS = _lane(
        "AB", "INV_B CIN_1 SIGNED LT", lambda a, b, c: int(signed(a) < signed(b)), "signed a < b"
    )
    GES = _lane(
        "AB", "INV_B CIN_1 SIGNED GE", lambda a, b, c: int(signed(a) >= signed(b)), "signed a >= b"
    )
    MINU = _lane("AB", "INV_B CIN_1 MIN", lambda a, b, c: min(a, b), "unsigned minimum")
    MAXU = _lane("AB", "INV_B CIN_1 MAX", lambda a, b, c: max(a, b), "unsigned maximum")
    MINS = _lane(
        "AB", "INV_B CIN_1 SIGNED MIN", lambda a, b, c: min(a, b, key=signed), "signed minimum"
    )
    MAXS = _lane(
        "AB", "INV_B CIN_1 SIGNED MAX", lambda a, b, c: max(a, b, key=signed), "signed maximum"
    )
    POPC = _lane("A", "POPC", lambda a, b, c: a.bit_count(), "number of ones")
    CLZ = _lane("A", "CLZ", lambda a, b, c: 32 - a.bit_length(), "leading zeros, 32 for 0")
    BREV = _lane("A", "BREV", lambda a, b, c: int(f"{a:032b}"[::-1], 2), "bits reversed")
    PRMT = _lane("ABC", "PRMT", _prmt, "bytes of b:a picked by the nibbles of c, as PTX prmt")
    TID = OpInfo(
        "", frozenset({"TID"}), Unit.WARP, None, "linear thread index: warp * n_lanes + lane"
    )
    SHFL = OpInfo(
        "AB", frozenset({"SHFL"}), Unit.WARP, None,
        "operand a of lane (b mod n_lanes), active or not",
    )  # fmt: skip
    BALLOT = OpInfo(
        "A", frozenset({"BALLOT"}), Unit.WARP, None, "bit l: lane l is active and bit 0 of its a"
    )
    LD = OpInfo(
        "AB", frozenset({"LD"}), Unit.MEMORY, None,
        "word at byte address a + b; low two bits ignored; 0 beyond the memory",
    )  # fmt: skip
    ST = OpInfo(
        "ABC", frozenset({"ST"}), Unit.MEMORY, None,
        "store c at byte address a + b; dropped beyond the memory; one a block",
    )  # fmt: skip

    @property
    def info(self) -> OpInfo:
        return self.value


@dataclass(frozen=True)
class Register:
    """Register ``index``; 0 reads zero in every lane."""

    index: int

    def __str__(self) -> str:
        return f"r{self.index}"


@dataclass(frozen=True)
class Forward:
    """The result of an earlier stage of the same machine block."""

    stage: int

    def __str__(self) -> str:
        return f"s{self.stage}"


@dataclass(frozen=True)
class Immediate:
    """A 32-bit pattern, the same in every lane."""

    value: int

    def __str__(self) -> str:
        value = signed(self.value)
        return str(value) if -4096 < value < 4096 else f"{self.value:#x}"


Source = Register | Forward | Immediate


@dataclass(frozen=True)
class Guard:
    """Bit 0 of ``source`` (a Register or Forward) per lane; ``negate`` turns it around."""

    source: Register | Forward
    negate: bool = False

    def __str__(self) -> str:
        return f"@{'!' if self.negate else ''}{self.source}"


@dataclass(frozen=True)
class Instruction:
    """One stage. ``dst`` is the register written back, 0 for none."""

    op: Op
    a: Source | None = None
    b: Source | None = None
    c: Source | None = None
    guard: Guard | None = None
    dst: int = 0

    def __str__(self) -> str:
        n = 3 if self.c is not None else 2 if self.b is not None else 1
        sources = ", ".join("-" if s is None else str(s) for s in (self.a, self.b, self.c)[:n])
        guard = f"{self.guard} " if self.guard else ""
        target = f" -> r{self.dst}" if self.dst else ""
        return f"{guard}{self.op.name.lower()} {sources}{target}"


@dataclass(frozen=True)
class Target:
    """Where a lane goes: machine block ``block``; or it ends (``exit``); or it waits first.

    ``barrier``: the lane waits until every living lane of the launch waits, then enters ``block``.
    ``yields``: the lane lets every other lane go on first, then enters ``block`` (the way back of
    a loop that waits for another lane). Not together with ``barrier``.
    ``serial``: the target block runs one lane at a time, lowest lane first (for atomics);
    every target that names the block must say the same.
    """

    block: int = 0
    exit: bool = False
    barrier: bool = False
    serial: bool = False
    yields: bool = False

    def __str__(self) -> str:
        if self.exit:
            return "exit"
        before = "barrier " * self.barrier + "yield " * self.yields
        after = " serial" * self.serial
        return f"{before}B{self.block}{after}"


@dataclass(frozen=True)
class MachineBlock:
    """Up to ``n_stages`` instructions and where each lane goes next.

    A lane goes to ``taken`` where ``branch`` is true, else to ``target``.
    """

    instructions: tuple[Instruction, ...]
    target: Target
    branch: Guard | None = None
    taken: Target | None = None

    def listing(self, index: int) -> str:
        lines = [f"B{index}:"]
        lines += [f"  s{s}: {i}" for s, i in enumerate(self.instructions)]
        if self.branch is not None:
            lines.append(f"  {self.branch} -> {self.taken}")
        lines.append(f"  -> {self.target}")
        return "\n".join(lines)


# --- ROM encoding -------------------------------------------------------------------------------
#
# A block is stored as records of at most 127 bits (one row of one key head's state, less the pin):
# record 0 the terminator and write-back plan, then for each stage its control and its immediates.


def n_records(spec: MachineSpec) -> int:
    return 1 + 2 * spec.n_stages


def _source_fields(spec: MachineSpec, name: str) -> list[tuple[str, int]]:
    return [(f"{name}.reg", spec.register_bits)] + [
        (f"{name}.fwd{s}", 1) for s in range(spec.n_stages)
    ]


def _target_fields(spec: MachineSpec, name: str) -> list[tuple[str, int]]:
    return [(f"{name}.pc", spec.block_bits), (f"{name}.alive", 1), (f"{name}.wait", 1),
            (f"{name}.serial", 1), (f"{name}.yields", 1)]  # fmt: skip


def record_layout(spec: MachineSpec, record: int) -> list[tuple[str, int]]:
    """Fields (name, bits) of a record, in the order of its bits, least significant first."""
    if record == 0:
        fields = _target_fields(spec, "target") + _target_fields(spec, "taken")
        fields += [("branch.if", 1), ("branch.ifnot", 1), *_source_fields(spec, "branch")]
        for s in range(spec.n_stages):
            fields += [(f"dst{s}", spec.register_bits), (f"writes{s}", 1), (f"stores{s}", 1)]
        return fields
    if record % 2 == 1:
        fields = [(line, 1) for line in LINES]
        for name in "abcg":
            fields += _source_fields(spec, name)
        return [*fields, ("guard.none", 1), ("guard.if", 1), ("guard.ifnot", 1)]
    return [("a.imm", WORD_BITS), ("b.imm", WORD_BITS), ("c.imm", WORD_BITS)]


def _source_values(name: str, source: Source | None) -> dict[str, int]:
    match source:
        case Register(index):
            return {f"{name}.reg": index}
        case Forward(stage):
            return {f"{name}.fwd{stage}": 1}
        case Immediate(value):
            return {f"{name}.imm": value & MASK32}
    return {}


def _target_values(name: str, target: Target | None) -> dict[str, int]:
    if target is None or target.exit:
        return {}
    return {f"{name}.pc": target.block, f"{name}.alive": 1, f"{name}.wait": int(target.barrier),
            f"{name}.serial": int(target.serial), f"{name}.yields": int(target.yields)}  # fmt: skip


def _pack(layout: list[tuple[str, int]], values: dict[str, int]) -> int:
    word, shift = 0, 0
    for name, width in layout:
        word |= (values.get(name, 0) & ((1 << width) - 1)) << shift
        shift += width
    return word


def encode_block(spec: MachineSpec, block: MachineBlock) -> list[int]:
    """The block's ``n_records(spec)`` records, as integers of at most 127 bits."""
    values = _target_values("target", block.target) | _target_values("taken", block.taken)
    if block.branch is not None:
        values["branch.ifnot" if block.branch.negate else "branch.if"] = 1
        values |= _source_values("branch", block.branch.source)
    records = [0] * n_records(spec)
    for s, i in enumerate(block.instructions):
        values |= {f"dst{s}": i.dst, f"writes{s}": int(i.dst != 0)}
        values[f"stores{s}"] = int(i.op is Op.ST)
        control = dict.fromkeys(i.op.info.lines, 1)
        if i.guard is None:
            control["guard.none"] = 1
        else:
            control["guard.ifnot" if i.guard.negate else "guard.if"] = 1
            control |= _source_values("g", i.guard.source)
        immediates: dict[str, int] = {}
        for name, source in (("a", i.a), ("b", i.b), ("c", i.c)):
            control |= _source_values(name, source)
            immediates |= _source_values(name, source)
        records[1 + 2 * s] = _pack(record_layout(spec, 1 + 2 * s), control)
        records[2 + 2 * s] = _pack(record_layout(spec, 2 + 2 * s), immediates)
    records[0] = _pack(record_layout(spec, 0), values)
    return records
