"""The PTX interpreter: control, memory, calls, barriers, warps, atomics, and its faults."""

from __future__ import annotations

from typing import Any

import pytest

from qgpu.errors import CompileError, Error, LaunchError, UsageError
from qgpu.interp.ptx import run_ptx
from qgpu.interp.ptx_warp import shuffle_source
from qgpu.kernel import LaunchShape
from qgpu.ptx.parse import parse_ptx
from qgpu.ptxir import Module
from tests.interp.ptx_run import FIRST, HEAD, cuda_module, ptx_module, words

LEVELS = ["-O0", "-O1", "-O2", "-O3"]
MASK32 = 0xFFFFFFFF


def kernel(body: str, opt: str = "-O1", params: str = "int *a", before: str = "") -> Module:
    return cuda_module(f"{before}\n__global__ void k({params}) {{ {body} }}", opt)


def run(body: str, data: list[int], **more: Any) -> list[int]:
    """A CUDA kernel over ``int *a`` at -O1."""
    return words(kernel(body), data, **more)


def asm(body: str, data: list[int], declarations: str = "", **more: Any) -> list[int]:
    """A PTX body; each thread's own word is at [%rd1]."""
    own = "mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;\n"
    return words(ptx_module(own + body, declarations), data, **more)


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


# --- SIMT ---------------------------------------------------------------------------------------


def test_special_registers() -> None:
    names = ["tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y",
             "nctaid.x", "nctaid.y", "laneid", "warpid"]  # fmt: skip
    lines = [f"mov.u32 %r3, %{name}; st.global.u32 [%rd2+{4 * n}], %r3;"
             for n, name in enumerate(names)]  # fmt: skip
    body = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 2, %r1;"
    body += """mov.u32 %r4, %tid.y; mov.u32 %r5, %tid.z; mad.lo.u32 %r4, %r5, 3, %r4;
mad.lo.u32 %r4, %r4, 2, %r0; mad.lo.u32 %r1, %r1, 12, %r4;
mul.wide.u32 %rd2, %r1, 48; add.u64 %rd2, %rd2, %rd0;"""
    out = asm(body + "".join(lines), [0] * 12 * 48, block=(2, 3, 2), grid=(2, 2, 1))
    for index in range(48):
        block, thread = divmod(index, 12)
        x, y, z = thread % 2, thread // 2 % 3, thread // 6
        assert out[12 * index : 12 * index + 12] == [
            x, y, z, 2, 3, 2, block % 2, block // 2, 2, 2, thread % 4, thread // 4
        ]  # fmt: skip


def test_warp_size_and_lane_masks() -> None:
    body = """mov.u32 %r1, WARP_SZ; mov.u32 %r2, %lanemask_lt; mov.u32 %r3, %lanemask_ge;
shl.b32 %r2, %r2, 4; or.b32 %r1, %r1, %r2; shl.b32 %r3, %r3, 8; or.b32 %r1, %r1, %r3;
st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 4, block=4, form="I") == [
        4 | (2**n - 1) << 4 | (15 >> n << n) << 8 for n in range(4)
    ]
    assert run("a[threadIdx.x] = warpSize;", [0] * 2, block=2) == [4, 4]


@pytest.mark.parametrize(
    ("mode", "b", "c", "right"),
    [
        ("idx", 2, 0x1F, [2, 2, 2, 2]),
        ("idx", 9, 0x1F, [0, 1, 2, 3]),
        ("idx", 1, 0x1E1F, [1, 1, 3, 3]),
        ("up", 1, 0, [0, 0, 1, 2]),
        ("up", 1, 0x1E00, [0, 0, 2, 2]),
        ("down", 1, 0x1F, [1, 2, 3, 3]),
        ("down", 2, 0x1C1F, [2, 3, 2, 3]),
        ("down", 1, 0x1E1F, [1, 1, 3, 3]),
        ("bfly", 3, 0x1F, [3, 2, 1, 0]),
        ("bfly", 4, 0x1F, [0, 1, 2, 3]),
        ("bfly", 1, 0x1C1F, [1, 0, 3, 2]),
    ],
)
def test_shuffles(mode: str, b: int, c: int, right: list[int]) -> None:
    body = f"""ld.global.u32 %r1, [%rd1];
shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1; st.global.u32 [%rd1], %r2;"""
    assert asm(body, [10, 11, 12, 13], block=4) == [10 + n for n in right]


def test_shuffle_predicates_follow_the_isa_for_32_lanes() -> None:
    """The published pseudo code, over all modes, segment widths, lanes and amounts."""
    for mode in ("up", "down", "bfly", "idx"):
        for width in (1, 2, 4, 8, 16, 32):
            c = (32 - width) << 8 | (0 if mode == "up" else 31)
            for lane in range(32):
                for b in range(32):
                    first = lane - lane % width
                    source, inside = {
                        "up": (lane - b, lane - b >= first),
                        "down": (lane + b, lane + b < first + width),
                        "bfly": (lane ^ b, (lane ^ b) < first + width),
                        "idx": (first + b % width, True),
                    }[mode]
                    right = (source, True) if inside else (lane, False)
                    assert shuffle_source(mode, lane, b, c, 32) == right


def test_a_shuffle_over_more_lanes_than_a_warp_is_refused() -> None:
    body = "shfl.sync.down.b32 %r1, %r0, 1, 31, -1; st.global.u32 [%rd1], %r1;"
    assert asm(body, [0] * 4, block=4) == [1, 2, 3, 3]
    with pytest.raises(LaunchError, match="a shuffle over 32 lanes; a warp has 4 here"):
        asm(body, [0] * 5, block=5)


def test_votes() -> None:
    body = """setp.ge.u32 %p1, %r0, 2; vote.sync.ballot.b32 %r1, %p1, -1;
vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, !%p1, 15; vote.sync.uni.pred %p4, %p1, 15;
selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p3; selp.u32 %r4, 4, 0, %p4;
add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; mad.lo.u32 %r1, %r1, 16, %r2;
st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 6, block=6) == [12 * 16 + 1] * 4 + [3 * 16 + 5] * 2


def test_matches() -> None:
    body = """ld.global.u32 %r1, [%rd1]; match.any.sync.b32 %r2, %r1, -1;
match.all.sync.b32 %r3|%p1, %r1, -1; selp.u32 %r4, 256, 0, %p1; mad.lo.u32 %r2, %r3, 16, %r2;
add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2;"""
    assert asm(body, [7, 8, 7, 7, 5, 5], block=6) == [
        13, 2, 13, 13, 3 + 48 + 256, 3 + 48 + 256
    ]  # fmt: skip


def test_activemask_and_reconvergence() -> None:
    body = """setp.eq.u32 %p1, %r0, 1; @%p1 bra $A; activemask.b32 %r1; bra $B;
$A: activemask.b32 %r1; $B: activemask.b32 %r2; mad.lo.u32 %r1, %r1, 16, %r2;
st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 4, block=4) == [13 * 16 + 15, 2 * 16 + 15, 13 * 16 + 15, 13 * 16 + 15]


def test_sync_waits_for_lanes_that_come_by_another_way() -> None:
    """Lanes 2 and 3 reach the vote only after a detour that lies behind it."""
    body = """setp.ge.u32 %p1, %r0, 2; @%p1 bra $far;
$vote: vote.sync.ballot.b32 %r1, %p1, 15; bra $end;
$far: mov.u32 %r2, 1; bra $vote;
$end: st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 4, block=4) == [12] * 4


def test_warp_barriers_order_stores() -> None:
    body = """st.global.u32 [%rd1], %r0; bar.warp.sync -1; xor.b32 %r1, %r0, 1;
mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd0; ld.global.u32 %r2, [%rd2];
bar.warp.sync 15; st.global.u32 [%rd1], %r2;"""
    assert asm(body, [0] * 4, block=4) == [1, 0, 3, 2]


def test_subgroups_with_masks_of_their_own() -> None:
    body = """and.b32 %r1, %r0, 1; mov.u32 %r2, 5; shl.b32 %r2, %r2, %r1;
setp.eq.u32 %p1, 0, 0;
shfl.sync.idx.b32 %r3, %r0, %r1, 31, %r2; vote.sync.ballot.b32 %r4, %p1, %r2;
mad.lo.u32 %r4, %r4, 16, %r3; st.global.u32 [%rd1], %r4;"""
    assert asm(body, [0] * 4, block=4) == [5 * 16, 10 * 16 + 1, 5 * 16, 10 * 16 + 1]


def test_barrier_reductions() -> None:
    source = """__global__ void k(int *a) { int t = threadIdx.x; if (t == 9) return;
    int n = __syncthreads_count(t & 1), all = __syncthreads_and(t < 9), any = __syncthreads_or(0);
    a[t] = n * 100 + all * 10 + any; }"""
    assert words(cuda_module(source), [0] * 10, block=10) == [410] * 9 + [0]


def test_named_barriers_with_counts() -> None:
    """Warp 1 produces, warp 0 waits for it at barrier 3; warp 2 never comes."""
    body = """setp.ge.u32 %p1, %r0, 8; @%p1 bra $end; setp.ge.u32 %p2, %r0, 4; @%p2 bra $produce;
bar.sync 3, 8; xor.b32 %r1, %r0, 7; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd0;
ld.global.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2; bra $end;
$produce: mad.lo.u32 %r3, %r0, 10, 1; st.global.u32 [%rd1], %r3; bar.arrive 3, 8;
$end:"""
    assert asm(body, [0] * 12, block=12)[:8] == [71, 61, 51, 41, 41, 51, 61, 71]


def test_blocks_run_in_linear_order() -> None:
    body = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1;
atom.global.add.u32 %r3, [%rd0], 1; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd0;
st.global.u32 [%rd2+4], %r3;"""
    assert asm(body, [0] * 7, grid=(3, 2, 1)) == [6, 0, 1, 2, 3, 4, 5]


# --- predicates, selects, uninitialised registers -----------------------------------------------


def test_setp_combines_and_writes_both_results() -> None:
    body = """setp.lt.u32 %p3, %r0, 2; setp.gt.and.s32 %p1|%p2, 5, 4, %p3;
