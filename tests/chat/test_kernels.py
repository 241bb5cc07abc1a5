"""Every stock kernel against exact integers, on random and edge values."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from qgpu import REFERENCE, Error, Interpreter
from qgpu.host.chat.calculate import WRAPPED, Calculator
from qgpu.host.chat.device import Device
from qgpu.host.chat.stock import FUNCTIONS, OPERATORS, SPECIAL
from tests.chat import reference
from tests.chat.reference import INT_MAX, INT_MIN, Expected, expected


@pytest.fixture
def calculator() -> Calculator:
    return Calculator(Device(Interpreter(REFERENCE)))


def holds(calculator: Calculator, expression: str, want: Expected) -> None:
    answer = calculator.calculate(expression)
    assert answer.plain == want.value, expression
    assert (WRAPPED in answer.notes) == want.wraps, expression


def test_the_tables_are_whole() -> None:
    """Every operation of the chat has a case here."""
    assert {*reference.BINARY} == {*OPERATORS}
    assert {*reference.UNARY, *reference.PAIRED} == {*FUNCTIONS}
    others = {"histogram", "dot", "matmul", "range"}
    assert {*reference.REDUCTIONS, *others} == {*SPECIAL}


# --- element by element ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", reference.BINARY)
def test_operators(calculator: Calculator, op: str) -> None:
    exact = reference.BINARY[op]
    for part in range(4):
        chosen = reference.pairs(op, part, 6)
        left, right = [a for a, _ in chosen], [b for _, b in chosen]
        want = expected([exact(a, b) for a, b in chosen])
        holds(calculator, f"{left} {op} {right}", want)


@pytest.mark.parametrize("op", reference.BINARY)
def test_each_wrap_alone(calculator: Calculator, op: str) -> None:
    """One pair at a time, so that no neighbour's wrap hides a missing one."""
    for a, b in reference.pairs(op, 9, 5):
        holds(calculator, f"({a}) {op} ({b})", expected(reference.BINARY[op](a, b)))


@pytest.mark.parametrize("op", ["+", "-", "//", "**", "<", ">>"])
def test_broadcasting(calculator: Calculator, op: str) -> None:
    exact, v = reference.BINARY[op], [1, -7, 12, 40, 3]
    holds(calculator, f"{v} {op} 2", expected([exact(x, 2) for x in v]))
    positive = [1, 7, 12, 3, 2]
    holds(calculator, f"50 {op} {positive}", expected([exact(50, x) for x in positive]))
    matrix = [[1, 2, 3], [4, 5, 6]]
    holds(calculator, f"{matrix} {op} 3", expected([[exact(x, 3) for x in r] for r in matrix]))


KNOWN = {
    "2147483647 + 1": Expected(INT_MIN, True),
    "-2147483648 - 1": Expected(INT_MAX, True),
    "-(-2147483648)": Expected(INT_MIN, True),
    "-2147483648 // -1": Expected(INT_MIN, True),
    "-2147483648 % -1": Expected(0, False),
    "-7 // 2": Expected(-4, False),
    "-7 % 2": Expected(1, False),
    "7 % -2": Expected(-1, False),
    "-2147483648 * -1": Expected(INT_MIN, True),
    "46341 * 46341": Expected(-2147479015, True),
    "(-2) ** 31": Expected(INT_MIN, False),
    "2 ** 31": Expected(INT_MIN, True),
    "0 ** 0": Expected(1, False),
    "(-1) ** 2147483647": Expected(-1, False),
    "3 ** 1000": expected(3**1000),
    "1 << 31": Expected(INT_MIN, True),
    "-1 << 31": Expected(INT_MIN, False),
    "-1 >> 100": Expected(-1, False),
    "~0": Expected(-1, False),
    "-[1, -2]": Expected([-1, 2], False),
    "abs(-2147483648)": Expected(INT_MIN, True),
    "popcount(-1)": Expected(32, False),
    "gcd(-2147483648, 0)": Expected(INT_MIN, True),
    "gcd(0, 0)": Expected(0, False),
    "lcm(65536, 65535)": expected(65536 * 65535),
    "lcm(-4, 6)": Expected(12, False),
    "factorial(12)": Expected(479001600, False),
    "factorial(13)": Expected(1932053504, True),
    "fibonacci(46)": Expected(1836311903, False),
    "fibonacci(47)": Expected(-1323752223, True),
}


