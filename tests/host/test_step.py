"""The fused step against transformers' own modules: the same bits, kernel by kernel and whole.

Without a GPU the kernels run in Triton's interpreter (see ``interpreted``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

import qgpu.host.step as step_module
from qgpu.compiler.plan import build_plan
from qgpu.host.graph import StepGraph
from qgpu.host.model import cache_argument
from qgpu.host.step import TUNED, Counters, FusedStep, refusal
from qgpu.interp.machine import run_blocks
from qgpu.machine import SMALL
from qgpu.tokens import offset_of
from tests.compiler.dense import circuit_model
from tests.compiler.programs import random_program
from tests.compiler.test_machine import QWEN_2B
from tests.host.interpreted import DEVICE, ON_GPU, true_bf16

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore")
CAPACITY = 128
PROMPT = 70
# The interpreter walks through programs one by one: few of them, with many rows each.
WIDE = {} if ON_GPU else dict.fromkeys(TUNED, (512, 4))


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        true_bf16(patch)
        yield


def small_model(seed: int, **changes: Any) -> Any:
    """Random weights, large enough that every nonlinearity is bent."""
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 300,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32,
    }  # fmt: skip
    model = reference.Qwen3_5ForCausalLM(reference.Qwen3_5TextConfig(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(DEVICE, torch.bfloat16).eval()


def prefilled(model: Any, ids: list[int]) -> tuple[int, Any]:
    out = model(torch.tensor([ids], device=DEVICE), use_cache=True)
    return int(out.logits[0, -1].argmax()), out.past_key_values


def pair(model: Any, cache: Any, first: int, position: int) -> tuple[StepGraph, StepGraph]:
    """A step of plain modules with its state, and the state for a fused step, both ready."""
    steps = []
    for _ in range(2):
        step = StepGraph(model, deepcopy(cache), cache_argument(model), CAPACITY, fused=False)
        step.ids.fill_(first)
        step.position.fill_(position)
        step.count.zero_()
        steps.append(step)
    return steps[0], steps[1]


def fused_on(model: Any, step: StepGraph) -> FusedStep:
    counters = Counters(step.ids, step.position, step.written, step.count)
    return FusedStep(model, step.cache, CAPACITY, counters, WIDE)


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str, exact: bool = True) -> None:
    """The same bits; nearly, for full attention, whose softmax is summed in parts, and on a GPU,
    where the libraries' sums run in another order."""
    if exact and not ON_GPU:
        assert torch.equal(got, want), what
    else:
        size = float(want.float().abs().max())
        torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-2 * size, msg=what)


def layer_by_layer(fused: FusedStep, want: list[torch.Tensor], kinds: list[str]) -> None:
    """Runs the kernels; each layer starts from what the modules gave for the one before."""
    head = [launch for launch in fused.launches if launch.layer < 0]
    head[0]()
    for layer, kind in enumerate(kinds):
        for launch in fused.launches:
            if launch.layer == layer:
                launch()
        assert_same(fused.x, want[layer], f"layer {layer}", kind == "linear_attention")
        fused.x.copy_(want[layer])
    for launch in head[1:]:
        launch()


@pytest.mark.parametrize("changes", [
    {}, {"linear_num_value_heads": 2, "linear_value_head_dim": 16, "intermediate_size": 96},
    {"num_attention_heads": 2, "hidden_size": 64, "vocab_size": 257},
], ids=["grouped", "one to one", "narrow"])  # fmt: skip
@torch.inference_mode()
def test_every_layer_gives_what_the_modules_give(changes: dict[str, Any]) -> None:
    model = small_model(3, **changes)
    first, cache = prefilled(model, [i * 7 % 251 for i in range(PROMPT)])
    plain, other = pair(model, cache, first, PROMPT)
    fused = fused_on(model, other)
    want: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, a, out: want.append(out.flatten().clone()))
    for _ in range(3):
        want.clear()
        plain._step()
        layer_by_layer(fused, want, model.config.layer_types)
    for name in ("ids", "position", "written", "count"):
        assert torch.equal(getattr(other, name), getattr(plain, name)), name


