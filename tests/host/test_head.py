"""The machine's output rows: their size by the bound, and how quiet they are on text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.plan import CODE_VALUE, Plan, build_plan
from qgpu.compiler.weights import widths_of
from qgpu.host.head import code_dims, code_rows, final_norm, make_head, quiet_direction, size_for
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
    states, offsets = machine_states(base, plan, 50)
    said = (states @ head.rows.float().numpy().T).argmax(1)
    assert (said == offsets).all()


def test_text_without_a_common_mean_is_not_trusted(base: Folder, plan: Plan) -> None:
    head = make_head(base, plan, text_like(0.0, plan))
    assert head.facts["quiet_strength"] == 0
    assert head.facts["kl_of_new_rows"] > 1e-6


def test_the_direction_keeps_off_the_banned_dims() -> None:
    states = np.random.default_rng(0).standard_normal((50, 20)) + 1
    w = quiet_direction(states, np.array([3, 4]))
    assert (w[[3, 4]] == 0).all() and np.linalg.norm(w) == pytest.approx(1)
    assert (states @ w).mean() > 0
