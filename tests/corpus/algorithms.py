"""Classical algorithms: sorting, searching, numbers, matrices, graphs, simulation."""

from __future__ import annotations

from itertools import permutations
from math import comb, factorial, gcd, isqrt, lcm

import numpy as np

from tests.cases import Case
from tests.corpus.build import S32, U8, U32, U64, case, elementwise, i32, int_rem, u32, zeros

DATA = [5, -1, 4, 2, 8, 0, -7, 4]


def one_thread(name: str, declarations: str, body: str, data: list[int], result: list[int]) -> Case:
    """A single thread sorts or scans ``data`` (n of them) in place; ``declarations`` come first."""
    source = f"""
{declarations}
__global__ void k(int *data, int n) {{
{body}
}}"""
    return case(f"algo_{name}", source, [i32(*data), len(data)], {0: result})


# --- sorting --------------------------------------------------------------------------------------

SORTED = sorted(DATA)
SORTS = [
    one_thread("insertion_sort", "", """
    for (int i = 1; i < n; i++) {
        int v = data[i], j = i - 1;
        while (j >= 0 && data[j] > v) { data[j + 1] = data[j]; j--; }
        data[j + 1] = v;
    }""", DATA, SORTED),
    one_thread("selection_sort", "", """
    for (int i = 0; i < n - 1; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++) if (data[j] < data[best]) best = j;
        int v = data[i]; data[i] = data[best]; data[best] = v;
    }""", DATA, SORTED),
    one_thread("shell_sort", "", """
    for (int gap = n / 2; gap > 0; gap /= 2)
        for (int i = gap; i < n; i++) {
            int v = data[i], j = i;
            for (; j >= gap && data[j - gap] > v; j -= gap) data[j] = data[j - gap];
            data[j] = v;
        }""", DATA, SORTED),
    one_thread("heap_sort", """
__device__ void sift(int *a, int root, int n) {
    while (2 * root + 1 < n) {
        int child = 2 * root + 1;
        if (child + 1 < n && a[child] < a[child + 1]) child++;
        if (a[root] >= a[child]) return;
        int v = a[root]; a[root] = a[child]; a[child] = v;
        root = child;
    }
}""", """
    for (int i = n / 2 - 1; i >= 0; i--) sift(data, i, n);
    for (int end = n - 1; end > 0; end--) {
        int v = data[0]; data[0] = data[end]; data[end] = v;
        sift(data, 0, end);
    }""", DATA, SORTED),
    one_thread("quick_sort_with_stack", "", """
    int stack[16], top = 0;
    stack[top++] = 0; stack[top++] = n - 1;
    while (top > 0) {
        int high = stack[--top], low = stack[--top];
        if (low >= high) continue;
        int pivot = data[high], i = low;
        for (int j = low; j < high; j++)
            if (data[j] < pivot) { int v = data[i]; data[i] = data[j]; data[j] = v; i++; }
        int v = data[i]; data[i] = data[high]; data[high] = v;
        stack[top++] = low; stack[top++] = i - 1;
        stack[top++] = i + 1; stack[top++] = high;
    }""", DATA, SORTED),
    case("algo_odd_even_sort", """
__global__ void k(int *data, int n) {
    int t = threadIdx.x;
    for (int round = 0; round < n; round++) {
        int i = 2 * t + (round & 1);
        if (i + 1 < n && data[i] > data[i + 1]) {
            int v = data[i]; data[i] = data[i + 1]; data[i + 1] = v;
        }
        __syncthreads();
    }
}""", [i32(*DATA, 3), 9], {0: sorted([*DATA, 3])}, block=5),
    case("algo_bitonic_sort", """
__global__ void k(int *data) {
    __shared__ int s[8];
    int t = threadIdx.x;
    s[t] = data[t];
    for (int size = 2; size <= 8; size *= 2)
        for (int d = size / 2; d > 0; d /= 2) {
            __syncthreads();
            int other = t ^ d;
            if (other > t && (s[t] > s[other]) == ((t & size) == 0)) {
                int v = s[t]; s[t] = s[other]; s[other] = v;
            }
        }
    __syncthreads();
    data[t] = s[t];
}""", [i32(*DATA)], {0: SORTED}, block=8),
    case("algo_rank_sort", """
__global__ void k(const int *in, int *out, int n) {
    int t = threadIdx.x, rank = 0;
    for (int i = 0; i < n; i++) rank += in[i] < in[t] || (in[i] == in[t] && i < t);
    out[rank] = in[t];
}""", [i32(*DATA), zeros(8), 8], {1: SORTED}, block=8),
    case("algo_counting_sort", """
__global__ void k(const unsigned char *in, unsigned char *out, int n) {
    int count[5];
    for (int i = 0; i < 5; i++) count[i] = 0;
    for (int i = 0; i < n; i++) count[in[i]]++;
    int at = 0;
    for (int v = 0; v < 5; v++) while (count[v]-- > 0) out[at++] = v;
}""", [U8.array([3, 1, 4, 1, 0, 2, 4, 3, 1]), zeros(9, U8), 9],
         {1: [0, 1, 1, 1, 2, 3, 3, 4, 4]}),
    case("algo_radix_sort_two_bits", """
__global__ void k(unsigned *a, unsigned *b, int n) {
    for (int shift = 0; shift < 8; shift += 2) {
        int start[5] = {0, 0, 0, 0, 0};
        for (int i = 0; i < n; i++) start[(a[i] >> shift & 3) + 1]++;
        for (int i = 1; i < 5; i++) start[i] += start[i - 1];
        for (int i = 0; i < n; i++) b[start[a[i] >> shift & 3]++] = a[i];
        unsigned *c = a; a = b; b = c;
    }
}""", [u32(170, 45, 75, 90, 2, 24, 255, 66), zeros(8, U32), 8],
         {0: sorted([170, 45, 75, 90, 2, 24, 255, 66]),
          1: sorted([170, 45, 75, 90, 2, 24, 255, 66], key=lambda v: v & 63)}),
    case("algo_merge_two_runs", """
__global__ void k(const int *a, const int *b, int *out, int n) {
    int i = 0, j = 0;
    for (int at = 0; at < 2 * n; at++)
        out[at] = (j >= n || (i < n && a[i] <= b[j])) ? a[i++] : b[j++];
}""", [i32(1, 4, 6, 9), i32(2, 4, 5, 11), zeros(8), 4], {2: [1, 2, 4, 4, 5, 6, 9, 11]}),
    one_thread("partition", "", """
    int at = 0;
    for (int i = 0; i < n; i++)
        if (data[i] < 3) { int v = data[at]; data[at] = data[i]; data[i] = v; at++; }""",
               [5, 1, 4, 2, 8, 0], [1, 2, 0, 5, 8, 4]),
    one_thread("next_permutation", "", """
    for (int times = 0; times < 5; times++) {
        int i = n - 2;
        while (i >= 0 && data[i] >= data[i + 1]) i--;
        if (i < 0) return;
        int j = n - 1;
        while (data[j] <= data[i]) j--;
        int v = data[i]; data[i] = data[j]; data[j] = v;
        for (int l = i + 1, r = n - 1; l < r; l++, r--) { v = data[l]; data[l] = data[r]; data[r] = v; }
    }""", [1, 2, 3, 4], list(list(permutations([1, 2, 3, 4]))[5])),
]  # fmt: skip