@pytest.mark.parametrize("expression", KNOWN)
def test_known_values(calculator: Calculator, expression: str) -> None:
    holds(calculator, expression, KNOWN[expression])


@pytest.mark.parametrize("name", reference.UNARY)
def test_functions(calculator: Calculator, name: str) -> None:
    exact, inputs = reference.UNARY[name]
    for start in range(0, len(inputs), 30):
        part = inputs[start : start + 30]
        holds(calculator, f"{name}({part})", expected([exact(x) for x in part]))
    for x in inputs[:12]:
        holds(calculator, f"{name}({x})", expected(exact(x)))


def test_large_primes(calculator: Calculator) -> None:
    inputs = reference.LARGE_PRIMES
    for start in range(0, len(inputs), 8):
        part = inputs[start : start + 8]
        answer = calculator.calculate(f"is_prime({[65537, *part]})")
        assert answer.plain == [1, *map(reference.is_prime, part)]
        assert calculator.device.records[-1].kernel == "is_prime_large"


@pytest.mark.parametrize("name", reference.PAIRED)
def test_paired_functions(calculator: Calculator, name: str) -> None:
    exact = reference.PAIRED[name]
    for a, b in reference.pairs(name, 1, 8):
        holds(calculator, f"{name}({a}, {b})", expected(exact(a, b)))
    v = [12, 18, 7, 100]
    holds(calculator, f"{name}({v}, 30)", expected([exact(x, 30) for x in v]))


# --- reductions and order -------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.REDUCTIONS)
@pytest.mark.parametrize("vector", reference.VECTORS)
def test_reductions(calculator: Calculator, name: str, vector: str) -> None:
    v = reference.VECTORS[vector]
    holds(calculator, f"{name}({v})", expected(reference.REDUCTIONS[name](v)))


@pytest.mark.parametrize("name", reference.REDUCTIONS)
def test_reductions_of_random_vectors(calculator: Calculator, name: str) -> None:
    rng = random.Random(name)
    for size in (4, 13, 33):
        v = [rng.randint(-(10 ** rng.randint(1, 9)), 10**9) for _ in range(size)]
        holds(calculator, f"{name}({v})", expected(reference.REDUCTIONS[name](v)))


def test_mean_has_a_remainder(calculator: Calculator) -> None:
    answer = calculator.calculate("mean([-7, 2])")
    assert (answer.plain, answer.notes) == (-3, ["the mean is -3 and 1/2: remainder 1"])
    assert calculator.calculate("mean([4, 6])").notes == []


def test_count_and_histogram(calculator: Calculator) -> None:
    assert calculator.calculate("count([3, 1, 3, 2, 3], 3)").plain == 3
    assert calculator.calculate("count([3, 1, 3] > 2)").plain == 2
    assert calculator.calculate("histogram([0, 2, 2, 5, 1], 6)").plain == [1, 1, 2, 0, 0, 1]
    assert calculator.calculate("histogram([0, 2, 2])").plain == [1, 0, 2]
    outside = calculator.calculate("histogram([0, -1, 9, 2147483647], 3)")
    assert outside.plain == [1, 0, 0]
    assert outside.notes == ["3 of the values lie outside 0 to 2: not counted"]


def test_range(calculator: Calculator) -> None:
    for bounds in ((5,), (2, 9), (10, 0, -3), (-4, 5, 4)):
        text = ", ".join(map(str, bounds))
        assert calculator.calculate(f"range({text})").plain == list(range(*bounds))
    assert calculator.calculate("sum(range(1, 101))").plain == 5050
    assert calculator.calculate("sum(is_prime(range(2, 20)))").plain == 8


