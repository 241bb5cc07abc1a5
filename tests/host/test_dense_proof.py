"""The run of every row through dense layers: what it counts where layers are not silent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qgpu.host.dense_proof import DenseProof, prove_dense
from qgpu.host.model import Model
from tests.host.small import N_CIRCUIT, merge_idle, narrow_base

ROWS = 512


@pytest.fixture
def model(tmp_path: Path) -> Model:
    merge_idle(narrow_base(tmp_path / "base"), tmp_path / "merged")
    return Model.load(tmp_path / "merged", device="cpu")


def launch_of(model: Model) -> list[int]:
    """Machine tokens that leave a state behind, since the layer that they meet writes one."""
    mixer = model.hf.model.layers[0].linear_attn
    with torch.no_grad():  # layer 0 writes and is silent in the residual: its out_proj is zero
        for name in ("in_proj_qkv", "conv1d"):
            getattr(mixer, name).weight.fill_(0.5)
    return list(range(model.first_token, model.first_token + 5))


def test_idle_layers_leave_every_row(model: Model) -> None:
    seen: list[int] = []
    proof = prove_dense(model, [model.first_token], progress=seen.append)
    assert proof == DenseProof(ROWS, 0, 0) and proof.holds
    assert sum(seen) == ROWS


def test_a_layer_that_adds_the_least_bit_is_counted(model: Model) -> None:
    layer = model.hf.model.layers[N_CIRCUIT - 1].mlp
    with torch.no_grad():
        for part in (layer.gate_proj, layer.up_proj, layer.down_proj):
            part.weight.fill_(0.25)
    proof = prove_dense(model, [model.first_token], rows=100)
    assert proof.rows == 100 and 0 < proof.changed <= 100
    assert proof.touched == 0 and not proof.holds


def test_a_layer_that_writes_its_state_on_text_is_counted(model: Model) -> None:
    proof = prove_dense(model, launch_of(model), rows=64)
    assert (proof.changed, proof.touched) == (0, 1) and not proof.holds


def test_some_rows_are_spread_over_the_table(model: Model) -> None:
    fed: list[torch.Tensor] = []
    embed = model.hf.get_input_embeddings()
    embed.register_forward_pre_hook(lambda module, args: fed.append(args[0]))
    prove_dense(model, [model.first_token], rows=4)
    assert fed[-1].tolist() == [[0, 128, 256, 384]]


def test_a_pass_that_was_stopped_leaves_no_hook(model: Model) -> None:
    prove_dense(model, [model.first_token], rows=3)
    assert not model.hf.model.layers[N_CIRCUIT]._forward_pre_hooks
    assert model.prefill([1, 2, 3], model.new_cache()).isfinite().all()
