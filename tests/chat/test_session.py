"""Turns: question, tool call, launch, answer; failures and tries; stopping; what is remembered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import qgpu
from qgpu.errors import CheckError, LaunchError
from qgpu.host.chat.device import Device
from qgpu.host.chat.session import Answered, Called, Delta, Event, Launched, Session, Turn
from qgpu.host.chat.source import ScriptedSource
from qgpu.machine import SMALL


def call(expression: str) -> str:
    return (
        f"<tool_call>\n<function=compute>\n<parameter=expression>\n{expression}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def session(replies: Sequence[str], **options: Any) -> Session:
    device = Device(qgpu.Interpreter(SMALL), check=options.pop("check", False))
    return Session(ScriptedSource(list(replies)), device, **options)


def last(events: list[Event]) -> Turn:
    assert isinstance(events[-1], Turn)
    return events[-1]


def test_the_whole_loop() -> None:
    chat = session([call("[1, 2, 3] @ [4, 5, 6]"), "The dot product is 32."], check=True)
    events = list(chat.ask("What is [1,2,3] dot [4,5,6]?"))
    assert [type(e) for e in events if not isinstance(e, Delta)] == [
        Called, Launched, Answered, Turn,
    ]  # fmt: skip
    assert "".join(e.text for e in events if isinstance(e, Delta)) == "The dot product is 32."
    turn = last(events)
    assert (turn.answer, turn.value, turn.check, turn.error) == (
        "The dot product is 32.", 32, "ok", None,
    )  # fmt: skip
    assert isinstance(chat.source, ScriptedSource)
    tool = chat.source.requests[1].messages[-1]
    assert (tool["role"], tool["content"]) == ("tool", "32")


def test_no_number_no_launch() -> None:
    turn = last(list(session(["Hello!"]).ask("Hi")))
    assert (turn.answer, turn.value, turn.uses, turn.check) == ("Hello!", None, [], None)


def test_wraps_are_told_to_the_model_and_the_person() -> None:
    chat = session([call("2147483647 + 1"), "It wraps."])
    turn = last(list(chat.ask("?")))
    assert turn.uses[0].outcome.content.startswith("-2147483648\nnote: wrapped around 32 bits")


def test_an_error_goes_back_and_the_model_mends_it() -> None:
    chat = session([call("7 / 2"), call("7 // 2"), "3"])
    turn = last(list(chat.ask("7 by 2?")))
    assert [use.outcome.error for use in turn.uses] == [
        "/ would give a fraction: use // for the quotient and % for the remainder", None,
    ]  # fmt: skip
    assert (turn.value, turn.error) == (3, None)


def test_tries_are_bounded() -> None:
    chat = session([call("1 / 2"), call("x"), call("1.5"), "I cannot.", "never read"])
    turn = last(list(chat.ask("?")))
    assert len(turn.uses) == 3
    assert turn.answer == "I cannot."
    assert turn.error is not None and "1.5 is not an integer" in turn.error
    assert isinstance(chat.source, ScriptedSource)
    # After the last try the tool is not offered any more.
    assert [len(request.tools) for request in chat.source.requests] == [1, 1, 1, 0]


def test_endless_calls_end() -> None:
    turn = last(list(session([call("1 + 1")] * 20).ask("?")))
    assert turn.error == "the model called its tool 8 times and gave no answer"


def test_a_call_after_the_last_try_is_not_run() -> None:
    turn = last(list(session([call("x")] * 9).ask("?")))
    assert len(turn.uses) == 3
    assert turn.error == "x has no value here: write the numbers themselves"


class Lying(qgpu.Interpreter):
    """A backend whose launches fail their check."""

    name = "weights"

    def execute(self, job: Any, watch: Any) -> Any:
        done = super().execute(job, lambda token: None)
        watch(done.tokens[1])
        return done


def test_a_mismatch_is_shown_and_the_number_is_not_used() -> None:
    source = ScriptedSource([call("1 + 1"), "I could not compute it."])
    chat = Session(source, Device(Lying(SMALL), check=True))
    events = list(chat.ask("1 + 1?"))
    turn = last(events)
    assert turn.check == "mismatch"
    assert turn.value is None
    assert [e.record.check for e in events if isinstance(e, Launched)] == ["mismatch"]
    assert turn.uses[0].outcome.content.startswith("error: check failed, the number is not used: ")
    assert "2" not in source.requests[1].messages[-1]["content"].split(":")[0]
    # It is not the model's to mend: no second try.
    assert [len(request.tools) for request in source.requests] == [1, 0]


def test_a_backend_that_lies_is_caught_only_by_the_check() -> None:
    kernel = qgpu.compile('extern "C" __global__ void k(int *p) { p[0] = 1; }').kernel("k")
    with pytest.raises(CheckError):
        qgpu.launch(kernel, 1, 1, [[0]], on=Lying(SMALL), check=True)


def test_history_holds_calls_and_results() -> None:
    chat = session([call("1 + 1"), "2", call("2 + 1"), "3"])
    list(chat.ask("one and one?"))
    list(chat.ask("and one more?"))
    roles = [message["role"] for message in chat.history]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    assert isinstance(chat.source, ScriptedSource)
    assert [m["content"] for m in chat.source.requests[2].messages[-5:]] == [
        "one and one?", "", "2", "2", "and one more?",
    ]  # fmt: skip
    chat.reset()
    assert chat.history == []


def test_stopping_the_text() -> None:
    chat = session(["a long answer " * 20])
    seen: list[str] = []
    events = []
    for event in chat.ask("?", stop=lambda: len(seen) >= 3):
        events.append(event)
        if isinstance(event, Delta):
            seen.append(event.text)
    turn = last(events)
    assert turn.stopped and len(seen) == 3


def test_stopping_a_launch() -> None:
    device = Device(qgpu.Interpreter(SMALL))
    device.stop = lambda: True
    kernel = qgpu.compile('extern "C" __global__ void k(int *p) { p[0] = 1; }').kernel("k")
    with pytest.raises(LaunchError, match=r"^the launch was stopped$"):
        device.launch(kernel, [1], [1], [[0]])


def test_a_turn_broken_off_is_not_remembered() -> None:
    chat = session([call("1 + 1"), "2"])
    events = chat.ask("?")
    next(events)
    events.close()
    assert chat.history == [] and chat.turns == []


def test_thinking_is_kept_apart() -> None:
    chat = session(["let me think</think>Done."], thinking=True)
    turn = last(list(chat.ask("?")))
    assert (turn.thinking, turn.answer) == ("let me think", "Done.")


def test_turn_as_json() -> None:
    chat = session([call("[1, 2] + 1"), "It is [2, 3]."], check=True)
    data = json.loads(json.dumps(last(list(chat.ask("?"))).as_json()))
    assert (data["value"], data["answer"], data["check"]) == ([2, 3], "It is [2, 3].", "ok")
    assert data["tool_calls"][0]["expression"] == "[1, 2] + 1"
    assert data["tool_calls"][0]["launches"][0]["kernel"] == "add"
    assert data["launch_tokens"] == data["tool_calls"][0]["launches"][0]["tokens"] > 0
    assert data["completion_tokens"] > 0
