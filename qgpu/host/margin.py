"""Does the intended machine token win behind Qwen's own layers? Asked at build time.

The circuit's residual for a set of launches, taken from the sparse executor, is sent through the
base's layers, one layer's weights in memory at a time, then through its norm and the wider head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.evaluate import Executor
from qgpu.compiler.leak import rows_at
from qgpu.compiler.plan import Plan
from qgpu.errors import CheckpointError, CompileError
from qgpu.host.head import HEAD_ROWS, code_dims, final_norm, text_ids
from qgpu.host.launch import Interpreter
from qgpu.host.probes import probe_jobs
from qgpu.tokens import Token, offset_of

# Each kind of token and each bit of the output code both ways (tests/host/test_margin.py), and
# no more: a launch costs the build some seconds.
CHOSEN = ("blocks", "dot", "saxpy", "histogram", "max_reduction", "fibonacci")


@dataclass(frozen=True)
class Drafted:
    """A launch as the interpreter writes it: prompt and trace, of which the host feeds the first
    ``n_prompt``, and the circuit's residual at every token but the last."""

    name: str
    tokens: list[Token]
    n_prompt: int
    residual: torch.Tensor


def drafted(executor: Executor) -> list[Drafted]:
    """The probes of the machine, run by the sparse executor. CompileError where it does not write
    what the interpreter writes: then the circuit itself is wrong."""
    spec, found = executor.plan.spec, []
    for name, job in probe_jobs(spec, CHOSEN):
        prompt = job.prompt()
        trace = Interpreter(spec).execute(job, lambda token: None).tokens
        executor.reset()
        residual = executor.feed([*prompt, *trace[:-1]])
        if [executor.named(row) for row in residual[len(prompt) - 1 :]] != trace:
            raise CompileError(
                f"the circuit does not write the launch {name!r} as the machine does"
            )
        rows = torch.from_numpy(np.ascontiguousarray(residual)).bfloat16()
        found.append(Drafted(name, [*prompt, *trace], len(prompt), rows))
    return found


@torch.inference_mode()
def through_base(folder: Folder, residuals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The normed outputs [n, hidden] of the base's own layers for residuals [n, hidden], each a
    text of its own."""
    transformers.logging.set_verbosity_error()
    kinds = folder.layer_types
    text = {k: v for k, v in folder.text_config.items() if k != "model_type"}
    config = Qwen3_5TextConfig(**{**text, "layer_types": kinds})
    config._attn_implementation = "sdpa"
    rotary = Qwen3_5TextRotaryEmbedding(config)
    states, places = [residual[None] for residual in residuals], []
    for x in states:
        positions = torch.arange(x.shape[1])[None]
        places.append({"position_embeddings": rotary(x, positions.expand(3, 1, -1)),
                       "attention_mask": None, "position_ids": positions})  # fmt: skip
    for index in range(len(kinds)):
        with torch.device("meta"):
            layer = Qwen3_5DecoderLayer(config, index)
        layer.load_state_dict(_tensors(folder, f"layers.{index}."), assign=True)
        layer.eval()
        states = [layer(x, **place) for x, place in zip(states, places, strict=True)]
    with torch.device("meta"):
        norm = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    norm.load_state_dict(_tensors(folder, "norm."), assign=True)
    return [norm(x)[0] for x in states]


def _tensors(folder: Folder, part: str) -> dict[str, torch.Tensor]:
    start = folder.prefix + part
    return {
        name.removeprefix(start): torch.from_numpy(stored.array().copy()).bfloat16()
        for name, stored in folder.tensors.items()
        if name.startswith(start)
    }


@dataclass(frozen=True)
class Margin:
    """What a launch showed behind the base's layers: the least lead of the intended token's logit
    over all others, and the largest relative change of a code dim by the base's layers."""

    launch: str
    positions: int
    lead: float
    disturbance: float


@torch.inference_mode()
def margin_of(
    folder: Folder, plan: Plan, machine_head: torch.Tensor, launch: Drafted, out: torch.Tensor
) -> Margin:
    """How far the intended token leads, where ``out`` is what the base's layers make of a launch.
    CheckpointError where another token wins: then the base cannot carry the machine."""
    out = out[launch.n_prompt - 1 :]
    wanted = torch.tensor(
        [offset_of(plan.spec, token) for token in launch.tokens[launch.n_prompt :]]
    )
    logits = out @ machine_head.T
    best = logits.gather(1, wanted[:, None])[:, 0].float()
    logits.scatter_(1, wanted[:, None], float("-inf"))
    rival = logits.max(1).values.float()
    rows = folder.head.rows()
    for start in range(0, len(rows), HEAD_ROWS):
        part = torch.from_numpy(rows[start : start + HEAD_ROWS]).bfloat16()
        rival = torch.maximum(rival, (out @ part.T).max(1).values.float())
    lead = (best - rival).nan_to_num(nan=-torch.inf)
    if not bool((lead > 0).all()):
        at = int(lead.argmin())
        raise CheckpointError(
            f"behind {folder.path}'s own layers another token wins at token {at + 1} of the launch "
            f"{launch.name!r} (by {-float(lead[at]):.1f}): this base cannot carry the machine"
        )
    return Margin(launch.name, len(lead), float(lead.min()), _disturbance(folder, plan, out))


def _disturbance(folder: Folder, plan: Plan, out: torch.Tensor) -> float:
    dims = code_dims(plan)
    c = final_norm(folder)[dims.ravel()] * (plan.widths.hidden / dims.size) ** 0.5
    change = (out[:, dims.ravel()].float().abs().numpy() / np.abs(c)) - 1
    return float(np.abs(change).max())


def text_residual(folder: Folder) -> torch.Tensor:
    """The table's rows of the built-in text, [n, hidden]."""
    rows = rows_at(folder.embedding.rows(), text_ids(folder))
    return torch.from_numpy(rows).bfloat16()
