"""A case carried out on each level of the machine: PTX interpreter, block interpreter.

Every level starts from the same PTX and the same bound arguments and returns the arguments after
the launch, for ``Case.differences``.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from qgpu.host.arguments import Bound, bind
from qgpu.host.program import Kernel, Program
from qgpu.host.program import compile as compile_program
from qgpu.interp.machine import BlockRun, run_blocks
from qgpu.interp.ptx import run_ptx
from qgpu.interp.sanitize import Finding, sanitize
from qgpu.kernel import LaunchShape, Lowered
from qgpu.machine import REFERENCE, WORD_BYTES, MachineSpec
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.lower import lower
from qgpu.tokens import Token, launch_tokens, memory_tokens, program_tokens
from tests.cases import Array, Case

Results = list[Array | None]


@cache
def _program(source: str, kind: str, opt: str) -> Program:
    ptx = cuda_to_ptx(source, file="case.cu", opt=opt) if kind == "cuda" else source
    return compile_program(ptx, "ptx", file="case.ptx")


def kernel_of(case: Case, opt: str = "-O1") -> Kernel:
    return _program(case.source, case.kind, opt).kernel(case.kernel)


def bound_of(
    case: Case, kernel: Kernel, spec: MachineSpec = REFERENCE
) -> tuple[Bound, LaunchShape, list[int]]:
    """The arguments, the launch's shape, and the machine's memory at the start."""
    module = kernel.program.module
    bound = bind(kernel.function, case.args, spec, pointer_bytes=module.address_size // 8,
                 file=case.name)  # fmt: skip
    shape = LaunchShape(case.grid, case.block, bound.params,
                        case.dynamic_shared_words * WORD_BYTES, bound.data_base)  # fmt: skip
    return bound, shape, [*bound.words, *[0] * (spec.n_words - len(bound.words))]


def in_ptx(case: Case, opt: str = "-O1") -> Results:
    """By the PTX interpreter."""
    kernel = kernel_of(case, opt)
    bound, shape, words = bound_of(case, kernel)
    memory = np.array(words, dtype="<u4").tobytes()
    final = run_ptx(kernel.program.module, kernel.name, shape, memory)
    return bound.read_back(np.frombuffer(bytes(final), "<u4").tolist())


def in_blocks(
    case: Case, spec: MachineSpec = REFERENCE, opt: str = "-O1"
) -> tuple[Results, Lowered, BlockRun]:
    """By the lowering and the block interpreter."""
    kernel = kernel_of(case, opt)
    bound, shape, words = bound_of(case, kernel, spec)
    lowered = lower(kernel.program.module, kernel.name, spec, shape)
    for address, value in lowered.image.items():
        words[address] = value
    run = run_blocks(spec, lowered.blocks, words, shape.n_threads)
    return bound.read_back(run.memory), lowered, run


def findings_of(case: Case, opt: str = "-O1") -> list[Finding]:
    """What the sanitizer says about the case."""
    kernel = kernel_of(case, opt)
    bound, shape, words = bound_of(case, kernel)
    memory = np.array(words, dtype="<u4").tobytes()
    return sanitize(kernel.program.module, kernel.name, shape, memory, bound.ranges)


def prompt_of(case: Case, lowered: Lowered, spec: MachineSpec = REFERENCE) -> list[Token]:
    """What the host feeds for the launch: program, memory, warps, Go."""
    _, shape, words = bound_of(case, kernel_of(case), spec)
    for address, value in lowered.image.items():
        words[address] = value
    return [
        *program_tokens(spec, lowered.blocks),
        *memory_tokens(spec, words),
        *launch_tokens(spec, shape.n_threads),
    ]
