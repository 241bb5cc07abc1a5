"""A hand-written launch for the trace tests: the dot product of three numbers, block by block."""

from __future__ import annotations

import numpy as np

import qgpu
from qgpu.host.launch import Interpreter, Job, Result
from qgpu.isa import Forward, Guard, Immediate, Instruction, MachineBlock, Op, Register, Target
from qgpu.kernel import LaunchShape, Lowered
from qgpu.machine import MachineSpec

SOURCE = """\
extern "C" __global__ void dot(const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    int product = a[i] * b[i]; // </script> must not end the page's data
    if (product > 4) atomicAdd(out, product);
}
"""
SPEC = MachineSpec("trace", n_warps=2, n_blocks=32, n_stages=4, n_words=64)


def blocks() -> list[MachineBlock]:
    """a at byte 8, b at 24, out at 40; the product goes to r3, whether it counts to r1."""
    s0, s1 = Forward(0), Forward(1)
    load = MachineBlock(
        (
            Instruction(Op.TID),
            Instruction(Op.SHL, s0, Immediate(2)),
            Instruction(Op.LD, s1, Immediate(8), dst=1),
            Instruction(Op.LD, s1, Immediate(24), dst=2),
        ),
        Target(1),
    )
    multiply = MachineBlock(
        (
            Instruction(Op.MUL, Register(1), Register(2), dst=3),
            Instruction(Op.LTS, Immediate(4), s0, dst=1),
        ),
        Target(2, serial=True),
    )
    add = MachineBlock(
        (
            Instruction(Op.LD, Immediate(40), Immediate(0)),
            Instruction(Op.ADD, s0, Register(3)),
            Instruction(Op.ST, Immediate(40), Immediate(0), s1, guard=Guard(Register(1))),
        ),
        Target(exit=True),
    )
    return [load, multiply, add]


def dot_launch() -> tuple[qgpu.Kernel, Result]:
    kernel = qgpu.compile(SOURCE).kernel("dot")
    file = kernel.program.file
    lowered = Lowered(
        "dot", blocks(), 3, 12,
        sources=[[(file, 2), (file, 2), (file, 3), (file, 3)], [(file, 3), (file, 4)],
                 [("device.h", 4), (file, 4), (file, 4)]],
        ptx_lines=[[32, 34, 36, 39], [41, 43], [None, 47, 47]],
    )  # fmt: skip
    memory = [0, 0, 1, 2, 3, 0, 4, -5 & 0xFFFFFFFF, 6, 0, 100, 0]
    job = Job(SPEC, lowered.blocks, memory, 3, 1000)
    done = Interpreter(SPEC).execute(job, lambda token: None)
    arrays = [np.array(done.memory[at : at + n], np.uint32).view(np.int32)
              for at, n in ((2, 3), (6, 3), (10, 1))]  # fmt: skip
    shape = LaunchShape(block=(3, 1, 1), params=(8, 24, 40), data_base=48)
    return kernel, Result(list(arrays), done.tokens, 0.01, "ok", "interp", lowered, done.memory,
                          job, shape)  # fmt: skip
