"""Launches that a base must carry: real kernels as PTX, which needs no clang to lower.

The PTX is what clang made of the kernels in ``examples/``; a test holds results and launches
against those. ``blocks_job`` is written in machine blocks, for the tokens that no example needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import resources

import numpy as np

from qgpu.errors import LimitError
from qgpu.host.launch import Job, make_job, prepare
from qgpu.host.program import compile as compile_program
from qgpu.isa import Forward, Guard, Immediate, Instruction, MachineBlock, Op, Register, Target
from qgpu.machine import MachineSpec


@dataclass(frozen=True)
class Probe:
    """One launch of the kernel in ``NAME.ptx``."""

    name: str
    grid: int
    block: int
    args: tuple[int | list[int], ...]
    shared_words: int = 0

    @property
    def ptx(self) -> str:
        file = resources.files(__name__) / f"{self.name}.ptx"
        return file.read_text(encoding="utf-8")

    def job(self, spec: MachineSpec) -> Job:
        """The launch on a machine; LimitError where that is too small."""
        program = compile_program(self.ptx, "ptx", file=f"{self.name}.ptx")
        args = [arg if isinstance(arg, int) else np.array(arg, np.int32) for arg in self.args]
        parts = prepare(program.kernel(), spec, self.grid, self.block, args, self.shared_words)
        return make_job(spec, *parts)


PROBES = (
    Probe("dot", 1, 3, ([1, 2, 3], [4, 5, 6], [0])),
    Probe("vector_add", 2, 4, ([1, 2, 3, 4, 5, 6, 7], [10, 20, 30, 40, 50, 60, 70], [0] * 7, 7)),
    Probe("saxpy", 1, 4, (10, -3, list(range(10)), [100] * 10)),
    Probe("reverse", 1, 8, ([1, 2, 3, 4, 5, 6, 7, 8],)),
    Probe("prefix_sum", 1, 8, ([3, 1, 4, 1, 5, 9, 2, 6], [0] * 8)),
    Probe("histogram", 3, 4, ([0, 3, 1, 3, 2, 3, 0, 1, 3, 3], [0] * 4, 10)),
    Probe("max_reduction", 1, 8, ([-7, 12, -3, 40, 5, 39, -41, 0], [0]), 8),
    Probe("gcd", 1, 4, ([12, 35, 48, 17], [18, 14, 180, 5], [0] * 4)),
    Probe("collatz", 1, 8, ([1, 2, 3, 4, 5, 6, 7, 8], [0] * 8)),
    Probe("matmul", 3, 3, ([1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1], [0] * 9, 3)),
    Probe("bubble_sort", 1, 1, ([5, -1, 4, 2, 8, 0], 6)),
    Probe("fibonacci", 1, 8, ([0] * 8,)),
)  # fmt: skip


def blocks_job(spec: MachineSpec) -> Job:
    """All warps, values of both signs and every piece, stores, a branch that parts the lanes and
    lets the others go on first, a barrier."""
    tid, zero, one = Register(1), Register(0), Immediate(1)
    blocks = [
        MachineBlock(
            (Instruction(Op.TID, dst=1), Instruction(Op.SHL, Forward(0), Immediate(2), dst=2)),
            Target(1),
        ),
        MachineBlock(
            (Instruction(Op.SUB, zero, tid, dst=3), Instruction(Op.AND, tid, one)),
            Target(2), Guard(Forward(1)), Target(3, yields=True),
        ),
        MachineBlock(
            (Instruction(Op.MUL, Register(3), Immediate(0x01010101)),
             Instruction(Op.ST, Register(2), Immediate(8), Forward(0))), Target(3),
        ),
        MachineBlock(
            (Instruction(Op.MOV, Immediate(0xFFFF8000), dst=3),
             Instruction(Op.MUL, tid, Immediate(0x11223344), dst=4)), Target(4, barrier=True),
        ),
        MachineBlock((Instruction(Op.LD, Register(2), Immediate(8), dst=3),), Target(exit=True)),
    ]  # fmt: skip
    return Job(spec, blocks, [0, 0, 1, 2, 0xFFFFFFFF], spec.n_threads, 10_000)


def probe_jobs(
    spec: MachineSpec, chosen: Collection[str] | None = None
) -> Iterator[tuple[str, Job]]:
    """(name, launch) of the chosen probes, or of all, that fit the machine."""
    if chosen is None or "blocks" in chosen:
        yield "blocks", blocks_job(spec)
    for probe in PROBES:
        if chosen is not None and probe.name not in chosen:
            continue
        try:
            yield probe.name, probe.job(spec)
        except LimitError:  # a small machine, as the tests have it
            continue
