"""Shared memory and barriers over several warps."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from math import prod
from operator import and_, or_, xor

from tests.cases import Case
from tests.corpus.build import U32, case, i32, random_values, u32, zeros

EIGHT = [3, 1, 4, 1, 5, 9, 2, 6]
SIXTEEN = [v % 100 for v in random_values("sixteen", U32, 16)]

# the step, and Python's own
REDUCTIONS = {
    "sum": ("a + b", sum),
    "max": ("a > b ? a : b", max),
    "min": ("a < b ? a : b", min),
    "xor": ("a ^ b", lambda v: reduce(xor, v)),
    "or": ("a | b", lambda v: reduce(or_, v)),
    "and": ("a & b", lambda v: reduce(and_, v)),
    "product": ("a * b", lambda v: prod(v) % (1 << 32)),
}


def _reduction(name: str, n: int) -> Case:
    step, model = REDUCTIONS[name]
    source = f"""
__global__ void k(const unsigned *in, unsigned *out) {{
    __shared__ unsigned s[{n}];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    for (int half = {n} / 2; half; half >>= 1) {{
        if (t < half) {{ unsigned a = s[t], b = s[t + half]; s[t] = {step}; }}
        __syncthreads();
    }}
    if (t == 0) *out = s[0];
}}"""
    data = [v % 1000 + 1 for v in random_values(f"reduce{name}{n}", U32, n)]
    return case(f"sync_reduce_{name}_{n}", source, [u32(*data), zeros(1, U32)], {1: [model(data)]},
                block=n)  # fmt: skip


def _interleaved_reduction() -> Case:
    return case("sync_reduce_interleaved", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    s[t] = in[t];
    for (int step = 1; step < 8; step *= 2) {
        __syncthreads();
        if (t % (2 * step) == 0) s[t] += s[t + step];
    }
    if (t == 0) out[0] = s[0];
}""", [i32(*EIGHT), zeros(1)], {1: [sum(EIGHT)]}, block=8)  # fmt: skip


SCANS = [
    case("sync_scan_blelloch", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    s[2 * t] = in[2 * t];
    s[2 * t + 1] = in[2 * t + 1];
    int step = 1;
    for (int d = 4; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) s[step * (2 * t + 2) - 1] += s[step * (2 * t + 1) - 1];
        step *= 2;
    }
    if (t == 0) s[7] = 0;
    for (int d = 1; d < 8; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            int left = step * (2 * t + 1) - 1, right = step * (2 * t + 2) - 1;
            int kept = s[left];
            s[left] = s[right];
            s[right] += kept;
        }
    }
    __syncthreads();
    out[2 * t] = s[2 * t];
    out[2 * t + 1] = s[2 * t + 1];
}""", [i32(*EIGHT), zeros(8)], {1: [0, *accumulate(EIGHT)][:8]}, block=4),
    case("sync_scan_double_buffer", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[2][16];
    int t = threadIdx.x, now = 0;
    s[0][t] = in[t];
    __syncthreads();
    for (int d = 1; d < 16; d *= 2) {
        s[1 - now][t] = t >= d ? s[now][t] + s[now][t - d] : s[now][t];
        now = 1 - now;
        __syncthreads();
    }
    out[t] = s[now][t];
}""", [i32(*SIXTEEN), zeros(16)], {1: list(accumulate(SIXTEEN))}, block=16),
    case("sync_scan_running_max", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncthreads();
    for (int d = 1; d < 8; d *= 2) {
        int left = t >= d ? s[t - d] : s[t];
        __syncthreads();
        s[t] = max(s[t], left);
        __syncthreads();
    }
    out[t] = s[t];
}""", [i32(-5, -9, 2, 1, 7, 3, 8, 0), zeros(8)], {1: [-5, -5, 2, 2, 7, 7, 8, 8]}, block=8),
]  # fmt: skip


def _tile_matmul(n: int) -> Case:
    a = [v % 10 - 4 for v in range(n * n)]
    b = [(v * 7) % 11 - 5 for v in range(n * n)]
    source = f"""
