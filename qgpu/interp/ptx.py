"""The PTX interpreter: executes the PTX of a kernel itself, thread by thread.

It is the independent reference: it shares the parser with the lowering and nothing else. Warps
have ``spec.n_lanes`` lanes. The lanes of a warp that stand at the same instruction execute it
together; of several groups the one at the least address goes first, callees before what follows
the call. A warp runs until all its lanes wait or are done, then the lowest-numbered warp that can
run. Who waits in a loop rests meanwhile (``ptx_fair.py``), so that every thread advances.
Atomics go lowest lane first. CUDA blocks run one after another in linear order.
"""

from __future__ import annotations

from typing import Protocol

from qgpu.errors import LaunchError, UsageError
from qgpu.interp.ptx_code import Code, Instruction
from qgpu.interp.ptx_decode import decode_body
from qgpu.interp.ptx_fair import Turn
from qgpu.interp.ptx_memory import (
    CODE_BASE,
    MODULE_BASE,
    WINDOW_BASE,
    Fault,
    Layout,
    Region,
    align_up,
    place_all,
    to_generic,
    variable_bytes,
    window_of,
)
from qgpu.interp.ptx_threads import Lane, Warp
from qgpu.kernel import LaunchShape
from qgpu.machine import REFERENCE, WORD_BYTES, MachineSpec
from qgpu.ptxir import Function, Inst, Module

MAX_INSTRUCTIONS = 2_000_000
ARRAY_ALIGNMENT = 8  # bytes; what the host promises for an array argument


class Observer(Protocol):
    """What a sanitizer sees of a launch. Every call comes before the machine acts."""

    def block(self, machine: Machine) -> None:
        """A CUDA block begins; its warps and lanes stand ready."""

    def step(self, inst: Inst, group: list[Lane], active: list[Lane]) -> None:
        """``group`` stands at ``inst``; its guard lets ``active`` execute."""

    def access(self, lane: Lane, space: str, address: int, size: int, value: bytes | None) -> None:
        """A write of ``value`` or a read (None) of memory, its space resolved. An atomic shows as
        a read, then a write."""

    def barrier(self, lanes: list[Lane]) -> None:
        """A CTA barrier opens for the lanes that wait at it."""

    def fault(self, error: Fault) -> None:
        """What the last step did ends the launch."""


