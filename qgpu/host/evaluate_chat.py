"""``qgpu eval chat``: the project's own questions, counted only where everything is exact.

A question passes if a launch gave its exact value, no check failed, and the answer says the value
(or one of the words that stand for it). ``questions.json`` also holds, for each question, the
expression or kernel of a right answer: tests hold the stored values against them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from qgpu.errors import Error
from qgpu.host.chat.session import Session, Turn

FILE = Path(__file__).parent / "chat" / "questions.json"
# With thousands separators, and without: "100,200" may be one number or two.
_GROUPED, _PLAIN = r"\d{1,3}(?:[,_ ]\d{3})+", r"\d+"
_READINGS = tuple(
    re.compile(rf"(?<![\w.])[-−]?(?:{digits})(?!\w|\.\d)")
    for digits in (f"{_GROUPED}|{_PLAIN}", _PLAIN)
)


@dataclass(frozen=True)
class Question:
    """``reference`` is a right tool call: its arguments."""

    mode: str
    question: str
    value: Any
    accept: tuple[str, ...]
    reference: dict[str, str]


@dataclass(frozen=True)
class Score:
    """One question asked. ``reason`` says why it failed, empty if it passed."""

    question: Question
    turn: Turn | None
    reason: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        turn = self.turn
        return {
            "question": self.question.question, "expected": self.question.value,
            "passed": not self.reason, "reason": self.reason or None,
            "answer": turn.answer if turn else None, "value": turn.value if turn else None,
            "completion_tokens": turn.usage.completion_tokens if turn else 0,
            "launch_tokens": turn.as_json()["launch_tokens"] if turn else 0,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


@dataclass
class Report:
    mode: str
    source: str
    backend: str
    scores: list[Score] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return sum(not score.reason for score in self.scores)

    def as_json(self) -> dict[str, Any]:
        rows = [score.as_json() for score in self.scores]
        return {
            "mode": self.mode, "text": self.source, "backend": self.backend,
            "passed": self.passed, "total": len(rows),
            "completion_tokens": sum(row["completion_tokens"] for row in rows),
            "launch_tokens": sum(row["launch_tokens"] for row in rows),
            "seconds": round(sum(score.seconds for score in self.scores), 3),
            "questions": rows,
        }  # fmt: skip

    def text(self) -> str:
        """Passed of total, then each failure."""
        data = self.as_json()
        lines = [
            f"{self.passed}/{len(self.scores)} {self.mode}, text from {self.source}, launches on "
            f"{self.backend}: {data['completion_tokens']} text tokens, "
            f"{data['launch_tokens']} machine tokens, {data['seconds']:.1f} s"
        ]
        for score in self.scores:
            if score.reason:
                lines.append(f"  failed: {score.question.question}\n    {score.reason}")
        return "\n".join(lines)


@cache
def _rows() -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows


def load_questions(mode: str) -> list[Question]:
    """The questions of a mode, in order."""
    return [
        Question(mode, row["question"], row["value"], tuple(row["accept"]), _reference(row))
        for row in _rows()[mode]
    ]


def _reference(row: dict[str, Any]) -> dict[str, str]:
    if "expression" in row:
        return {"expression": row["expression"]}
    return {
        "source": row["source"], "grid": row["grid"], "block": row["block"],
        "args": "\n".join(row["args"]),
    }  # fmt: skip


def flatten(value: Any) -> list[int]:
    """A number or nested lists as one list."""
    if isinstance(value, list):
        return [n for item in value for n in flatten(item)]
    return [] if value is None else [int(value)]


def readings(text: str) -> list[list[int]]:
    """The integers that a text says, in each way to read it."""
    return [
        [int(re.sub("[,_ ]", "", found.group().replace("−", "-"))) for found in form.finditer(text)]
        for form in _READINGS
    ]


def says(answer: str, question: Question) -> bool:
    """Whether the answer gives the value: its numbers in order, or a word that stands for it."""
    wanted = flatten(question.value)
    for said in readings(answer):
        for start in range(len(said) - len(wanted) + 1):
            if said[start : start + len(wanted)] == wanted:
                return True
    words = re.findall(r"[a-z]+", answer.lower())
    return any(word in words for word in question.accept)


def judge(question: Question, turn: Turn) -> str:
    """Why the turn is wrong; empty if it is right."""
    if turn.check == "mismatch":
        return "a launch failed its check"
    if turn.error is not None:
        return turn.error
    if not any(use.launches for use in turn.uses):
        return "nothing was launched"
    if not _computed(question, turn.value):
        return f"the launch gave {turn.value}, right is {question.value}"
    if not says(turn.answer, question):
        return f"the answer does not say {question.value}: {turn.answer[:200]}"
    return ""


def _computed(question: Question, value: Any) -> bool:
    """In advanced mode one of the arrays has to be the value: the model chooses their order."""
    wanted = flatten(question.value)
    if question.mode == "normal":
        return flatten(value) == wanted
    return any(flatten(array) == wanted for array in value or [])


def evaluate(
    session: Session,
    questions: Sequence[Question],
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Ask each question in a conversation of its own."""
    report = Report(session.mode, session.source.name, session.device.backend.name)
    for number, question in enumerate(questions, 1):
        session.reset()
        score = _ask(session, question)
        report.scores.append(score)
        mark = "ok" if not score.reason else f"failed: {score.reason}"
        progress(f"{number}/{len(questions)} {question.question[:60]}  {mark}")
    return report


def _ask(session: Session, question: Question) -> Score:
    start = time.monotonic()
    turn: Turn | None = None
    try:
        for event in session.ask(question.question):
            if isinstance(event, Turn):
                turn = event
        reason = judge(question, turn) if turn is not None else "the turn did not end"
    except Error as error:
        reason = str(error)
    return Score(question, turn, reason, time.monotonic() - start)
