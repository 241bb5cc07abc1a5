"""Where the chat's text comes from: an interface, and a source that plays back a script.

The model itself as a source is ``qgpu.host.chat.model_text``; here is nothing that needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qgpu.errors import UsageError

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass
class Usage:
    """Text tokens of one generation."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens


@dataclass(frozen=True)
class Request:
    """One generation. ``stop`` is asked between pieces of text: true ends the generation."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    max_tokens: int = 512
    thinking: bool = False
    stop: Callable[[], bool] = lambda: False


class TextSource(Protocol):
    """Streams text. ``usage`` is that of the last generation, complete once it has ended."""

    name: str
    usage: Usage

    def generate(self, request: Request) -> Iterator[str]: ...


def last_question(messages: Sequence[Message]) -> str:
    """The text of the last message that a person wrote."""
    for message in reversed(messages):
        if message["role"] == "user":
            return str(message["content"])
    return ""


@dataclass
class ScriptedSource:
    """Plays back replies, a few characters at a time: for tests and demonstrations.

    ``replies`` is a list, used in order, or a table from a question to the list of its replies
    (the first call of the tool, then the sentence with the result, and so on).
    """

    replies: Sequence[str] | Mapping[str, Sequence[str]]
    piece: int = 7
    name: str = "script"
    usage: Usage = field(default_factory=Usage)
    requests: list[Request] = field(default_factory=list)
    _next: dict[str, int] = field(default_factory=dict)

    def generate(self, request: Request) -> Iterator[str]:
        self.requests.append(request)
        text = self._reply(request)
        self.usage = Usage(sum(len(str(m.get("content"))) for m in request.messages) // 4, 0)
        for start in range(0, len(text), self.piece):
            if request.stop():
                return
            self.usage.completion_tokens += 1
            yield text[start : start + self.piece]

    def _reply(self, request: Request) -> str:
        if isinstance(self.replies, Mapping):
            question = last_question(request.messages)
            replies = self.replies.get(question, ())
        else:
            question, replies = "", self.replies
        # A turn begins with the person's message: its replies start over for a table.
        at = self._next.get(question, 0)
        if isinstance(self.replies, Mapping) and request.messages[-1]["role"] == "user":
            at = 0
        self._next[question] = at + 1
        return replies[at] if at < len(replies) else "The script has no reply to this."

    @classmethod
    def load(cls, path: Path) -> ScriptedSource:
        """A script from a JSON file: a list of replies, or an object of question to replies."""
        try:
            replies = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the script {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"the script {path} is not JSON: {error}") from None
        lists = replies.values() if isinstance(replies, dict) else [replies]
        if not all(
            isinstance(part, list) and all(isinstance(text, str) for text in part) for part in lists
        ):
            raise UsageError(f"the script {path} must be a list of texts, or question: list")
        return cls(replies)
