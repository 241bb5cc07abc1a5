"""A kernel in Python: numba-cuda makes the PTX (no GPU needed), qgpu runs it.

    pip install numba-cuda nvidia-cuda-nvrtc nvidia-nvvm
    python examples/13_python_kernel.py [MODEL]

Without MODEL (a checkpoint that `qgpu build` made) the circuit's own weights run it, no base behind
them. Either way every token is checked against the interpreter.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import cuda, int32, void

import qgpu
from qgpu.host.sparse import Circuit


def saxpy(a, x, y):  # type: ignore[no-untyped-def]  # compiled by numba, which infers the types
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def view(array: np.ndarray) -> tuple[Any, ...]:
    """How numba passes a 1-D array: two object pointers, items, item size, data, shape, stride."""
    return (0, 0, array.size, array.itemsize, array, array.size, array.itemsize)


def main() -> None:
    signature = void(int32, int32[::1], int32[::1])
    ptx, _ = cuda.compile_ptx(saxpy, signature.args, device=False, cc=(7, 5))
    kernel = qgpu.compile(ptx, kind="ptx").kernel()
    x, y = np.arange(6, dtype=np.int32), np.full(6, 100, np.int32)
    on = qgpu.Model.load(sys.argv[1]) if len(sys.argv) > 1 else Circuit()
    result = qgpu.launch(kernel, grid=2, block=4, args=[3, *view(x), *view(y)], on=on, check=True)
    print(result.args[12], f"{result.tokens} tokens, check: {result.check}")
    assert (result.args[12] == 3 * x + y).all()


if __name__ == "__main__":
    main()
