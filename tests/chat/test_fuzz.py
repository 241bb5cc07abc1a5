"""Whatever a model writes, the answer is a value or one clear line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qgpu
from qgpu.errors import Error
from qgpu.host.chat.calculate import Calculator
from qgpu.host.chat.device import Device
from qgpu.host.chat.expression import parse
from qgpu.host.chat.modes import AdvancedMode
from qgpu.host.chat.stock import NAMES, OPERATORS
from qgpu.host.chat.toolcall import StreamParser, Text, Thought, ToolCall
from qgpu.machine import SMALL

WORDS = st.sampled_from(
    [*OPERATORS, *NAMES, "@", "/", "~", "(", ")", "[", "]", ",", "-", "1", "0", "2147483647",
     "2147483648", "7", "3.5", "x", "'", "\\", "\n", "é", "\x00"]
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-9, 9),
    st.lists(st.integers(-9, 9), max_size=5),
    st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=3),
)  # fmt: skip


@given(st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=12).map(" ".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse(text)
    except Error as error:
        assert str(error) and "\n" not in str(error).replace(repr("\n"), "")


@st.composite
def expressions(draw: Any) -> str:
    """Well-formed ones, whose shapes and values need not fit."""
    if draw(st.booleans()):
        return f"({draw(NUMBERS)}) {draw(st.sampled_from([*OPERATORS, '@']))} ({draw(NUMBERS)})"
    arguments = ", ".join(str(draw(NUMBERS)) for _ in range(draw(st.integers(0, 2))))
    return f"{draw(st.sampled_from(NAMES))}({arguments})"


@given(expressions())
@settings(max_examples=120, deadline=None)
def test_any_expression_has_a_value_or_a_reason(text: str) -> None:
    calculator = Calculator(Device(qgpu.Interpreter(), max_tokens=20_000, max_launches=20))
    try:
        answer = calculator.calculate(text)
    except Error as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert answer.value.dtype.name == "int32"


@given(st.text(alphabet='<>/=_toolcalfunprmehink{}":,\n 1', max_size=80), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_any_stream_is_split_without_loss(text: str, piece: int) -> None:
    parser = StreamParser()
    parts = [
        part
        for start in range(0, len(text), piece)
        for part in parser.feed(text[start : start + piece])
    ]
    parts += parser.finish()
    shown = "".join(part.text for part in parts if isinstance(part, Text))
    assert all(isinstance(part, (Text, Thought, ToolCall)) for part in parts)
    if "<tool_call>" not in text and "<think>" not in text:
        assert shown == text


@pytest.mark.parametrize("name", ["source", "grid", "block", "args", "shared", "kernel"])
@given(value=st.text(max_size=30))
@settings(max_examples=25, deadline=None)
def test_any_parameter_of_a_kernel_call(name: str, value: str) -> None:
    arguments = {
        "source": 'extern "C" __global__ void k(int *p) { p[0] = 1; }',
        "grid": "1", "block": "1", "args": "zeros:1", "shared": "0",
    }  # fmt: skip
    if name == "source":
        # Every source costs a compilation: those that a lexer refuses at once are enough here.
        value = f"int {value}"[:12]
    outcome = AdvancedMode(Device(qgpu.Interpreter(SMALL), max_tokens=2000)).run(
        ToolCall("run_cuda", arguments | {name: value})
    )
    assert (outcome.error is None) == (outcome.value is not None)
    if outcome.error is not None:
        assert "\n" not in outcome.error
