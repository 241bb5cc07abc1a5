"""The code of a module as the PTX interpreter holds it: one list, an address is an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qgpu.errors import CompileError, LaunchError
from qgpu.interp.ptx_types import FLOATS
from qgpu.ptxir import Branchtargets, Function, Inst, Label, Module

if TYPE_CHECKING:
    from qgpu.interp.ptx_threads import Lane, Warp

Read = Callable[["Lane"], int]
Write = Callable[["Lane", int], None]


@dataclass
class Instruction:
    """One decoded instruction.

    ``alone`` executes it in one lane, the program counter already moved on. ``together`` executes
    it in a group of lanes and moves their counters itself. ``reduce`` finishes a bar.red when its
    barrier opens.
    """

    inst: Inst
    guard: Read | None = None
    alone: Callable[[Lane], None] | None = None
    together: Callable[[Warp, list[Lane]], None] | None = None
    reduce: Callable[[Lane, list[int]], None] | None = None


@dataclass
class Body:
    """Where one function lies, and what its labels name."""

    function: Function
    start: int
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Code:
    """All functions of a module, one after another."""

    def __init__(self, module: Module) -> None:
        self.file = module.file
        self.instructions: list[Instruction] = []
        self.bodies: dict[str, Body] = {}
        self.at: dict[int, Body] = {}
        for name, function in module.functions.items():
            known = [b for b in self.bodies.values() if b.function is function]
            self.bodies[name] = known[0] if known else self._append(function)

    def _append(self, function: Function) -> Body:
        body = Body(function, len(self.instructions))
        for item in function.body:
            match item:
                case Label(name):
                    body.labels[name] = len(self.instructions)
                case Branchtargets(name, targets):
                    body.tables[name] = targets
                case Inst():
                    self.instructions.append(Instruction(item))
        # Control that falls off the end returns; the slot also keeps addresses apart.
        last = Inst(("ret",), (), line=function.line, text=f"end of {function.name}")
        self.instructions.append(Instruction(last))
        self.at[body.start] = body
        return body

    def length(self, body: Body) -> int:
        return sum(isinstance(item, Inst) for item in body.function.body) + 1

    def fault(self, inst: Inst, reason: str) -> LaunchError:
        file, line = inst.place(self.file)
        return LaunchError(f"{file}:{line}: {reason} [{inst.text}]")

    def unsupported(self, inst: Inst) -> CompileError:
        file, line = inst.place(self.file)
        floats = any(part in FLOATS for part in inst.opcode)
        reason = "floating point is not supported" if floats else "unsupported instruction"
        return CompileError(reason, file=file, line=line, instruction=inst.text)
