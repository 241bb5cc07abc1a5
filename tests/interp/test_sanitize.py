"""The sanitizer: each kind of fault is found where it is, and right kernels are left in peace."""

from __future__ import annotations

import numpy as np
import pytest

from qgpu.errors import UsageError
from qgpu.interp.sanitize import (
    BARRIER,
    FAULT,
    MISALIGNED,
    OUT_OF_BOUNDS,
    RACE,
    UNINITIALISED,
    Finding,
    sanitize,
)
from qgpu.kernel import LaunchShape
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.parse import parse_ptx
from tests.cases import Case, example_cases
from tests.levels import findings_of

N_BYTES = 2048


def watch_ptx(
    ptx: str, sizes: list[int], block: int, grid: int = 1, **kwargs: int
) -> list[Finding]:
    """Findings of kernel ``k``; its arguments are arrays of so many words, then scalars."""
    module = parse_ptx(ptx, "k.ptx")
    (kernel,) = module.kernels
    starts, ranges, at = [], [], 8
    for size in sizes:
        starts.append(at)
        ranges.append((at, at + 4 * size))
        at += (4 * size + 7) // 8 * 8
    shape = LaunchShape((grid, 1, 1), (block, 1, 1), tuple(starts), data_base=at, **kwargs)
    memory = np.zeros(N_BYTES // 4, "<u4").tobytes()
    return sanitize(module, kernel.name, shape, memory, ranges, max_instructions=20_000)


def watch(
    source: str, sizes: list[int], block: int = 8, grid: int = 1, opt: str = "-O1"
) -> list[Finding]:
    return watch_ptx(cuda_to_ptx(source, file="k.cu", opt=opt), sizes, block, grid)


def only(findings: list[Finding], kind: str, line: int) -> Finding:
    assert [(f.kind, f.source) for f in findings] == [(kind, ("k.cu", line))]
    return findings[0]


# --- bounds and alignment -------------------------------------------------------------------------


def test_a_read_behind_an_array() -> None:
    finding = only(watch("""__global__ void k(const int *a, int *out) {
    int t = threadIdx.x;
    int left = out[t];
    out[t] = left +
        a[t + 1];
}""", [8, 8]), OUT_OF_BOUNDS, 5)  # fmt: skip
    assert (finding.thread, finding.count) == ((7, 0, 0), 1)
    assert finding.message == "read of 4 bytes outside every array, +0 from the end of argument 1"
    assert finding.instruction.startswith("ld.global")


def test_a_write_before_an_array_says_how_far() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    out[(int)threadIdx.x - 1] = 1;
}""", [8]), OUT_OF_BOUNDS, 2)  # fmt: skip
    assert finding.message == (
        "write of 4 bytes outside every array, 4 before the start of argument 1"
    )
    assert finding.thread == (0, 0, 0)
    assert str(finding).startswith("k.cu:2: out of bounds: write of 4 bytes outside every array")


def test_a_write_far_outside_the_memory() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    out[threadIdx.x * 1000000] = 1;
}""", [8]), OUT_OF_BOUNDS, 2)  # fmt: skip
    assert finding.thread == (1, 0, 0)


def test_shared_memory_has_bounds() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    __shared__ int s[8];
    s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x + 1];
}""", [8]), OUT_OF_BOUNDS, 5)  # fmt: skip
    assert finding.thread == (7, 0, 0)


def test_a_null_pointer() -> None:
    findings = watch("""__global__ void k(int *out) {
    int *p = threadIdx.x < 9 ? (int *)0 : out;
    *(volatile int *)p = 1;
}""", [8])  # fmt: skip
    assert {f.kind for f in findings} == {OUT_OF_BOUNDS}


def test_a_misaligned_word() -> None:
    finding = only(watch("""__global__ void k(const char *a, int *out) {
    out[threadIdx.x] = *(const int *)(a + 4 * threadIdx.x + 2);
}""", [8, 8], block=2), MISALIGNED, 2)  # fmt: skip
    assert "not aligned to 4 bytes" in finding.message


def test_the_last_element_is_inside() -> None:
    assert watch("__global__ void k(char *a) { a[31] = a[0]; }", [8], block=1) == []


# --- what was never written -----------------------------------------------------------------------


def test_shared_memory_read_before_it_is_written() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    __shared__ int s[9];
    s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x + 1];
}""", [8]), UNINITIALISED, 5)  # fmt: skip
    assert (finding.thread, finding.count) == ((7, 0, 0), 1)


