"""Control flow: divergence, loops, early returns, switch, goto, device functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import factorial

from tests.cases import Case
from tests.corpus.build import S32, U32, case, elementwise, i32, int_div, int_rem, zeros

MIXED = [0, 1, 2, 3, 4, 5, 6, 7]
SIGNED = [-3, -2, -1, 0, 1, 2, 3, 100]


def ints(name: str, values: Sequence[int], body: str, model: Callable[[int], int],
         before: str = "") -> Case:  # fmt: skip
    """int r = 0; body; out[t] = r, with x the input."""
    return elementwise(f"control_{name}", [(S32, values)], S32, "r", model, before=before,
                       body=f"int r = 0; {body}")  # fmt: skip


# --- branches -------------------------------------------------------------------------------------


def _grade(x: int) -> int:
    for low, grade in ((90, 4), (75, 3), (50, 2), (20, 1)):
        if x >= low:
            return grade
    return 0


def _bits_of_tree(x: int) -> int:
    r = 0
    for bit in range(3):
        r = r * 2 + (x >> bit & 1)
    return r * 10 + x


BRANCHES = [
    ints("if", SIGNED, "if (x > 0) r = x * 2;", lambda x: x * 2 if x > 0 else 0),
    ints("if_else", SIGNED, "if (x > 0) r = x * 2; else r = x - 5;",
         lambda x: x * 2 if x > 0 else x - 5),
    ints("ladder", [95, 80, 60, 30, 5, 90, 20, -1],
         "if (x >= 90) r = 4; else if (x >= 75) r = 3; else if (x >= 50) r = 2; "
         "else if (x >= 20) r = 1;", _grade),
    ints("nested_if", MIXED, """
    if (x & 1) { r = 1; if (x & 2) { r = 3; if (x & 4) r = 7; else r += 10; } }
    else { r = 20; if (x & 4) r -= x; }""",
         lambda x: {0: 20, 1: 1, 2: 20, 3: 13, 4: 16, 5: 1, 6: 14, 7: 7}[x]),
    ints("branch_tree_with_stores", MIXED, """
    int *where = out + t;
    if (x & 1) { if (x & 2) *where = 4; else *where = 5; } else { if (x & 2) *where = 6; else *where = 7; }
    r = *where + x;""", lambda x: {0: 7, 1: 5, 2: 6, 3: 4}[x & 3] + x),
    ints("three_in_a_row", MIXED,
         "if (x & 1) r += 100; if (x & 2) r = r * 2 + 1; if (x & 4) r -= x;",
         lambda x: ((100 * (x & 1)) * (1 + (x >> 1 & 1)) + (x >> 1 & 1)) - (x if x & 4 else 0)),
    ints("short_circuit_and", SIGNED, "if (x > 0 && 100 / x > 40) r = 1;",
         lambda x: int(x > 0 and 100 // x > 40)),
    ints("short_circuit_or", SIGNED, "if (x == 0 || 6 % x == 0) r = x + 7;",
         lambda x: x + 7 if x == 0 or int_rem(6, x) == 0 else 0),
    ints("ternary_chain", SIGNED, "r = x < -1 ? x * x : x < 1 ? 7 : x == 100 ? -1 : x;",
         lambda x: x * x if x < -1 else 7 if x < 1 else -1 if x == 100 else x),
    ints("boolean_algebra", MIXED, "r = (x > 2 && x < 6) ^ (x % 3 == 0 || !(x & 1));",
         lambda x: (2 < x < 6) ^ (x % 3 == 0 or not x & 1)),
    ints("comparison_as_value", SIGNED, "r = (x > 1) + (x >= -2) * 2 - (x != 0) * 4;",
         lambda x: (x > 1) + (x >= -2) * 2 - (x != 0) * 4),
    ints("side_effects_in_condition", MIXED, "int n = x; if (n++ > 3 && n++ < 7) r = 50; r += n;",
         lambda x: (x + 2 + (50 if x + 1 < 7 else 0)) if x > 3 else x + 1),
    ints("empty_arms", MIXED, "if (x < 4) { } else if (x == 5) { } else r = 9;",
         lambda x: 9 if x >= 4 and x != 5 else 0),
]  # fmt: skip


# --- loops ----------------------------------------------------------------------------------------


def _nested_break(x: int) -> int:
    r = 0
    for i in range(5):
        if i == x:
            continue
        for j in range(5):
            if j > i:
                break
            if (i + j) % 3 == x % 3:
                continue
            r += i * j + 1
        if r > 20:
            break
    return r


def _found(x: int) -> int:
    for i in range(1, 6):
        for j in range(1, 6):
            if i * j == x:
                return 10 * i + j
    return -1


def _digits(x: int) -> int:
    return sum(int(d) for d in str(abs(x)))


def _up_down(x: int) -> int:
    n, steps = x, 0
    while n < 50 and steps < 20:
        n = n * 2 + 1 if n % 3 else n + 4
        steps += 1
    return n * 100 + steps


def _isqrt(x: int) -> int:
    return int(x**0.5)


def _swapped(x: int) -> int:
    a, b = 1, 10
    for i in range(x):
        a, b = b, a + i
    return a * 100 + b


LOOPS = [
    ints("for_per_lane", MIXED, "for (int i = 0; i < x; i++) r += i * i;",
         lambda x: sum(i * i for i in range(x))),
    ints("while_halving", [1, 7, 64, 1000, 0, 255, 256, 99999],
         "while (x > 0) { x /= 2; r++; }", lambda x: x.bit_length()),
    ints("do_while", [0, 9, 10, 12345, 99, 100, 7, 1000000],
         "do { r++; x /= 10; } while (x);", lambda x: len(str(x))),
    ints("break_on_data", [3, 5, 8, 1, 0, 10, 2, 7],
         "for (int i = 0; i < 100; i++) { if (i * i > x * 7) break; r = i; }",
         lambda x: _isqrt(x * 7)),
    ints("continue", MIXED, "for (int i = 0; i < 9; i++) { if (i % 3 == x % 3) continue; r += i; }",
         lambda x: sum(i for i in range(9) if i % 3 != x % 3)),
    ints("nested_break_continue", MIXED, """
    for (int i = 0; i < 5; i++) {
        if (i == x) continue;
        for (int j = 0; j < 5; j++) {
            if (j > i) break;
            if ((i + j) % 3 == x % 3) continue;
            r += i * j + 1;
        }
        if (r > 20) break;
    }""", _nested_break),
    ints("flag_leaves_both_loops", [6, 7, 20, 25, 13, 4, 15, 1], """
    r = -1; bool found = false;
    for (int i = 1; i < 6 && !found; i++)
        for (int j = 1; j < 6; j++)
            if (i * j == x) { r = 10 * i + j; found = true; break; }""", _found),
    ints("goto_leaves_both_loops", [6, 7, 20, 25, 13, 4, 15, 1], """
    for (int i = 1; i < 6; i++)
        for (int j = 1; j < 6; j++)
            if (i * j == x) { r = 10 * i + j; goto done; }
    r = -1;
