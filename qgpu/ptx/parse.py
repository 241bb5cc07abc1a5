"""PTX text -> ``ptxir.Module``: the grammar's tree, made here into plain records.

``grammar.lark`` says what is legal; this file turns each rule into a record and each syntax error
into one line. Names, scopes and initial data are resolved in ``build.py``. Nothing here knows what
an instruction means.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, v_args
from lark.exceptions import VisitError

from qgpu.errors import CompileError
from qgpu.ptx.build import (
    Address,
    Declaration,
    FunctionNode,
    InstructionNode,
    LabelNode,
    ModuleNode,
    ParameterNode,
    ScopeNode,
    TargetsNode,
    Word,
    build_module,
)
from qgpu.ptxir import Imm, Mem, Module, Not, Operand, Pair, Reg, Sym, Vec

MAX_TEXT_BYTES = 4 << 20


def parse_integer(text: str) -> int:
    """A PTX integer literal: decimal, hexadecimal, octal, binary, with an optional U."""
    digits = text.rstrip("U")
    if digits[:2] in ("0x", "0X", "0b", "0B"):
        return int(digits, 0)
    octal = len(digits) > 1 and digits[0] == "0"
    return int(digits, 8 if octal else 10)


def _float_bits(text: str) -> int:
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    return int.from_bytes(struct.pack("<d", float(text)), "little")


@v_args(inline=True)
class _Records(Transformer[Token, Any]):
    """One method a grammar rule. Names stay ``Sym`` until the builder knows the registers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    # numbers and operands

    def integer(self, *parts: Token) -> Imm:
        value = parse_integer(parts[-1])
        for sign in reversed(parts[:-1]):
            value = -value if sign == "-" else ~value
        return Imm(value)

    def real(self, *parts: Token) -> Imm:
        bits = _float_bits(parts[-1])
        width = 32 if parts[-1][1] in "fF" else 64
        return Imm(bits ^ (1 << (width - 1) if len(parts) == 2 else 0), is_float=True)

    def decimal(self, *parts: Token) -> Imm:
        bits = _float_bits(parts[-1])
        return Imm(bits ^ (1 << 63 if len(parts) == 2 else 0), is_float=True)

    def immediate(self, value: Imm) -> Operand:
        return value

    def name(self, name: Token) -> Operand:
        return Sym(str(name))

    def sum(self, name: Token, *rest: Any) -> Operand:
        return Sym(str(name), _offset(rest))

    def pair(self, first: Token, second: Token) -> Operand:
        return Pair(Reg(str(first)), Reg(str(second)))

    def inverted(self, _sign: Token, name: Token) -> Operand:
        return Not(Reg(str(name)))

    def vector(self, *items: Operand) -> Operand:
        return Vec(items)

    def arguments(self, *items: Operand | None) -> Operand:
        return Vec(tuple(item for item in items if item is not None))

    def mem_absolute(self, value: Imm) -> Mem:
        return Mem(None, value.value)

    def mem_name(self, name: Token) -> Mem:
        return Mem(Sym(str(name)))

    def mem_sum(self, name: Token, *rest: Any) -> Mem:
        return Mem(Sym(str(name)), _offset(rest))

    def memory(self, base: Mem, *extra: Operand) -> Operand:
        return Vec((base, *extra)) if extra else base

    # instructions

    def guard(self, at: Token, *parts: Token) -> tuple[str, bool, int | None]:
        return str(parts[-1]), len(parts) == 2, at.start_pos

    def instruction(self, *parts: Any) -> InstructionNode:
        guard = parts[0] if isinstance(parts[0], tuple) else None
        parts = parts[1:] if guard else parts
        opcode, end = parts[0], parts[-1]
        suffixes = [p for p in parts[1:-1] if isinstance(p, Token)]
        operands = [p for p in parts[1:-1] if p is not None and not isinstance(p, Token)]
        start = guard[2] if guard else opcode.start_pos
        text = " ".join(self.text[start : end.start_pos].split())
        name = str(opcode) + "".join(suffixes)
        return InstructionNode(
            tuple(name.split(".")), operands, guard and guard[:2], _line(opcode), text
        )

    def label(self, name: Token) -> LabelNode:
        return LabelNode(str(name), _line(name))

    def targets(self, *names: Token) -> TargetsNode:
        return TargetsNode(tuple(str(name) for name in names))

    def prototype(self, *_parts: Any) -> None:
        return None

    def scope(self, *statements: Any) -> ScopeNode:
        return ScopeNode([s for s in statements if s is not None and not _is_punctuation(s)])

    # declarations

    def word(self, name: Token) -> Word:
        return Word(str(name)[1:], _line(name))

    def align(self, value: Token) -> Word:
        return Word("align", _line(value), parse_integer(value))

    def attribute(self, *parts: Token) -> Word:
        return Word("attribute", _line(parts[0]))

    def words(self, *words: Word) -> list[Word]:
        return list(words)

    def dim(self, size: Token | None = None) -> int:
        return 0 if size is None else parse_integer(size)

    def declarator(self, name: Token, *rest: Any) -> Declaration:
        dims = [part for part in rest if isinstance(part, int)]
        inits = [part for part in rest if not isinstance(part, int)]
        return Declaration(str(name), _line(name), dims, inits[0] if inits else None)

    def range(self, name: Token, count: Token) -> Declaration:
        return Declaration(str(name), _line(name), [], None, parse_integer(count))

    def init_list(self, *items: Any) -> list[Any]:
        return list(items)

    def init_number(self, value: Imm) -> Imm:
        return value

    def plain(self, name: Token) -> str:
        return str(name)

    def in_space(self, _space: Token, name: Token) -> str:
        return str(name)

    def address(self, name: str, *rest: Token) -> Address:
        return Address(Sym(name, _offset(rest)))

    def init_mask(self, mask: Token, address: Address) -> Address:
        return Address(address.symbol, parse_integer(mask))

    def variable(self, words: list[Word], *declarations: Declaration) -> ParameterNode:
        return ParameterNode(words, list(declarations))

    def parameter(self, words: list[Word], declaration: Declaration) -> ParameterNode:
        return ParameterNode(words, [declaration])

    def params(self, *params: ParameterNode | None) -> list[ParameterNode]:
        return [p for p in params if p is not None]

    def returns(self, *params: ParameterNode | None) -> tuple[ParameterNode, ...]:
        return tuple(p for p in params if p is not None)

    def performance(self, *_parts: Any) -> None:
        return None

    def pragma(self, *_parts: Any) -> None:
        return None

    def body(self, scope: ScopeNode | Token | None = None) -> ScopeNode | None:
        return scope if isinstance(scope, ScopeNode) else None

    def function(self, *parts: Any) -> FunctionNode:
        kind = next(p for p in parts if isinstance(p, Token) and p.type == "FUNC_KIND")
        name = next(p for p in parts if isinstance(p, Token) and p.type == "NAME")
        after = parts[parts.index(name) + 1 :]
        returns = next((p for p in parts if isinstance(p, tuple)), ())
        params = next((p for p in after if isinstance(p, list)), [])
        body = next((p for p in after if isinstance(p, ScopeNode)), None)
        return FunctionNode(str(name), kind == ".entry", list(returns), params, body, _line(name))

    # the module

    def version(self, number: Token) -> tuple[str, str]:
        return ("version", str(number))

    def target(self, *names: Token) -> tuple[str, str]:
        return ("target", str(names[0]))

    def address_size(self, bits: Token) -> tuple[str, str]:
        return ("address_size", str(bits))

    def alias(self, name: Token, target: Token) -> tuple[str, str, str]:
        return ("alias", str(name), str(target))

    def start(self, *items: Any) -> ModuleNode:
        return ModuleNode([i for i in items if i is not None and not _is_punctuation(i)])