# --- searching ------------------------------------------------------------------------------------

HAYSTACK = [1, 3, 3, 7, 12, 20, 21, 50]
SEARCHES = [
    elementwise("algo_lower_bound", [(S32, [0, 3, 4, 7, 50, 51, 12, 22])], S32, "low",
                lambda x: int(np.searchsorted(HAYSTACK, x)),
                before="__constant__ int sorted_[8] = {1, 3, 3, 7, 12, 20, 21, 50};",
                body="""int low = 0, high = 8;
    while (low < high) { int mid = (low + high) / 2; if (sorted_[mid] < x) low = mid + 1; else high = mid; }"""),
    elementwise("algo_linear_search", [(S32, [3, 20, 4, 50])], S32, "at",
                lambda x: HAYSTACK.index(x) if x in HAYSTACK else -1,
                before="__constant__ int list[8] = {1, 3, 3, 7, 12, 20, 21, 50};",
                body="int at = -1; for (int i = 0; i < 8; i++) if (list[i] == x) { at = i; break; }"),
    case("algo_argmax", """
__global__ void k(const int *in, int *out, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) if (in[i] > in[best]) best = i;
    out[0] = best; out[1] = in[best];
}""", [i32(*DATA), zeros(2), 8], {1: [4, 8]}),
    case("algo_two_sum", """
__global__ void k(const int *in, int *out, int n, int target) {
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (in[i] + in[j] == target) { out[0] = i; out[1] = j; return; }
}""", [i32(2, 7, 11, 15, -3), zeros(2), 5, 12], {1: [3, 4]}),
    case("algo_max_subarray", """
__global__ void k(const int *in, int *out, int n) {
    int best = in[0], here = in[0];
    for (int i = 1; i < n; i++) { here = max(in[i], here + in[i]); best = max(best, here); }
    out[0] = best;
}""", [i32(-2, 1, -3, 4, -1, 2, 1, -5, 4), zeros(1), 9], {1: [6]}),
    case("algo_majority_vote", """
__global__ void k(const int *in, int *out, int n) {
    int candidate = 0, count = 0;
    for (int i = 0; i < n; i++) {
        if (count == 0) candidate = in[i];
        count += in[i] == candidate ? 1 : -1;
    }
    out[0] = candidate;
}""", [i32(2, 2, 1, 1, 1, 2, 2), zeros(1), 7], {1: [2]}),
    case("algo_median_by_rank", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x, below = 0;
    for (int i = 0; i < 7; i++) below += in[i] < in[t];
    if (below == 3) *out = in[t];
}""", [i32(9, 2, 7, 1, 5, 8, 3), zeros(1)], {1: [5]}, block=7),
    case("algo_unique", """
__global__ void k(const int *in, int *out, int *n, int count) {
    int m = 0;
    for (int i = 0; i < count; i++) if (i == 0 || in[i] != in[i - 1]) out[m++] = in[i];
    *n = m;
}""", [i32(1, 1, 2, 3, 3, 3, 5), zeros(7), zeros(1), 7],
         {1: [1, 2, 3, 5, 0, 0, 0], 2: [4]}),
    case("algo_run_lengths", """
__global__ void k(const int *in, int *out, int n) {
    int at = 0;
    for (int i = 0; i < n;) {
        int j = i;
        while (j < n && in[j] == in[i]) j++;
        out[at++] = in[i]; out[at++] = j - i;
        i = j;
    }
}""", [i32(4, 4, 4, 7, 9, 9), zeros(8), 6], {1: [4, 3, 7, 1, 9, 2, 0, 0]}),
]  # fmt: skip


# --- numbers --------------------------------------------------------------------------------------


def _fib(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def _extended(a: int, b: int) -> int:
    """100 * x + y with a * x + b * y = gcd, by the classical recurrence."""
    x0, x1, y0, y1 = 1, 0, 0, 1
    while b:
        q, (a, b) = a // b, (b, a % b)
        x0, x1, y0, y1 = x1, x0 - q * x1, y1, y0 - q * y1
    return x0 * 100 + y0


def _is_prime(n: int) -> int:
    return int(n > 1 and all(n % d for d in range(2, isqrt(n) + 1)))


def _day_of_week(x: int) -> int:
    from datetime import date

    return (date(x // 10000, x // 100 % 100, x % 100).weekday() + 1) % 7


def _fixed_mandelbrot(x: int, y: int) -> int:
    """Steps until |z| > 2 in 20.12 fixed point, at most 12."""
    a = b = 0
    for n in range(12):
        aa, bb = a * a >> 12, b * b >> 12
        if aa + bb > 4 << 12:
            return n
        a, b = aa - bb + x, (2 * a * b >> 12) + y
    return 12


NUMBERS = [
    elementwise("algo_gcd_subtract", [(S32, [12, 35, 48, 17]), (S32, [18, 14, 180, 5])], S32, "x",
                gcd, body="while (x != y) { if (x > y) x -= y; else y -= x; }"),
    elementwise("algo_gcd_binary", [(U32, [12, 35, 48, 0]), (U32, [18, 14, 180, 9])], U32,
                "b << shift", gcd, body="""unsigned a = x, b = y; int shift = 0;
    if (a == 0) { } else if (b == 0) { b = a; } else {
        shift = __ffs(a | b) - 1;
        a >>= __ffs(a) - 1;
        do { b >>= __ffs(b) - 1; if (a > b) { unsigned c = a; a = b; b = c; } b -= a; } while (b);
        b = a;
    }"""),
    elementwise("algo_lcm", [(U32, [4, 6, 21, 1]), (U32, [6, 35, 14, 9])], U32, "x / a * y", lcm,
                body="unsigned a = x, b = y; while (b) { unsigned r = a % b; a = b; b = r; }"),
    elementwise("algo_extended_gcd", [(S32, [240, 17, 99, 3]), (S32, [46, 5, 78, 7])], S32,
                "x0 * 100 + y0", _extended, body="""int a = x, b = y, x0 = 1, x1 = 0, y0 = 0, y1 = 1;
    while (b) {
        int q = a / b, r = a - q * b; a = b; b = r;
        int u = x0 - q * x1; x0 = x1; x1 = u;
        int v = y0 - q * y1; y0 = y1; y1 = v;
    }"""),
    elementwise("algo_is_prime", [(S32, [1, 2, 9, 17, 25, 91, 97, 0])], S32, "prime", _is_prime,
                body="int prime = x > 1; for (int d = 2; d * d <= x; d++) if (x % d == 0) { prime = 0; break; }"),
    elementwise("algo_isqrt_bits", [(U32, [0, 1, 15, 16, 99, 10000, 0xFFFFFFFF, 12345678])], U32,
                "r", isqrt, body="""unsigned r = 0;
    for (int bit = 15; bit >= 0; bit--) { unsigned c = r | 1u << bit; if (c * c <= x) r = c; }"""),
    elementwise("algo_isqrt_newton", [(U32, [1, 15, 16, 1000000])], U32, "r", isqrt,
                body="unsigned r = x, s = (r + 1) / 2; while (s < r) { r = s; s = (r + x / r) / 2; }"),
    elementwise("algo_power", [(S32, [2, 3, -2, 7]), (S32, [10, 5, 7, 0])], S32, "r",
                lambda x, y: x**y, body="int r = 1; for (int e = y; e; e >>= 1) { if (e & 1) r *= x; x *= x; }"),
    elementwise("algo_power_modulo", [(U32, [2, 3, 10, 7]), (U32, [10, 200, 9, 560])], U32, "r",
                lambda x, y: pow(x, y, 561),
                body="unsigned r = 1; x %= 561; while (y) { if (y & 1) r = r * x % 561; x = x * x % 561; y >>= 1; }"),
    elementwise("algo_factorial", [(S32, [0, 1, 5, 12])], S32, "r",
                factorial,
                body="int r = 1; for (int i = 2; i <= x; i++) r *= i;"),
    elementwise("algo_binomial", [(S32, [5, 6, 10, 4]), (S32, [2, 3, 4, 0])], S32, "r", comb,
                body="int r = 1; for (int i = 1; i <= y; i++) r = r * (x - y + i) / i;"),
    elementwise("algo_fibonacci_64", [(S32, [0, 10, 50, 90])], U64, "a", _fib,
                body="unsigned long long a = 0, b = 1; for (int i = 0; i < x; i++) { unsigned long long c = a + b; a = b; b = c; }"),
    elementwise("algo_perfect", [(S32, [6, 12, 28, 1])], S32, "sum == x", lambda x: x in (6, 28),
                body="int sum = 0; for (int d = 1; d < x; d++) if (x % d == 0) sum += d;"),
    elementwise("algo_reverse_digits", [(S32, [123, 1000, 7, -450])], S32, "r",
                lambda x: int(str(abs(x))[::-1]) * (1 if x >= 0 else -1),
                body="int r = 0; while (x) { r = r * 10 + x % 10; x /= 10; }"),
    elementwise("algo_digital_root", [(S32, [0, 9, 38, 987654])], S32, "x",
                lambda x: 1 + (x - 1) % 9 if x else 0,
                body="while (x > 9) { int s = 0; while (x) { s += x % 10; x /= 10; } x = s; }"),
    elementwise("algo_bcd", [(U32, [0, 9, 42, 9999])], U32, "r", lambda x: int(str(x), 16),
                body="unsigned r = 0; for (int i = 0; x; i += 4) { r |= x % 10 << i; x /= 10; }"),
    elementwise("algo_leap_year", [(S32, [1900, 2000, 2023, 2024])], S32,
                "x % 4 == 0 && (x % 100 != 0 || x % 400 == 0)",
                lambda x: x % 4 == 0 and (x % 100 != 0 or x % 400 == 0)),
    elementwise("algo_day_of_week", [(S32, [20000229, 19700101, 20261201, 20240310])], S32,
                "(y + y / 4 - y / 100 + y / 400 + shift[m - 1] + d) % 7", _day_of_week,
                before="__constant__ int shift[12] = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};",
                body="int y = x / 10000, m = x / 100 % 100, d = x % 100; if (m < 3) y--;"),
    elementwise("algo_horner", [(S32, [0, 1, -2, 10])], S32, "((2 * x - 3) * x + 5) * x - 7",
                lambda x: 2 * x**3 - 3 * x**2 + 5 * x - 7),
    elementwise("algo_mandelbrot_fixed", [(S32, [-8192, 0, 2048, -3000, 1500, 400, 8192, -5000]),
                                          (S32, [0, 0, 2048, 1000, 300, 4000, 8192, 200])],
                S32, "n", _fixed_mandelbrot, body="""int a = 0, b = 0, n = 0;
    for (; n < 12; n++) {
        int aa = a * a >> 12, bb = b * b >> 12;
        if (aa + bb > 4 << 12) break;
        b = (2 * a * b >> 12) + y; a = aa - bb + x;
    }"""),
    elementwise("algo_saturated_average", [(S32, [100, -100, 7, -7])], S32, "(x + (x < 0 ? -1 : 1)) / 2",
                lambda x: int((x + (-1 if x < 0 else 1)) / 2)),
    elementwise("algo_euclid_modulo", [(S32, [-7, 7, -8, 0]), (S32, [3, 3, 4, 5])], S32,
                "(x % y + y) % y", lambda x, y: x % y),
    elementwise("algo_clock", [(U32, [0, 59, 3661, 86399])], U32,
                "x / 3600 << 16 | x / 60 % 60 << 8 | x % 60",
                lambda x: x // 3600 << 16 | x // 60 % 60 << 8 | x % 60),
    case("algo_sieve", """
__global__ void k(unsigned char *composite, int *count, int n) {
    for (int p = 2; p < n; p++) {
        if (composite[p]) continue;
        ++*count;
        for (int m = p * p; m < n; m += p) composite[m] = 1;
    }
}""", [zeros(32, U8), zeros(1), 32],
         {0: [int(n > 3 and not _is_prime(n)) for n in range(32)], 1: [11]}),
    case("algo_sieve_parallel", """
__global__ void k(int *composite, int n) {
    int d = threadIdx.x + 2;
    for (int m = d * d; m < n; m += d) atomicOr(&composite[m], 1);
}""", [zeros(30), 30], {0: [int(n > 3 and not _is_prime(n)) for n in range(30)]}, block=4),
    case("algo_josephus", """
__global__ void k(const int *n, int *out) {
    int r = 0;
    for (int i = 2; i <= n[threadIdx.x]; i++) r = (r + 3) % i;
    out[threadIdx.x] = r + 1;
}""", [i32(1, 5, 7, 14), zeros(4)], {1: [1, 4, 4, 2]}, block=4),
    case("algo_pascal", """
__global__ void k(int *row, int n) {
    row[0] = 1;
    for (int i = 1; i <= n; i++)
        for (int j = i; j > 0; j--) row[j] += row[j - 1];
}""", [zeros(8), 7], {0: [comb(7, j) for j in range(8)]}),
    case("algo_collatz_longest", """
__global__ void k(int n, int *out) {
    int best = 0, most = -1;
    for (int s = 1; s <= n; s++) {
        int c = 0;
        for (unsigned v = s; v != 1; c++) v = v & 1 ? 3 * v + 1 : v >> 1;
        if (c > most) { most = c; best = s; }
    }
    out[0] = best; out[1] = most;
}""", [10, zeros(2)], {1: [9, 19]}),
]  # fmt: skip


# --- matrices, graphs, simulation -----------------------------------------------------------------


def _life(cells: list[int], w: int, h: int) -> list[int]:
    def around(x: int, y: int) -> int:
        return sum(cells[(y + dy) % h * w + (x + dx) % w]
                   for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dx or dy)  # fmt: skip

    return [int(around(x, y) == 3 or (cells[y * w + x] and around(x, y) == 2))
            for y in range(h) for x in range(w)]  # fmt: skip


def _rule(cells: int, rule: int, n: int) -> int:
    return sum((rule >> ((cells >> (i + 1) % n & 1) << 2 | (cells >> i & 1) << 1
                         | (cells >> (i - 1) % n & 1)) & 1) << i for i in range(n))  # fmt: skip


GLIDER = [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
INF = 1000
GRAPH = [0, 4, INF, INF, 1, INF, 0, 1, INF, INF, INF, INF, 0, 2, INF, INF, INF, INF, 0, 7, INF, 2,
         6, INF, 0]  # fmt: skip


def _floyd(d: list[int], n: int) -> list[int]:
    d = list(d)
    for m in range(n):
        d = [min(d[i * n + j], d[i * n + m] + d[m * n + j]) for i in range(n) for j in range(n)]
    return d


def _walk(seeds: tuple[int, ...], steps: int) -> dict[int, list[int]]:
    """Final seeds and 100 * x + y of walks driven by the top two bits of an LCG."""
    ends, places = [], []
    for s in seeds:
        place = 0
        for _ in range(steps):
            s = (s * 1664525 + 1013904223) % (1 << 32)
            place += (100, -100, 1, -1)[s >> 30]
        ends.append(s)
        places.append(place)
    return {0: ends, 1: places}


A23, B32 = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]
STRUCTURES = [
    case("algo_matmul_rectangular", """
__global__ void k(const int *a, const int *b, int *c, int m, int n, int p) {
    int row = threadIdx.y, col = threadIdx.x, sum = 0;
    for (int i = 0; i < n; i++) sum += a[row * n + i] * b[i * p + col];
    c[row * p + col] = sum;
}""", [i32(*A23), i32(*B32), zeros(4), 2, 3, 2], {2: [58, 64, 139, 154]}, block=(2, 2)),
    case("algo_matvec", """
__global__ void k(const int *a, const int *x, int *y, int n) {
    int r = threadIdx.x, sum = 0;
    for (int i = 0; i < n; i++) sum += a[r * n + i] * x[i];
    y[r] = sum;
}""", [i32(*A23), i32(1, -1, 2), zeros(2), 3], {2: [5, 11]}, block=2),
    case("algo_determinant_3x3", """
__global__ void k(const int *m, int *out) {
    out[0] = m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6])
           + m[2] * (m[3] * m[7] - m[4] * m[6]);
}""", [i32(2, -3, 1, 2, 0, -1, 1, 4, 5), zeros(1)], {1: [49]}),
    case("algo_trace_and_symmetry", """