__global__ void k(const int *a, const int *b, int *c) {{
    __shared__ int sa[{n}][{n}], sb[{n}][{n}];
    int x = threadIdx.x, y = threadIdx.y;
    sa[y][x] = a[y * {n} + x];
    sb[y][x] = b[y * {n} + x];
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < {n}; i++) sum += sa[y][i] * sb[i][x];
    c[y * {n} + x] = sum;
}}"""
    product = [
        sum(a[y * n + i] * b[i * n + x] for i in range(n)) for y in range(n) for x in range(n)
    ]
    return case(f"sync_tile_matmul_{n}", source, [i32(*a), i32(*b), zeros(n * n)], {2: product},
                block=(n, n))  # fmt: skip


def _jacobi(steps: int) -> list[int]:
    v = [0, 64, 128, 32, 0, 96, 16, 0]
    for _ in range(steps):
        v = [v[0], *((v[i - 1] + v[i + 1]) >> 1 for i in range(1, 7)), v[7]]
    return v


def _armed(t: int) -> int:
    return EIGHT[t] * 3 if t & 1 else EIGHT[t] + 100


OTHERS = [
    case("sync_transpose", """
__global__ void k(const int *in, int *out) {
    __shared__ int tile[4][5];
    int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = in[y * 4 + x];
    __syncthreads();
    out[y * 4 + x] = tile[x][y];
}""", [i32(*range(16)), zeros(16)], {1: [4 * (n % 4) + n // 4 for n in range(16)]}, block=(4, 4)),
    case("sync_jacobi", """
__global__ void k(int *v, int steps) {
    int t = threadIdx.x;
    for (int i = 0; i < steps; i++) {
        int mine = t == 0 || t == 7 ? v[t] : (v[t - 1] + v[t + 1]) >> 1;
        __syncthreads();
        v[t] = mine;
        __syncthreads();
    }
}""", [i32(0, 64, 128, 32, 0, 96, 16, 0), 5], {0: _jacobi(5)}, block=8),
    case("sync_global_ping_pong", """
