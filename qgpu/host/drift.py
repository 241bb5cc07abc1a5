"""qgpu kl: how far the merged model's text has drifted from its base.

The base runs first and its logits are kept, then the merged model runs on the same ids: prefill,
one-token decode, and prefill in a context that holds a whole launch. KL(base || merged) counts the
machine's rows in: their share of the probability is lost to the text.

Logits may differ where no state does: the wider head can get another matrix kernel, which adds in
another order. So equal final states, the head's input, are counted on their own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers

from qgpu.compiler.checkpoint import Folder
from qgpu.errors import UsageError
from qgpu.host.launch import Job
from qgpu.host.model import Model, cache_argument, load_hf
from qgpu.isa import Forward, Immediate, Instruction, MachineBlock, Op, Register, Target

MAX_POSITIONS = 512
CHUNK = 128
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Drift:
    """One mode's figures over its positions."""

    positions: int
    mean: float
    median: float
    p99: float
    max: float
    top1: float
    identical: int
    identical_states: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def built_in_text() -> str:
    """Several languages, code, maths and chat turns."""
    return (resources.files("qgpu.host") / "drift_text.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class TextRun:
    """What a model made of a text: logits [n, vocabulary] and the head's input [n, hidden]."""

    logits: torch.Tensor
    states: torch.Tensor


def compare(base: TextRun, merged: TextRun) -> Drift:
    """Two models on the same text; the merged one's vocabulary is wider."""
    size = base.logits.shape[1]
    kl, same_top, identical = [], 0, 0
    for mine, theirs in zip(base.logits, merged.logits, strict=True):
        p = torch.log_softmax(mine.double(), -1)
        q = torch.log_softmax(theirs.double(), -1)[:size]
        kl.append(float((p.exp() * (p - q)).sum().clamp(min=0)))
        same_top += int(mine.argmax()) == int(theirs.argmax())
        identical += bool(torch.equal(mine, theirs[:size]))
    values = torch.tensor(kl, dtype=torch.float64)
    return Drift(
        len(kl), float(values.mean()), float(values.median()), float(values.quantile(0.99)),
        float(values.max()), same_top / len(kl), identical,
        int((base.states == merged.states).all(-1).sum()),
    )  # fmt: skip


@torch.inference_mode()
def run_text(
    hf: Any, ids: Sequence[int], cache: Any, step: int, report: Callable[[int], None]
) -> TextRun:
    """``ids`` fed ``step`` at a time on ``cache``; kept on the CPU."""
    device = hf.get_input_embeddings().weight.device
    logits, states = [], []
    hook = hf.get_output_embeddings().register_forward_pre_hook(
        lambda module, args: states.append(args[0][0].cpu())
    )
    try:
        for start in range(0, len(ids), step):
            piece = torch.tensor([list(ids[start : start + step])], device=device)
            out = hf(input_ids=piece, use_cache=True, **{cache_argument(hf): cache})
            logits.append(out.logits[0].cpu())
            report(min(start + step, len(ids)))
    finally:
        hook.remove()
    return TextRun(torch.cat(logits), torch.cat(states))


def new_cache(hf: Any) -> Any:
    return transformers.DynamicCache(config=hf.config.get_text_config())


def some_launch(model: Model) -> list[int]:
    """The ids of a small whole launch: every thread stores its number."""
    blocks = [
        MachineBlock(
            (Instruction(Op.TID), Instruction(Op.SHL, Forward(0), Immediate(2), dst=1)), Target(1)
        ),
        MachineBlock(
            (Instruction(Op.ST, Register(1), Immediate(8), Register(1)),), Target(exit=True)
        ),
    ]
    job = Job(model.spec, blocks, [], model.spec.n_lanes, 100)
    written = model.execute(job, lambda token: None).tokens
    return model.ids([*job.prompt(), *written])


def measure(
    base: Path,
    merged: Path,
    text: str | None = None,
    *,
    max_positions: int = MAX_POSITIONS,
    decode_positions: int | None = None,
    device: str | None = None,
    report: Report = lambda what, done, of: None,
) -> dict[str, Drift]:
    """The drift in each mode, over the first ``max_positions`` tokens of the text."""
    Folder.open(base)  # refuses what is no Qwen3.5
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    ids = tokenizer(text or built_in_text(), add_special_tokens=False)["input_ids"][:max_positions]
    if not ids:
        raise UsageError("the text has no tokens")
    steps = {"prefill": (CHUNK, ids), "decode": (1, ids[:decode_positions])}
    hf = load_hf(base, device=device)
    wanted = {
        mode: run_text(hf, fed, new_cache(hf), step, _part(report, f"base, {mode}", len(fed)))
        for mode, (step, fed) in steps.items()
    }
    del hf
    gc.collect()
    model = Model.load(merged, device=device)
    found = {}
    for mode, (step, fed) in steps.items():
        part = _part(report, f"merged, {mode}", len(fed))
        found[mode] = compare(
            wanted[mode], run_text(model.hf, fed, new_cache(model.hf), step, part)
        )
    cache = model.new_cache()
    model.prefill(some_launch(model), cache)
    part = _part(report, "merged, after a launch", len(ids))
    after = run_text(model.hf, ids, cache, CHUNK, part)
    found["after a launch left in the context"] = compare(wanted["prefill"], after)
    return found


def _part(report: Report, what: str, of: int) -> Callable[[int], None]:
    return lambda done: report(what, done, of)