def test_a_local_array_with_a_hole() -> None:
    finding = only(watch("""__global__ void k(const int *index, int *out) {
    int mine[4];
    mine[index[threadIdx.x] + 1] = 5;
    out[threadIdx.x] = mine[index[threadIdx.x] + 2];
}""", [8, 8]), UNINITIALISED, 4)  # fmt: skip
    assert "local memory" in finding.message
    assert finding.count == 8


HEAD = """.version 7.8
.target sm_75
.address_size 64
.visible .entry k(.param .u64 p)
{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %q<9>;
ld.param.u64 %rd1, [p];
"""


@pytest.mark.parametrize(
    ("body", "register", "line"),
    [
        ("add.u32 %r1, %r2, 1;", "%r2", 7),
        ("mov.u32 %r3, %r2;\nst.global.u32 [%rd1], %r3;", "%r3", 8),
        ("@%q1 st.global.u32 [%rd1], 1;", "%q1", 7),
        ("st.global.u32 [%rd2], 1;", "%rd2", 7),
        (
            "setp.eq.u32 %q1, 1, 2;\nselp.u32 %r1, 1, %r2, %q1;\nst.global.u32 [%rd1], %r1;",
            "%r1",
            9,
        ),
    ],
)
def test_a_register_that_was_never_written(body: str, register: str, line: int) -> None:
    findings = watch_ptx(f"{HEAD}{body}\nret; }}", [4], 1)
    first = findings[0]
    assert (first.kind, first.line) == (UNINITIALISED, line)
    assert first.message == f"register {register} is read before it is written"
    assert str(first).startswith(f"k.ptx:{line}: uninitialised: register {register}")


def test_moving_or_leaving_out_an_unwritten_register_is_no_use_of_it() -> None:
    body = """mov.u32 %r1, %r2; mov.u32 %r1, 5; setp.eq.u32 %q1, 1, 1;
selp.u32 %r3, %r1, %r4, %q1; st.global.u32 [%rd1], %r3; ret; }"""
    assert watch_ptx(HEAD + body, [4], 1) == []


# --- races ----------------------------------------------------------------------------------------


def test_a_missing_barrier() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    __shared__ int s[8];
    s[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = s[3 - threadIdx.x];
}""", [8], block=4), RACE, 4)  # fmt: skip
    assert "with no barrier between" in finding.message
    assert "line 3" in finding.message


def test_a_missing_second_barrier() -> None:
    """The classic: a tile is overwritten while others still read it."""
    findings = watch("""__global__ void k(int *out, int *in) {
    __shared__ int s[8];
    int t = threadIdx.x, sum = 0;
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        s[t] = in[t] + i;
        __syncthreads();
        sum += s[7 - t];
    }
    out[t] = sum;
}""", [8, 8])  # fmt: skip
    assert {(f.kind, f.source) for f in findings} == {(RACE, ("k.cu", 6)), (RACE, ("k.cu", 8))}


def test_two_threads_write_one_word() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    __shared__ int s;
    s = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = s;
}""", [8]), RACE, 3)  # fmt: skip
    assert finding.count >= 7


def test_neighbouring_bytes_are_no_race() -> None:
    assert watch("""__global__ void k(char *out) {
    __shared__ char s[8];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = s[7 - threadIdx.x];
}""", [2]) == []  # fmt: skip


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    source = """__global__ void k(int *out) {{
    __shared__ int s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    atomicAdd(&s, 1);
    {barrier}
    out[threadIdx.x] = s;
}}"""
    assert watch(source.format(barrier="__syncthreads();"), [8]) == []
    assert RACE in {f.kind for f in watch(source.format(barrier=""), [8])}


def test_a_warp_barrier_orders_the_lanes_of_its_warp_only() -> None:
    source = """__global__ void k(int *out) {{
    __shared__ int s[8];
    int t = threadIdx.x;
    s[t] = t;
    __syncwarp();
    out[t] = s[{other}];
}}"""
    assert watch(source.format(other="t ^ 1"), [8]) == []
    assert RACE in {f.kind for f in watch(source.format(other="t ^ 4"), [8])}


def test_a_lock_orders_what_it_guards() -> None:
    assert watch("""__global__ void k(int *out) {
    __shared__ int lock, sum;
    if (threadIdx.x == 0) { lock = 0; sum = 0; }
    __syncthreads();
    if (threadIdx.x % 4 == 0) {
        while (atomicCAS(&lock, 0, 1)) { }
        sum += threadIdx.x;
        atomicExch(&lock, 0);
    }
    __syncthreads();
    out[threadIdx.x] = sum;
}""", [16], block=16) == []  # fmt: skip


