"""Threads of the PTX interpreter: lanes with their call frames, and the warps they form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qgpu.interp.ptx_code import Body, Instruction
from qgpu.interp.ptx_fair import Rounds
from qgpu.interp.ptx_memory import Fault, LocalMemory
from qgpu.ptxir import Function, Operand

if TYPE_CHECKING:
    from qgpu.interp.ptx import Machine

MAX_DEPTH = 200


@dataclass
class Frame:
    """One call of one function in one lane."""

    function: Function
    pc: int
    registers: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)  # local and parameter variables
    bottom: int = 0  # the stack's top before the call
    results: tuple[Operand, ...] = ()  # where the caller wants the returned values


@dataclass
class Wait:
    """A lane at a CTA barrier; the reduction's predicate and where its result goes."""

    barrier: int
    count: int | None
    instruction: Instruction
    value: int = 0


class Lane:
    """One thread."""

    def __init__(self, machine: Machine, thread: int, alive: bool) -> None:
        self.machine: Machine = machine
        self.thread: int = thread
        self.alive: bool = alive
        self.index: int = thread % machine.spec.n_lanes
        self.frames: list[Frame] = []
        self.outer: tuple[int, ...] = ()
        self.local = LocalMemory()
        self.carry = 0
        self.waiting: Wait | None = None
        self.blocked = False  # waits for the other lanes that a warp-synchronous mask names
        self.rests = False  # lets the others go on
        self.rounds = Rounds()

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def key(self) -> tuple[int, ...]:
        """Where the lane stands: the calls it is in, then its instruction."""
        return (*self.outer, self.frames[-1].pc)

    def jump(self, pc: int) -> None:
        """Go on at ``pc`` of the same function."""
        here = self.frame.pc - 1
        if pc <= here:
            self.rests = self.rounds.jump_back(here)
        self.frame.pc = pc

    def exit(self) -> None:
        self.alive = False
        for lane in self.machine.warps[self.thread // self.machine.spec.n_lanes].lanes:
            lane.blocked = False  # exited lanes are not waited for: look again

    def enter(self, body: Body, results: tuple[Operand, ...] = ()) -> None:
        """A new frame, with its local variables and (for called functions) parameters."""
        if len(self.frames) > MAX_DEPTH:
            raise Fault(f"calls nested more than {MAX_DEPTH} deep")
        function, bottom = body.function, self.local.top
        mine = [v for v in function.variables if v.space in ("local", "param")]
        if not function.is_kernel:
            mine += [v for v in (*function.params, *function.returns) if v.space == "param"]
        if self.frames:
            self.outer = (*self.outer, self.frame.pc - 1)
        frame = Frame(function, body.start, bottom=bottom, results=results)
        frame.addresses = self.local.allocate(mine)
        self.frames.append(frame)

    def leave(self) -> Frame:
        frame = self.frames.pop()
        self.local.top = frame.bottom
        self.outer = self.outer[:-1]
        return frame


class Warp:
    def __init__(self, index: int, lanes: list[Lane]) -> None:
        self.index, self.lanes = index, lanes

    def runnable(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.alive and lane.waiting is None]

    def is_awake(self) -> bool:
        """Whether a lane can run that does not rest, or all wait for lanes that never arrive."""
        lanes = self.runnable()
        free = [lane for lane in lanes if not lane.blocked]
        return any(not lane.rests for lane in free) or bool(lanes and not free)
