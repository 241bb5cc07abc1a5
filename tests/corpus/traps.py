"""Values that others got wrong, each as a case of its kind (confirmed on NVIDIA hardware)."""

from __future__ import annotations

from tests.cases import Case
from tests.corpus.build import S8, S32, S64, U32, case, elementwise, i32, u32, zeros

LO, HI = 0x12345678, 0x9ABCDEF0
FUNNEL = """
__global__ void k(const unsigned *amount, unsigned *out, unsigned lo, unsigned hi) {
    int t = threadIdx.x;
    out[t] = __funnelshift_%s(lo, hi, amount[t]);
}"""


def _funnel(kind: str, amounts: list[int], results: list[int]) -> Case:
    return case(f"trap_funnel_{kind}", FUNNEL % kind,
                [u32(*amounts), zeros(len(amounts), U32), LO, HI], {1: results},
                block=len(amounts))  # fmt: skip


CASES: tuple[Case, ...] = (
    _funnel("lc", [32, 44], [0x12345678, 0x12345678]),
    _funnel("l", [44, 0], [0xCDEF0123, HI]),
    _funnel("rc", [32, 44], [0x9ABCDEF0, 0x9ABCDEF0]),
    _funnel("r", [44, 0], [0xEF012345, LO]),
    elementwise("trap_shift_widened_through_sign", [(S32, [-1, 1, 2, 0x40000001])], S64,
                "(long long)(int)((unsigned)x << 31)", lambda x: -(1 << 31) if x & 1 else 0),
    case("trap_ten_way_switch", """
__global__ void k(const int *in, int *out) {
    int x = in[threadIdx.x], r;
    switch (x) {
    case 0: r = x + 11; break;
    case 1: r = x * 22; break;
    case 2: r = x - 33; break;
    case 3: r = x ^ 44; break;
    case 4: r = x | 80; break;
    case 5: r = x << 6; break;
    case 6: r = 77 - x; break;
    case 7: r = x * x; break;
    case 8: r = -x; break;
    case 9: r = x & 3; break;
    default: r = 1000;
    }
    out[threadIdx.x] = r;
}""", [i32(9, 0, 8, 1, 7, 2, 6, 3, 5, 4, 10, -1), zeros(12)],
         {1: [1, 11, -8, 22, 49, -31, 71, 3 ^ 44, 320, 84, 1000, 1000]}, block=12),
    case("trap_signed_bytes_and_neighbours", """
__global__ void k(signed char *data, int *out) {
    int t = threadIdx.x;
    out[t] = data[t + 1] * 2;
    if (t == 1) data[t + 1] = data[t + 1] / 2;
}""", [S8.array([77, -1, 127, -128, 1, -77]), zeros(4)],
         {0: [77, -1, 63, -128, 1, -77], 1: [-2, 254, -256, 2]}, block=4),
    case("trap_division_of_negatives", """
__global__ void k(const int *a, const int *b, int *q, int *r) {
    int t = threadIdx.x;
    q[t] = a[t] / b[t];
    r[t] = a[t] % b[t];
}""", [i32(-6, 6, -7), i32(5, -5, 3), zeros(3), zeros(3)], {2: [-1, -1, -2], 3: [-1, 1, -1]},
         block=3),
    case("trap_division_of_int_min", """
__global__ void k(const int *a, const int *b, int *q, int *r) {
    int t = threadIdx.x;
    q[t] = a[t] / b[t];
    r[t] = a[t] % b[t];
}""", [i32(1, -(1 << 31), -(1 << 31), 1 << 30), i32(-(1 << 31), 2097152, -(1 << 31), -(1 << 31)),
       zeros(4), zeros(4)], {2: [0, -1024, 1, 0], 3: [1, 0, 0, 1 << 30]}, block=4),
    case("trap_unsigned_division_by_high_bit", """
__global__ void k(const unsigned *a, const unsigned *b, unsigned *q, unsigned *r) {
    int t = threadIdx.x;
    q[t] = a[t] / b[t];
    r[t] = a[t] % b[t];
}""", [u32(0xFFFFFFFF, 0x7FFFFFFF, 0x80000000), u32(0x80000000, 0x80000000, 0xFFFFFFFF),
       zeros(3, U32), zeros(3, U32)],
         {2: [1, 0, 0], 3: [0x7FFFFFFF, 0x7FFFFFFF, 0x80000000]}, block=3),
    case("trap_mad_hi", """
__global__ void k(const unsigned *a, unsigned *out) {
    unsigned r;
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a[0]), "r"(a[1]), "r"(a[2]));
    *out = r;
}""", [u32(0xFFFFFFFF, 0xFFFFFFFF, 0x80000000), zeros(1, U32)], {1: [0x7FFFFFFE]}),
    case("trap_barrier_after_per_lane_loops", """
__global__ void k(int *out) {
    __shared__ int s[8];
    int t = threadIdx.x, n = 0;
    if (t < 3)
        for (int i = 0; i <= t; i++) n += i;
    s[t] = t + 1 + (n < 0);
    __syncthreads();
    out[t] = s[7 - t];
}""", [zeros(8)], {0: [8, 7, 6, 5, 4, 3, 2, 1]}, block=8),
    case("trap_early_return_before_barrier", """
__global__ void k(int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    if (t >= 6) return;
    s[t] = t;
    __syncthreads();
    out[t] = s[5 - t];
}""", [i32(*[9] * 8)], {0: [5, 4, 3, 2, 1, 0, 9, 9]}, block=8),
    case("trap_atomic_inc_dec_wrap", """
__global__ void k(unsigned *words) {
    switch (threadIdx.x) {
    case 0: atomicInc(&words[0], 4); break;
    case 1: atomicInc(&words[1], 4); break;
    case 2: atomicDec(&words[2], 6); break;
    case 3: atomicDec(&words[3], 6); break;
    }
}""", [u32(4, 9, 0, 9)], {0: [0, 0, 6, 6]}, block=4),
    elementwise("trap_max_of_negated", [(S32, [18, 0, -13, 5])], S32, "max(max(x, -x), 6)",
                lambda x: max(x, -x, 6)),
    case("trap_store_stays_behind_barrier", """
__global__ void k(int *first, int *second) {
    __shared__ int s;
    int t = threadIdx.x;
    if (t == 0) s = 1;
    __syncthreads();
    first[t] = s;
    __syncthreads();
    if (t == 0) s = 2;
    __syncthreads();
    second[t] = s;
}""", [zeros(8), zeros(8)], {0: [1] * 8, 1: [2] * 8}, block=8),
    case("trap_loop_keeps_the_older_value", """
__global__ void k(const unsigned *in, unsigned *out) {
    unsigned x = in[threadIdx.x], r = 0;
#pragma unroll 1
    for (int bit = 3; bit >= 0; bit--) { unsigned c = r | 1u << bit; if (c * c <= x) r = c; }
    out[threadIdx.x] = r;
}""", [u32(1, 16, 30, 225), zeros(4, U32)], {1: [1, 4, 5, 15]}, block=4),
    case("trap_swap_in_a_loop", """
__global__ void k(int *out, int n) {
    int a = 1, b = 2, c = 3;
#pragma unroll 1
    for (int i = 0; i < n; i++) { int d = a; a = b; b = c; c = d; }
    out[0] = a; out[1] = b; out[2] = c;
}""", [zeros(3), 4], {0: [2, 3, 1]}),
    case("trap_value_lives_over_a_divergent_loop", """
__global__ void k(const int *n, int *out) {
    int t = threadIdx.x, kept = 100 + t, r = 0;
    for (int i = 0; i < n[t]; i++) { if (i == 2) continue; r += i + kept; }
    out[t] = r - kept;
}""", [i32(0, 1, 3, 5), zeros(4)],
         {1: [sum(i + 100 + t for i in range(n) if i != 2) - 100 - t
              for t, n in enumerate((0, 1, 3, 5))]}, block=4),
    case("trap_many_live_values", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x, v[20];
#pragma unroll
    for (int i = 0; i < 20; i++) v[i] = in[i] * (t + 1);
    __syncthreads();
    unsigned r = 0;
#pragma unroll
    for (int i = 0; i < 20; i++) r = r * 3 + v[19 - i];
    out[t] = r;
}""", [i32(*range(20)), zeros(3)],
         {1: [S32.wrap(sum((19 - i) * (t + 1) * 3 ** (19 - i) for i in range(20)))
              for t in range(3)]}, block=3),
)  # fmt: skip
