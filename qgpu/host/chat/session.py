"""A conversation: questions in, events out. The terminal, the server and the evaluation all
listen to the same events.

A turn: the model writes; a tool call in its text becomes launches; what they gave goes back as the
tool's message; the model finishes its sentence. A launch runs in a cache of its own, so the text
never sees a machine token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from qgpu.host.chat.device import Device, LaunchRecord
from qgpu.host.chat.modes import Outcome, make_mode
from qgpu.host.chat.prompts import call_message, result_message
from qgpu.host.chat.source import Message, Request, TextSource, Usage
from qgpu.host.chat.toolcall import StreamParser, Text, Thought, ToolCall

DEFAULT_TRIES = 3
MAX_CALLS = 8  # tool calls in one turn, good and bad ones together


@dataclass(frozen=True)
class Delta:
    """Text for the person, as it comes."""

    text: str


@dataclass(frozen=True)
class Thinking:
    text: str


@dataclass(frozen=True)
class Called:
    """The model called its tool."""

    call: ToolCall


@dataclass(frozen=True)
class Launched:
    """One launch has ended."""

    record: LaunchRecord


@dataclass(frozen=True)
class Answered:
    """The tool has answered a call."""

    outcome: Outcome
    call: ToolCall


@dataclass
class ToolUse:
    """A tool call of a turn with everything it led to."""

    call: ToolCall
    outcome: Outcome
    launches: list[LaunchRecord]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.call.name, "arguments": self.call.arguments,
            "value": self.outcome.value, "notes": self.outcome.notes,
            "error": self.outcome.error, **self.outcome.details,
            "launches": [record.as_json() for record in self.launches],
        }  # fmt: skip


@dataclass
class Turn:
    """A question and all that came of it."""

    question: str
    mode: str
    answer: str = ""
    thinking: str = ""
    uses: list[ToolUse] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    stopped: bool = False
    error: str | None = None

    @property
    def value(self) -> Any:
        """What the last tool call that gave a value gave."""
        values = [use.outcome.value for use in self.uses if use.outcome.error is None]
        return values[-1] if values else None

    @property
    def check(self) -> str | None:
        """ok, mismatch, or None where nothing was checked."""
        marks = [record.check for use in self.uses for record in use.launches]
        if "mismatch" in marks:
            return "mismatch"
        return "ok" if marks and all(mark == "ok" for mark in marks) else None

    def as_json(self) -> dict[str, Any]:
        launches = [record for use in self.uses for record in use.launches]
        return {
            "question": self.question, "mode": self.mode, "answer": self.answer,
            "thinking": self.thinking or None, "value": self.value,
            "tool_calls": [use.as_json() for use in self.uses],
            "launches": len(launches), "launch_tokens": sum(r.tokens for r in launches),
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "seconds": round(self.seconds, 3), "check": self.check, "stopped": self.stopped,
            "error": self.error,
        }  # fmt: skip


Event = Delta | Thinking | Called | Launched | Answered | Turn


@dataclass
class Session:
    """A conversation over one text source and one device."""

    source: TextSource
    device: Device
    mode: str = "normal"
    thinking: bool = False
    max_tokens: int = 512
    tries: int = DEFAULT_TRIES
    history: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def ask(self, question: str, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """One turn. The last event is the Turn itself; ``stop`` ends it early."""
        turn = Turn(question, self.mode)
        start = time.monotonic()
        asked: list[Message] = [{"role": "user", "content": question}]
        self.device.stop = stop
        yield from self._turn(turn, asked, stop)
        turn.seconds = time.monotonic() - start
        turn.stopped = stop()
        # Only now: a turn that is broken off leaves no half conversation behind.
        self.history += [*asked, {"role": "assistant", "content": turn.answer}]
        self.turns.append(turn)
        yield turn

    def _turn(self, turn: Turn, asked: list[Message], stop: Callable[[], bool]) -> Iterator[Event]:
        mode = make_mode(self.mode, self.device)
        opening = mode.opening()
        self.device.begin_turn()
        tries = 0
        for _ in range(MAX_CALLS):
            # Once the tries are spent, the model is not offered the tool again.
            tools = [mode.tool] if tries < self.tries else []
            request = Request(
                [*opening, *self.history, *asked], tools, self.max_tokens, self.thinking, stop
            )
            text, calls = "", []
            for part in self._parts(request, turn):
                match part:
                    case Text(piece):
                        # What a model writes beside a call is not yet its answer.
                        text += piece
                        yield Delta(piece)
                    case Thought(piece):
                        turn.thinking += piece
                        yield Thinking(piece)
                    case ToolCall():
                        calls.append(part)
            if not calls or not tools or stop():
                turn.answer = text.strip()
                turn.error = self._unresolved(turn, bool(calls))
                return
            for call in calls:
                yield Called(call)
                outcome = yield from self._use(mode.run, call, turn)
                yield Answered(outcome, call)
                asked += [
                    call_message(call.name, call.arguments, text.strip()),
                    result_message(call.name, outcome.content),
                ]
                text = ""
                tries = tries + 1 if outcome.retry else 0
                if outcome.error and not outcome.retry:
                    tries = self.tries
        turn.error = f"the model called its tool {MAX_CALLS} times and gave no answer"

    def _unresolved(self, turn: Turn, wants_more: bool) -> str | None:
        """The turn's error: the last tool call failed and nothing came after it."""
        if turn.uses and (error := turn.uses[-1].outcome.error):
            return error
        return "the model called its tool once too often" if wants_more else None

    def _parts(self, request: Request, turn: Turn) -> Iterator[Text | Thought | ToolCall]:
        parser = StreamParser(request.thinking)
        for piece in self.source.generate(request):
            yield from parser.feed(piece)
        yield from parser.finish()
        turn.usage.add(self.source.usage)

    def _use(
        self, run: Callable[[ToolCall], Outcome], call: ToolCall, turn: Turn
    ) -> Generator[Event, None, Outcome]:
        before = len(self.device.records)
        outcome = run(call)
        launches = self.device.records[before:]
        turn.uses.append(ToolUse(call, outcome, launches))
        for record in launches:
            yield Launched(record)
        return outcome

    def replay(self, messages: Sequence[Message]) -> None:
        """Start from a conversation that somebody else kept."""
        self.history = [dict(message) for message in messages]

    def reset(self) -> None:
        self.history, self.turns = [], []
