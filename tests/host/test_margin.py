"""The launches that a build holds against its base: what they cover, and what stops a build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qgpu.compiler.checkpoint import Folder
from qgpu.compiler.evaluate import Executor
from qgpu.compiler.plan import Plan, Widths, build_plan
from qgpu.compiler.weights import widths_of
from qgpu.errors import CheckpointError, CompileError, LimitError
from qgpu.host import standin
from qgpu.host.build import build
from qgpu.host.head import make_head
from qgpu.host.launch import Interpreter, launch
from qgpu.host.margin import CHOSEN, Drafted, drafted, margin_of, text_residual, through_base
from qgpu.host.probes import PROBES, probe_jobs
from qgpu.host.program import compile as compile_program
from qgpu.host.standin import write_standin
from qgpu.machine import REFERENCE, SMALL, MachineSpec
from qgpu.tokens import Barrier, Exec, Halt, Mem, Resume, Sign, Token, Uniform, Val, code_of
from tests.cases import example_cases

LAYER = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
SMALL_PLAN_WIDTHS = Widths(2048, 6144, 16, 16, 128, 4, 1e-6)


def test_the_probes_are_the_examples() -> None:
    cases = {case.kernel: case for case in example_cases()}
    assert [probe.name for probe in PROBES] == list(cases)
    for probe in PROBES:
        case = cases[probe.name]
        assert (case.grid, case.block) == ((probe.grid, 1, 1), (probe.block, 1, 1))
        kernel = compile_program(probe.ptx, "ptx").kernel()
        result = launch(kernel, probe.grid, probe.block, case.args, check=True,
                        shared_words=probe.shared_words)  # fmt: skip
        assert not case.differences(result.args), probe.name
        assert result.job == probe.job(REFERENCE), probe.name


def traces(spec: MachineSpec) -> list[Token]:
    return [
        token
        for _, job in probe_jobs(spec, CHOSEN)
        for token in Interpreter(spec).execute(job, lambda token: None).tokens
    ]


def test_the_chosen_launches_write_every_kind_and_turn_every_bit_of_the_code() -> None:
    written = traces(REFERENCE)
    assert {type(token) for token in written} == {
        Exec, Val, Uniform, Sign, Mem, Barrier, Resume, Halt
    }  # fmt: skip
    plan = build_plan(REFERENCE, SMALL_PLAN_WIDTHS)
    codes = {code_of(REFERENCE, token) for token in written}
    for bit in range(len(plan.code)):
        assert {code >> bit & 1 for code in codes} == {0, 1}, bit
    vals = [token for token in written if isinstance(token, Val)]
    assert {token.piece for token in vals} == {token.piece for token in all_vals(REFERENCE)}
    assert {token.warp for token in written if isinstance(token, Exec)} == set(range(8))


def all_vals(spec: MachineSpec) -> list[Val]:
    from qgpu.tokens import tokens

    return [token for token in tokens(spec) if isinstance(token, Val)]


def test_a_machine_that_is_too_small_leaves_probes_out() -> None:
    tiny = MachineSpec(
        "t", n_lanes=4, n_registers=16, n_warps=1, n_blocks=4, n_stages=4, n_words=16
    )
    names = [name for name, _ in probe_jobs(tiny)]
    assert "prefix_sum" not in names
    with pytest.raises(LimitError):
        next(probe for probe in PROBES if probe.name == "prefix_sum").job(tiny)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("margin") / "base"
    write_standin("tiny", path, changes=LAYER)
    return Folder.open(path)


@pytest.fixture(scope="module")
def plan(base: Folder) -> Plan:
    return build_plan(SMALL, widths_of(base.text_config))


@pytest.fixture(scope="module")
def launches(plan: Plan) -> list[Drafted]:
    return drafted(Executor.build(plan))


def test_the_intended_token_leads_in_every_launch(
    base: Folder, plan: Plan, launches: list[Drafted]
) -> None:
    text, *outs = through_base(base, [text_residual(base), *(x.residual for x in launches)])
    head = make_head(base, plan, text)
    margins = [margin_of(base, plan, head.rows, *both) for both in zip(launches, outs, strict=True)]
    assert [margin.launch for margin in margins] == list(CHOSEN)
    assert min(margin.lead for margin in margins) > 1
    assert max(margin.disturbance for margin in margins) < 0.02
    assert sum(margin.positions for margin in margins) == len(traces(SMALL))
    alone = through_base(base, [launches[1].residual])[0]
    assert torch.equal(alone, outs[1])  # launches do not see each other


def test_one_wrong_state_is_found_and_named(
    base: Folder, plan: Plan, launches: list[Drafted]
) -> None:
    text, right = through_base(base, [text_residual(base), launches[1].residual])
    head = make_head(base, plan, text)
    out = right.clone()
    out[-1] = -right[-1]
    last = len(launches[1].tokens) - launches[1].n_prompt
    told = f"another token wins at token {last} of the launch 'dot'"
    with pytest.raises(CheckpointError, match=told):
        margin_of(base, plan, head.rows, launches[1], out)
    out[-1] = torch.nan
    with pytest.raises(CheckpointError, match=told):
        margin_of(base, plan, head.rows, launches[1], out)


def test_a_circuit_that_writes_another_launch_is_no_fault_of_the_base(plan: Plan) -> None:
    executor = Executor.build(plan)
    executor.embedding = executor.embedding[::-1]
    with pytest.raises(CompileError, match="does not write the launch 'blocks'"):
        drafted(executor)


def test_a_base_that_drowns_the_machine_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = standin.seeded_tensor

    def loud(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        tensor = plain(name, shape, seed)
        return tensor * 2.0**40 if name.endswith("layers.0.mlp.down_proj.weight") else tensor

    monkeypatch.setattr(standin, "seeded_tensor", loud)
    write_standin("tiny", tmp_path / "base", changes=LAYER)
    with pytest.raises(CheckpointError, match="this base cannot carry the machine"):
        build(tmp_path / "base", tmp_path / "merged", SMALL, prove=False, pad=False)
    assert not (tmp_path / "merged").exists()
