"""PTX as data: what the parser makes, the lowering reads and the PTX interpreter executes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reg:
    """A virtual register or a special register (``%r1``, ``%tid.x``), as written."""

    name: str


@dataclass(frozen=True)
class Imm:
    """An integer literal (may be negative); floats keep their bit pattern and ``is_float``."""

    value: int
    is_float: bool = False


@dataclass(frozen=True)
class Sym:
    """A label, variable, parameter or function by name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Mem:
    """``[base + offset]``; base a register, a symbol, or None for an absolute address."""

    base: Reg | Sym | None
    offset: int = 0


@dataclass(frozen=True)
class Vec:
    """``{a, b, ...}``; also the argument lists of call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``p|q``: two destinations (setp, shfl)."""

    first: Reg
    second: Reg


@dataclass(frozen=True)
class Not:
    """``!p`` as a source operand."""

    reg: Reg


Operand = Reg | Imm | Sym | Mem | Vec | Pair | Not


@dataclass(frozen=True)
class PtxGuard:
    """``@p`` or ``@!p``."""

    reg: Reg
    negate: bool = False


@dataclass(frozen=True)
class Inst:
    """One instruction. ``opcode`` is split at its dots: ``("ld", "global", "u32")``.

    ``line`` is the 1-based line in the PTX, ``text`` the instruction as written; ``source`` the
    CUDA (file, line) by the last ``.loc``, where there is one.
    """

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: PtxGuard | None = None
    line: int = 0
    text: str = ""
    source: tuple[str, int] | None = None

    def place(self, file: str) -> tuple[str, int]:
        """File and line to show: the source's where a .loc names them, else those in the PTX."""
        return self.source or (file, self.line)


@dataclass(frozen=True)
class Label:
    name: str
    line: int = 0


@dataclass(frozen=True)
class Branchtargets:
    """``name: .branchtargets a, b, c;`` for brx.idx."""

    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Relocation:
    """The address of ``symbol``, shifted right by ``shift``, in ``size`` bytes at ``offset``."""

    offset: int
    size: int
    symbol: Sym
    shift: int = 0


@dataclass(frozen=True)
class Variable:
    """A variable in a state space: reg-less data. ``type`` as PTX writes it (``u32``, ``b8``).

    ``count`` is the number of elements (1 for a scalar, 0 for an unsized extern array).
    ``init`` holds the initial bytes, or None; ``relocations`` are the addresses among them.
    """

    name: str
    space: str  # global, const, shared, local, param
    type: str
    count: int = 1
    is_array: bool = False
    align: int = 0
    init: bytes | None = None
    line: int = 0
    is_pointer: bool = False  # .ptr attribute on a parameter
    relocations: tuple[Relocation, ...] = ()


@dataclass
class Function:
    """``.entry`` (is_kernel) or ``.func``. ``registers``: each declared register's type."""

    name: str
    is_kernel: bool
    params: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Inst | Label | Branchtargets] = field(default_factory=list)
    line: int = 0


TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
    "b128": 16,
}  # fmt: skip


@dataclass
class Module:
    """One PTX file."""

    version: str = ""
    target: str = ""
    address_size: int = 64
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    text: str = ""
    file: str = ""

    @property
    def kernels(self) -> list[Function]:
        return [f for f in self.functions.values() if f.is_kernel]
