"""Asking, while the model reads, whether it should stop.

A prompt is fed in pieces of hundreds of tokens, and on a CPU one piece takes many seconds, so the
question is put before every layer. What was read so far is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def asking(hf: Any, ask: Callable[[], None]) -> Iterator[None]:
    """Within it ``ask`` is called before every layer of a transformers model; it may raise."""

    on_gpu = hf.device.type == "cuda"

    def before(module: Any, inputs: Any) -> None:
        # An error would spoil the capture of a CUDA graph.
        if not (on_gpu and torch.cuda.is_current_stream_capturing()):
            ask()

    with ExitStack() as hooks:
        for layer in hf.model.layers:
            hooks.callback(layer.register_forward_pre_hook(before).remove)
        yield
