"""Grids and CUDA blocks of one, two and three dimensions, partial warps, grid strides."""

from __future__ import annotations

from itertools import product

from tests.cases import Case, Dim, dim
from tests.corpus.build import U8, U32, Size, case, i32, zeros

WHERE = """
__global__ void k(unsigned *out) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
    unsigned w = gridDim.x * blockDim.x, h = gridDim.y * blockDim.y;
    out[(z * h + y) * w + x] = x + 100 * y + 10000 * z;
}"""


def _where(grid: Size, block: Size) -> Case:
    g, b = dim(grid), dim(block)
    size: Dim = (g[0] * b[0], g[1] * b[1], g[2] * b[2])
    cells = [x + 100 * y + 10000 * z for z, y, x in product(*map(range, size[::-1]))]
    label = "_".join("x".join(map(str, d)) for d in (g, b))
    return case(f"grid_where_{label}", WHERE, [zeros(len(cells), U32)], {0: cells}, grid=grid,
                block=block)  # fmt: skip


def _linear(block: Size) -> Case:
    """The linear thread number counts x fastest."""
    b = dim(block)
    n = b[0] * b[1] * b[2]
    source = """
__global__ void k(unsigned *out) {
    unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[t] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16 | (blockDim.x * blockDim.y) << 24;
}"""
    cells = [x | y << 8 | z << 16 | (b[0] * b[1]) << 24
             for z, y, x in product(*map(range, b[::-1]))]  # fmt: skip
    return case(f"grid_linear_{'x'.join(map(str, b))}", source, [zeros(n, U32)], {0: cells},
                block=block)  # fmt: skip


def _partial(n: int, grid: int, block: int) -> Case:
    source = """
__global__ void k(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * 3 - i;
}"""
    data = [(7 * i) % 23 - 11 for i in range(n)]
    return case(f"grid_partial_{n}_{grid}x{block}", source, [i32(*data), zeros(n + 2), n],
                {1: [*(v * 3 - i for i, v in enumerate(data)), 0, 0]}, grid=grid,
                block=block)  # fmt: skip


def _stride(n: int, grid: int, block: int) -> Case:
    source = """
__global__ void k(int *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] += i * i + 1;
}"""
    return case(f"grid_stride_{n}_{grid}x{block}", source, [zeros(n), n],
                {0: [i * i + 1 for i in range(n)]}, grid=grid, block=block)  # fmt: skip


OTHERS = [
    case("grid_dims_read_back", """
__global__ void k(unsigned *out) {
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        out[0] = gridDim.x; out[1] = gridDim.y; out[2] = gridDim.z;
        out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
    }
}""", [zeros(6, U32)], {0: [2, 3, 1, 3, 1, 2]}, grid=(2, 3), block=(3, 1, 2)),
    case("grid_block_sums", """
__global__ void k(const int *in, int *out) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}""", [i32(*range(20)), zeros(4)], {1: [10, 35, 60, 85]}, grid=4, block=5),
    case("grid_image_transpose", """
__global__ void k(const unsigned char *in, unsigned char *out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) out[x * h + y] = in[y * w + x];
}""", [U8.array(range(15)), zeros(15, U8), 5, 3],
         {1: [5 * (n % 3) + n // 3 for n in range(15)]}, grid=(2, 2), block=(3, 2)),
    case("grid_block_dependent_work", """
__global__ void k(int *out) {
    int b = blockIdx.x, r = 0;
    for (int i = 0; i <= b; i++) r += threadIdx.x + i;
    out[b * blockDim.x + threadIdx.x] = b & 1 ? -r : r;
}""", [zeros(12)], {0: [(-1) ** b * sum(t + i for i in range(b + 1)) for b in range(4)
                        for t in range(3)]}, grid=4, block=3),
    case("grid_many_blocks", """
__global__ void k(int *out) { out[blockIdx.x] = blockIdx.x * 5; }""",
         [zeros(40)], {0: [5 * b for b in range(40)]}, grid=40),
    case("grid_blocks_leave_early", """
__global__ void k(int *out, int n) {
    if (blockIdx.x >= n) return;
    __syncthreads();
    out[blockIdx.x * 6 + threadIdx.x] = blockIdx.x + 1;
}""", [zeros(24), 2], {0: [1] * 6 + [2] * 6 + [0] * 12}, grid=4, block=6),
    case("grid_sum_over_blocks", """
__global__ void k(int *out) { atomicAdd(out, (int)(blockIdx.x * 10 + threadIdx.x)); }""",
         [zeros(1)], {0: [sum(b * 10 + t for b in range(3) for t in range(5))]}, grid=3, block=5),
]  # fmt: skip

CASES: tuple[Case, ...] = (
    *(_where(g, b) for g, b in [(1, 1), (3, 2), ((2, 2), (3, 2)), ((2, 1, 2), (2, 2, 2)),
                                ((1, 3), (5, 1)), (1, (2, 3, 4)), ((2, 2, 2), 1), (2, 32)]),
    *(_linear(b) for b in (1, 7, (4, 4), (3, 5), (2, 2, 3), (1, 6), (1, 1, 8))),
    *(_partial(n, g, b) for n, g, b in [(1, 1, 4), (5, 2, 3), (9, 3, 4), (13, 2, 8), (30, 1, 32)]),
    *(_stride(n, g, b) for n, g, b in [(10, 1, 4), (17, 2, 3), (6, 4, 4), (33, 1, 8)]),
    *OTHERS,
)  # fmt: skip