@torch.inference_mode()
def test_attention_in_several_stretches_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "PARTS", 2)
    monkeypatch.setattr(step_module, "BLOCK", 16)
    model = small_model(13, layer_types=["full_attention", "linear_attention", "full_attention"])
    first, cache = prefilled(model, [i * 11 % 251 for i in range(PROMPT)])
    plain, other = pair(model, cache, first, PROMPT)
    fused = fused_on(model, other)
    want: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, a, out: want.append(out.flatten().clone()))
    plain._step()
    layer_by_layer(fused, want, model.config.layer_types)


def with_holes(seed: int) -> Any:
    """Most rows of every matrix zero, a head without keys, and two layers with an empty half."""
    layers = ["linear_attention"] * 4 + ["full_attention"]
    model = small_model(seed, layer_types=layers, num_hidden_layers=5)
    with torch.no_grad():
        for name, matrix in model.model.layers.named_parameters():
            if name.endswith("proj.weight") or "in_proj" in name:
                matrix[torch.rand(len(matrix), device=DEVICE) < 0.7] = 0
        first, second, third = (layer.linear_attn for layer in model.model.layers[:3])
        first.in_proj_qkv.weight[first.key_dim : first.key_dim + first.head_k_dim] = 0
        second.in_proj_qkv.weight.zero_()
        third.out_proj.weight.zero_()
        model.model.layers[2].mlp.down_proj.weight.zero_()
        model.model.layers[3].mlp.up_proj.weight.zero_()
    return model