done:;""", _found),
    ints("goto_back", MIXED, """
again:
    r += x;
    if (x-- > 0) goto again;""", lambda x: x * (x + 1) // 2),
    ints("two_exits", [1, 2, 3, 10, 20, 33, 49, 60], """
    int n = x, steps = 0;
    while (n < 50) { if (steps >= 20) break; n = n % 3 ? n * 2 + 1 : n + 4; steps++; }
    r = n * 100 + steps;""", _up_down),
    ints("digit_sum", [0, 5, 99, 12345, 1000, 777, 808, 31],
         "while (x) { r += x % 10; x /= 10; }", _digits),
    ints("triangle_nested", MIXED,
         "for (int i = 0; i < x; i++) for (int j = i; j < x; j++) r += j - i;",
         lambda x: sum(j - i for i in range(x) for j in range(i, x))),
    ints("three_deep", [0, 1, 2, 3],
         "for (int i = 0; i <= x; i++) for (int j = 0; j <= i; j++) for (int l = 0; l <= j; l++) "
         "if ((i + j + l) & 1) r++;",
         lambda x: sum((i + j + k) & 1 for i in range(x + 1) for j in range(i + 1)
                       for k in range(j + 1))),
    ints("count_down", MIXED, "for (int i = x; i-- > 0;) r = r * 3 + i;",
         lambda x: reduce(lambda r, i: r * 3 + i, range(x - 1, -1, -1), 0)),
    ints("unsigned_wrap_loop", MIXED,
         "for (unsigned i = x + 1; i-- != 0;) r += (int)i;", lambda x: x * (x + 1) // 2),
    ints("loop_with_branch", MIXED,
         "for (int i = 1; i <= x; i++) { if (i & 1) r += i; else r -= i * 2; }",
         lambda x: sum(i if i & 1 else -2 * i for i in range(1, x + 1))),
    ints("unrolled", MIXED, """
