"""The PTX interpreter: arithmetic that others got wrong, atomics, memory, calls."""

from __future__ import annotations

import pytest

from qgpu.errors import LaunchError
from tests.interp.ptx_run import FIRST, asm, cuda_module, kernel, run, words

LEVELS = ["-O0", "-O1", "-O2", "-O3"]
MASK32 = 0xFFFFFFFF


# --- values that others got wrong ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "mode", "amount", "right"),
    [
        ("l", "clamp", 32, 0x12345678),
        ("l", "clamp", 44, 0x12345678),
        ("l", "wrap", 44, 0xCDEF0123),
        ("r", "clamp", 32, 0x9ABCDEF0),
        ("r", "clamp", 44, 0x9ABCDEF0),
        ("r", "wrap", 44, 0xEF012345),
    ],
)
def test_funnel_shifts(direction: str, mode: str, amount: int, right: int) -> None:
    body = f"""mov.u32 %r1, 0x12345678; mov.u32 %r2, 0x9abcdef0; ld.global.u32 %r3, [%rd1];
shf.{direction}.{mode}.b32 %r4, %r1, %r2, %r3; st.global.u32 [%rd1], %r4;"""
    assert asm(body, [amount], form="I") == [right]


@pytest.mark.parametrize("opt", LEVELS)
def test_a_shift_widened_through_a_sign(opt: str) -> None:
    module = kernel("*(long long *)(a + 2) = (long long)(int)((unsigned)a[0] << 31);", opt)
    assert words(module, [-1, 0, 0, 0])[2:] == [-(2**31), -1]


@pytest.mark.parametrize("opt", LEVELS)
def test_bytes_keep_their_sign_and_their_neighbours(opt: str) -> None:
    body = "signed char *c = (signed char *)a; a[t + 2] = c[t + 1] * 2; c[t + 1] = 7;"
    module = kernel("int t = threadIdx.x; " + body, opt)
    data = [int.from_bytes(bytes([9, 0xFF, 127, 0x80]), "little", signed=True),
            int.from_bytes(bytes([1, 9, 9, 9]), "little")]  # fmt: skip
    out = words(module, [*data, 0, 0, 0, 0], block=4)
    assert out[2:] == [-2, 254, -256, 2]
    assert [n.to_bytes(4, "little", signed=True) for n in out[:2]] == [
        bytes([9, 7, 7, 7]), bytes([7, 9, 9, 9])
    ]  # fmt: skip


@pytest.mark.parametrize("opt", LEVELS)
@pytest.mark.parametrize(
    ("a", "b", "quotient", "remainder"),
    [
        (-6, 5, -1, -1), (6, -5, -1, 1), (-7, 3, -2, -1), (1, -(2**31), 0, 1),
        (-(2**31), 2097152, -1024, 0), (-(2**31), -(2**31), 1, 0),
    ],
)  # fmt: skip
def test_signed_division(opt: str, a: int, b: int, quotient: int, remainder: int) -> None:
    module = kernel("int x = a[0], y = a[1]; a[0] = x / y; a[1] = x % y;", opt)
    assert words(module, [a, b]) == [quotient, remainder]


def test_unsigned_division_of_large_numbers() -> None:
    body = "unsigned x = a[0], y = a[1]; a[0] = x / y; a[1] = x % y;"
    assert run(body, [MASK32, 1 << 31], form="I") == [1, 0x7FFFFFFF]


def test_mad_hi_adds_to_the_high_word() -> None:
    body = "mov.u32 %r1, -1; mad.hi.u32 %r2, %r1, %r1, 0x80000000; st.global.u32 [%rd1], %r2;"
    assert asm(body, [0], form="I") == [0x7FFFFFFE]


@pytest.mark.parametrize("opt", LEVELS)
def test_a_dense_switch_with_every_lane_in_its_own_arm(opt: str) -> None:
    arms = "".join(f"case {n}: a[t] = a[t] * {n + 3} + {n}; break;" for n in range(10))
    module = kernel(f"int t = threadIdx.x; switch (t) {{ {arms} }}", opt)
    out = words(module, list(range(1, 13)), block=12)
    assert out == [(n + 1) * (n + 3) + n for n in range(10)] + [11, 12]