__global__ void k(const int *m, int *out, int n) {
    int trace = 0; bool symmetric = true;
    for (int i = 0; i < n; i++) {
        trace += m[i * n + i];
        for (int j = 0; j < i; j++) if (m[i * n + j] != m[j * n + i]) symmetric = false;
    }
    out[0] = trace; out[1] = symmetric;
}""", [i32(1, 2, 3, 2, 5, 6, 3, 6, 9), zeros(2), 3], {1: [15, 1]}),
    case("algo_matrix_power", """
__global__ void k(unsigned *out, int n) {
    unsigned a = 1, b = 1, c = 1, d = 0, p = 1, q = 0, r = 0, s = 1;
    while (n) {
        if (n & 1) { unsigned e = p * a + q * c, f = p * b + q * d, g = r * a + s * c, h = r * b + s * d;
                     p = e; q = f; r = g; s = h; }
        unsigned e = a * a + b * c, f = a * b + b * d, g = c * a + d * c, h = c * b + d * d;
        a = e; b = f; c = g; d = h;
        n >>= 1;
    }
    out[0] = q;
}""", [zeros(1, U32), 40], {0: [_fib(40)]}),
    case("algo_convolution", """
__global__ void k(const int *in, const int *w, int *out, int n) {
    int t = threadIdx.x, sum = 0;
    for (int i = -1; i <= 1; i++) {
        int at = t + i;
        if (at >= 0 && at < n) sum += in[at] * w[i + 1];
    }
    out[t] = sum;
}""", [i32(1, 2, 3, 4, 5, 6), i32(1, -2, 3), zeros(6), 6],
         {2: [4, 6, 8, 10, 12, -7]}, block=6),
    case("algo_blur_2d", """
