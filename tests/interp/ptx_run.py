"""Small helpers that run PTX and CUDA in the PTX interpreter and look at words."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from qgpu.interp.ptx import run_ptx
from qgpu.kernel import LaunchShape
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.parse import parse_ptx
from qgpu.ptxir import Module

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %rd<40>; .reg .f32 %f<4>;"
)
FIRST = 64  # where the array argument of ``words`` begins


@cache
def ptx_module(body: str, declarations: str = "") -> Module:
    """A kernel ``k`` whose parameter ``p`` is in %rd0 and whose thread index is in %r0."""
    text = f"""{HEAD}{declarations}
.visible .entry k(.param .u64 p) {{
{REGISTERS}
ld.param.u64 %rd0, [p];
mov.u32 %r0, %tid.x;
{body}
ret;
}}"""
    return parse_ptx(text, "test.ptx")


@cache
def cuda_module(source: str, opt: str = "-O1") -> Module:
    return parse_ptx(cuda_to_ptx(source, opt=opt), "test.cu")


Dims = tuple[int, int, int]


def words(
    module: Module, data: Sequence[int], *, block: int | Dims = 1, grid: int | Dims = 1,
    scalars: tuple[int, ...] = (), shared: int = 0, limit: int = 100_000, form: str = "i",
) -> list[int]:  # fmt: skip
    """Launch the only kernel over one array and return the array."""
    raw = struct.pack(f"<{len(data)}{form}", *data)
    memory = bytes(FIRST) + raw
    shape = LaunchShape(
        grid if isinstance(grid, tuple) else (grid, 1, 1),
        block if isinstance(block, tuple) else (block, 1, 1),
        (FIRST, *scalars), shared, len(memory),
    )  # fmt: skip
    (kernel,) = module.kernels
    out = run_ptx(module, kernel.name, shape, memory, max_instructions=limit)
    assert out[:FIRST] == bytes(FIRST)
    return list(struct.unpack(f"<{len(data)}{form}", out[FIRST:]))


def kernel(body: str, opt: str = "-O1", params: str = "int *a", before: str = "") -> Module:
    return cuda_module(f"{before}\n__global__ void k({params}) {{ {body} }}", opt)


def run(body: str, data: list[int], **more: Any) -> list[int]:
    """A CUDA kernel over ``int *a`` at -O1."""
    return words(kernel(body), data, **more)


def asm(body: str, data: list[int], declarations: str = "", **more: Any) -> list[int]:
    """A PTX body; each thread's own word is at [%rd1]."""
    own = "mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;\n"
    return words(ptx_module(own + body, declarations), data, **more)