def test_brx_idx() -> None:
    body = """ld.global.u32 %r1, [%rd1];
brx.idx %r1, $table;
$table: .branchtargets $A, $B, $A, $C;
$A: mov.u32 %r2, 10; bra $end;
$B: mov.u32 %r2, 20; bra $end;
$C: mov.u32 %r2, 30;
$end: st.global.u32 [%rd1], %r2;"""
    assert asm(body, [3, 0, 1, 2, 3], block=5) == [30, 10, 20, 10, 30]
    with pytest.raises(LaunchError, match="branch 4 of 4"):
        asm(body, [4])


@pytest.mark.parametrize("opt", LEVELS)
def test_a_barrier_after_loops_of_different_length(opt: str) -> None:
    module = kernel(
        """__shared__ int s[8]; int t = threadIdx.x; volatile int n = 0;
        if (t < 3) for (int i = 0; i < t + 1; i++) n += i;
        s[t] = t + 1; __syncthreads(); a[t] = s[7 - t];""",
        opt,
    )
    assert words(module, [0] * 8, block=8) == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("opt", LEVELS)
def test_exited_threads_count_as_arrived(opt: str) -> None:
    module = kernel(
        """__shared__ int s[8]; int t = threadIdx.x; if (t >= 6) return;
        s[t] = t; __syncthreads(); a[t] = s[5 - t];""",
        opt,
    )
    out = words(module, [9] * 8, block=8)
    assert out == [5, 4, 3, 2, 1, 0, 9, 9]


@pytest.mark.parametrize("opt", LEVELS)
def test_stores_stay_on_their_side_of_a_barrier(opt: str) -> None:
    module = kernel(
        """__shared__ int s; int t = threadIdx.x; if (t == 0) s = 1; __syncthreads();
        a[2 * t] = s; __syncthreads(); if (t == 7) s = 2; __syncthreads(); a[2 * t + 1] = s;""",
        opt,
    )
    assert words(module, [0] * 16, block=8) == [1, 2] * 8


@pytest.mark.parametrize(("x", "right"), [(18, 18), (0, 6), (-13, 13)])
def test_the_maximum_of_a_negated_operand(x: int, right: int) -> None:
    assert run("int x = a[0]; a[0] = max(max(x, -x), 6);", [x]) == [right]


# --- atomics ------------------------------------------------------------------------------------

ATOMICS = [
    ("add.u32", 4, 5, 9), ("add.u32", MASK32, 2, 1), ("and.b32", 12, 10, 8), ("or.b32", 12, 10, 14),
    ("xor.b32", 12, 10, 6), ("exch.b32", 12, 10, 10), ("min.s32", -1, 3, -1), ("min.u32", -1, 3, 3),
    ("max.s32", -1, 3, 3), ("max.u32", -1, 3, -1), ("inc.u32", 4, 4, 0), ("inc.u32", 9, 4, 0),
    ("inc.u32", 3, 4, 4), ("dec.u32", 0, 6, 6), ("dec.u32", 9, 6, 6), ("dec.u32", 6, 6, 5),
]  # fmt: skip


@pytest.mark.parametrize(("op", "old", "value", "new"), ATOMICS)
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_atomics_return_the_old_value(op: str, old: int, value: int, new: int, space: str) -> None:
    part = "" if space == "generic" else f".{space}"
    address = "%rd2" if space == "shared" else "%rd1"
    body = f"""mov.u64 %rd2, s; ld.global.u32 %r1, [%rd1]; st.shared.u32 [s], %r1;
ld.global.u32 %r2, [%rd1+4]; atom{part}.{op} %r3, [{address}], %r2;
ld{part}.u32 %r4, [{address}]; st.global.v2.u32 [%rd1], {{%r3, %r4}};"""
    out = asm(body, [old & MASK32, value], ".shared .align 4 .u32 s;", form="I")
    assert out == [old & MASK32, new & MASK32]


def test_compare_and_swap() -> None:
    body = "atom.global.cas.b32 %r1, [%rd0], 5, 6; st.global.u32 [%rd0+4], %r1;"
    assert asm(body, [5, 0]) == [6, 5]
    assert asm(body, [4, 0]) == [4, 4]