class Machine:
    """One launch: code, memory, and the threads of the CUDA block that is running."""

    shape: LaunchShape
    spec: MachineSpec
    block_index: tuple[int, int, int]
    shared_bytes: int

    def __init__(
        self, module: Module, kernel: Function, shape: LaunchShape, memory: bytearray,
        spec: MachineSpec, max_instructions: int, observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self.module, self.kernel, self.shape, self.spec = module, kernel, shape, spec
        self.left = self.budget = max_instructions
        self.observer = observer
        self.block_index = (0, 0, 0)
        self.warps: list[Warp] = []
        self.arrived: dict[int, int] = {}
        self.turn = Turn()
        self.code = Code(module)
        self._place_variables()
        self._pass_parameters()
        self.regions = {
            "arrays": Region(memory, 0, WORD_BYTES, ARRAY_ALIGNMENT),
            "module": Region(self.layouts["global"].data, MODULE_BASE),
            "const": Region(self.layouts["const"].data),
            "param": Region(self.layouts["param"].data),
        }
        for body in self.code.at.values():
            decode_body(self, self.code, body)

    # memory

    def _place_variables(self) -> None:
        inner = [v for f in self.module.functions.values() for v in f.variables]
        every = [*self.module.variables, *inner]
        self.layouts = {
            "global": Layout(MODULE_BASE), "const": Layout(), "shared": Layout(), "param": Layout()
        }  # fmt: skip
        shared = self.layouts["shared"]
        for space in ("global", "const", "shared"):
            place_all(self.layouts[space], [v for v in every if v.space == space and v.count])
        place_all(self.layouts["param"], self.kernel.params)
        end = len(shared.data)
        start = align_up(shared.end, 16)
        for variable in every:
            if variable.space == "shared" and not variable.count:
                shared.addresses[variable.name] = start
        n_dynamic = self.shape.dynamic_shared_bytes
        self.shared_bytes = start - shared.first + n_dynamic if n_dynamic else end
        for variable in every:
            if variable.relocations and variable.space in ("global", "const"):
                self.layouts[variable.space].relocate(variable, self._generic_address)

    def _generic_address(self, name: str) -> int:
        """The address that an initialiser means by a name."""
        if name in self.code.bodies:
            return self.code.bodies[name].start + CODE_BASE
        found = self.symbol_address(name)
        if found is None:
            raise LaunchError(f"an initialiser names {name!r}, which has no address")
        return to_generic(found[1], found[0])

    def symbol_address(self, name: str) -> tuple[str, int] | None:
        """(space, address in that space) of a variable that every thread shares."""
        for space, layout in self.layouts.items():
            if name in layout.addresses:
                return space, layout.addresses[name]
        return None

    def _pass_parameters(self) -> None:
        given, wanted, layout = self.shape.params, self.kernel.params, self.layouts["param"]
        if len(given) != len(wanted):
            raise UsageError(
                f"{self.kernel.name} takes {len(wanted)} parameters, {len(given)} were given"
            )
        for value, variable in zip(given, wanted, strict=True):
            size = variable_bytes(variable)
            start = layout.addresses[variable.name] - layout.first
            raw = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            layout.data[start : start + size] = raw

    def resolve(self, lane: Lane, space: str, address: int) -> tuple[str, int]:
        """The state space that an address really lies in, and the address there."""
        if space == "generic":
            space = window_of(address)
            address -= WINDOW_BASE.get(space, 0)
        elif space == "param" and not lane.frame.function.is_kernel:
            space = "local"
        return space, address

    def locate(self, lane: Lane, space: str, address: int, size: int) -> tuple[bytearray, int]:
        """The bytes that an address of ``size`` bytes names."""
        space, address = self.resolve(lane, space, address)
        if space == "local":
            region = lane.local.region
        elif space == "global":
            region = self.regions["module" if address >= MODULE_BASE else "arrays"]
        else:
            region = self.regions[space]
        return region.data, region.span(address, size)

    # running

    def threads(self) -> list[Lane]:
        """The threads of the CUDA block, those that have ended included."""
        return [lane for w in self.warps for lane in w.lanes if lane.thread < self.shape.n_threads]

    def run(self) -> None:
        columns, rows, slices = self.shape.grid
        for z in range(slices):
            for y in range(rows):
                for x in range(columns):
                    self.block_index = (x, y, z)
                    self._run_block()

    def _run_block(self) -> None:
        n_threads, n_lanes = self.shape.n_threads, self.spec.n_lanes
        self.regions["shared"] = Region(bytearray(self.shared_bytes))
        self.arrived, self.turn = {}, Turn()
        self.warps = [
            Warp(w, [Lane(self, t, t < n_threads) for t in range(w * n_lanes, (w + 1) * n_lanes)])
            for w in range(-(-n_threads // n_lanes))
        ]
        for lane in (lane for warp in self.warps for lane in warp.lanes):
            lane.enter(self.code.bodies[self.kernel.name])
        if self.observer is not None:
            self.observer.block(self)
        while True:
            ready = next((w for w in self.warps if w.is_awake()), None)
            if ready is not None:
                self._run_warp(ready)
            elif not self._wake() and not self._release_barrier():
                return

    def _wake(self) -> bool:
        """End every rest; False when no lane rests."""
        resting = [lane for warp in self.warps for lane in warp.runnable() if lane.rests]
        for lane in resting:
            lane.rests = False
        return bool(resting)

    def _run_warp(self, warp: Warp) -> None:
        """Until every lane of the warp waits at a barrier, rests or is done."""
        instructions = self.code.instructions
        while lanes := warp.runnable():
            free = [lane for lane in lanes if not lane.blocked]
            if not free:
                raise self.code.fault(
                    instructions[lanes[0].frame.pc].inst,
                    "lanes that the mask names never arrive at this instruction",
                )
            awake = [lane.key for lane in free if not lane.rests]
            if not awake:
                return
            key = min(awake)
            group = [lane for lane in lanes if lane.key == key]
            instruction = instructions[key[-1]]
            if self.left <= 0:
                raise self.code.fault(
                    instruction.inst, f"more than {self.budget} instructions were executed"
                )
            self.left -= 1
            self._step(warp, group, instruction)
            if self.turn.is_over():
                for lane in group:
                    lane.rests = True

    def _step(self, warp: Warp, group: list[Lane], instruction: Instruction) -> None:
        guard = instruction.guard
        active = group if guard is None else [lane for lane in group if guard(lane)]
        for lane in group:
            if lane not in active:
                lane.frame.pc += 1
        if self.observer is not None:
            self.observer.step(instruction.inst, group, active)
        try:
            if instruction.together is not None:
                if active:
                    instruction.together(warp, active)
            else:
                assert instruction.alone is not None
                for lane in active:
                    lane.frame.pc += 1
                    instruction.alone(lane)
        except Fault as error:
            if self.observer is not None:
                self.observer.fault(error)
            raise self.code.fault(instruction.inst, str(error)) from None

    # barriers

    def _release_barrier(self) -> bool:
        """Open one barrier; False when no lane is left."""
        alive = [lane for warp in self.warps for lane in warp.lanes if lane.alive]
        if not alive:
            return False
        by_barrier: dict[int, list[Lane]] = {}
        for lane in alive:
            assert lane.waiting is not None
            by_barrier.setdefault(lane.waiting.barrier, []).append(lane)
        for barrier, lanes in sorted(by_barrier.items()):
            if self._is_complete(barrier, lanes, len(alive)):
                self.arrived.pop(barrier, None)
                self._open(lanes)
                return True
        wait = alive[0].waiting
        assert wait is not None
        raise self.code.fault(
            wait.instruction.inst, "threads wait at a barrier that never completes"
        )

    def _is_complete(self, barrier: int, lanes: list[Lane], n_alive: int) -> bool:
        counts = [lane.waiting.count for lane in lanes if lane.waiting is not None]
        count = next((c for c in counts if c is not None), None)
        arrived = self.arrived.get(barrier, 0)
        if count is None or count >= self.shape.n_threads:
            return len(lanes) + arrived >= n_alive
        return len(lanes) + arrived >= count

    def _open(self, lanes: list[Lane]) -> None:
        waits = [(lane, lane.waiting) for lane in lanes if lane.waiting is not None]
        values = [wait.value for _, wait in waits]
        if self.observer is not None:
            self.observer.barrier(lanes)
        for lane, wait in waits:
            lane.waiting = None
            if wait.instruction.reduce is not None:
                wait.instruction.reduce(lane, values)


def run_ptx(
    module: Module,
    kernel_name: str,
    shape: LaunchShape,
    memory: bytes | bytearray,
    *,
    spec: MachineSpec = REFERENCE,
    max_instructions: int = MAX_INSTRUCTIONS,
) -> bytearray:
    """Execute one launch over the byte memory that holds its arrays; returns that memory after it.

    ``shape.params`` are the parameters' bit patterns: for a pointer its byte address in ``memory``.
    A fault (trap, bad address, unsupported instruction, spent budget) is a ``qgpu.Error`` that
    names the instruction.
    """
    kernel = module.functions.get(kernel_name)
    if kernel is None or not kernel.is_kernel:
        raise UsageError(f"there is no kernel {kernel_name!r}")
    out = bytearray(memory)
    Machine(module, kernel, shape, out, spec, max_instructions).run()
    return out
