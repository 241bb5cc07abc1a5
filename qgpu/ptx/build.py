"""The parser's records -> ``ptxir.Module``: scopes, registers, initial data, source lines.

PTX names live in ``{ }`` scopes; ``ptxir.Function`` is flat. A name that is declared again in
another scope of the same function gets a suffix (``param0@2``), so every name means one thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from qgpu.errors import CompileError
from qgpu.ptxir import (
    TYPE_BYTES,
    Branchtargets,
    Function,
    Imm,
    Inst,
    Label,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    PtxGuard,
    Reg,
    Relocation,
    Sym,
    Variable,
    Vec,
)

MAX_REGISTERS = 1 << 17
MAX_VARIABLE_BYTES = 1 << 24
MAX_SCOPES_DEEP = 64
SPACES = ("reg", "global", "const", "shared", "local", "param")
UNDECLARED_REGISTERS = re.compile(
    r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|smid|nsmid|gridid|is_explicit_cluster"
    r"|(n?clusterid|cluster_n?cta(id|rank))|lanemask_(eq|le|lt|ge|gt)|clock(_hi|64)?|pm\d+(_64)?"
    r"|envreg\d+|globaltimer(_lo|_hi)?|dynamic_smem_size|total_smem_size|aggr_smem_size"
    r"|reserved_smem_\w+|current_graph_exec)(\.[xyz])?"
)
FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?')
# Not a variable: the sink operand, and the size of a warp.
PLAIN_REGISTERS = ("_", "WARP_SZ")


@dataclass(frozen=True)
class Word:
    """One directive of a declaration, with the value of ``.align``."""

    name: str
    line: int
    value: int = 0


@dataclass(frozen=True)
class Address:
    """An address in an initialiser; ``mask`` picks one of its bytes."""

    symbol: Sym
    mask: int | None = None


@dataclass(frozen=True)
class Declaration:
    name: str
    line: int
    dims: list[int]
    init: Any = None
    n_range: int | None = None


@dataclass(frozen=True)
class ParameterNode:
    words: list[Word]
    declarations: list[Declaration]


@dataclass(frozen=True)
class InstructionNode:
    opcode: tuple[str, ...]
    operands: list[Operand]
    guard: tuple[str, bool] | None
    line: int
    text: str


@dataclass(frozen=True)
class LabelNode:
    name: str
    line: int


@dataclass(frozen=True)
class TargetsNode:
    names: tuple[str, ...]


@dataclass(frozen=True)
class ScopeNode:
    statements: list[Any]


@dataclass(frozen=True)
class FunctionNode:
    name: str
    is_kernel: bool
    returns: list[ParameterNode]
    params: list[ParameterNode]
    body: ScopeNode | None
    line: int


@dataclass(frozen=True)
class ModuleNode:
    items: list[Any]


@dataclass
class Scope:
    """What each name declared here is called in the flat function."""

    names: dict[str, str] = field(default_factory=dict)
    parent: Scope | None = None
    depth: int = 0

    def find(self, name: str) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


def _declared_type(words: list[Word], file: str) -> tuple[str, str, int]:
    """(space, element type, vector width) of a declaration's directives."""
    names = [word.name.split("::")[0] for word in words]
    space = next((name for name in names if name in SPACES), None)
    type_ = next((name for name in names if name in TYPE_BYTES), None)
    if space is None or type_ is None:
        written = " ".join("." + name for name in names)
        raise CompileError(
            "a declaration of a kind that this machine does not have",
            file=file, line=words[0].line, instruction=written,
        )  # fmt: skip
    width = next((int(name[1:]) for name in names if name in ("v2", "v4", "v8")), 1)
    return space, type_, width


