"""Operands of PTX instructions for the interpreter: how to read, write and address them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qgpu.interp.ptx_code import Body, Code, Read, Write
from qgpu.interp.ptx_memory import CODE_BASE, to_generic
from qgpu.interp.ptx_types import BITS, Unsupported, as_type, pattern
from qgpu.ptxir import Imm, Mem, Not, Operand, Reg, Sym, Vec

if TYPE_CHECKING:
    from qgpu.interp.ptx import Machine
    from qgpu.interp.ptx_threads import Lane

Place = Callable[["Lane"], "tuple[str, int]"]
AXES = {".x": 0, ".y": 1, ".z": 2}


def _thread_index(lane: Lane) -> tuple[int, int, int]:
    columns, rows, _ = lane.machine.shape.block
    return (
        lane.thread % columns,
        lane.thread // columns % rows,
        lane.thread // (columns * rows),
    )


DIM3_REGISTERS: dict[str, Callable[[Lane], tuple[int, int, int]]] = {
    "%tid": _thread_index,
    "%ntid": lambda lane: lane.machine.shape.block,
    "%ctaid": lambda lane: lane.machine.block_index,
    "%nctaid": lambda lane: lane.machine.shape.grid,
    "%clusterid": lambda lane: lane.machine.block_index,
    "%nclusterid": lambda lane: lane.machine.shape.grid,
    "%cluster_ctaid": lambda lane: (0, 0, 0),
    "%cluster_nctaid": lambda lane: (1, 1, 1),
}
PLAIN_REGISTERS: dict[str, Read] = {
    "WARP_SZ": lambda lane: lane.machine.spec.n_lanes,
    "%laneid": lambda lane: lane.index,
    "%warpid": lambda lane: lane.thread // lane.machine.spec.n_lanes,
    "%nwarpid": lambda lane: lane.machine.spec.n_warps,
    "%smid": lambda lane: 0,
    "%nsmid": lambda lane: 1,
    "%gridid": lambda lane: 0,
    "%cluster_ctarank": lambda lane: 0,
    "%cluster_nctarank": lambda lane: 1,
    "%is_explicit_cluster": lambda lane: 0,
    "%lanemask_eq": lambda lane: 1 << lane.index,
    "%lanemask_lt": lambda lane: (1 << lane.index) - 1,
    "%lanemask_le": lambda lane: (2 << lane.index) - 1,
    "%lanemask_gt": lambda lane: lane.machine.spec.all_lanes & -2 << lane.index,
    "%lanemask_ge": lambda lane: lane.machine.spec.all_lanes & -1 << lane.index,
    "%dynamic_smem_size": lambda lane: lane.machine.shape.dynamic_shared_bytes,
    "%total_smem_size": lambda lane: lane.machine.shared_bytes,
}


def _generic(space: str, address: int) -> tuple[str, int]:
    return "generic", to_generic(address, space)


def special_register(name: str) -> Read | None:
    """The reader of a special register, or None. Clocks and counters have none here."""
    if name in PLAIN_REGISTERS:
        return PLAIN_REGISTERS[name]
    whole, axis = DIM3_REGISTERS.get(name[:-2]), AXES.get(name[-2:])
    if whole is None or axis is None:
        return None
    return lambda lane: whole(lane)[axis]


class Operands:
    """Readers and writers for the operands of one function's instructions."""

    def __init__(self, machine: Machine, code: Code, body: Body) -> None:
        self.machine, self.code, self.body = machine, code, body
        self.function = body.function
        self.widths = {name: BITS[type_] for name, type_ in self.function.registers.items()}
        stack = [v for v in self.function.variables if v.space in ("local", "param")]
        if not self.function.is_kernel:
            stack += [*self.function.params, *self.function.returns]
        self.on_stack = {v.name for v in stack}

    def read(self, operand: Operand, type_: str) -> Read:
        """The operand's value as ``type_``: signed for s types, else its pattern."""
        match operand:
            case Imm(value):
                constant = as_type(value, type_)
                return lambda lane: constant
            case Reg(name) if name in self.widths:
                return self._read_register(name, type_)
            case Reg(name):
                special = special_register(name)
                if special is None:
                    raise Unsupported
                return lambda lane: as_type(special(lane), type_)
            case Not(reg):
                inner = self.read(reg, "pred")
                return lambda lane: 1 - inner(lane)
            case Sym():
                place = self.place_of_symbol(operand)
                return lambda lane: as_type(place(lane)[1], type_)
        raise Unsupported

    def _read_register(self, name: str, type_: str) -> Read:
        mask = (1 << BITS[type_]) - 1
        if type_[0] != "s":
            return lambda lane: lane.frames[-1].registers.get(name, 0) & mask
        top = (mask + 1) >> 1
        return lambda lane: ((lane.frames[-1].registers.get(name, 0) & mask) ^ top) - top

    def write(self, operand: Operand, type_: str) -> Write:
        """Wraps to ``type_``, then extends by its sign to the register's own width."""
        if not isinstance(operand, Reg):
            raise Unsupported
        if operand.name == "_":
            return lambda lane, value: None
        name, width = operand.name, self.widths.get(operand.name)
        if width is None:
            raise Unsupported

        def write(lane: Lane, value: int) -> None:
            lane.frames[-1].registers[name] = pattern(as_type(value, type_), width)

        return write

    def parts(self, operand: Operand, type_: str, count: int) -> list[Operand]:
        """The items of a vector operand, or the operand itself."""
        items: list[Operand] = list(operand.items) if isinstance(operand, Vec) else [operand]
        if len(items) != count:
            raise Unsupported
        return items

    # addresses

    def place_of_symbol(self, symbol: Sym) -> Place:
        """(space, address in it) of a variable; functions lie in the generic space."""
        name, offset = symbol.name, symbol.offset
        if name in self.on_stack:
            return lambda lane: ("local", lane.frame.addresses[name] + offset)
        if name in self.code.bodies:
            entry = self.code.bodies[name].start + CODE_BASE
            return lambda lane: ("generic", entry)
        found = self.machine.symbol_address(name)
        if found is None:
            raise Unsupported
        space, address = found[0], found[1] + offset
        return lambda lane: (space, address)

    def place(self, operand: Operand, space: str) -> Place:
        """(space, address) of a memory operand in ``space`` (or "generic")."""
        if not isinstance(operand, Mem):
            raise Unsupported
        base, offset = operand.base, operand.offset
        if isinstance(base, Sym):
            symbol = self.place_of_symbol(Sym(base.name, base.offset + offset))
            if space == "param" or (space == "generic" and base.name in self.on_stack):
                return symbol
            if space == "generic":
                return lambda lane: _generic(*symbol(lane))
            return lambda lane: (space, symbol(lane)[1])
        if base is None:
            return lambda lane: (space, offset)
        bits = self.widths.get(base.name, 64)
        register, mask = self.read(base, f"u{bits}"), (1 << bits) - 1
        return lambda lane: (space, register(lane) + offset & mask)

    def load(self, lane: Lane, space: str, address: int, size: int) -> int:
        space, address = self._resolve(lane, space, address, size, None)
        data, start = self.machine.locate(lane, space, address, size)
        value = int.from_bytes(data[start : start + size], "little")
        if space in ("global", "shared"):
            lane.rounds.note((space, address, size, value, False))
        return value

    def store(self, lane: Lane, space: str, address: int, size: int, value: int) -> None:
        value = pattern(value, 8 * size)
        raw = value.to_bytes(size, "little")
        space, address = self._resolve(lane, space, address, size, raw)
        data, start = self.machine.locate(lane, space, address, size)
        data[start : start + size] = raw
        if space in ("global", "shared"):
            lane.rounds.note((space, address, size, value, True))

    def _resolve(
        self, lane: Lane, space: str, address: int, size: int, value: bytes | None
    ) -> tuple[str, int]:
        """Where an access goes; the observer sees it before anything happens."""
        space, address = self.machine.resolve(lane, space, address)
        if self.machine.observer is not None:
            self.machine.observer.access(lane, space, address, size, value)
        return space, address