#pragma unroll
    for (int i = 0; i < 4; i++) r = r * x + i;""",
         lambda x: ((0 * x + 1) * x + 2) * x + 3),
    ints("unroll_by_two", MIXED, """
#pragma unroll 2
    for (int i = 0; i < x; i++) r += i ^ 3;""", lambda x: sum(i ^ 3 for i in range(x))),
    ints("loop_inside_arm", SIGNED, """
    if (x < 0) { for (int i = x; i < 0; i++) r -= i; }
    else { int i = 0; while (i * i < x) i++; r = i; }""",
         lambda x: x * (x - 1) // 2 if x < 0 else next(i for i in range(99) if i * i >= x)),
    ints("multiply_by_adding", [0, 1, 2, 3, 10, 0, 5, 9],
         "for (int a = 13, b = x; b; a <<= 1, b >>= 1) if (b & 1) r += a;", lambda x: 13 * x),
    ints("loop_swaps_variables", MIXED,
         "int a = 1, b = 10; for (int i = 0; i < x; i++) { int c = a; a = b; b = c + i; } r = a * 100 + b;",
         _swapped),
    ints("break_after_store", MIXED, """
    for (int i = 0; ; i++) { out[t] = i; if (out[t] >= x) break; }
    r = out[t] * 2;""", lambda x: 2 * x),
]  # fmt: skip


# --- switch ---------------------------------------------------------------------------------------


def _machine(x: int) -> int:
    state, r = 0, 0
    for bit in range(6):
        match state:
            case 0:
                state = 1 if x >> bit & 1 else 0
            case 1:
                state, r = (2 if x >> bit & 1 else 0), r + 1
            case _:
                state, r = 0, r * 2 + 5
    return r * 10 + state


SWITCHES = [
    ints("switch_dense", MIXED, """
    switch (x) { case 0: r = 5; break; case 1: r = x + 70; break; case 2: r = x * x; break;
    case 3: r = 1 - x; break; case 4: r = x << 4; break; case 5: r = 11; break; default: r = -x; }""",
         lambda x: [5, 71, 4, -2, 64, 11, -6, -7][x]),
    ints("switch_sparse", [1, 10, 100, 1000, 7, 10000, -5, 0], """
    switch (x) { case 1: r = 1; break; case 10: r = 2; break; case 100: r = 3; break;
    case 1000: r = 4; break; case 10000: r = 5; break; case -5: r = 6; break; default: r = 9; }""",
         lambda x: {1: 1, 10: 2, 100: 3, 1000: 4, 10000: 5, -5: 6}.get(x, 9)),
    ints("switch_fallthrough", [0, 1, 2, 3, 4, 5, 2, 1], """
    switch (x) { case 0: r += 1; case 1: r += 10; case 2: r += 100; break; case 3: r = 7; case 4: r++; }""",
         lambda x: {0: 111, 1: 110, 2: 100, 3: 8, 4: 1}.get(x, 0)),
    ints("switch_in_loop", [0, 5, 18, 27, 63, 42, 21, 1], """
    int state = 0;
    for (int bit = 0; bit < 6; bit++) {
        int one = x >> bit & 1;
        switch (state) {
        case 0: state = one; break;
        case 1: r++; state = one ? 2 : 0; break;
        default: r = r * 2 + 5; state = 0;
        }
    }
    r = r * 10 + state;""", _machine),
    ints("switch_returns_constants", MIXED, """
    switch (x & 7) { case 0: r = 31; break; case 1: r = 28; break; case 2: r = 31; break;
    case 3: r = 30; break; case 4: r = 31; break; case 5: r = 30; break; case 6: r = 31; break;
    case 7: r = 29; break; }""", lambda x: [31, 28, 31, 30, 31, 30, 31, 29][x]),
    ints("opcode_interpreter", [3, 4, 5, 6], """
    const unsigned program[6] = {0x103, 0x202, 0x301, 0x205, 0x40f, 0x102};
    r = x;
    for (int pc = 0; pc < 6; pc++) {
        int arg = program[pc] & 0xff;
        switch (program[pc] >> 8) { case 1: r += arg; break; case 2: r *= arg; break;
        case 3: r -= arg; break; case 4: r ^= arg; break; }
    }""", lambda x: ((((x + 3) * 2 - 1) * 5) ^ 15) + 2),
]  # fmt: skip


# --- functions ------------------------------------------------------------------------------------

FUNCTIONS = [
    ints("inline_function", SIGNED, "r = square(x) + square(x + 1);",
         lambda x: x * x + (x + 1) ** 2,
         before="__device__ int square(int v) { return v * v; }"),
    ints("noinline_function", SIGNED, "r = twist(x, 3) - twist(2, x);",
         lambda x: (x * 3 + 3) - (2 * x + x),
         before="__device__ __noinline__ int twist(int a, int b) { return a * b + b; }"),
    ints("function_with_loop_and_return", [1, 2, 7, 9, 15, 25, 31, 49], "r = smallest(x);",
         lambda x: next((d for d in range(2, x) if x % d == 0), x), before="""
