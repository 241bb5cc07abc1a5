"""Every row of text through the dense circuit layers of a loaded model, bit for bit.

The proof of silence reads only the gates; this runs whole layers, as transformers does, on the
device that will serve the model. The rows are one long text behind a launch that was left in the
context, so that a state that moves is seen: it is not all zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from qgpu.host.model import Model

CHUNK = 4096  # rows in one forward pass


@dataclass(frozen=True)
class DenseProof:
    """``changed`` rows differ at the input of the base's first layer; ``touched`` circuit layers
    have another recurrent state than before the text."""

    rows: int
    changed: int
    touched: int

    @property
    def holds(self) -> bool:
        return not (self.changed or self.touched)


class _AtTheBaseError(Exception):
    """Ends a forward pass where the base's first layer would begin."""


@torch.inference_mode()
def prove_dense(
    model: Model,
    launch: list[int],
    *,
    rows: int | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> DenseProof:
    """Feed ``launch``, then ``rows`` rows of the table, evenly spread (all of text by default)."""
    rows = model.first_token if rows is None else rows
    fed = torch.arange(rows, device=model.device) * model.first_token // rows
    cache, seen = model.new_cache(), []

    def stop(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])
        raise _AtTheBaseError

    model.prefill(launch, cache)
    before = [state.clone() for state in circuit_states(model, cache)]
    changed = 0
    layer = model.hf.model.layers[model.circuit_layers]
    hook = layer.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        for start in range(0, rows, CHUNK):
            ids = fed[start : start + CHUNK][None]
            with suppress(_AtTheBaseError):
                model.hf.model(input_ids=ids, use_cache=True, **{model._cache_argument: cache})
            came, wanted = seen.pop(), model.hf.get_input_embeddings()(ids)
            changed += int((bits(came) != bits(wanted.to(came.device))).any(-1).sum())
            progress(int(ids.shape[1]))
    finally:
        hook.remove()
    after = circuit_states(model, cache)
    touched = sum(not torch.equal(bits(a), bits(b)) for a, b in zip(before, after, strict=True))
    return DenseProof(rows, changed, touched)


def circuit_states(model: Model, cache: Any) -> list[torch.Tensor]:
    """The recurrent states of the circuit's layers."""
    return [layer.recurrent_states[0] for layer in cache.layers[: model.circuit_layers]]


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns, so that -0 is not 0 and a NaN is itself."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])