def _fill(init: Any, dims: list[int], size: int, out: bytearray, at: int,
          relocations: list[Relocation]) -> None:  # fmt: skip
    """Write one initialiser level; inner braces are padded to their row, as in C."""
    if isinstance(init, Imm):
        out[at : at + size] = (init.value & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif isinstance(init, Address):
        shift = 0 if not init.mask else (init.mask & -init.mask).bit_length() - 1
        relocations.append(Relocation(at, size, init.symbol, shift))
    else:
        if len(init) > (dims[0] if dims else 1):
            raise ValueError("more values than places")
        row = size
        for dim in dims[1:]:
            row *= dim
        for index, item in enumerate(init):
            step = row if isinstance(item, list) else size
            _fill(item, dims[1:], size, out, at + index * step, relocations)


def _alignments(words: list[Word]) -> list[int]:
    """What ``.align`` says of the variable itself; after ``.ptr`` it speaks of the pointee."""
    names = [word.name for word in words]
    own = words[: names.index("ptr")] if "ptr" in names else words
    return [word.value for word in own if word.name == "align"]


def build_variable(words: list[Word], declaration: Declaration, file: str) -> Variable:
    space, type_, width = _declared_type(words, file)
    dims, init = list(declaration.dims), declaration.init
    if dims and dims[0] == 0 and isinstance(init, list):
        dims[0] = len(init)
    count = width
    for dim in dims:
        count *= dim
    size = TYPE_BYTES[type_]
    place: dict[str, Any] = {
        "file": file,
        "line": declaration.line,
        "instruction": declaration.name,
    }
    if count * size > MAX_VARIABLE_BYTES:
        raise CompileError(f"{declaration.name} has {count * size} bytes", **place)
    data, relocations = None, list[Relocation]()
    if init is not None:
        data = bytearray(count * size)
        try:
            _fill(init, dims if width == 1 else [*dims, width], size, data, 0, relocations)
        except ValueError:
            raise CompileError(
                "an initialiser with more values than the variable has", **place
            ) from None
    align = max(_alignments(words), default=0) or size * width
    return Variable(
        declaration.name, space, type_, count, bool(dims) or width > 1, align,
        bytes(data) if data is not None else None, declaration.line,
        any(word.name == "ptr" for word in words), tuple(relocations),
    )  # fmt: skip


class _FunctionBuilder:
    """Flattens one function body."""

    def __init__(self, node: FunctionNode, file: str, files: dict[int, str], globals_: set[str]):
        self.file, self.files, self.globals = file, files, globals_
        self.function = Function(node.name, node.is_kernel, line=node.line)
        self.labels: set[str] = set()
        self.taken: set[str] = set(globals_)
        self.source: tuple[str, int] | None = None
        self.scope = Scope()
        self._parameters(node.returns, self.function.returns)
        self._parameters(node.params, self.function.params)
        if node.body is not None:
            self._enter(node.body)

    def _fail(self, reason: str, line: int, instruction: str | None = None) -> CompileError:
        return CompileError(reason, file=self.file, line=line, instruction=instruction)

    def _parameters(self, nodes: list[ParameterNode], out: list[Variable]) -> None:
        for node in nodes:
            for declaration in node.declarations:
                variable = build_variable(node.words, declaration, self.file)
                name = self._declare(variable.name, declaration.line)
                if variable.space == "reg":
                    self.function.registers[name] = variable.type
                out.append(replace(variable, name=name))

    def _declare(self, name: str, line: int) -> str:
        if name in self.scope.names:
            raise self._fail(f"{name!r} is declared twice", line)
        unique, number = name, 2
        while unique in self.taken:
            unique, number = f"{name}@{number}", number + 1
        self.taken.add(unique)
        self.scope.names[name] = unique
        return unique

    def _enter(self, node: ScopeNode) -> None:
        """One { } scope; labels may be used before they stand there, so they are declared first."""
        if self.scope.depth > MAX_SCOPES_DEEP:
            raise self._fail(f"scopes nested more than {MAX_SCOPES_DEEP} deep", 0)
        self.scope = Scope({}, self.scope, self.scope.depth + 1)
        for statement in node.statements:
            if isinstance(statement, LabelNode):
                self.labels.add(self._declare(statement.name, statement.line))
        for statement in node.statements:
            self._statement(statement)
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def _statement(self, statement: Any) -> None:
        match statement:
            case ScopeNode():
                self._enter(statement)
            case ParameterNode():
                self._variable(statement)
            case InstructionNode():
                self.function.body.append(self._instruction(statement))
            case LabelNode():
                self.function.body.append(Label(self.scope.names[statement.name], statement.line))
            case TargetsNode():
                self._targets(statement)
            case str():
                self._location(statement)

    def _variable(self, node: ParameterNode) -> None:
        if node.words[0].name == "reg" or _declared_type(node.words, self.file)[0] == "reg":
            self._registers(node)
            return
        for declaration in node.declarations:
            variable = build_variable(node.words, declaration, self.file)
            name = self._declare(variable.name, declaration.line)
            self.function.variables.append(replace(variable, name=name))

    def _registers(self, node: ParameterNode) -> None:
        _, type_, width = _declared_type(node.words, self.file)
        for d in node.declarations:
            if width > 1:
                raise self._fail("vector registers are not supported", d.line, d.name)
            if len(self.function.registers) + (d.n_range or 1) > MAX_REGISTERS:
                raise self._fail(f"more than {MAX_REGISTERS} registers declared", d.line, d.name)
            names = [d.name] if d.n_range is None else [f"{d.name}{i}" for i in range(d.n_range)]
            for name in names:
                self.function.registers[self._declare(name, d.line)] = type_

    def _targets(self, node: TargetsNode) -> None:
        """``name: .branchtargets`` (or .calltargets): the label just added names the list."""
        body = self.function.body
        if not body or not isinstance(body[-1], Label):
            raise self._fail(".branchtargets needs a label", 0)
        label = body.pop()
        assert isinstance(label, Label)
        targets = tuple(self.scope.find(name) or name for name in node.names)
        body.append(Branchtargets(label.name, targets))

    def _location(self, text: str) -> None:
        numbers = re.match(r"\.loc\s+(\d+)\s+(\d+)", text)
        if numbers:
            file = self.files.get(int(numbers[1]), self.file)
            self.source = (file, int(numbers[2])) if int(numbers[2]) else None

    def _instruction(self, node: InstructionNode) -> Inst:
        operands = tuple(self._operand(operand, node) for operand in node.operands)
        guard = None
        if node.guard is not None:
            guard = PtxGuard(self._register(node.guard[0], node), node.guard[1])
        return Inst(node.opcode, operands, guard, node.line, node.text, self.source)

    def _name(self, name: str, offset: int, node: InstructionNode) -> Reg | Sym:
        """The register or symbol that a written name means here."""
        found = self.scope.find(name)
        if found is not None:
            return Reg(found) if found in self.function.registers else Sym(found, offset)
        if name in PLAIN_REGISTERS or UNDECLARED_REGISTERS.fullmatch(name):
            return Reg(name)
        if name in self.globals:
            return Sym(name, offset)
        raise self._fail(f"{name!r} is not declared", node.line, node.text)

    def _register(self, name: str, node: InstructionNode) -> Reg:
        found = self._name(name, 0, node)
        if not isinstance(found, Reg):
            raise self._fail(f"{name!r} is not a register", node.line, node.text)
        return found

    def _operand(self, operand: Operand, node: InstructionNode) -> Operand:
        match operand:
            case Sym(name, offset):
                return self._name(name, offset, node)
            case Mem(Sym(name, _), offset):
                return Mem(self._name(name, 0, node), offset)
            case Vec(items):
                return Vec(tuple(self._operand(item, node) for item in items))
            case Pair(first, second):
                return Pair(self._register(first.name, node), self._register(second.name, node))
            case Not(reg):
                return Not(self._register(reg.name, node))
        return operand


def _files(items: list[Any]) -> dict[int, str]:
    """The ``.file`` table; nvcc prints it last, LLVM first or inside a function."""
    files: dict[int, str] = {}
    for item in items:
        if isinstance(item, str) and item.startswith(".file"):
            match = re.match(
                r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?', item
            )
            if match:
                files[int(match[1])] = re.sub(r"\\(.)", r"\1", match[3] or match[2])
        elif isinstance(item, FunctionNode) and item.body is not None:
            files |= _files(item.body.statements)
        elif isinstance(item, ScopeNode):
            files |= _files(item.statements)
    return files


def _add_variables(module: Module, node: ParameterNode) -> None:
    extern = any(word.name == "extern" for word in node.words)
    for declaration in node.declarations:
        variable = build_variable(node.words, declaration, module.file)
        known = [v for v in module.variables if v.name == variable.name]
        if known and not extern and known[0].init is not None:
            raise CompileError(
                f"{variable.name!r} is declared twice", file=module.file, line=declaration.line
            )
        if known and extern:
            continue
        module.variables = [v for v in module.variables if v.name != variable.name] + [variable]


def build_module(node: ModuleNode, text: str, file: str) -> Module:
    """Flatten the whole file."""
    module = Module(text=text, file=file)
    files = _files(node.items)
    functions = [item for item in node.items if isinstance(item, FunctionNode)]
    aliases = [item for item in node.items if isinstance(item, tuple) and item[0] == "alias"]
    for item in node.items:
        if isinstance(item, ParameterNode):
            _add_variables(module, item)
        elif isinstance(item, tuple) and item[0] in ("version", "target"):
            setattr(module, item[0], item[1])
        elif isinstance(item, tuple) and item[0] == "address_size":
            module.address_size = int(item[1])
    names = {v.name for v in module.variables} | {f.name for f in functions}
    names |= {alias[1] for alias in aliases}
    for function in functions:
        if function.body is not None or function.name not in module.functions:
            built = _FunctionBuilder(function, file, files, names).function
            module.functions[function.name] = built
    for _, name, target in aliases:
        if target not in module.functions:
            raise CompileError(f".alias of {target!r}, which is not declared", file=file)
        module.functions[name] = module.functions[target]
    return module