setp.lt.xor.s32 %p4|%p5, 5, 4, !%p3; selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 2, 0, %p2;
selp.u32 %r3, 4, 0, %p4; selp.u32 %r4, 8, 0, %p5; add.u32 %r1, %r1, %r2; add.u32 %r3, %r3, %r4;
add.u32 %r1, %r1, %r3; st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 4, block=4) == [9, 9, 4, 4]


def test_predicate_logic_and_guards() -> None:
    body = """setp.eq.u32 %p1, %r0, 1; setp.lt.u32 %p2, %r0, 3; not.pred %p3, %p1;
and.pred %p4, %p2, %p3; xor.pred %p5, %p1, %p2; mov.pred %p6, %p5;
mov.u32 %r1, 0; @%p4 add.u32 %r1, %r1, 1; @!%p4 add.u32 %r1, %r1, 2; @%p6 add.u32 %r1, %r1, 4;
st.global.u32 [%rd1], %r1;"""
    assert asm(body, [0] * 4, block=4) == [5, 2, 5, 2]


def test_registers_that_nobody_wrote_read_zero() -> None:
    assert asm("selp.u32 %r1, 5, %r7, %p7; st.global.u32 [%rd1], %r1;", [9]) == [0]


def test_moves_split_and_join() -> None:
    body = """ld.global.u64 %rd2, [%rd0]; mov.b64 {%r1, %r2}, %rd2; mov.b32 {%h1, %h2}, %r1;
mov.b32 %r3, {%h2, %h1}; mov.b64 %rd3, {%r3, %r2}; st.global.u64 [%rd0], %rd3;"""
    assert asm(body, [0x11112222, 0x33334444]) == [0x22221111, 0x33334444]


def test_floats_may_be_moved_but_not_computed() -> None:
    moves = "ld.global.f32 %f1, [%rd0]; mov.f32 %f2, %f1; st.global.f32 [%rd0+4], %f2;"
    assert asm(moves, [0x3F800000, 0]) == [0x3F800000] * 2
    with pytest.raises(CompileError) as caught:
        asm("add.f32 %f1, %f1, %f2;", [0])
    assert str(caught.value) == (
        "test.ptx:10: floating point is not supported [add.f32 %f1, %f1, %f2]"
    )
    assert asm("bra $end; add.f32 %f1, %f1, %f2;\n$end:", [3]) == [3]


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("trap;", "test.ptx:10: trap [trap]"),
        ("ld.global.u32 %r1, [%rd0+64];", "memory access outside every variable, at 0x80"),
        ("ld.global.u32 %r1, [0];", "memory access outside every variable, at 0x0"),
        ("ld.global.u32 %r1, [%rd0+2];", "memory access at 0x42, not aligned to 4 bytes"),
        ("st.shared.u32 [16], 1;", "memory access outside every variable, at 0x10"),
        ("$L: bra $L;", "more than 1000 instructions were executed"),
        ("cp.async.wait_all;", "test.ptx:10: unsupported instruction [cp.async.wait_all]"),
        ("mov.u32 %r1, %clock;", "unsupported instruction"),
        ("add.s32 %r1, %r2;", "unsupported instruction"),
        ("call (%r1), g, (%r2);", "g has no body"),
        ("call f, ();", "arguments do not fit f"),
        ("vote.sync.ballot.b32 %r1, %p1, 2;", "lane 0 is not in its own mask 0x2"),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 bar.sync 1; bar.sync 0;",
         "threads wait at a barrier that never completes"),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 bra $A; bar.sync 0; ret; $A: bar.warp.sync 3;",
         "lanes that the mask names never arrive at this instruction"),
    ],
)  # fmt: skip
def test_faults_name_the_instruction(body: str, message: str) -> None:
    declarations = """.func (.reg .b32 %r) g(.reg .b32 %a);
.func f(.reg .b32 %a) { ret; }""".replace("\n", " ")
    with pytest.raises(Error) as caught:
        asm(body, [0] * 4, declarations, block=2, limit=1000)
    assert message in str(caught.value)
    assert "[" in str(caught.value)
    assert "test.ptx" in str(caught.value)


def test_endless_recursion_ends() -> None:
    with pytest.raises(LaunchError, match="calls nested more than 200 deep"):
        asm("call f, ();", [0], ".func f() { call f, (); ret; }")


def test_faults_name_the_source_line_where_there_is_one() -> None:
    source = "__global__ void k(int *a) {\n  a[0] = 1;\n  a[a[1]] = 2;\n}"
    with pytest.raises(LaunchError) as caught:
        words(cuda_module(source), [0, 5000])
    assert str(caught.value).startswith("kernel.cu:3: memory access outside every variable")


def test_wrong_launches() -> None:
    module = parse_ptx(HEAD + ".entry k(.param .u64 p) { ret; } .func f() { ret; }")
    with pytest.raises(UsageError, match="takes 1 parameters, 0 were given"):
        run_ptx(module, "k", LaunchShape(), b"")
    for name in ("f", "absent"):
        with pytest.raises(UsageError, match="there is no kernel"):
            run_ptx(module, name, LaunchShape(), b"")
