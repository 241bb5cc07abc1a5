"""The sanitizer: a launch in the PTX interpreter under watch, with every wrong access reported.

What it finds: accesses outside the arrays or misaligned, reads of shared or local memory and of
registers that were never written, races in shared and global memory (``races.py``), and barriers
that threads of one CUDA block reach at different places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from qgpu.errors import LaunchError, UsageError
from qgpu.interp.ptx import MAX_INSTRUCTIONS, Machine
from qgpu.interp.ptx_memory import MODULE_BASE, Fault, Misaligned, OutOfBounds
from qgpu.interp.ptx_threads import Lane
from qgpu.interp.races import Races, Touch
from qgpu.kernel import LaunchShape
from qgpu.machine import REFERENCE, MachineSpec
from qgpu.ptxir import (
    TYPE_BYTES,
    Inst,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    Variable,
    Vec,
)

OUT_OF_BOUNDS = "out of bounds"
MISALIGNED = "misaligned"
UNINITIALISED = "uninitialised"
RACE = "race"
BARRIER = "barrier divergence"
FAULT = "fault"
GAP = 256  # bytes between arrays, and what their starts are multiples of

# Opcodes whose first operand is not a destination.
NO_RESULT = {
    "st", "red", "bra", "brx", "bar", "barrier", "membar", "fence", "ret", "exit", "trap",
    "prefetch", "prefetchu", "nanosleep", "pmevent", "brkpt", "discard",
}  # fmt: skip
# Moving a value that was never written is no use of it: the copy is then unwritten too.
COPIES = frozenset({"mov", "selp"})


@dataclass(frozen=True)
class Finding:
    """One kind of fault at one instruction; ``count`` threads or times, the first of them told."""

    kind: str
    message: str
    kernel: str
    cuda_block: tuple[int, int, int]
    thread: tuple[int, int, int]
    instruction: str
    line: int
    file: str
    source: tuple[str, int] | None = None
    count: int = 1

    def __str__(self) -> str:
        place = f"{self.source[0]}:{self.source[1]}" if self.source else f"{self.file}:{self.line}"
        if self.kind == FAULT:
            return self.message
        times = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return (
            f"{place}: {self.kind}: {self.message}, thread {_triple(self.thread)} of block "
            f"{_triple(self.cuda_block)} of {self.kernel}{times} [{self.instruction}]"
        )


def _triple(index: tuple[int, int, int]) -> str:
    return "(" + ",".join(map(str, index)) + ")"


def operands_of(inst: Inst) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """(what the instruction writes, what it reads), its guard aside."""
    root, operands = inst.opcode[0], inst.operands
    if root == "call":
        n_results = int(isinstance(operands[0], Vec))
    elif root in ("bar", "barrier"):
        n_results = int("red" in inst.opcode)
    else:
        n_results = int(root not in NO_RESULT)
    return operands[:n_results], operands[n_results:]


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Reg(name):
            yield name
        case Not(Reg(name)) | Mem(Reg(name)):
            yield name
        case Pair(Reg(first), Reg(second)):
            yield from (first, second)
        case Vec(items):
            for item in items:
                yield from _registers(item)


@dataclass(frozen=True)
class Argument:
    """The array of one kernel argument: its bytes from ``start`` to before ``end``."""

    number: int
    start: int
    end: int


class Sanitizer:
    """An observer of the PTX interpreter that collects findings."""

    def __init__(self, kernel: str, file: str, arguments: Sequence[Argument]) -> None:
        self.kernel, self.file, self.arguments = kernel, file, list(arguments)
        self.first: dict[tuple[str, int, str], Finding] = {}
        self.counts: Counter[tuple[str, int, str]] = Counter()
        self.machine: Machine | None = None
        self.inst = Inst((), ())
        self.lane: Lane | None = None
        self.has_fault = False
        self.first_thread = 0  # of the CUDA block that runs, in the launch
        self.races = Races(self._name, _line)

    @property
    def findings(self) -> list[Finding]:
        return [
            Finding(**{**vars(finding), "count": self.counts[key]})
            for key, finding in self.first.items()
        ]

    def report(self, kind: str, message: str, lane: Lane | None, inst: Inst | None = None) -> None:
        inst = inst or self.inst
        key = (kind, inst.line, inst.text)
        self.counts[key] += 1
        if key in self.first:
            return
        machine = self.machine
        thread = self._index(lane.thread if lane else 0)
        self.first[key] = Finding(
            kind, message, self.kernel, machine.block_index if machine else (0, 0, 0), thread,
            inst.text, inst.line, self.file, inst.source,
        )  # fmt: skip

    def _index(self, thread: int) -> tuple[int, int, int]:
        columns, rows = self.machine.shape.block[:2] if self.machine else (1, 1)
        return thread % columns, thread // columns % rows, thread // (columns * rows)

    def _number(self, lane: Lane) -> int:
        """The thread in the launch."""
        return self.first_thread + lane.thread

    def _name(self, number: int) -> str:
        """A thread as a message names it; its CUDA block only where that is another one."""
        assert self.machine is not None
        shape = self.machine.shape
        block, thread = divmod(number, shape.n_threads)
        name = f"thread {_triple(self._index(thread))}"
        if number - thread == self.first_thread:
            return name
        columns, rows, _ = shape.grid
        index = (block % columns, block // columns % rows, block // (columns * rows))
        return f"{name} of block {_triple(index)}"

    # what the interpreter shows

    def block(self, machine: Machine) -> None:
        x, y, z = machine.block_index
        columns, rows, _ = machine.shape.grid
        self.machine = machine
        self.first_thread = ((z * rows + y) * columns + x) * machine.shape.n_threads
        self.races.begin_block(
            range(self.first_thread, self.first_thread + machine.shape.n_threads)
        )
        self.local: set[tuple[int, int]] = set()
        # (thread, depth of calls, register) of copies of what was never written
        self.unwritten: set[tuple[int, int, str]] = set()

    def step(self, inst: Inst, group: list[Lane], active: list[Lane]) -> None:
        self.inst = inst
        if inst.guard is not None:
            for lane in group:
                self._check_register(lane, inst.guard.reg.name)
        self._follow_registers(inst, active)
        if inst.opcode[:3] == ("bar", "warp", "sync") and active:
            self.races.join([self._number(lane) for lane in active])

    def access(self, lane: Lane, space: str, address: int, size: int, value: bytes | None) -> None:
        self.lane = lane
        assert self.machine is not None
        try:
            self.machine.locate(lane, space, address, size)
        except Fault:
            return  # the interpreter comes to the same end and calls ``fault``
        writes = value is not None
        if space == "global" and address < MODULE_BASE:
            self._check_bounds(lane, address, size, writes)
        if space in ("shared", "global"):
            self._check_races(lane, space, address, size, value)
        elif space == "local" and not _is_parameter(self.inst):
            self._check_local(lane, address, size, writes)

    def barrier(self, lanes: list[Lane]) -> None:
        waits = {
            (_line(lane.waiting.instruction.inst), lane.waiting.instruction.inst.line): lane
            for lane in lanes
            if lane.waiting
        }
        if len(waits) > 1:
            lane = waits[min(waits)]
            assert lane.waiting is not None
            lines = ", ".join(f"line {line}" for line, _ in sorted(waits))
            message = f"threads of one block wait at different barriers: {lines}"
            self.report(BARRIER, message, lane, lane.waiting.instruction.inst)
        assert self.machine is not None
        ended = [lane for lane in self.machine.threads() if not lane.alive]
        self.races.join([self._number(lane) for lane in lanes], [*map(self._number, ended)])

    def fault(self, error: Fault) -> None:
        kinds = ((OutOfBounds, OUT_OF_BOUNDS), (Misaligned, MISALIGNED))
        kind = next((name for type_, name in kinds if isinstance(error, type_)), FAULT)
        self.report(kind, str(error), self.lane)
        self.has_fault = True

    # registers

    def _is_missing(self, lane: Lane, name: str) -> bool:
        frame = lane.frame
        if name not in frame.function.registers:
            return False
        copied = (lane.thread, len(lane.frames), name) in self.unwritten
        return copied or name not in frame.registers

    def _check_register(self, lane: Lane, name: str) -> None:
        if self._is_missing(lane, name):
            self.report(UNINITIALISED, f"register {name} is read before it is written", lane)

    def _follow_registers(self, inst: Inst, active: list[Lane]) -> None:
        written, read = operands_of(inst)
        names = [name for operand in read for name in _registers(operand)]
        targets = [name for operand in written for name in _registers(operand)]
        copies = inst.opcode[0] in COPIES
        for lane in active:
            depth = len(lane.frames)
            if inst.opcode[0] == "call":
                self.unwritten = {
                    key for key in self.unwritten if key[:2] != (lane.thread, depth + 1)
                }
            missing = [n for n in self._chosen(lane, inst, names) if self._is_missing(lane, n)]
            for name in () if copies else missing:
                self._check_register(lane, name)
            keys = {(lane.thread, depth, target) for target in targets}
            if copies and missing:
                self.unwritten |= keys
            else:
                self.unwritten -= keys

    def _chosen(self, lane: Lane, inst: Inst, names: list[str]) -> list[str]:
        """Of selp only the operand that its predicate takes is read."""
        if inst.opcode[0] != "selp":
            return names
        _, first, second, predicate = inst.operands
        (name,) = _registers(predicate)
        taken = lane.frame.registers.get(name, 0) ^ isinstance(predicate, Not)
        return [*_registers(first if taken else second), name]

    # memory

    def _check_bounds(self, lane: Lane, address: int, size: int, writes: bool) -> None:
        if any(a.start <= address and address + size <= a.end for a in self.arguments):
            return
        message = f"{'write' if writes else 'read'} of {size} bytes outside every array"
        if self.arguments:
            near = min(self.arguments, key=lambda a: min(abs(address - a.start),
                                                         abs(address - a.end)))  # fmt: skip
            if address < near.start:
                message += f", {near.start - address} before the start of argument {near.number}"
            else:
                message += f", {address - near.end:+d} from the end of argument {near.number}"
        self.report(OUT_OF_BOUNDS, message, lane)

    def _check_local(self, lane: Lane, address: int, size: int, writes: bool) -> None:
        touched = {(lane.thread, at) for at in range(address, address + size)}
        if writes:
            self.local |= touched
        elif not touched & self.local:
            self.report(UNINITIALISED, "local memory is read before it is written", lane)

    def _check_races(
        self, lane: Lane, space: str, address: int, size: int, value: bytes | None
    ) -> None:
        touch = Touch(self._number(lane), space, address, size, value, self.inst)
        if space == "shared" and value is None and self.races.is_unwritten(touch):
            self.report(UNINITIALISED, "shared memory is read before it is written", lane)
        message = self.races.access(touch)
        if message:
            self.report(RACE, message, lane)


def _is_parameter(inst: Inst) -> bool:
    """Parameters of called functions lie in local memory, but the call fills them."""
    return any(part.split("::")[0] == "param" for part in inst.opcode)


def _line(inst: Inst) -> int:
    """The line of the CUDA source, or of the PTX where it names none."""
    return inst.source[1] if inst.source else inst.line


def spread(
    params: Sequence[Variable], shape: LaunchShape, memory: bytes | bytearray,
    ranges: Sequence[tuple[int, int]], pointer_bytes: int,
) -> tuple[LaunchShape, bytearray, list[Argument]]:  # fmt: skip
    """The same launch with its arrays far apart, so that running over one does not hit the next.

    Arrays lie in the order of their parameters, which hold their addresses.
    """
    names_pointers = any(param.is_pointer for param in params)
    values, arguments, moved = list(shape.params), [], bytearray(GAP)
    places = iter(enumerate(zip(params, shape.params, strict=True)))
    for start, end in ranges:
        for index, (param, value) in places:
            points = param.is_pointer or not names_pointers
            if points and value == start and TYPE_BYTES[param.type] == pointer_bytes:
                values[index] = len(moved)
                arguments.append(Argument(index + 1, len(moved), len(moved) + end - start))
                moved += bytes(memory[start:end]) + bytes(GAP + (start - end) % GAP)
                break
    return replace(shape, params=tuple(values)), moved, arguments


def sanitize(
    module: Module,
    kernel_name: str,
    shape: LaunchShape,
    memory: bytes | bytearray,
    array_ranges: Sequence[tuple[int, int]],
    *,
    spec: MachineSpec = REFERENCE,
    max_instructions: int = MAX_INSTRUCTIONS,
) -> list[Finding]:
    """Run one launch under watch. ``array_ranges`` are the (first byte, end) of its arrays.

    A fault that ends the launch (trap, an access outside the machine, a barrier that never opens)
    is the last finding.
    """
    kernel = module.functions.get(kernel_name)
    if kernel is None or not kernel.is_kernel:
        raise UsageError(f"there is no kernel {kernel_name!r}")
    shape, moved, arguments = spread(
        kernel.params, shape, memory, array_ranges, module.address_size // 8
    )
    watch = Sanitizer(kernel_name, module.file, arguments)
    machine = Machine(module, kernel, shape, moved, spec, max_instructions, watch)
    try:
        machine.run()
    except LaunchError as error:
        if not watch.has_fault:
            watch.report(FAULT, str(error), watch.lane)
    return watch.findings