__device__ __noinline__ int smallest(int n) {
    for (int d = 2; d * d <= n; d++)
        if (n % d == 0) return d;
    return n;
}"""),
    ints("function_called_in_one_arm", MIXED, "if (x & 1) r = heavy(x); else r = x;",
         lambda x: sum(range(x + 1)) if x & 1 else x,
         before="""
__device__ __noinline__ int heavy(int n) {
    int s = 0;
    for (int i = 1; i <= n; i++) s += i;
    return s;
}"""),
    ints("functions_call_functions", MIXED, "r = outer(x);", lambda x: 3 * (x + 1) + 1,
         before="""
__device__ __noinline__ int inner(int v) { return v + 1; }
__device__ __noinline__ int middle(int v) { return 3 * inner(v); }
__device__ __noinline__ int outer(int v) { return middle(v) + 1; }"""),
    ints("reference_parameters", SIGNED, "int low, high; sort2(x, 1, low, high); r = low * 1000 + high;",
         lambda x: min(x, 1) * 1000 + max(x, 1), before="""
__device__ void sort2(int a, int b, int &low, int &high) {
    if (a < b) { low = a; high = b; } else { low = b; high = a; }
}"""),
    ints("template_function", SIGNED, "r = clamped<-2, 5>(x) + larger<int>(x, 0);",
         lambda x: min(max(x, -2), 5) + max(x, 0), before="""
template <int low, int high> __device__ int clamped(int v) { return v < low ? low : v > high ? high : v; }
template <typename T> __device__ T larger(T a, T b) { return a > b ? a : b; }"""),
    ints("lambda", MIXED, "auto add = [&](int v) { r += v * x; }; add(2); add(x);",
         lambda x: 2 * x + x * x),
    ints("struct_methods", SIGNED, "Range s{-1, 3}; r = s.has(x) ? s.width() : s.distance(x);",
         lambda x: 4 if -1 <= x <= 3 else max(-1 - x, x - 3), before="""
struct Range {
    int low, high;
    __device__ bool has(int v) const { return v >= low && v <= high; }
    __device__ int width() const { return high - low; }
    __device__ int distance(int v) const { return v < low ? low - v : v - high; }
};"""),
    ints("returned_struct", MIXED, "Pair p = split(x * 37); r = p.first * 100 + p.second;",
         lambda x: x * 37 // 10 * 100 + x * 37 % 10, before="""
struct Pair { int first, second; };
__device__ __noinline__ Pair split(int v) { return {v / 10, v % 10}; }"""),
    ints("constexpr_and_enum", MIXED, "r = x * kScale + (x % 2 ? Odd : Even);",
         lambda x: x * 12 + (9 if x % 2 else 4),
         before="constexpr int kScale = 3 * 4; enum { Even = 4, Odd = 9 };"),
    ints("tail_recursion", MIXED, "r = factorial(x, 1);",
         factorial,
         before="__device__ int factorial(int n, int acc) { return n <= 1 ? acc : factorial(n - 1, acc * n); }"),
]  # fmt: skip


# --- threads that leave, and divergence over warps ------------------------------------------------

THREADS = [
    case("control_early_return", """