def test_64_bit_atomics() -> None:
    body = "atom.global.add.u64 %rd2, [%rd0], %rd0; red.global.max.s64 [%rd0+8], -3;"
    assert asm(body, [2**63, 2**64 - 9], form="Q") == [2**63 + FIRST, 2**64 - 3]


def test_atomics_go_lowest_lane_first_and_warp_after_warp() -> None:
    body = "atom.global.add.u32 %r1, [%rd0+32], 1; st.global.u32 [%rd1], %r1;"
    assert asm(body, [0] * 9, block=8) == [*range(8), 8]


def test_reductions_without_result() -> None:
    assert asm("red.global.add.u32 [%rd0], 3;", [1], block=8) == [25]


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "right"),
    [
        ("ld.global.s8 %r1", -2), ("ld.global.u8 %r1", 254), ("ld.global.s16 %r1", -258),
        ("ld.global.u16 %r1", 65278), ("ld.global.b8 %r1", 254), ("ld.global.s32 %r1", -16908546),
    ],
)  # fmt: skip
def test_narrow_loads_extend_by_their_type(load: str, right: int) -> None:
    value = int.from_bytes(bytes([0xFE, 0xFE, 0xFD, 0xFE]), "little", signed=True)
    assert asm(f"{load}, [%rd1]; st.global.u32 [%rd1], %r1;", [value]) == [right]


def test_narrow_stores_leave_neighbours() -> None:
    body = "mov.u32 %r1, 0x11223344; st.global.u8 [%rd1+1], %r1; st.global.b16 [%rd1+6], %r1;"
    assert asm(body, [MASK32, MASK32], form="I") == [0xFFFF44FF, 0x3344FFFF]


def test_vectors() -> None:
    body = """ld.global.v4.u32 {%r1, _, %r2, %r3}, [%rd0]; st.global.v2.u32 [%rd0], {%r3, %r1};
ld.global.v2.u8 {%r4, %r5}, [%rd0]; st.global.v2.u32 [%rd0+8], {%r5, %r4};"""
    assert asm(body, [1, 2, 3, 0x405]) == [0x405, 1, 4, 5]


def test_spaces_do_not_collide_and_generic_addresses_reach_them() -> None:
    declarations = """.global .align 4 .u32 g[2] = {7, 8}; .const .align 4 .u32 c[2] = {9, 10};
.shared .align 4 .u32 s[2]; .global .align 8 .u64 pointers[3] = {g, generic(c), generic(g)+4};"""
    body = """.local .align 4 .b8 l[8];
mov.u64 %rd2, l; mov.u64 %rd3, s; st.shared.u32 [s+4], 11; st.local.u32 [l+4], 12;
cvta.local.u64 %rd4, %rd2; cvta.shared.u64 %rd5, %rd3; cvta.to.local.u64 %rd6, %rd4;
ld.u32 %r1, [%rd4+4]; ld.u32 %r2, [%rd5+4]; ld.local.u32 %r3, [%rd6+4];
ld.global.u64 %rd7, [pointers+8]; ld.u32 %r4, [%rd7+4]; ld.global.u64 %rd7, [pointers+16];
ld.u32 %r5, [%rd7]; ld.const.u32 %r6, [c]; ld.u32 %r7, [g];
isspacep.shared %p1, %rd5; isspacep.local %p2, %rd5; isspacep.global %p3, %rd0;
selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 1, 0, %p2; selp.u32 %r10, 1, 0, %p3;
st.global.v2.u32 [%rd0], {%r1, %r2}; st.global.v2.u32 [%rd0+8], {%r3, %r4};
st.global.v2.u32 [%rd0+16], {%r5, %r6}; st.global.v2.u32 [%rd0+24], {%r7, %r8};
st.global.v2.u32 [%rd0+32], {%r9, %r10};"""
    assert asm(body, [0] * 10, declarations) == [12, 11, 12, 10, 8, 9, 7, 1, 0, 1]


def test_module_data_written_by_one_block_is_seen_by_the_next() -> None:
    module = cuda_module(
        "__device__ int g = 5; __global__ void k(int *a) { a[blockIdx.x] = g; g += 2; }"
    )
    assert words(module, [0] * 3, grid=3) == [5, 7, 9]


