"""The questions' stored answers, and the harness: what passes, what fails and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

import qgpu
from qgpu.host.chat.device import Device
from qgpu.host.chat.session import Session
from qgpu.host.chat.source import ScriptedSource
from qgpu.host.evaluate_chat import (
    Question,
    evaluate,
    flatten,
    load_questions,
    readings,
    says,
)

TOOLS = {"normal": "compute", "advanced": "run_cuda"}


def tool_call(question: Question) -> str:
    parameters = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in question.reference.items()
    )
    return f"<tool_call>\n<function={TOOLS[question.mode]}>\n{parameters}</function>\n</tool_call>"


def perfect(mode: str) -> dict[str, list[str]]:
    """What a model that knows every reference would write."""
    return {
        q.question: [tool_call(q), f"The answer is {json.dumps(q.value)}."]
        for q in load_questions(mode)
    }


def session(mode: str, script: dict[str, list[str]]) -> Session:
    device = Device(qgpu.Interpreter(), check=True)
    return Session(ScriptedSource(script), device, mode=mode)


@pytest.mark.parametrize(("mode", "count"), [("normal", 60), ("advanced", 25)])
def test_every_stored_answer_is_what_its_reference_computes(mode: str, count: int) -> None:
    questions = load_questions(mode)
    assert len({q.question for q in questions}) == count
    report = evaluate(session(mode, perfect(mode)), questions)
    assert [score.reason for score in report.scores if score.reason] == []
    assert report.as_json()["passed"] == report.as_json()["total"] == count
    assert report.as_json()["launch_tokens"] > count


def outcome(replies: list[str], number: int = 0) -> str:
    question = load_questions("normal")[number]
    report = evaluate(session("normal", {question.question: replies}), [question])
    return report.scores[0].reason


def call(expression: str) -> str:
    return tool_call(Question("normal", "", 0, (), {"expression": expression}))


def test_what_fails() -> None:
    right = call("[1, 2, 3] @ [4, 5, 6]")
    assert outcome([right, "It is 32."]) == ""
    assert outcome(["It is 32."]) == "nothing was launched"
    assert outcome([right, "It is 33."]) == "the answer does not say 32: It is 33."
    assert outcome([right, "It is 132 or 320."]).startswith("the answer does not say 32")
    assert outcome([call("[1, 2] @ [4, 5]"), "32"]) == "the launch gave 14, right is 32"
    assert outcome([call("1 / 2"), "32"]).startswith("/ would give a fraction")


def test_the_report() -> None:
    script = perfect("normal")
    questions = load_questions("normal")[:4]
    script[questions[2].question][1] = "No idea."
    lines: list[str] = []
    report = evaluate(session("normal", script), questions, lines.append)
    assert report.text().splitlines()[0].startswith("3/4 normal, text from script, launches on")
    assert report.text().splitlines()[1] == f"  failed: {questions[2].question}"
    assert len(lines) == 4 and lines[2].endswith("failed: the answer does not say 14198: No idea.")
    data = json.loads(json.dumps(report.as_json()))
    assert (data["passed"], data["total"], data["backend"]) == (3, 4, "interp")
    assert [row["passed"] for row in data["questions"]] == [True, True, False, True]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is 32.", [32]),
        ("It's -42!", [-42]),
        ("−7 and 8", [-7, 8]),
        ("1,234,567 cookies", [1234567]),
        ("[1, 2, 3]", [1, 2, 3]),
        ("3.5 is no integer, x2 neither", []),
        ("[[19, 22], [43, 50]]", [19, 22, 43, 50]),
        ("**156** or $156$", [156, 156]),
        ("100,200", [100200]),
        ("100,200", [100, 200]),
        ("12345,678", [12345, 678]),
    ],
)
def test_readings(text: str, numbers: list[int]) -> None:
    assert numbers in readings(text)


def test_says() -> None:
    def question(value: Any, *accept: str) -> Question:
        return Question("normal", "", value, accept, {})

    assert says("Sorted: 1, 2 and 3.", question([1, 2, 3]))
    assert not says("Sorted: 1, 3, 2.", question([1, 2, 3]))
    assert says("[50,100,150,200]", question([50, 100, 150, 200]))
    assert says("It is 1,073,741,824.", question(1073741824))
    assert not says("It is 1,073,741,824.", question(107374182))
    assert says("Yes, it is.", question(1, "yes"))
    assert not says("Nobody knows.", question(0, "no"))
    assert flatten([[1], [2, [3]], 4]) == [1, 2, 3, 4]
