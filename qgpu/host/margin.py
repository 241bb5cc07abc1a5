"""Does the intended machine token win behind Qwen's own layers? Asked at build time.

The circuit's residual for some launches, taken from the sparse executor, is sent through the base's
layers, one layer's weights in memory at a time, then through its norm and the wider head.
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
from qgpu.errors import CheckpointError
from qgpu.host.head import HEAD_ROWS, code_dims, final_norm, text_ids
from qgpu.host.launch import Interpreter, Job
from qgpu.isa import Forward, Guard, Immediate, Instruction, MachineBlock, Op, Register, Target
from qgpu.machine import MachineSpec
from qgpu.tokens import Token, offset_of


def probe_job(spec: MachineSpec) -> Job:
    """A launch that writes every kind of token: all warps, values of both spellings, stores, a
    branch that parts the lanes, a barrier."""
    tid, zero, one = Register(1), Register(0), Immediate(1)
    blocks = [
        MachineBlock(
            (Instruction(Op.TID, dst=1), Instruction(Op.SHL, Forward(0), Immediate(2), dst=2)),
            Target(1),
        ),
        MachineBlock(
            (Instruction(Op.SUB, zero, tid, dst=3), Instruction(Op.AND, tid, one)),
            Target(2), Guard(Forward(1)), Target(3),
        ),
        MachineBlock(
            (Instruction(Op.MUL, Register(3), Immediate(0x01010101)),
             Instruction(Op.ST, Register(2), Immediate(8), Forward(0))), Target(3),
        ),
        MachineBlock((Instruction(Op.MOV, Immediate(0xFFFF8000), dst=3),), Target(4, barrier=True)),
        MachineBlock((Instruction(Op.LD, Register(2), Immediate(8), dst=3),), Target(exit=True)),
    ]  # fmt: skip
    return Job(spec, blocks, [0, 0, 1, 2, 0xFFFFFFFF], spec.n_threads, 10_000)


def intended(spec: MachineSpec) -> tuple[list[Token], int]:
    """The probe's tokens, prompt and trace, and how many the host feeds."""
    job = probe_job(spec)
    prompt = job.prompt()
    return [*prompt, *Interpreter(spec).execute(job, lambda token: None).tokens], len(prompt)


@torch.inference_mode()
def through_base(folder: Folder, residual: torch.Tensor) -> torch.Tensor:
    """The normed output [n, hidden] of the base's own layers for a residual [n, hidden]."""
    transformers.logging.set_verbosity_error()
    kinds = folder.layer_types
    text = {k: v for k, v in folder.text_config.items() if k != "model_type"}
    config = Qwen3_5TextConfig(**{**text, "layer_types": kinds})
    config._attn_implementation = "sdpa"
    x = residual[None]
    positions = torch.arange(x.shape[1])[None]
    rotary = Qwen3_5TextRotaryEmbedding(config)(x, positions.expand(3, 1, -1))
    for index in range(len(kinds)):
        with torch.device("meta"):
            layer = Qwen3_5DecoderLayer(config, index)
        layer.load_state_dict(_tensors(folder, f"layers.{index}."), assign=True)
        x = layer.eval()(x, position_embeddings=rotary, attention_mask=None, position_ids=positions)
    with torch.device("meta"):
        norm = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    norm.load_state_dict(_tensors(folder, "norm."), assign=True)
    out: torch.Tensor = norm(x)[0]
    return out


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

    positions: int
    lead: float
    disturbance: float


@torch.inference_mode()
def margin_of(
    folder: Folder,
    executor: Executor,
    machine_head: torch.Tensor,
    tokens: Sequence[Token],
    n_prompt: int,
) -> Margin:
    """One launch, ``n_prompt`` tokens of which the host feeds. CheckpointError where another token
    wins: then the base cannot carry the machine."""
    spec = executor.plan.spec
    executor.reset()
    residual = torch.from_numpy(np.ascontiguousarray(executor.feed(tokens[:-1]))).bfloat16()
    out = through_base(folder, residual)[n_prompt - 1 :]
    wanted = torch.tensor([offset_of(spec, token) for token in tokens[n_prompt:]])
    logits = out @ machine_head.T
    best = logits.gather(1, wanted[:, None])[:, 0].float()
    logits.scatter_(1, wanted[:, None], float("-inf"))
    rival = logits.max(1).values.float()
    rows = folder.head.rows()
    for start in range(0, len(rows), HEAD_ROWS):
        part = torch.from_numpy(rows[start : start + HEAD_ROWS]).bfloat16()
        rival = torch.maximum(rival, (out @ part.T).max(1).values.float())
    lead = best - rival
    if not bool((lead > 0).all()):
        at = int(lead.argmin())
        raise CheckpointError(
            f"behind {folder.path}'s own layers another token wins at token {at + 1} of a launch "
            f"(by {-float(lead[at]):.1f}): this base cannot carry the machine"
        )
    return Margin(len(lead), float(lead.min()), _disturbance(folder, executor.plan, out))


def _disturbance(folder: Folder, plan: Plan, out: torch.Tensor) -> float:
    dims = code_dims(plan)
    c = final_norm(folder)[dims.ravel()] * (plan.widths.hidden / dims.size) ** 0.5
    change = (out[:, dims.ravel()].float().abs().numpy() / np.abs(c)) - 1
    return float(np.abs(change).max())


def text_states(folder: Folder) -> torch.Tensor:
    """The base's final states on the built-in text, [n, hidden]."""
    rows = rows_at(folder.embedding.rows(), text_ids(folder))
    return through_base(folder, torch.from_numpy(rows).bfloat16())
