"""Calls: every call of a device function becomes a copy of its body.

Registers, labels and stack variables of the copy get a suffix; parameters and results that a
call passes in parameter space become the caller's own variables, those in registers are moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qgpu.errors import CompileError
from qgpu.ptx.absent import explain_call
from qgpu.ptxir import (
    Branchtargets,
    Function,
    Inst,
    Label,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    PtxGuard,
    Reg,
    Sym,
    Variable,
    Vec,
)

MAX_INSTRUCTIONS = 100_000
Statement = Inst | Label | Branchtargets


@dataclass
class _Names:
    """What the callee's names are called in the copy."""

    suffix: str
    registers: set[str]
    renamed: dict[str, str] = field(default_factory=dict)

    def register(self, reg: Reg) -> Reg:
        return Reg(reg.name + self.suffix) if reg.name in self.registers else reg

    def symbol(self, name: str) -> str:
        return self.renamed.get(name, name)

    def operand(self, operand: Operand) -> Operand:
        match operand:
            case Reg():
                return self.register(operand)
            case Sym(name, offset):
                return Sym(self.symbol(name), offset)
            case Mem(base, offset):
                return Mem(None if base is None else self._base(base), offset)
            case Vec(items):
                return Vec(tuple(self.operand(item) for item in items))
            case Pair(first, second):
                return Pair(self.register(first), self.register(second))
            case Not(reg):
                return Not(self.register(reg))
        return operand

    def _base(self, base: Reg | Sym) -> Reg | Sym:
        renamed = self.operand(base)
        assert isinstance(renamed, Reg | Sym)
        return renamed

    def instruction(self, inst: Inst) -> Inst:
        guard = inst.guard
        if guard is not None:
            guard = PtxGuard(self.register(guard.reg), guard.negate)
        return replace(inst, operands=tuple(self.operand(o) for o in inst.operands), guard=guard)


class _Inliner:
    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.out = Function(
            kernel.name, kernel.is_kernel, kernel.params, kernel.returns,
            dict(kernel.registers), list(kernel.variables), [], kernel.line,
        )  # fmt: skip
        self.n_copies = 0

    def _fail(self, reason: str, inst: Inst) -> CompileError:
        file, line = inst.place(self.module.file)
        return CompileError(reason, file=file, line=line, instruction=inst.text or None)

    def body(self, function: Function, names: _Names, end: str | None, stack: list[str]) -> None:
        """Append the function's statements under their new names; ``ret`` leads to ``end``."""
        for statement in function.body:
            match statement:
                case Label(name, line):
                    self.out.body.append(Label(names.symbol(name), line))
                case Branchtargets(name, targets):
                    renamed = tuple(names.symbol(target) for target in targets)
                    self.out.body.append(Branchtargets(names.symbol(name), renamed))
                case Inst():
                    inst = names.instruction(statement)
                    if inst.opcode[0] == "call":
                        self._call(inst, stack)
                    elif inst.opcode[0] == "ret" and end is not None:
                        self._append(replace(inst, opcode=("bra",), operands=(Sym(end),)))
                    else:
                        self._append(inst)

    def _append(self, inst: Inst) -> None:
        if len(self.out.body) > MAX_INSTRUCTIONS:
            raise self._fail(f"more than {MAX_INSTRUCTIONS} instructions after inlining", inst)
        self.out.body.append(inst)

    def _call(self, inst: Inst, stack: list[str]) -> None:
        returns, name, arguments = self._parts(inst)
        callee = self.module.functions.get(name)
        if callee is None or not any(isinstance(s, Inst) for s in callee.body):
            raise self._fail(explain_call(name), inst)
        if name in stack:
            raise self._fail(f"{name!r} calls itself: recursion is not supported", inst)
        if len(returns) != len(callee.returns) or len(arguments) != len(callee.params):
            raise self._fail(f"{name!r} is called with the wrong number of parameters", inst)
        self.n_copies += 1
        suffix = f"@call{self.n_copies}"
        names = _Names(suffix, set(callee.registers))
        self.out.registers |= {reg + suffix: type_ for reg, type_ in callee.registers.items()}
        self._variables(callee, names)
        end = f"end{suffix}"
        plain = replace(inst, guard=None)
        if inst.guard is not None:
            skip = PtxGuard(inst.guard.reg, not inst.guard.negate)
            self._append(replace(inst, opcode=("bra",), operands=(Sym(end),), guard=skip))
        for variable, argument in zip(callee.params, arguments, strict=True):
            self._bind(variable, argument, names, plain, into=True)
        for variable, result in zip(callee.returns, returns, strict=True):
            if variable.space != "reg":
                self._bind(variable, result, names, plain, into=False)
        out = end if not any(v.space == "reg" for v in callee.returns) else f"results{suffix}"
        self.body(callee, names, out, [*stack, name])
        if out != end:
            self.out.body.append(Label(out, inst.line))
            for variable, result in zip(callee.returns, returns, strict=True):
                self._bind(variable, result, names, plain, into=False)
        self.out.body.append(Label(end, inst.line))

    def _parts(self, inst: Inst) -> tuple[list[Operand], str, list[Operand]]:
        operands = list(inst.operands)
        returns: list[Operand] = []
        if operands and isinstance(operands[0], Vec):
            returns = list(operands.pop(0).items)  # type: ignore[union-attr]
        if not operands or not isinstance(operands[0], Sym):
            raise self._fail("a call through a pointer is not supported", inst)
        arguments: list[Operand] = []
        if len(operands) > 1 and isinstance(operands[1], Vec):
            arguments = list(operands[1].items)
        return returns, operands[0].name, arguments

    def _variables(self, callee: Function, names: _Names) -> None:
        for statement in callee.body:
            if isinstance(statement, Label | Branchtargets):
                names.renamed[statement.name] = statement.name + names.suffix
        for variable in callee.variables:
            if variable.space in ("local", "param"):
                names.renamed[variable.name] = variable.name + names.suffix
                self.out.variables.append(replace(variable, name=variable.name + names.suffix))
            elif variable.name not in {v.name for v in self.out.variables}:
                self.out.variables.append(variable)

    def _bind(
        self, variable: Variable, argument: Operand, names: _Names, inst: Inst, into: bool
    ) -> None:
        """Tie a parameter or result to what the call passes for it."""
        if variable.space != "reg":
            if isinstance(argument, Sym):
                names.renamed[variable.name] = argument.name
                return
            raise self._fail("an argument in parameter space must be a variable", inst)
        own = Reg(variable.name + names.suffix)
        source, target = (argument, own) if into else (own, argument)
        self._append(replace(inst, opcode=("mov", variable.type), operands=(target, source)))


def inline(module: Module, kernel: Function) -> Function:
    """The kernel without calls; the module stays as it is."""
    inliner = _Inliner(module, kernel)
    inliner.body(kernel, _Names("", set()), None, [kernel.name])
    return inliner.out