def test_of_nothing(calculator: Calculator) -> None:
    for expression, value in {
        "sum([])": 0, "prod([])": 1, "sort([])": [], "[] + 1": [], "cumsum([])": [],
        "reverse([])": [], "range(0)": [], "count([])": 0,
    }.items():  # fmt: skip
        assert calculator.calculate(expression).plain == value


# --- products -------------------------------------------------------------------------------------


def test_dot(calculator: Calculator) -> None:
    holds(calculator, "[1, 2, 3] @ [4, 5, 6]", Expected(32, False))
    rng = random.Random(1)
    for bits in (4, 16, 31):
        a, b = ([rng.randint(-(1 << bits), (1 << bits) - 1) for _ in range(9)] for _ in "ab")
        holds(calculator, f"dot({a}, {b})", expected(reference.dot(a, b)))
    big = [INT_MIN] * 4
    holds(calculator, f"{big} @ {big}", Expected(0, True))
    holds(calculator, f"[{INT_MAX}, 1] @ [1, 1]", Expected(INT_MIN, True))
    holds(calculator, f"[{INT_MAX}, 1, -1] @ [1, 1, 1]", Expected(INT_MAX, False))
    holds(calculator, "[65536, 65536] @ [65536, -65536]", Expected(0, False))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (3, 3, 3), (1, 5, 2), (6, 2, 7)])
def test_matmul(calculator: Calculator, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * 100 + n)
    for top in (10, 1 << 16, INT_MAX):
        a = rng.integers(-top, top, (m, k)).tolist()
        b = rng.integers(-top, top, (k, n)).tolist()
        holds(calculator, f"{a} @ {b}", expected(reference.matmul(a, b)))


def test_matrix_and_vector(calculator: Calculator) -> None:
    assert calculator.calculate("[[1, 2], [3, 4]] @ [5, 6]").plain == [17, 39]
    assert calculator.calculate("[5, 6] @ [[1, 2], [3, 4]]").plain == [23, 34]
    assert calculator.calculate("matmul([[2]], [[3]])").plain == [[6]]


# --- short kernels where nothing can wrap --------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "kernel"),
    [
        (f"{INT_MAX - 1} + 1", "add"),
        (f"{INT_MAX} + 1", "add_wide"),
        (f"{INT_MAX} - 1", "subtract_wide"),
        ("-5 - 3", "subtract"),
        ("32768 * 65535", "multiply"),
        ("32768 * 65536", "multiply_wide"),
        ("[715827882, -715827882, 715827882]", ""),
        ("sum([715827882, -715827882, 715827882])", "sum"),
        ("sum([715827883, 1, 1])", "sum_wide"),
        ("[1, 2, 3] @ [4, 5, 6]", "dot"),
        ("[32768, 1] @ [32768, 1]", "dot_wide"),
        ("[[32768, 0]] @ [[32767], [1]]", "matmul"),
        ("[[32768, 0]] @ [[32768], [1]]", "matmul_wide"),
        (f"({INT_MIN}) * 1", "multiply_wide"),
    ],
)
def test_the_shorter_kernel_where_nothing_can_wrap(
    calculator: Calculator, expression: str, kernel: str
) -> None:
    calculator.calculate(expression)
    assert [record.kernel for record in calculator.device.records] == [kernel] * bool(kernel)


# --- too long for the memory ----------------------------------------------------------------------


def long_vector(size: int, top: int, seed: int = 3) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(-top, top) for _ in range(size)]


LONG: dict[str, Any] = {
    "sum": (1000, 1 << 30),
    "max": (900, 1 << 31 - 1),
    "argmin": (700, 50),
    "cumsum": (500, 1 << 28),
    "reverse": (450, 1000),
    "sort": (100, 40),
    "prod": (500, 1),
    "count": (800, 1),
}