__global__ void k(const unsigned char *in, unsigned char *out, int w, int h) {
    int x = threadIdx.x, y = threadIdx.y, sum = 0, n = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++) {
            int u = x + dx, v = y + dy;
            if (u < 0 || v < 0 || u >= w || v >= h) continue;
            sum += in[v * w + u]; n++;
        }
    out[y * w + x] = sum / n;
}""", [U8.array([10, 20, 30, 40, 50, 60, 70, 80, 255]), zeros(9, U8), 3, 3],
         {1: [30, 35, 40, 45, 68, 82, 60, 92, 111]}, block=(3, 3)),
    case("algo_life", """
__global__ void k(const int *in, int *out, int w, int h) {
    int x = threadIdx.x, y = threadIdx.y, n = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            if (dx || dy) n += in[(y + dy + h) % h * w + (x + dx + w) % w];
    out[y * w + x] = n == 3 || (n == 2 && in[y * w + x]);
}""", [i32(*GLIDER), zeros(25), 5, 5], {1: _life(GLIDER, 5, 5)}, block=(5, 5)),
    elementwise("algo_cellular_rules", [(U32, [1 << 8, 0xBEEF, 0xFFFF, 0x0F0F]),
                                        (U32, [30, 110, 90, 184])], U32, "r",
                lambda x, y: _rule(x, y, 16), body="""unsigned r = 0;
    for (int i = 0; i < 16; i++) {
        unsigned three = (x >> ((i + 1) & 15) & 1) << 2 | (x >> i & 1) << 1 | (x >> ((i + 15) & 15) & 1);
        r |= (y >> three & 1) << i;
    }"""),
    case("algo_floyd_warshall", """