@torch.inference_mode()
def test_rows_of_zeros_are_passed_over() -> None:
    model = with_holes(9)
    first, cache = prefilled(model, [i * 5 % 251 for i in range(PROMPT)])
    plain, other = pair(model, cache, first, PROMPT)
    fused = fused_on(model, other)
    names = [[one.name for one in fused.launches if one.layer == n] for n in range(4)]
    assert names == [
        ["project_linear", "delta", "read_out", "gate_up", "add_rows"], ["gate_up", "add_rows"],
        ["project_linear", "delta"], ["project_linear", "delta", "read_out"],
    ]  # fmt: skip
    want: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, a, out: want.append(out.flatten().clone()))
    for _ in range(3):
        want.clear()
        plain._step()
        layer_by_layer(fused, want, model.config.layer_types)
    for mine, theirs in zip(other._tensors(), plain._tensors(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def test_states_stay_those_of_the_modules() -> None:
    """The delta rule's sums run in another order: its float32 state is near, the rest equal."""
    model = small_model(5, layer_types=["linear_attention"] * 2 + ["full_attention"])
    first, cache = prefilled(model, list(range(PROMPT)))
    plain, other = pair(model, cache, first, PROMPT)
    fused = fused_on(model, other)
    for _ in range(4):
        plain._step()
        fused()
        other.ids.copy_(plain.ids)
    for mine, theirs in zip(other._tensors(), plain._tensors(), strict=True):
        if mine.dtype == torch.float32:
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        else:
            assert_same(mine, theirs, str(tuple(mine.shape)))


@dataclass
class MachineStep:
    """The small machine at Qwen3.5-2B's widths, after its prompt."""

    model: Any
    plain: StepGraph
    other: StepGraph
    written: list[int]  # what the interpreter writes


def machine_step() -> MachineStep:
    program = random_program(SMALL, random.Random(21), max_blocks=4)
    run = run_blocks(SMALL, program.blocks, program.memory, program.n_threads)
    model = circuit_model(build_plan(SMALL, QWEN_2B), torch.bfloat16, DEVICE)
    prompt, written = (
        [offset_of(SMALL, token) for token in fed] for fed in (program.prompt, run.tokens)
    )
    first, cache = prefilled(model, prompt)
    assert first == written[0]
    return MachineStep(model, *pair(model, cache, first, len(prompt)), written)


def assert_same_states(machine: MachineStep, layers: Sequence[int]) -> None:
    for index in layers:
        mine, theirs = (step.cache.layers[index] for step in (machine.other, machine.plain))
        assert torch.equal(mine.conv_states[0], theirs.conv_states[0]), index
        assert torch.equal(mine.recurrent_states[0], theirs.recurrent_states[0]), index


@pytest.mark.dense
@torch.inference_mode()
def test_layers_of_the_machine_are_exact() -> None:
    """Every fifth layer on what the modules feed it: its output and its states, bit for bit."""
    machine = machine_step()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in machine.model.model.layers:
        layer.register_forward_hook(
            lambda m, given, out: seen.append((given[0].flatten().clone(), out.flatten().clone()))
        )
    machine.plain._step()
    fused = fused_on(machine.model, machine.other)
    layers = range(0, len(machine.model.model.layers) - 1, 5)
    for index in layers:
        given, wanted = seen[index]
        fused.x.copy_(given)
        for launch in fused.launches:
            if launch.layer == index:
                launch()
        assert torch.equal(fused.x, wanted), index
    assert_same_states(machine, layers)


@pytest.mark.dense
@pytest.mark.slow
@torch.inference_mode()
def test_the_machine_writes_the_interpreters_tokens() -> None:
    machine = machine_step()
    fused = fused_on(machine.model, machine.other)
    for wanted in machine.written[1:4]:
        machine.plain._step()
        fused()
        assert int(machine.other.ids) == wanted
    assert_same_states(machine, range(len(machine.model.model.layers) - 1))


@torch.inference_mode()
def test_ties_go_to_the_lowest_row() -> None:
    model = small_model(7)
    model.lm_head.weight.copy_(model.lm_head.weight[:1].expand(300, -1))
    model.lm_head.weight[:40] = -model.lm_head.weight[0]
    first, cache = prefilled(model, list(range(9)))
    plain, other = pair(model, cache, first, 9)
    plain._step()
    fused_on(model, other)()
    assert int(other.ids) == int(plain.ids)
    assert int(other.ids) in (0, 40)


def test_what_cannot_be_fused_is_named() -> None:
    assert refusal(small_model(1)) is None
    assert "float32" in str(refusal(small_model(1).float()))
    odd = small_model(1)
    odd.model.layers[0].mlp.up_proj = torch.nn.Sequential(odd.model.layers[0].mlp.up_proj)
    assert "Sequential" in str(refusal(odd))
    biased = small_model(1)
    gate = biased.model.layers[0].mlp.gate_proj
    gate.bias = torch.nn.Parameter(gate.weight[:, 0].clone())
    assert "has a bias" in str(refusal(biased))
    assert "head_dim is 48" in str(refusal(small_model(1, head_dim=48)))


@torch.inference_mode()
def test_where_triton_fails_the_modules_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: FusedStep) -> None:
        step.launches[0]()
        step._counters.position.add_(7)
        raise OSError("no C compiler\nhere")

    model = small_model(11)
    first, cache = prefilled(model, list(range(20)))
    plain = StepGraph(model, deepcopy(cache), cache_argument(model), 23, fused=False)
    monkeypatch.setattr(FusedStep, "__call__", fail)
    step = StepGraph(model, deepcopy(cache), cache_argument(model), 23, tuned=WIDE)
    assert step.refusal == "Triton: OSError: no C compiler here"
    assert list(step.run(first, 20)) == list(plain.run(first, 20))


@torch.inference_mode()
def test_a_burst_of_the_captured_step_is_the_plain_one() -> None:
    model = small_model(11)
    first, cache = prefilled(model, list(range(20)))
    runs = []
    for fused in (True, False):
        step = StepGraph(model, deepcopy(cache), cache_argument(model), 24, fused=fused, tuned=WIDE)
        assert (step.refusal is None) == fused
        runs.append(list(step.run(first, 20)))
    assert len(runs[0]) == 4
    assert runs[0] == runs[1]