__global__ void k(const int *in, int *out, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    out[t] = in[t] + 1;
}""", [i32(1, 2, 3, 4, 5, 6, 7, 8), zeros(8), 5], {1: [2, 3, 4, 5, 6, 0, 0, 0]}, block=8),
    case("control_returns_in_ladder", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x, x = in[t];
    if (x < 0) { out[t] = -1; return; }
    if (x == 0) return;
    out[t] = 1;
    if (x > 100) return;
    out[t] += x;
}""", [i32(-5, 0, 7, 200, 100, 101, 1, -1), i32(*[9] * 8)],
         {1: [-1, 9, 8, 1, 101, 1, 2, -1]}, block=8),
    case("control_return_in_loop", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x;
    for (int i = 0; i < 10; i++) {
        if (i == in[t]) { out[t] = i * 10; return; }
    }
    out[t] = -7;
}""", [i32(3, 0, 9, 10, 5, -1, 1, 42), zeros(8)],
         {1: [30, 0, 90, -7, 50, -7, 10, -7]}, block=8),
    case("control_whole_warps_differ", """
__global__ void k(int *out) {
    int t = threadIdx.x;
    if (t / 4 % 2) out[t] = t * 2; else out[t] = -t;
}""", [zeros(16)], {0: [t * 2 if t // 4 % 2 else -t for t in range(16)]}, block=16),
    case("control_one_lane_works", """
__global__ void k(const int *in, int *out) {
    if (threadIdx.x == 5) {
        int sum = 0;
        for (int i = 0; i < 6; i++) sum += in[i];
        out[0] = sum;
    }
}""", [i32(1, 2, 3, 4, 5, 6), zeros(1)], {1: [21]}, block=7),
    case("control_full_machine", """
__global__ void k(int *out) {
    int t = threadIdx.x, r = t;
    for (int i = 0; i < t % 5; i++) r = r % 2 ? 3 * r + 1 : r / 2;
    out[t] = r;
}""", [zeros(32)], {0: [reduce(
        lambda r, _: 3 * r + 1 if r % 2 else r // 2, range(t % 5), t) for t in range(32)]},
         block=32),
    case("control_odd_even_alternate", """
__global__ void k(int *out) {
    int t = threadIdx.x, r = 0;
    for (int i = 0; i < 4; i++) {
        if ((t + i) & 1) r = r * 2 + 1;
        else r = r * 3;
    }
    out[t] = r;
}""", [zeros(6)], {0: [((0 * 2 + 1) * 3 * 2 + 1) * 3 if t & 1 else ((0 * 3) * 2 + 1) * 3 * 2 + 1
                        for t in range(6)]}, block=6),
    case("control_empty_kernel", "__global__ void k(int *out) { }", [i32(1, 2)], {}, block=4),
    case("control_no_parameters", "__global__ void k() { }", [], {}, block=8, grid=2),
    case("control_single_thread", "__global__ void k(int *out) { out[0] = 42; }",
         [zeros(1)], {0: [42]}),
    case("control_kernel_among_others", """
__global__ void other(int *out) { out[0] = 1; }
__global__ void k(int *out) { out[0] = 2; }
__global__ void third(int *out) { out[0] = 3; }""", [zeros(1)], {0: [2]}),
    case("control_extern_c", """
extern "C" __global__ void __launch_bounds__(32) k(int *out) { out[threadIdx.x] = threadIdx.x; }""",
         [zeros(3)], {0: [0, 1, 2]}, block=3),
    case("control_divide_by_cases", """
__global__ void k(const int *in, int *out) {
    int t = threadIdx.x, x = in[t];
    out[t] = x / 3 + x % 5 + x / -7 + x / 16 + x % 8;
}""", [i32(100, -100, 7, -7, 0, 1, -1, 12345), zeros(8)],
         {1: [int_div(x, 3) + int_rem(x, 5) + int_div(x, -7) + int_div(x, 16) + int_rem(x, 8)
              for x in (100, -100, 7, -7, 0, 1, -1, 12345)]}, block=8),
    elementwise("control_unsigned_divide_by_constant", [(U32, [0, 9, 10, 0xFFFFFFFF])], U32,
                "x / 10 + x % 7 + x / 3 + x / 641", lambda x: x // 10 + x % 7 + x // 3 + x // 641),
]  # fmt: skip

CASES: tuple[Case, ...] = (*BRANCHES, *LOOPS, *SWITCHES, *FUNCTIONS, *THREADS)