__global__ void k(int *d, int n) {
    int i = threadIdx.x;
    for (int m = 0; m < n; m++) {
        for (int j = 0; j < n; j++) {
            int via = d[i * n + m] + d[m * n + j];
            if (i != m && via < d[i * n + j]) d[i * n + j] = via;
        }
        __syncthreads();
    }
}""", [i32(*GRAPH), 5], {0: _floyd(GRAPH, 5)}, block=5),
    case("algo_bfs_levels", """
__global__ void k(const int *start, const int *edges, int *level, int n) {
    int t = threadIdx.x;
    for (int depth = 0; depth < n; depth++) {
        if (t < n && level[t] == depth)
            for (int e = start[t]; e < start[t + 1]; e++)
                atomicMin(&level[edges[e]], depth + 1);
        __syncthreads();
    }
}""", [i32(0, 2, 3, 5, 6, 6, 6), i32(1, 2, 3, 3, 4, 5), i32(0, 99, 99, 99, 99, 99), 6],
         {2: [0, 1, 1, 2, 2, 3]}, block=6),
    case("algo_bellman_ford", """
__global__ void k(const int *from, const int *to, const int *cost, int *dist, int n) {
    int e = threadIdx.x;
    for (int round = 1; round < n; round++) {
        int d = dist[from[e]];
        __syncthreads();
        if (d < 1000) atomicMin(&dist[to[e]], d + cost[e]);
        __syncthreads();
    }
}""", [i32(0, 0, 1, 2, 1, 3), i32(1, 2, 2, 3, 3, 4), i32(4, 5, -3, 2, 6, 1),
       i32(0, 1000, 1000, 1000, 1000), 5], {3: [0, 4, 1, 3, 4]}, block=6),
    case("algo_union_find", """
