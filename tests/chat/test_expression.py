"""The expression grammar: what it reads, and what it refuses and how."""

from __future__ import annotations

import pytest

from qgpu.host.chat.expression import (
    Array,
    Binary,
    Call,
    ExpressionError,
    Integer,
    Unary,
    parse,
)

READS = {
    "[1, 2, 3] @ [4, 5, 6]": "([1, 2, 3] @ [4, 5, 6])",
    "1 + 2 * 3": "(1 + (2 * 3))",
    "(1 + 2) * 3": "((1 + 2) * 3)",
    "10 - 4 - 3": "((10 - 4) - 3)",
    "-2 ** 2": "-((2 ** 2))",
    "2 ** 3 ** 2": "(2 ** (3 ** 2))",
    "2 ** -1": "(2 ** -1)",
    "7 // 2 % 3": "((7 // 2) % 3)",
    "1 << 2 < 4": "((1 << 2) < 4)",
    "1 | 6 ^ 3 & 2": "(1 | (6 ^ (3 & 2)))",
    "~5 & 3": "(~(5) & 3)",
    "sum([1, 2],)": "sum([1, 2])",
    "gcd(12, 18) + max([1])": "(gcd(12, 18) + max([1]))",
    "[[1, 2], [3, -4]]": "[[1, 2], [3, -4]]",
    "0xff + 0b11 + 1_000": "((255 + 3) + 1000)",
    "3 × 4 − 1": "((3 * 4) - 1)",
    "-2147483648": "-2147483648",
    "[]": "[]",
    "+ 5": "5",
}


@pytest.mark.parametrize("text", READS)
def test_reads(text: str) -> None:
    assert str(parse(text)) == READS[text]


def test_tree() -> None:
    assert parse("-[1] + f(~2)") == Binary(
        "+", Unary("-", Array((Integer(1),))), Call("f", (Unary("~", Integer(2)),))
    )


REFUSES = {
    "": "the expression is empty",
    "1 +": "the expression ends too early",
    "((1": "the expression ends too early",
    "[1, 2": "the expression ends too early",
    "1 2": "unexpected '2' at character 3 of the expression",
    "3 $ 4": "unexpected '$' at character 3 of the expression",
    "a[1]": "unexpected '[' at character 2 of the expression",
    "1 < 2 < 3": "unexpected '<' at character 7 of the expression",
    "sum(v=3)": "unexpected '=' at character 6 of the expression",
    "x + 1": "x has no value here: write the numbers themselves",
    "7 / 2": "/ would give a fraction: use // for the quotient and % for the remainder",
    "2147483648": "2147483648 does not fit the machine's 32-bit integers "
    "(-2147483648 to 2147483647)",
    "0x": "unexpected 'x' at character 2 of the expression",
    "0b_": "0b_ is not an integer",
    "__import__('os')": 'unexpected "\'" at character 12 of the expression',
}


@pytest.mark.parametrize("text", REFUSES)
def test_refuses(text: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert str(error.value) == REFUSES[text]


@pytest.mark.parametrize("text", ["1.5", ".5 + 1", "1e3", "2.", "3.0e-2"])
def test_fractions_are_refused_kindly(text: str) -> None:
    with pytest.raises(ExpressionError, match="32-bit integers only; scale the numbers"):
        parse(text)


def test_depth_and_length_are_bounded() -> None:
    assert parse("(" * 5000 + "1" + ")" * 5000) == Integer(1)
    with pytest.raises(ExpressionError, match="nests deeper than 64"):
        parse("~" * 5000 + "1")
    with pytest.raises(ExpressionError, match="nests deeper than 64"):
        parse("[" * 3000 + "]" * 3000)
    with pytest.raises(ExpressionError, match="at most 20000"):
        parse("1+" * 20000 + "1")
