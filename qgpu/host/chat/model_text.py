"""The model itself as the chat's text source: Qwen's own writing, machine tokens kept out of it.

Each generation writes on a cache of its own and so does each launch: neither sees the other's
tokens. A prompt that begins like an earlier one is read on from there (``prefix``).
The logits of machine tokens are masked, and text that spells one is defused before it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from qgpu.errors import CheckpointError, LaunchError
from qgpu.host.chat.interrupt import asking
from qgpu.host.chat.prefix import Prefixes
from qgpu.host.chat.source import Message, Request, Usage

if TYPE_CHECKING:
    from qgpu.host.model import Model

MAX_PENDING = 8  # tokens held back for a character that they spell together


class Stopped(Exception):
    """The prompt was not read to its end."""


def _stop_reading(stop: Callable[[], bool]) -> None:
    if stop():
        raise Stopped


def defuse(message: Message) -> Message:
    """The message without text that the tokenizer would read as a special token."""
    return {key: _defuse(value) for key, value in message.items()}


def _defuse(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("<|", "< |")
    if isinstance(value, dict):
        return {key: _defuse(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_defuse(item) for item in value]
    return value


class ModelText:
    """Streams the merged model's text. ``temperature`` 0 takes the likeliest token."""

    def __init__(self, model: Model, temperature: float = 0.0, seed: int = 0) -> None:
        self.name = model.path.name
        self.usage = Usage()
        self._model = model
        self._prefixes = Prefixes(model)
        self._temperature = temperature
        self._random = torch.Generator().manual_seed(seed)
        self._ends = self._end_ids()

    def _end_ids(self) -> set[int]:
        configured = self._model.hf.generation_config.eos_token_id
        ids = set(configured if isinstance(configured, list) else [configured])
        ids.add(self._model.tokenizer.eos_token_id)
        return {number for number in ids if number is not None}

    def encode(self, request: Request) -> list[int]:
        """The chat template's tokens for a request."""
        tokenizer = self._model.tokenizer
        if not tokenizer.chat_template:
            raise CheckpointError(f"{self._model.path} has no chat template: it cannot chat")
        text = tokenizer.apply_chat_template(
            [defuse(message) for message in request.messages],
            tools=list(request.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=request.thinking,
        )
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if any(self._model.token(number) is not None for number in ids):
            raise LaunchError("the conversation holds a machine token: it cannot be read as text")
        return ids

    @torch.inference_mode()
    def generate(self, request: Request) -> Iterator[str]:
        """Text as it is written, up to the end of the turn, the token limit or ``stop``."""
        prompt = self.encode(request)
        self.usage = Usage(len(prompt), 0)
        try:
            with asking(self._model.hf, partial(_stop_reading, request.stop)):
                cache, logits = self._prefixes.read(prompt)
        except Stopped:
            return
        pending: list[int] = []
        for _ in range(request.max_tokens):
            number = self._choose(logits)
            if number in self._ends or request.stop():
                break
            self.usage.completion_tokens += 1
            pending.append(number)
            text = self._decode(pending)
            # A character of several tokens decodes to U+FFFD until its last one is there.
            if not text.endswith("\N{REPLACEMENT CHARACTER}") or len(pending) > MAX_PENDING:
                yield text
                pending = []
            logits = self._model.forward([number], cache)[-1]
        if pending:
            yield self._decode(pending)

    def _choose(self, logits: torch.Tensor) -> int:
        """The next text token."""
        text = logits[: self._model.first_token].float()
        if self._temperature <= 0:
            return int(text.argmax())
        chances = torch.softmax(text.cpu() / self._temperature, -1)
        return int(torch.multinomial(chances, 1, generator=self._random))

    def _decode(self, ids: list[int]) -> str:
        text: str = self._model.tokenizer.decode(ids, skip_special_tokens=True)
        return text