__device__ int find(int *parent, int v) {
    while (parent[v] != v) { parent[v] = parent[parent[v]]; v = parent[v]; }
    return v;
}
__global__ void k(const int *pairs, int *parent, int *sets, int n, int m) {
    int count = n;
    for (int i = 0; i < m; i++) {
        int a = find(parent, pairs[2 * i]), b = find(parent, pairs[2 * i + 1]);
        if (a != b) { parent[max(a, b)] = min(a, b); count--; }
    }
    *sets = count;
}""", [i32(0, 1, 2, 3, 1, 3, 4, 5, 0, 2), i32(*range(7)), zeros(1), 7, 5],
         {1: [0, 0, 0, 2, 4, 4, 6], 2: [3]}),
    case("algo_pointer_jumping", """
__global__ void k(int *next, int *dist) {
    int t = threadIdx.x;
    for (int round = 0; round < 3; round++) {
        int far = next[t], more = dist[far], beyond = next[far];
        __syncthreads();
        if (far != t) { dist[t] += more; next[t] = beyond; }
        __syncthreads();
    }
}""", [i32(3, 1, 0, 5, 2, 1, 4, 6), i32(1, 0, 1, 1, 1, 1, 1, 1)],
         {0: [1] * 8, 1: [3, 0, 4, 2, 5, 1, 6, 7]}, block=8),
    case("algo_random_walk", """