LOCKS = {
    "spin": ("while (atomicCAS(&lock, 0, 1)) ;", "atomicExch(&lock, 0);"),
    "volatile release": ("while (atomicExch(&lock, 1)) ;", "*(volatile int *)&lock = 0;"),
    "ticket": (
        "int mine = atomicAdd(&lock, 1); while (*(volatile int *)&served != mine) ;",
        "*(volatile int *)&served = mine + 1;",
    ),
}
GUARDED = """__device__ int lock, served;
__global__ void k(int *out) {{
    {memory}
    {take}
    __threadfence();
    *sum = *sum + 1;
    __threadfence();
    {give}
}}"""


@pytest.mark.parametrize("opt", ["-O0", "-O1"])
@pytest.mark.parametrize("memory", ["int *sum = out;", "__shared__ int s; int *sum = &s;"])
@pytest.mark.parametrize("lock", LOCKS)
def test_what_a_lock_of_threads_and_warps_guards(lock: str, memory: str, opt: str) -> None:
    take, give = LOCKS[lock]
    source = GUARDED.format(memory=memory, take=take, give=give)
    if "__shared__" in memory:
        source = source.replace(
            "int *sum = &s;", "int *sum = &s; if (threadIdx.x == 0) s = 0; __syncthreads();"
        )
    assert watch(source, [8], block=12, opt=opt) == []
    open_ = GUARDED.format(memory="int *sum = out;", take="", give="")
    assert {f.kind for f in watch(open_, [8], block=12, opt=opt)} == {RACE}


def test_a_flag_hands_data_on() -> None:
    source = """__global__ void k({} *flag, int *data) {{
    if (threadIdx.x == 5) {{ data[0] = 7; __threadfence(); *flag = 1; }}
    if (threadIdx.x == 1) {{ while (*flag == 0) ; data[1] = data[0]; }}
}}"""
    assert watch(source.format("volatile int"), [1, 2]) == []
    atomic = source.format("int").replace("*flag == 0", "atomicAdd(flag, 0) == 0")
    assert watch(atomic.replace("*flag = 1", "atomicExch(flag, 1)"), [1, 2]) == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("a[t] = t;\na[8 + t] = a[7 - t];", 4),
        ("a[t] = a[(t + 1) % 8];", 3),
        ("a[0] = t;", 3),
        ("if (t == 6) a[0] = 5;\nif (t == 1) a[1] = a[0];", 3),
        ("a[t] = t;\n__syncwarp();\na[8 + t] = a[t ^ 4];", 5),
        ("if (t == 2)\na[0] = 3;\nelse atomicAdd(&a[0], 1);", 5),
    ],
)
def test_races_in_global_memory(body: str, line: int) -> None:
    source = f"__global__ void k(int *a) {{\nint t = threadIdx.x;\n{body}\n}}"
    findings = watch(source, [16])
    assert {f.kind for f in findings} == {RACE}
    assert ("k.cu", line) in {f.source for f in findings}
    assert findings[0].message.startswith("global memory is ")


@pytest.mark.parametrize(
    "body",
    [
        "a[0] = 5;",
        "if (a[8 + t] == 0) a[0] = 1;",
        "a[t] = t; __syncthreads(); a[8 + t] = a[7 - t];",
        "atomicAdd(&a[0], 1); atomicMax(&a[0], t);",
        "int old = a[0], seen; do { seen = old; old = atomicCAS(&a[0], seen, seen + t); }"
        "while (old != seen);",
        "if (t > 5) { a[t] = 9; return; } __syncthreads(); a[8 + t] = a[6];",
    ],
)
def test_no_races_in_global_memory(body: str) -> None:
    assert watch(f"__global__ void k(int *a) {{ int t = threadIdx.x; {body} }}", [16]) == []


def test_cuda_blocks_race_in_global_memory_but_not_in_shared() -> None:
    source = """__global__ void k(int *a) {
    __shared__ int s;
    if (threadIdx.x == 1) s = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) a[0] = s;
}"""
    finding = only(watch(source, [16], grid=2), RACE, 5)
    assert finding.message == (
        "global memory is written that thread (0,0,0) of block (0,0,0) wrote at line 5 with no "
        "barrier between"
    )
    assert finding.cuda_block == (1, 0, 0)


