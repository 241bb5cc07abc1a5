"""Expressions: text to a tree, by a grammar and never by ``eval``.

The tree holds integers and operations only; ``qgpu.host.chat.calculate`` turns each operation into
launches. What the text may not hold (fractions, names, endless nesting) is refused here in words
that the model can act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedInput, VisitError

from qgpu.errors import Error

MAX_LENGTH = 20_000
MAX_DEPTH = 64
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


class ExpressionError(Error):
    """The expression cannot be computed; the text says why, for the model and the person."""


@dataclass(frozen=True)
class Integer:
    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Array:
    items: tuple[Node, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.items))}]"


@dataclass(frozen=True)
class Unary:
    op: str
    operand: Node

    def __str__(self) -> str:
        return f"{self.op}({self.operand})"


@dataclass(frozen=True)
class Binary:
    op: str
    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Node, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


Node = Integer | Array | Unary | Binary | Call


def children(node: Node) -> tuple[Node, ...]:
    """The operands of a node, left to right."""
    match node:
        case Array(items):
            return items
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
    return ()


class _Build(Transformer[Token, Node]):
    """Runs while the parser reduces, so that deep input never recurses."""

    def integer(self, parts: list[Token]) -> Node:
        digits = str(parts[0])
        try:
            return Integer(int(digits, 0 if digits[:2].lower() in ("0x", "0b") else 10))
        except ValueError:
            raise ExpressionError(f"{digits} is not an integer") from None

    def fraction(self, parts: list[Token]) -> Node:
        raise ExpressionError(
            f"{parts[0]} is not an integer: the machine has 32-bit integers only; "
            "scale the numbers (cents instead of dollars) and try again"
        )

    def name(self, parts: list[Token]) -> Node:
        raise ExpressionError(f"{parts[0]} has no value here: write the numbers themselves")

    def unary(self, parts: list[Any]) -> Node:
        op, operand = str(parts[0]), parts[1]
        if op == "+":
            return operand
        # A literal and its sign are one number, so that -2147483648 can be written.
        if op == "-" and isinstance(operand, Integer) and operand.value >= 0:
            return Integer(-operand.value)
        return Unary(op, operand)

    def binary(self, parts: list[Any]) -> Node:
        left, op, right = parts[0], str(parts[1]), parts[2]
        if op == "/":
            raise ExpressionError(
                "/ would give a fraction: use // for the quotient and % for the remainder"
            )
        return Binary(op, left, right)

    def array(self, parts: list[Any]) -> Node:
        return Array(tuple(parts[0] or ()))

    def call(self, parts: list[Any]) -> Node:
        return Call(str(parts[0]), tuple(parts[1] or ()))

    def arguments(self, parts: list[Any]) -> list[Node]:
        return [part for part in parts if part is not None]


@cache
def _parser() -> Lark:
    grammar = Path(__file__).with_name("expression.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_Build(), maybe_placeholders=True)


def parse(text: str) -> Node:
    """The tree of ``text``; ExpressionError says what is wrong and where."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters, at most {MAX_LENGTH}")
    text = text.translate(_LOOKALIKES).strip()
    if not text:
        raise ExpressionError("the expression is empty")
    try:
        node: Node = _parser().parse(text)  # type: ignore[assignment]
    except VisitError as error:
        if isinstance(error.orig_exc, ExpressionError):
            raise error.orig_exc from None
        raise
    except UnexpectedInput as error:
        raise ExpressionError(_describe(text, error)) from None
    except LarkError as error:
        raise ExpressionError(f"not an expression: {error}") from None
    _check(node)
    return node


# Characters that models write for an operator, and the operator.
_LOOKALIKES = str.maketrans({"−": "-", "×": "*", "·": "*", "≤": "<=", "≥": ">=", "≠": "!="})


def _describe(text: str, error: UnexpectedInput) -> str:
    at, token = error.pos_in_stream, getattr(error, "token", None)
    if at is None or at >= len(text) or (token is not None and token.type == "$END"):
        return "the expression ends too early"
    found = text[at] if isinstance(error, UnexpectedCharacters) else str(token)
    return f"unexpected {found!r} at character {at + 1} of the expression"


def _check(node: Node) -> None:
    """Depth and literal range, without recursion."""
    for part, depth in _walk(node):
        if depth > MAX_DEPTH:
            raise ExpressionError(f"the expression nests deeper than {MAX_DEPTH}")
        if isinstance(part, Integer) and not INT_MIN <= part.value <= INT_MAX:
            raise ExpressionError(
                f"{part.value} does not fit the machine's 32-bit integers ({INT_MIN} to {INT_MAX})"
            )


def _walk(node: Node) -> Iterator[tuple[Node, int]]:
    stack = [(node, 1)]
    while stack:
        part, depth = stack.pop()
        yield part, depth
        stack += [(child, depth + 1) for child in children(part)]
