"""Prompts that were read already: a generation forks the longest one that its own begins with.

A turn generates twice, before and after the launch, and the second prompt begins with the first;
every prompt of a conversation begins with the system prompt and its examples. A recurrent state
cannot be cut back, so each kept prompt is a cache of its own, copied before it is written on.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from qgpu.host.model import Model

KEPT = 3
WORTH_KEEPING = 64  # tokens that a prefix must save


@dataclass
class Prompt:
    """A prompt read by the model: the cache after it and the logits that follow."""

    ids: list[int]
    cache: Any
    logits: torch.Tensor

    def begins(self, ids: Sequence[int]) -> bool:
        return len(self.ids) <= len(ids) and list(ids[: len(self.ids)]) == self.ids


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two prompts share at their beginning."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


class Prefixes:
    """The last prompts of one model, most recently used last."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._kept: list[Prompt] = []
        self._last: list[int] = []

    def read(self, ids: list[int]) -> tuple[Any, torch.Tensor]:
        """A cache after ``ids`` that may be written on, and the logits of what follows."""
        known = max(
            (prompt for prompt in self._kept if prompt.begins(ids)),
            key=lambda prompt: len(prompt.ids),
            default=None,
        )
        # What this prompt shares with the last one, it will share with the next as well.
        shared = common_length(ids, self._last)
        start = len(known.ids) if known else 0
        if start + WORTH_KEEPING <= shared < len(ids):
            known = self._extend(known, ids[:shared])
        if known is None or len(known.ids) < len(ids):
            known = self._extend(known, ids)
        self._keep(known)
        self._last = ids
        return deepcopy(known.cache), known.logits

    def _extend(self, known: Prompt | None, ids: list[int]) -> Prompt:
        cache = deepcopy(known.cache) if known else self._model.new_cache()
        logits = self._model.prefill(ids[len(known.ids) if known else 0 :], cache)
        prompt = Prompt(ids, cache, logits)
        self._keep(prompt)
        return prompt

    def _keep(self, prompt: Prompt) -> None:
        self._kept = [kept for kept in self._kept if kept is not prompt][-(KEPT - 1) :]
        self._kept.append(prompt)