def test_the_last_cuda_block_may_read_what_the_others_wrote() -> None:
    source = """__device__ unsigned done;
__global__ void k(int *a) {
    __shared__ bool is_last;
    a[1 + blockIdx.x * 2 + threadIdx.x] = blockIdx.x * 10 + threadIdx.x;
    COUNT
    __syncthreads();
    if (is_last && threadIdx.x == 0) for (int n = 1; n < 7; n++) a[0] += a[n];
}"""
    counted = "__threadfence(); __syncthreads(); if (threadIdx.x == 0) is_last ="
    right = source.replace("COUNT", f"{counted} atomicAdd(&done, 1) == 2;")
    assert watch(right, [16], block=2, grid=3) == []
    wrong = source.replace("COUNT", f"{counted} blockIdx.x == 2;")
    assert {f.kind for f in watch(wrong, [16], block=2, grid=3)} == {RACE}


# --- without optimisation nothing is folded away --------------------------------------------------


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("__shared__ int s[8];\na[t] = s[t];", 4, "shared memory"),
        (
            "__shared__ int s[8];\nif (t > 3) s[t] = 1;\nint v = s[t]; a[t] = v * 0 + t;",
            5,
            "shared memory",
        ),
        ("__shared__ int s;\nint v = s;\na[t] = v & 0;", 4, "shared memory"),
        ("int x;\na[t] = x;", 4, "local memory"),
        ("int x[3];\nx[t & 1] = 1;\na[t] = x[2];", 5, "local memory"),
    ],
)
def test_reads_of_what_was_never_written(body: str, line: int, words: str) -> None:
    source = f"__global__ void k(int *a) {{\nint t = threadIdx.x;\n{body}\n}}"
    finding = only(watch(source, [8], opt="-O0"), UNINITIALISED, line)
    assert words in finding.message


# --- barriers and other ends ----------------------------------------------------------------------


def test_threads_at_different_barriers() -> None:
    finding = only(watch("""__global__ void k(int *out) {
    if (threadIdx.x & 1) {
        out[threadIdx.x] = 1;
        __syncthreads();
    } else {
        out[threadIdx.x] = 2;
        __syncthreads();
        out[threadIdx.x] = 3;
    }
}""", [8]), BARRIER, 4)  # fmt: skip
    assert "line 4, line 7" in finding.message


def test_threads_that_left_are_not_missed_at_a_barrier() -> None:
    assert watch("""__global__ void k(int *out) {
    if (threadIdx.x > 5) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}""", [8]) == []  # fmt: skip


def test_a_trap_is_the_last_finding() -> None:
    (finding,) = watch("""__global__ void k(int *out) {
    if (threadIdx.x == 3) __trap();
    out[threadIdx.x] = 1;
}""", [8])  # fmt: skip
    assert finding.kind == FAULT
    assert "trap" in str(finding)


def test_an_endless_loop_ends() -> None:
    (finding,) = watch_ptx(f"{HEAD}L: bra L; }}", [4], 1)
    assert finding.kind == FAULT
    assert "20000 instructions" in str(finding)


def test_an_unknown_kernel() -> None:
    with pytest.raises(UsageError, match="no kernel 'other'"):
        sanitize(parse_ptx(f"{HEAD}ret; }}", "k.ptx"), "other", LaunchShape(), bytes(64), [])


@pytest.mark.parametrize("opt", ["-O0", "-O1"])
@pytest.mark.parametrize("case", example_cases(), ids=str)
def test_the_examples_are_clean(case: Case, opt: str) -> None:
    assert findings_of(case, opt) == []


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("out[8 + threadIdx.x] = 1;", OUT_OF_BOUNDS),
        ("*(int *)((char *)out + 2) = 1;", MISALIGNED),
        ("s[threadIdx.x] = 1;", OUT_OF_BOUNDS),
        ("out[0] = s[1];", UNINITIALISED),
        ("out[0] += local[out[1] + 1];", UNINITIALISED),
    ],
)
def test_faults_between_taking_and_giving_a_lock(inside: str, kind: str) -> None:
    source = f"""__device__ int lock;
__global__ void k(int *out) {{
    __shared__ int s[4];
    int local[2]; local[0] = 1;
    while (atomicCAS(&lock, 0, 1)) ;
    {inside}
    atomicExch(&lock, 0);
}}"""
    finding = only(watch(source, [8], block=6, opt="-O0"), kind, 6)
    assert finding.thread in {(0, 0, 0), (4, 0, 0)}


def test_threads_at_different_barriers_after_a_lock() -> None:
    source = """__device__ int lock;
__global__ void k(int *out) {
    while (atomicCAS(&lock, 0, 1)) ;
    int mine = ++*out;
    atomicExch(&lock, 0);
    if (mine & 1) {
        __syncthreads();
    } else {
        out[1] = 1;
        __syncthreads();
    }
}"""
    finding = only(watch(source, [8], opt="-O0"), BARRIER, 7)
    assert "line 7, line 10" in finding.message
