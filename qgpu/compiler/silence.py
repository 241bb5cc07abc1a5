"""Silence on text: the direction that tells text from machine tokens (finding it; the proof)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Silence:
    """The separating direction: weights ``w`` on the guard ``dims``, and its ``strength``."""

    dims: tuple[int, ...]
    w: tuple[float, ...]
    strength: float