__global__ void k(unsigned *seed, int *place, int steps) {
    int t = threadIdx.x, x = 0, y = 0;
    unsigned s = seed[t];
    for (int i = 0; i < steps; i++) {
        s = s * 1664525u + 1013904223u;
        switch (s >> 30) { case 0: x++; break; case 1: x--; break; case 2: y++; break; default: y--; }
    }
    seed[t] = s;
    place[t] = x * 100 + y;
}""", [u32(1, 2, 3, 4), zeros(4), 6], _walk((1, 2, 3, 4), 6), block=4),
    case("algo_n_queens", """
__global__ void k(int n, int *count) {
    int c = threadIdx.x;
    unsigned cols[6], left[6], right[6], open[6], all = (1u << n) - 1;
    cols[1] = 1u << c; left[1] = 2u << c; right[1] = (1u << c) >> 1;
    open[1] = all & ~(cols[1] | left[1] | right[1]);
    int depth = 1, found = 0;
    while (depth > 0) {
        if (open[depth] == 0) { depth--; continue; }
        unsigned bit = open[depth] & -open[depth];
        open[depth] ^= bit;
        if (depth == n - 1) { found++; continue; }
        cols[depth + 1] = cols[depth] | bit;
        left[depth + 1] = (left[depth] | bit) << 1;
        right[depth + 1] = (right[depth] | bit) >> 1;
        depth++;
        open[depth] = all & ~(cols[depth] | left[depth] | right[depth]);
    }
    atomicAdd(count, found);
}""", [5, zeros(1)], {1: [10]}, block=5),
    case("algo_tic_tac_toe", """