@pytest.mark.parametrize("name", LONG)
def test_long_vectors_go_in_pieces(calculator: Calculator, name: str) -> None:
    size, top = LONG[name]
    v = long_vector(size, top)
    answer = calculator.calculate(f"{name}({v})")
    want = expected(reference.REDUCTIONS[name](v))
    assert answer.plain == want.value
    assert (WRAPPED in answer.notes) == want.wraps
    assert len(calculator.device.records) > 1
    assert any(note.startswith(f"{size} elements go in pieces") for note in answer.notes)


def test_long_operands_go_in_pieces(calculator: Calculator) -> None:
    a, b = long_vector(400, INT_MAX), long_vector(400, INT_MAX, 4)
    holds(calculator, f"{a} + {b}", expected([x + y for x, y in zip(a, b, strict=True)]))
    holds(calculator, f"{a} @ {b}", expected(reference.dot(a, b)))
    assert len(calculator.device.records) >= 5
    holds(calculator, f"{a} > 5", expected([int(x > 5) for x in a]))


def test_large_products_go_in_tiles(calculator: Calculator) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-99, 99, (7, 60)).tolist(), rng.integers(-99, 99, (60, 9)).tolist()
    answer = calculator.calculate(f"{a} @ {b}")
    assert answer.plain == reference.matmul(a, b)
    assert len(calculator.device.records) > 1
    assert "the product 7x60 @ 60x9 in" in answer.notes[0]


# --- refusals -------------------------------------------------------------------------------------

REFUSED = {
    "5 // 0": "// by zero",
    "[1, 2] % [1, 0]": "% by zero",
    "2 ** -1": "a negative exponent would give a fraction: integers only",
    "1 << -1": "<< by a negative amount",
    "[1, 2] + [1, 2, 3]": "+ needs a scalar or equal shapes, not a vector of 2 and a vector of 3",
    "[1, 2] @ [1, 2, 3]": "@ needs inner sizes that are equal, not a vector of 2 and a vector of 3",
    "2 @ [1]": "@ needs vectors or matrices; use * for a scalar",
    "[[1, 2], [3]]": "the rows of a matrix must have the same length",
    "[[[1]]]": "arrays have at most two dimensions",
    "max([])": "max of no numbers has no value",
    "mean([])": "mean of no numbers has no value",
    "sort(3)": "sort needs a vector, such as [3, 1, 2]",
    "sort([1], [2])": "sort takes 1 arguments, not 2",
    "gcd(4)": "gcd takes 2 arguments, not 1",
    "factorial(-1)": "factorial of a negative number",
    "fibonacci(1001)": "fibonacci needs a number from 0 to 1000",
    "range(0, 9, 0)": "range needs a step that is not zero",
    "range(0, 100000)": "too big: 100000 elements, at most 16384",
    "count([1], [2])": "count: the value to count must be a single number",
    "histogram([1], 0)": "histogram counts the values 0 to bins - 1: bins is 0, "
    "and must be 1 to 256",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_refusals(calculator: Calculator, expression: str) -> None:
    with pytest.raises(Error) as error:
        calculator.calculate(expression)
    assert str(error.value) == REFUSED[expression]


def test_unknown_function(calculator: Calculator) -> None:
    with pytest.raises(Error, match=r"^there is no function sqrt; there are abs, argmax, "):
        calculator.calculate("sqrt(4)")


def test_nothing_to_launch_is_said(calculator: Calculator) -> None:
    assert calculator.calculate("[1, 2]").notes == ["nothing to compute: no launch was needed"]


def test_too_many_launches_are_refused() -> None:
    calculator = Calculator(Device(Interpreter(REFERENCE), max_launches=3))
    with pytest.raises(Error, match=r"^this would take more than 3 launches$"):
        calculator.calculate("sum(range(0, 3000))")
