"""The address spaces of the PTX interpreter: windows that cannot collide.

A generic address is window base + offset. Array arguments lie at the addresses that the launch
gave them; module variables, constants, shared, local and parameter memory have windows of their
own, and an address inside one of those state spaces is the offset alone, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qgpu.ptxir import TYPE_BYTES, Relocation, Variable

MODULE_BASE = 0x1000_0000
WINDOW_BASE = {
    "const": 0x2000_0000,
    "shared": 0x3000_0000,
    "local": 0x4000_0000,
    "param": 0x5000_0000,
}
CODE_BASE = 0x6000_0000
WINDOW_BYTES = 0x1000_0000
FIRST_OFFSET = 16
# Arrays begin at multiples of 8, so a vector of 16 bytes may begin there too.
MAX_ALIGNMENT = 8
MAX_LOCAL_BYTES = 1 << 20


class Fault(Exception):
    """What goes wrong while an instruction executes; the machine adds which one it was."""


def variable_bytes(variable: Variable) -> int:
    return variable.count * TYPE_BYTES[variable.type]


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def window_of(address: int) -> str:
    """The state space that a generic address lies in; everything else is global."""
    for space, base in WINDOW_BASE.items():
        if base <= address < base + WINDOW_BYTES:
            return space
    return "global"


def to_generic(address: int, space: str) -> int:
    """cvta: the generic address of an address in a state space."""
    return address + WINDOW_BASE.get(space, 0)


def from_generic(address: int, space: str) -> int:
    """cvta.to"""
    return address - WINDOW_BASE.get(space, 0)


class OutOfBounds(Fault):
    """An access that no variable holds."""


class Misaligned(Fault):
    """An access at an address that is not a multiple of its size."""


@dataclass
class Region:
    """Bytes that start at ``first`` of their space.

    ``alignment`` is the most that an access is held to: the host aligns arrays to 8 bytes only, so
    a vector of 16 there is right at any multiple of 8.
    """

    data: bytearray
    first: int = FIRST_OFFSET
    reserved: int = 0  # bytes at the start that no variable has, so that null is not valid
    alignment: int = 16

    def span(self, address: int, size: int) -> int:
        start = address - self.first
        if start < self.reserved or start + size > len(self.data):
            raise OutOfBounds(f"memory access outside every variable, at {address:#x}")
        alignment = min(size, self.alignment)
        if address % alignment:
            raise Misaligned(f"memory access at {address:#x}, not aligned to {alignment} bytes")
        return start


class Layout:
    """Places variables one after another in one space."""

    def __init__(self, first: int = FIRST_OFFSET) -> None:
        self.first = self.end = first
        self.addresses: dict[str, int] = {}
        self.data = bytearray()

    def place(self, variable: Variable, alignment: int = 1) -> int:
        address = align_up(self.end, max(variable.align, alignment, TYPE_BYTES[variable.type]))
        size = variable_bytes(variable)
        self.end = address + size
        self.data.extend(bytes(self.end - self.first - len(self.data)))
        if variable.init is not None:
            start = address - self.first
            self.data[start : start + size] = variable.init
        self.addresses[variable.name] = address
        return address

    def relocate(self, variable: Variable, address_of: Callable[[str], int]) -> None:
        """Write the addresses that the variable's initialiser names."""
        for item in variable.relocations:
            self._write(self.addresses[variable.name] - self.first, item, address_of)

    def _write(self, start: int, item: Relocation, address_of: Callable[[str], int]) -> None:
        value = address_of(item.symbol.name) + item.symbol.offset >> item.shift
        value &= (1 << 8 * item.size) - 1
        at = start + item.offset
        self.data[at : at + item.size] = value.to_bytes(item.size, "little")


def place_all(layout: Layout, variables: Iterable[Variable]) -> None:
    for variable in variables:
        layout.place(variable)


class LocalMemory:
    """One thread's stack: frames of local variables and of parameters of called functions."""

    def __init__(self) -> None:
        self.region = Region(bytearray())
        self.top = FIRST_OFFSET

    def allocate(self, variables: Iterable[Variable]) -> dict[str, int]:
        addresses = {}
        for variable in variables:
            address = align_up(self.top, max(variable.align, 8))
            self.top = address + variable_bytes(variable)
            addresses[variable.name] = address
        if self.top > MAX_LOCAL_BYTES:
            raise Fault(f"a thread needs more than {MAX_LOCAL_BYTES} bytes of local memory")
        missing = self.top - FIRST_OFFSET - len(self.region.data)
        self.region.data.extend(bytes(max(0, missing)))
        return addresses