@pytest.mark.parametrize("opt", LEVELS)
def test_dynamic_shared_memory(opt: str) -> None:
    source = """__global__ void k(int *a) { __shared__ int fixed[4]; extern __shared__ int d[];
    int t = threadIdx.x; fixed[t] = t; d[t] = 10 * t; __syncthreads();
    a[t] = d[3 - t] + fixed[t]; }"""
    assert words(cuda_module(source, opt), [0] * 4, block=4, shared=16) == [30, 21, 12, 3]
    with pytest.raises(LaunchError, match="outside every variable"):
        words(cuda_module(source, opt), [0] * 4, block=4, shared=8)


@pytest.mark.parametrize("opt", LEVELS)
def test_local_arrays_are_each_threads_own(opt: str) -> None:
    source = """__global__ void k(int *a) { int t = threadIdx.x, l[8];
    for (int i = 0; i < 8; i++) l[(i * 3 + t) & 7] = i * t; a[t] = l[a[t] & 7]; }"""
    right = []
    for t in range(4):
        local = {(i * 3 + t) & 7: i * t for i in range(8)}
        right.append(local[t + 3])
    assert words(cuda_module(source, opt), [3, 4, 5, 6], block=4) == right


@pytest.mark.parametrize("opt", LEVELS)
def test_scalars_and_structures_as_parameters(opt: str) -> None:
    source = """struct S { short x; int y[3]; };
    __global__ void k(int *a, signed char c, struct S s, long long q) {
    a[0] = c; a[1] = s.x; a[2] = s.y[a[2]]; a[3] = q >> 40; }"""
    structure = (0xFFFE) | 11 << 32 | 22 << 64 | 33 << 96
    out = words(cuda_module(source, opt), [0, 0, 2, 0], scalars=(0xFD, structure, -5 << 40))
    assert out == [-3, -2, 33, -5]


# --- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opt", LEVELS)
def test_recursion(opt: str) -> None:
    source = """__device__ __noinline__ int f(int n, int *calls) {
    atomicAdd(calls, 1); return n < 2 ? n : f(n - 1, calls) + f(n - 2, calls); }
    __global__ void k(int *a) { a[threadIdx.x] = f(threadIdx.x, a + 8); }"""
    out = words(cuda_module(source, opt), [0] * 9, block=8)
    assert out == [0, 1, 1, 2, 3, 5, 8, 13, 1 + 1 + 3 + 5 + 9 + 15 + 25 + 41]


@pytest.mark.parametrize("opt", LEVELS)
def test_calls_through_pointers(opt: str) -> None:
    source = """__device__ __noinline__ int f(int x) { return x + 100; }
    __device__ __noinline__ int g(int x) { return x * 2; }
    __device__ int (*table[2])(int) = {f, g};
    __global__ void k(int *a) { int t = threadIdx.x; a[t] = table[a[t]](t); }"""
    assert words(cuda_module(source, opt), [1, 0, 1, 0], block=4) == [0, 101, 4, 103]


@pytest.mark.parametrize("opt", LEVELS)
def test_structures_come_back_from_calls(opt: str) -> None:
    source = """struct S { char c; int v[4]; };
    __device__ __noinline__ S f(S s, int n) { s.v[n] += s.c; s.c = n; return s; }
    __global__ void k(int *a) { S s = {5, {1, 2, 3, 4}}; s = f(s, a[0]); s = f(s, a[1]);
    for (int i = 0; i < 4; i++) a[i] = s.v[i]; a[4] = s.c; }"""
    assert words(cuda_module(source, opt), [2, 3, 0, 0, 0]) == [1, 2, 8, 6, 3]


def test_a_call_in_a_divergent_branch_joins_again() -> None:
    declarations = ".func (.reg .b32 %r) f(.reg .b32 %a) { add.u32 %r, %a, 7; ret; }"
    body = """and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra $join;
call (%r2), f, (%r0);
$join: activemask.b32 %r3; mad.lo.u32 %r3, %r2, 100, %r3; st.global.u32 [%rd1], %r3;"""
    assert asm(body, [0] * 4, declarations, block=4) == [15, 815, 15, 1015]