__constant__ unsigned short lines[8] = {7, 56, 448, 73, 146, 292, 273, 84};
__global__ void k(const unsigned *boards, int *winner) {
    unsigned xs = boards[threadIdx.x] & 0x1ff, os = boards[threadIdx.x] >> 9;
    int w = 0;
    for (int i = 0; i < 8 && !w; i++) {
        if ((xs & lines[i]) == lines[i]) w = 1;
        else if ((os & lines[i]) == lines[i]) w = 2;
    }
    winner[threadIdx.x] = w;
}""", [u32(7, 56 << 9, 273 | 6 << 9, 5 | 2 << 9), zeros(4)], {1: [1, 2, 1, 0]}, block=4),
    case("algo_hanoi", """
__global__ void k(int n, int *moves) {
    for (int m = 1; m < 1 << n; m++) {
        int from = (m & (m - 1)) % 3, to = ((m | (m - 1)) + 1) % 3;
        moves[m - 1] = from * 10 + to;
    }
}""", [3, zeros(7)], {1: [(m & m - 1) % 3 * 10 + ((m | m - 1) + 1) % 3 for m in range(1, 8)]}),
    case("algo_magic_square", """
__global__ void k(int *square, int n) {
    int i = threadIdx.x, row = i / n, col = i % n;
    int a = (col - row + n / 2 + n) % n, b = (2 * n + row + row - col) % n;
    square[i] = a * n + b + 1;
}""", [zeros(9), 3], {0: [(c - r + 4) % 3 * 3 + (6 + 2 * r - c) % 3 + 1
                          for r in range(3) for c in range(3)]}, block=9),
    case("algo_spiral", """
__global__ void k(int *out, int n) {
    int x = 0, y = 0, dx = 1, dy = 0;
    for (int i = 1; i <= n * n; i++) {
        out[y * n + x] = i;
        int u = x + dx, v = y + dy;
        if (u < 0 || v < 0 || u >= n || v >= n || out[v * n + u]) { int c = dx; dx = -dy; dy = c; u = x + dx; v = y + dy; }
        x = u; y = v;
    }
}""", [zeros(16), 4], {0: [1, 2, 3, 4, 12, 13, 14, 5, 11, 16, 15, 6, 10, 9, 8, 7]}),
    case("algo_remainders_of_negatives", """
__global__ void k(const int *a, const int *b, int *out) {
    int t = threadIdx.x;
    out[t] = a[t] % b[t];
}""", [i32(-9, 9, -9, 100), i32(4, -4, -4, 7), zeros(4)],
         {2: [int_rem(a, b) for a, b in [(-9, 4), (9, -4), (-9, -4), (100, 7)]]}, block=4),
]  # fmt: skip

CASES: tuple[Case, ...] = (*SORTS, *SEARCHES, *NUMBERS, *STRUCTURES)