def _line(token: Token) -> int:
    return token.line or 0


def _is_punctuation(item: Any) -> bool:
    return isinstance(item, Token) and item.type not in ("LOC", "FILE")


def _offset(rest: tuple[Any, ...]) -> int:
    """The constant of ``+ n`` or ``- n``."""
    if not rest:
        return 0
    value = rest[-1].value if isinstance(rest[-1], Imm) else parse_integer(rest[-1])
    negative = isinstance(rest[0], Token) and rest[0].type == "MINUS"
    return -value if negative else value


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = resources.files("qgpu.ptx").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=False)


def _syntax_error(error: UnexpectedInput, text: str, file: str) -> CompileError:
    line = error.line if error.line and error.line > 0 else text.count("\n") + 1
    source = text.split("\n")[line - 1].strip() if line <= text.count("\n") + 1 else ""
    if isinstance(error, UnexpectedCharacters):
        word = re.match(r"[\w.$%]+|.", text[error.pos_in_stream or 0 :])
        found = word[0] if word else ""
    else:
        found = str(getattr(error, "token", ""))
    reason = f"PTX syntax error at {found!r}" if found else "PTX ends in the middle of a statement"
    return CompileError(reason, file=file, line=line, instruction=source or None)


def parse_ptx(text: str, file: str = "<ptx>") -> Module:
    """Parse PTX; a fault becomes a ``CompileError`` with file and line."""
    if len(text) > MAX_TEXT_BYTES:
        raise CompileError(f"the PTX is longer than {MAX_TEXT_BYTES} bytes", file=file)
    text = text.replace("\r\n", "\n").rstrip("\0")  # cuModuleLoadData wants a closing NUL
    try:
        tree = _parser().parse(text)
        module = _Records(text).transform(tree)
    except UnexpectedInput as error:
        raise _syntax_error(error, text, file) from None
    except VisitError as error:
        raise CompileError(f"malformed literal: {error.orig_exc}", file=file) from None
    except RecursionError:
        raise CompileError("braces nested too deep", file=file) from None
    return build_module(module, text, file)
