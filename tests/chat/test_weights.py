"""The chat in the compiled weights: the whole loop, and every kind of stock kernel, each launch
held token by token against the interpreter."""

from __future__ import annotations

import pytest

from qgpu.host.chat.calculate import Calculator
from qgpu.host.chat.device import Device
from qgpu.host.chat.session import Session, Turn
from qgpu.host.chat.source import ScriptedSource
from qgpu.host.sparse import Circuit
from qgpu.machine import SMALL
from tests.chat.test_session import call

# lcm and is_prime_large need more machine blocks than the small machine has.
RIGHT = {
    "[1, 2, 3] @ [4, 5, 6]": 32,
    "[1, -2, 3] + 2147483647": [-2147483648, 2147483645, -2147483646],
    "-7 // 2": -4,
    "[-7, 7] % [2, -2]": [1, -1],
    "3 ** 5": 243,
    "46341 * 46341": -2147479015,
    "[5, 1, 9] > 4": [1, 0, 1],
    "~12 & 0xff": 243,
    "1 << 20": 1 << 20,
    "sum([1, 2, 3, 4, 5])": 15,
    "prod([2, -3, 7])": -42,
    "max([3, 9, -4])": 9,
    "argmin([3, 9, -4])": 2,
    "mean([1, 2, 4])": 2,
    "sort([3, -1, 2])": [-1, 2, 3],
    "cumsum([1, 2, 3])": [1, 3, 6],
    "reverse([1, 2, 3])": [3, 2, 1],
    "count([1, 0, 2])": 2,
    "histogram([0, 2, 2], 3)": [1, 0, 2],
    "gcd(12, 18)": 6,
    "popcount(255)": 8,
    "is_prime(13)": 1,
    "factorial(6)": 720,
    "fibonacci(9)": 34,
    "abs(-5)": 5,
    "range(2, 6)": [2, 3, 4, 5],
    "[[1, 2], [3, 4]] @ [5, 6]": [17, 39],
}


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(Circuit(SMALL), check=True)


def test_the_whole_loop_in_the_weights(device: Device) -> None:
    source = ScriptedSource([call("[1, 2, 3] @ [4, 5, 6]"), "The dot product is 32."])
    *_, turn = Session(source, device).ask("What is [1, 2, 3] dot [4, 5, 6]?")
    assert isinstance(turn, Turn)
    assert (turn.value, turn.check, turn.answer) == (32, "ok", "The dot product is 32.")
    record = turn.uses[0].launches[0]
    assert (record.backend, record.check, record.kernel) == ("weights", "ok", "dot")


@pytest.mark.parametrize("expression", RIGHT)
def test_stock_kernels_in_the_weights(device: Device, expression: str) -> None:
    device.begin_turn()
    assert Calculator(device).calculate(expression).plain == RIGHT[expression]
    assert {record.check for record in device.records} == {"ok"}


def test_long_vectors_in_the_weights(device: Device) -> None:
    device.begin_turn()
    v = list(range(27))
    assert Calculator(device).calculate(f"reverse({v})").plain == v[::-1]
    assert len(device.records) == 2


def test_a_kernel_of_the_models_own_in_the_weights(device: Device) -> None:
    source = 'extern "C" __global__ void k(int *v) { v[threadIdx.x] *= 3; }'
    reply = (
        f"<tool_call><function=run_cuda><parameter=source>\n{source}\n</parameter>"
        "<parameter=block>3</parameter><parameter=args>[1,2,-3]</parameter></function></tool_call>"
    )
    session = Session(ScriptedSource([reply, "3, 6 and -9."]), device, mode="advanced")
    *_, turn = session.ask("Triple 1, 2 and -3.")
    assert isinstance(turn, Turn)
    assert (turn.value, turn.check, turn.error) == ([[3, 6, -9]], "ok", None)
