"""Where data live: module variables, shared memory, parameters, local memory and spill slots.

Everything shares the machine's flat memory behind the array arguments. A variable is placed when
the kernel first names it, so data that a kernel does not touch cost no word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qgpu.errors import CompileError, LimitError
from qgpu.kernel import LaunchShape
from qgpu.machine import WORD_BYTES, MachineSpec
from qgpu.ptxir import TYPE_BYTES, Function, Module, Variable

Fail = Callable[[str], CompileError]


@dataclass(frozen=True)
class Place:
    """An address; in local space the offset from the thread's own base."""

    space: str
    address: int
    n_bytes: int

    @property
    def is_local(self) -> bool:
        return self.space == "local"


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Memory:
    """Places variables for one launch and collects their initial words."""

    def __init__(
        self, module: Module, function: Function, spec: MachineSpec, shape: LaunchShape
    ) -> None:
        self.spec, self.shape = spec, shape
        self.top = shape.data_base
        self.bytes: dict[int, int] = {}
        self.places: dict[str, Place] = {}
        self.variables = {v.name: v for v in module.variables}
        self.variables |= {v.name: v for v in function.variables}
        self.parameters = {v.name: v for v in function.params}
        self.values = dict(zip(self.parameters, shape.params, strict=True))
        self.uses_shared = False
        self.dynamic: Place | None = None
        self.trap_address: int | None = None
        self.traps: list[str] = []
        self.flags_address: int | None = None
        self.frames: Place | None = None
        self.ended_address: int | None = None
        self._place_locals(function)

    # --- placing

    def allocate(self, n_bytes: int, align: int = WORD_BYTES) -> int:
        """The address of ``n_bytes`` new bytes."""
        address = _round_up(self.top, max(align, WORD_BYTES))
        self.top = address + n_bytes
        if self.top > self.spec.n_bytes:
            raise LimitError("words of memory", self.n_words, self.spec.n_words)
        return address

    @property
    def n_words(self) -> int:
        return _round_up(self.top, WORD_BYTES) // WORD_BYTES

    def _place_locals(self, function: Function) -> None:
        """Offsets in the thread's frame, for local variables and the parameters of calls."""
        self.frame_bytes = 0
        for variable in function.variables:
            if variable.space in ("local", "param"):
                offset = _round_up(self.frame_bytes, max(variable.align, WORD_BYTES))
                size = TYPE_BYTES[variable.type] * variable.count
                self.places[variable.name] = Place("local", offset, size)
                self.frame_bytes = _round_up(offset + size, WORD_BYTES)

    def place(self, name: str, fail: Fail) -> Place:
        """Where a variable lives; it is placed now if it was not yet."""
        if name not in self.places:
            if name in self.parameters:
                self.places[name] = self._place_parameter(self.parameters[name])
            elif name in self.variables:
                self.places[name] = self._place_variable(self.variables[name], fail)
            else:
                raise fail(f"{name!r} has no address here")
        return self.places[name]

    def parameter_bytes(self, name: str) -> bytes:
        """The value of a kernel parameter as it lies in parameter space."""
        variable = self.parameters[name]
        size = TYPE_BYTES[variable.type] * max(variable.count, 1)
        return (self.values[name] & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def _place_parameter(self, variable: Variable) -> Place:
        data = self.parameter_bytes(variable.name)
        address = self.allocate(len(data), variable.align)
        self._write(address, data)
        return Place("param", address, len(data))

    def _place_variable(self, variable: Variable, fail: Fail) -> Place:
        size = TYPE_BYTES[variable.type] * variable.count
        if variable.space == "shared":
            self.uses_shared = True
            if size == 0:
                return self._place_dynamic(variable)
        elif size == 0:
            raise fail(f"{variable.name!r} is declared elsewhere; its data are not in this file")
        place = Place(variable.space, self.allocate(size, variable.align), size)
        if variable.init is not None:
            self._write(place.address, variable.init)
        self.places[variable.name] = place
        for relocation in variable.relocations:
            target = self.place(relocation.symbol.name, fail)
            value = target.address + relocation.symbol.offset >> relocation.shift
            data = (value & ((1 << 8 * relocation.size) - 1)).to_bytes(relocation.size, "little")
            self._write(place.address + relocation.offset, data)
        return place

    def _place_dynamic(self, variable: Variable) -> Place:
        """Every ``extern __shared__`` array is the same memory."""
        if self.dynamic is None:
            size = self.shape.dynamic_shared_bytes
            self.dynamic = Place("shared", self.allocate(size, max(variable.align, 8)), size)
        return self.dynamic

    def frames_place(self) -> Place | None:
        """The frames of all threads, ``frame_bytes`` each; None if there is no local variable."""
        if self.frame_bytes and self.frames is None:
            size = self.frame_bytes * self.shape.n_threads
            self.frames = Place("frames", self.allocate(size), size)
        return self.frames

    def ended_place(self) -> int:
        """Where each thread has a word to note that it has ended."""
        if self.ended_address is None:
            n_lanes = self.spec.n_lanes
            self.ended_address = self.allocate(
                WORD_BYTES * _round_up(self.shape.n_threads, n_lanes)
            )
        return self.ended_address

    def spill_slot(self) -> int:
        """A word for each thread, the threads side by side so that stores group."""
        return self.allocate(WORD_BYTES * self.shape.n_threads)

    def flags(self, n_threads: int) -> int:
        """A word for each thread to reduce over, the same for every reduction."""
        if self.flags_address is None:
            self.flags_address = self.allocate(WORD_BYTES * n_threads)
        return self.flags_address

    def trap(self, message: str) -> tuple[int, int]:
        """The word that tells of a trap, and the number there that stands for the message."""
        if self.trap_address is None:
            self.trap_address = self.allocate(WORD_BYTES)
        if message not in self.traps:
            self.traps.append(message)
        return self.trap_address, self.traps.index(message) + 1

    @property
    def trap_word_address(self) -> int | None:
        """The word address of that word, where the kernel has a trap."""
        return None if self.trap_address is None else self.trap_address // WORD_BYTES

    # --- initial data

    def _write(self, address: int, data: bytes) -> None:
        self.bytes |= {address + n: byte for n, byte in enumerate(data)}

    @property
    def constants(self) -> dict[int, int]:
        """The initial words that nothing can change: constant and parameter space."""
        fixed: dict[int, int] = {}
        image = self.image
        for place in self.places.values():
            if place.space in ("const", "param"):
                first = place.address // WORD_BYTES
                for word in range(first, first + -(-place.n_bytes // WORD_BYTES)):
                    fixed[word] = image.get(word, 0)
        return fixed

    @property
    def image(self) -> dict[int, int]:
        """Word address -> initial word."""
        words: dict[int, int] = {}
        for address, byte in self.bytes.items():
            word, place = divmod(address, WORD_BYTES)
            words[word] = words.get(word, 0) | byte << (8 * place)
        return words
