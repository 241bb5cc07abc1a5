"""What the lowering tests share: run one PTX kernel in the block interpreter and as PTX itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qgpu.interp.machine import run_blocks
from qgpu.interp.ptx import run_ptx
from qgpu.isa import MASK32
from qgpu.kernel import LaunchShape, Lowered
from qgpu.machine import REFERENCE, WORD_BYTES, MachineSpec
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.lower import lower
from qgpu.ptx.parse import parse_ptx
from qgpu.ptxir import Module

DATA = 8  # where the first array starts
MAX_TOKENS = 200_000


@dataclass
class Outcome:
    """The final words of each array, by both interpreters, and what the lowering made."""

    blocks: list[list[int]]
    ptx: list[list[int]]
    lowered: Lowered
    n_tokens: int


def ptx_kernel(body: str, registers: str = "", n_params: int = 2) -> str:
    """A kernel ``k`` around a body of PTX; parameter ``p0``, ``p1``, ... are 64 bits wide."""
    params = ", ".join(f".param .u64 p{n}" for n in range(n_params))
    return f""".version 7.0
.target sm_75
.address_size 64
.visible .entry k({params})
{{
.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %d<64>;
{registers}
{body}
}}
"""


def run_both(
    source: str | Module,
    args: Sequence[Sequence[int] | int],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (1, 1, 1),
    shared_bytes: int = 0,
    spec: MachineSpec = REFERENCE,
    is_cuda: bool = False,
    opt: str = "-O1",
) -> Outcome:
    """Arrays of words and integers as arguments; the launch by blocks and by PTX."""
    if isinstance(source, str):
        source = parse_ptx(cuda_to_ptx(source, opt=opt) if is_cuda else source)
    words = [0] * spec.n_words
    params: list[int] = []
    places: list[tuple[int, int]] = []
    at = DATA // WORD_BYTES
    for arg in args:
        if isinstance(arg, int):
            params.append(arg)
            continue
        words[at : at + len(arg)] = [word & MASK32 for word in arg]
        params.append(at * WORD_BYTES)
        places.append((at, len(arg)))
        at += len(arg) + len(arg) % 2
    shape = LaunchShape(grid, block, tuple(params), shared_bytes, at * WORD_BYTES)
    kernel = source.kernels[0].name
    lowered = lower(source, kernel, spec, shape)
    memory = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)
    by_ptx = run_ptx(source, kernel, shape, memory, spec=spec)
    for word, value in lowered.image.items():
        words[word] = value
    run = run_blocks(spec, lowered.blocks, words, shape.n_threads, max_tokens=MAX_TOKENS)
    after = [
        int.from_bytes(by_ptx[n : n + WORD_BYTES], "little")
        for n in range(0, len(by_ptx), WORD_BYTES)
    ]
    return Outcome(
        [run.memory[start : start + n] for start, n in places],
        [after[start : start + n] for start, n in places],
        lowered,
        len(run.tokens),
    )
