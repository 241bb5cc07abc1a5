"""Random PTX programs: the machine blocks leave what the PTX interpreter leaves."""

from __future__ import annotations

import pytest

from qgpu.machine import REFERENCE, MachineSpec
from tests.ptx.lowering import run_both
from tests.ptx.random_ptx import N_OUTPUT, random_input, random_kernel

BIG = MachineSpec("big", n_blocks=1024)
TWO_STAGES = MachineSpec("two stages", n_blocks=2048, n_stages=2)
FEW_REGISTERS = MachineSpec("few registers", n_blocks=2048, n_registers=8, n_words=2048)


@pytest.mark.parametrize("spec", [BIG, TWO_STAGES, FEW_REGISTERS], ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int, spec: MachineSpec) -> None:
    n_threads = (1, 3, 4, 6)[seed % 4]
    source = random_kernel(seed, n_threads, n_statements=6)
    args = [random_input(seed), [0] * (N_OUTPUT * n_threads)]
    got = run_both(source, args, block=(n_threads, 1, 1), spec=spec)
    assert got.blocks == got.ptx
    assert got.lowered.n_registers <= spec.n_registers


def test_the_generator_repeats_itself() -> None:
    assert random_kernel(3, 4) == random_kernel(3, 4)
    assert REFERENCE.n_blocks < BIG.n_blocks