__global__ void k(int *a, int *b) {
    int t = threadIdx.x;
    b[t] = a[7 - t] + 1;
    __syncthreads();
    a[t] = b[(t + 1) % 8] * 2;
    __syncthreads();
    b[t] = a[t] - a[(t + 4) % 8];
}""", [i32(*range(8)), zeros(8)],
         {0: [2 * (8 - (t + 1) % 8) for t in range(8)],
          1: [2 * (8 - (t + 1) % 8) - 2 * (8 - (t + 5) % 8) for t in range(8)]}, block=8),
    case("sync_count_and_or", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x;
    int n = __syncthreads_count(in[t] > 3);
    int all = __syncthreads_and(in[t] > 0);
    int any = __syncthreads_or(in[t] > 8);
    int none = __syncthreads_or(in[t] > 9);
    out[t] = n * 1000 + (all != 0) * 100 + (any != 0) * 10 + (none != 0) + t;
}""", [i32(*EIGHT), zeros(8)], {1: [4110 + t for t in range(8)]}, block=8),
    case("sync_reversal_in_rounds", """
__global__ void k(int *data, int rounds) {
    __shared__ int s[12];
    int t = threadIdx.x;
    for (int i = 0; i < rounds; i++) {
        s[t] = data[t];
        __syncthreads();
        data[t] = s[11 - t] + i;
        __syncthreads();
    }
}""", [i32(*range(12)), 3], {0: [11 - t + 3 for t in range(12)]}, block=12),
    case("sync_producer_consumer", """
__global__ void k(const int *in, int *out) {
    __shared__ int box;
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        if (t == i * 2) box = in[i];
        __syncthreads();
        out[t] += box * (t + 1);
        __syncthreads();
    }
}""", [i32(5, -2, 7, 11), zeros(8)], {1: [21 * (t + 1) for t in range(8)]}, block=8),
    case("sync_blocks_reuse_shared", """
__global__ void k(int *out) {
    __shared__ int s[4];
    int t = threadIdx.x;
    s[t] = blockIdx.x * 10 + t;
    __syncthreads();
    out[blockIdx.x * 4 + t] = s[3 - t];
}""", [zeros(16)], {0: [b * 10 + 3 - t for b in range(4) for t in range(4)]}, grid=4, block=4),
    case("sync_shared_written_by_one", """
__global__ void k(const int *in, int *out) {
    __shared__ int total;
    if (threadIdx.x == 0) {
        total = 0;
        for (int i = 0; i < 8; i++) total += in[i];
    }
    __syncthreads();
    out[threadIdx.x] = total - in[threadIdx.x];
}""", [i32(*EIGHT), zeros(8)], {1: [sum(EIGHT) - v for v in EIGHT]}, block=8),
    case("sync_threadfence", """
__global__ void k(int *out) {
    __shared__ volatile int s[4];
    int t = threadIdx.x;
    s[t] = t + 1;
    __threadfence_block();
    __threadfence();
    __syncthreads();
    out[t] = s[(t + 1) % 4] * 10 + s[t];
}""", [zeros(4)], {0: [21, 32, 43, 14]}, block=4),
    case("sync_barrier_in_uniform_loop_and_branch", """
__global__ void k(const int *in, int *out, int n) {
    __shared__ int s[8];
    int t = threadIdx.x, sum = 0;
    if (n > 2) {
        for (int i = 0; i < n; i++) {
            s[t] = in[t] * (i + 1);
            __syncthreads();
            sum += s[(t + i) % 8];
            __syncthreads();
        }
    }
    out[t] = sum;
}""", [i32(*EIGHT), zeros(8), 3],
         {1: [sum(EIGHT[(t + i) % 8] * (i + 1) for i in range(3)) for t in range(8)]}, block=8),
    case("sync_different_work_between_barriers", """
__global__ void k(int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    if (t & 1) { s[t] = 1; for (int i = 0; i < t; i++) s[t] *= 2; }
    else s[t] = -t;
    __syncthreads();
    if (t < 4) out[t] = s[t] + s[t + 4];
    __syncthreads();
    if (t >= 4) out[t] = out[t - 4] * 2 + s[t];
}""", [zeros(8)], {0: [-4, 34, -8, 136, -8 - 4, 68 + 32, -16 - 6, 272 + 128]}, block=8),
    case("sync_barriers_of_two_numbers", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    s[t] = in[t];
    asm volatile("bar.sync 1;" ::: "memory");
    int v = s[7 - t];
    asm volatile("barrier.sync 2;" ::: "memory");
    s[t] = v * 2 + t;
    asm volatile("bar.sync 1;" ::: "memory");
    out[t] = s[(t + 3) % 8];
}""", [i32(*EIGHT), zeros(8)],
         {1: [EIGHT[7 - (t + 3) % 8] * 2 + (t + 3) % 8 for t in range(8)]}, block=8),
    case("sync_named_barriers_in_the_arms_of_a_branch", """
__global__ void k(const int *in, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    if (t & 1) { s[t] = in[t] * 3; asm volatile("barrier.sync 5;" ::: "memory"); }
    else { s[t] = in[t] + 100; asm volatile("barrier.sync 5;" ::: "memory"); }
    out[t] = s[t ^ 1] - s[7 - t];
}""", [i32(*EIGHT), zeros(8)],
         {1: [_armed(t ^ 1) - _armed(7 - t) for t in range(8)]}, block=8),
]  # fmt: skip

CASES: tuple[Case, ...] = (
    *(_reduction(name, 8) for name in REDUCTIONS),
    _reduction("sum", 16),
    _reduction("sum", 32),
    _interleaved_reduction(),
    *SCANS,
    *(_tile_matmul(n) for n in (2, 3, 4, 5)),
    *OTHERS,
)
