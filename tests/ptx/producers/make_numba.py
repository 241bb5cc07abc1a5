"""Writes numba.ptx: integer kernels in Python, compiled by numba-cuda without a GPU.

    pip install numba-cuda nvidia-cuda-nvrtc nvidia-nvvm && python make_numba.py

Run by hand; the file that it made is what the tests read.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("NUMBA_CUDA_ENABLE_PYNVJITLINK", "0")

from numba import cuda, int32, int64, uint8, uint32, void


def vector_scale(a, b, out, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor + b[i] // 3 - (a[i] % 5)


def block_sum(data, out):
    part = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    part[t] = data[t]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[0] = part[0]


def count_bytes(data, bins):
    t = cuda.threadIdx.x
    for i in range(t, data.size, cuda.blockDim.x):
        cuda.atomic.add(bins, data[i] & 3, 1)


def collatz(start, steps):
    t = cuda.threadIdx.x
    n = start[t]
    count = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        count += 1
    steps[t] = count


KERNELS = {
    vector_scale: void(int32[::1], int32[::1], int32[::1], int32),
    block_sum: void(int32[::1], int32[::1]),
    count_bytes: void(uint8[::1], uint32[::1]),
    collatz: void(int64[::1], int32[::1]),
}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "numba")
    folder.mkdir(exist_ok=True)
    for kernel, signature in KERNELS.items():
        ptx, _ = cuda.compile_ptx(kernel, signature.args, device=False, cc=(7, 5))
        (folder / f"{kernel.__name__}.ptx").write_text(ptx)


if __name__ == "__main__":
    main()
