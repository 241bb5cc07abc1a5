"""The machine's output rows for one base: how large, and how quiet on text (docs/silence.md).

Size. Behind the circuit a machine token's state is its output code, +-CODE_VALUE on the code dims,
next to which the base's layers add nothing that counts; so behind the final norm it is +-c_d with
c_d = sqrt(hidden / n_code) (1 + norm weight). The intended row then has the logit size * sum(c), a
row of another code at least 2 * size * (the sum of c over one bit's copies) less, and a row e of
text at most sum(abs(e_d) c_d), whatever the code. The size is chosen so that the intended token
leads for every code there is; margin.py shows it by running.

Quiet. In text every machine row is one more term of the softmax. Final states of text share a
mean, so the rows get -strength along a direction on which text lies far on one side; a machine
token's state has nothing there, so the rows' order among themselves stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import torch

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.emit import bf16, head_rows
from qgpu.compiler.plan import Plan
from qgpu.compiler.silence import chunks
from qgpu.errors import CheckpointError

LEAST_SIZE = 2.0**-5
TEXT_TOKENS = 384
HEAD_ROWS = 8192  # rows of the head in memory at a time
WANTED_LOG = -20.0  # log of the share that all machine rows may have of a text's probability
STRENGTHS = (0.0, *(2.0**n for n in range(-2, 11)))


@dataclass(frozen=True)
class Head:
    """The rows [n_tokens, hidden] and what was found while choosing them."""

    rows: torch.Tensor
    facts: dict[str, Any]


def final_norm(folder: Folder) -> np.ndarray:
    """What the base's last norm multiplies by."""
    weight: np.ndarray = 1 + folder.tensors[f"{folder.prefix}norm.weight"].array()
    return weight


def code_dims(plan: Plan) -> np.ndarray:
    """Residual dims of the output code, [bits, copies]."""
    return np.array([plan.space.residual_dims(field) for field in plan.code])


def size_for(folder: Folder, plan: Plan) -> tuple[float, float]:
    """(size, the least lead of the intended token over all codes)."""
    dims = code_dims(plan)
    c = np.abs(final_norm(folder))[dims] * (plan.widths.hidden / dims.size) ** 0.5
    text = max(float((np.abs(part[:, dims.ravel()]) @ c.ravel()).max())
               for part in chunks(folder.head.rows()))  # fmt: skip
    size = LEAST_SIZE
    while size * c.sum() < 2 * text:
        size *= 2
    return size, float(min(2 * size * c.sum(1).min(), size * c.sum() - text))


def code_rows(folder: Folder, plan: Plan, size: float) -> np.ndarray:
    """The rows by the code alone, turned around on dims that the final norm turns around."""
    signs = np.where(final_norm(folder) < 0, -1, 1).astype(np.float32)
    return head_rows(plan, size) * signs


def text_ids(folder: Folder, count: int = TEXT_TOKENS) -> list[int]:
    """Ids of the built-in text; of any rows where the base brings no tokenizer."""
    path = folder.path / "tokenizer.json"
    if not path.exists():
        rng = np.random.default_rng(0)
        return [int(i) for i in rng.integers(0, folder.embedding.shape[0], count)]
    from tokenizers import Tokenizer

    text = (resources.files("qgpu.host") / "drift_text.txt").read_text(encoding="utf-8")
    ids: list[int] = Tokenizer.from_file(str(path)).encode(text).ids[:count]
    return ids


def text_shares(folder: Folder, states: torch.Tensor) -> np.ndarray:
    """Log of the sum of exp of the text's logits, for each state [n, hidden]."""
    total = torch.full((len(states),), -torch.inf)
    rows = folder.head.rows()
    for start in range(0, len(rows), HEAD_ROWS):
        part = torch.from_numpy(rows[start : start + HEAD_ROWS])
        total = torch.logaddexp(total, (states @ part.T).logsumexp(1))
    out: np.ndarray = total.numpy()
    return out


def quiet_direction(states: np.ndarray, banned: np.ndarray) -> np.ndarray:
    """Unit direction along which the states' mean is largest next to their spread (a linear
    discriminant, its covariance shrunk by half to its mean variance); 0 on the ``banned`` dims."""
    covariance = np.cov(states.T)
    shrunk = np.trace(covariance) / len(covariance)
    covariance[np.diag_indices_from(covariance)] += max(shrunk, np.finfo(np.float32).tiny)
    w = np.linalg.solve(covariance, states.mean(0))
    w[banned] = 0
    unit: np.ndarray = w / max(np.linalg.norm(w), np.finfo(np.float32).tiny)
    return unit


def unseen_sides(h: np.ndarray, banned: np.ndarray) -> np.ndarray:
    """How far each state lies along the direction that the other half of the states gives."""
    half = len(h) // 2
    return np.concatenate([h[:half] @ quiet_direction(h[half:], banned),
                           h[half:] @ quiet_direction(h[:half], banned)])  # fmt: skip


def kl_of(log_shares: np.ndarray) -> np.ndarray:
    """What new rows cost whose part of the text's probability has these logs."""
    kl: np.ndarray = np.logaddexp(0, log_shares)
    return kl


def choose_strength(log_shares: np.ndarray, sides: np.ndarray) -> float:
    """The least strength that makes the rows quiet at every unseen position, each taken a deviation
    nearer to 0 than it lies; where none does, the one that costs the least on the mean. A base on
    which any strength would cost more than it saves gets 0."""
    cautious = sides - sides.std()
    after = [log_shares - strength * cautious for strength in STRENGTHS]
    for strength, log_share in zip(STRENGTHS, after, strict=True):
        if log_share.max() <= WANTED_LOG:
            return strength
    return STRENGTHS[int(np.argmin([kl_of(log_share).mean() for log_share in after]))]


def make_head(folder: Folder, plan: Plan, states: torch.Tensor) -> Head:
    """The rows for a base whose final states of some text, [n, hidden], are ``states``."""
    size, lead = size_for(folder, plan)
    rows = code_rows(folder, plan, size)
    h = states.float().numpy()
    if not np.isfinite(h).all():
        raise CheckpointError(f"{folder.path}: its own states of plain text are not finite numbers")
    banned = code_dims(plan).ravel()
    texts = text_shares(folder, states.float())
    before = np.logaddexp.reduce(h @ rows.T, axis=1) - texts
    unseen = unseen_sides(h, banned)
    strength = choose_strength(before, unseen)
    rows = bf16(rows - strength * quiet_direction(h, banned).astype(np.float32))
    after = np.logaddexp.reduce(h @ rows.T, axis=1) - texts
    kl_unseen = kl_of(before - strength * unseen)
    facts = {
        "size": size,
        "lead_of_every_code": lead,
        "quiet_strength": strength,
        "text_from_zero_in_deviations": float(unseen.mean() / max(unseen.std(), 1e-9)),
        "text_on_the_wrong_side": int((unseen <= 0).sum()),
        "text_positions": len(h),
        "kl_without_the_direction": float(kl_of(before).mean()),
        "kl_of_new_rows": float(kl_of(after).max()),
        "kl_on_unseen_text": {"mean": float(kl_unseen.mean()), "max": float(kl_unseen.max())},
    }
    return Head(torch.from_numpy(rows).bfloat16(), facts)
