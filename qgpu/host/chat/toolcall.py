"""Tool calls in a stream of text, in the form of Qwen3.5's chat template.

    <tool_call>
    <function=compute>
    <parameter=expression>
    [1, 2, 3] @ [4, 5, 6]
    </parameter>
    </function>
    </tool_call>

The older JSON form inside the same tags is understood too. ``StreamParser`` takes the text as it
comes and gives back what to show, what is thinking, and the calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call of the tool ``name``; ``problem`` says what is malformed, if anything."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict)
    problem: str = ""


Part = Text | Thought | ToolCall


def parse_call(body: str) -> ToolCall:
    """What stands between the tags."""
    body = body.strip()
    if body.startswith("{"):
        return _parse_json(body)
    if not body.startswith("<function="):
        return ToolCall("", problem="a tool call begins with <function=NAME>")
    head, closed, rest = body[len("<function=") :].partition(">")
    if not closed:
        return ToolCall("", problem="the <function=NAME> tag is not closed")
    name = head.strip()
    arguments: dict[str, str] = {}
    while True:
        _, opened, rest = rest.partition("<parameter=")
        if not opened:
            return ToolCall(name, arguments)
        key, closed, rest = rest.partition(">")
        # CUDA text may hold "<" and ">" freely; only the closing tag ends a value.
        value, ended, rest = rest.partition("</parameter>")
        if not closed or not ended:
            return ToolCall(name, arguments, f"the parameter {key.strip()[:40]} is not closed")
        arguments[key.strip()] = value.strip("\n")


def _parse_json(body: str) -> ToolCall:
    try:
        data = json.loads(body)
        arguments = data.get("arguments", data.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return ToolCall(
            str(data.get("name", "")),
            {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in arguments.items()
            },
        )
    except (ValueError, AttributeError):
        return ToolCall("", problem="the tool call is not valid JSON")


class StreamParser:
    """Splits streamed text; holds back what may be the beginning of a tag."""

    def __init__(self, thinking: bool = False) -> None:
        self._held = ""
        # With thinking on, the chat template has already opened the tag.
        self._inside = CLOSE_THINK if thinking else ""

    def feed(self, piece: str) -> Iterator[Part]:
        self._held += piece
        while True:
            if self._inside:
                body, closed, rest = self._held.partition(self._inside)
                if not closed:
                    yield from self._think_aloud()
                    return
                self._held = rest
                yield from self._close(body)
                continue
            at, tag = self._next_tag()
            if tag is None:
                keep = self._possible_tag()
                ready, self._held = self._held[:keep], self._held[keep:]
                if ready:
                    yield Text(ready)
                return
            if at:
                yield Text(self._held[:at])
            self._held = self._held[at + len(tag) :]
            self._inside = CLOSE_CALL if tag == OPEN_CALL else CLOSE_THINK

    def finish(self) -> Iterator[Part]:
        """The generation has ended: what was held back."""
        held, inside, self._held, self._inside = self._held, self._inside, "", ""
        if inside == CLOSE_CALL:
            call = parse_call(held)
            # Some models stop before the closing tag; a complete body counts.
            yield call if call.name else ToolCall("", problem="the tool call was cut short")
        elif inside == CLOSE_THINK and held:
            yield Thought(held)
        elif held:
            yield Text(held)

    def _close(self, body: str) -> Iterator[Part]:
        inside, self._inside = self._inside, ""
        if inside == CLOSE_CALL:
            yield parse_call(body)
        elif body:
            yield Thought(body)

    def _think_aloud(self) -> Iterator[Part]:
        """Thoughts stream too; a tool call waits for its end."""
        if self._inside != CLOSE_THINK:
            return
        keep = len(self._held) - _overlap(self._held, CLOSE_THINK)
        ready, self._held = self._held[:keep], self._held[keep:]
        if ready:
            yield Thought(ready)

    def _next_tag(self) -> tuple[int, str | None]:
        found = [(at, tag) for tag in (OPEN_CALL, OPEN_THINK) if (at := self._held.find(tag)) >= 0]
        return min(found) if found else (-1, None)

    def _possible_tag(self) -> int:
        return len(self._held) - max(_overlap(self._held, tag) for tag in (OPEN_CALL, OPEN_THINK))


def _overlap(text: str, tag: str) -> int:
    """The length of the longest end of ``text`` that begins ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
