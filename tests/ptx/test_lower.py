"""The lowering end to end: small kernels, limits, refusals, and the tokens that they cost."""

from __future__ import annotations

import pytest

from qgpu.errors import CompileError, LimitError, UsageError
from qgpu.interp.machine import run_blocks
from qgpu.kernel import LaunchShape
from qgpu.machine import REFERENCE, SMALL, MachineSpec
from qgpu.ptx.lower import lower
from qgpu.ptx.parse import parse_ptx
from tests.ptx.lowering import ptx_kernel, run_both

DOT = """__global__ void dot(const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    atomicAdd(out, a[i] * b[i]);
}"""

ADD = """__global__ void add(const int *a, const int *b, int *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}"""


def test_the_dot_product_takes_few_tokens() -> None:
    got = run_both(DOT, [[1, 2, 3], [4, 5, 6], [0]], block=(3, 1, 1), is_cuda=True)
    assert got.blocks[2] == [32]
    assert got.n_tokens <= 16


@pytest.mark.parametrize("spec", [REFERENCE, SMALL], ids=lambda spec: spec.name)
@pytest.mark.parametrize(("grid", "block"), [(1, 5), (2, 3), (3, 2), (5, 1)])
def test_grids_of_partial_warps(spec: MachineSpec, grid: int, block: int) -> None:
    a, b = [1, 2, 3, 4, 5], [10, 20, 30, 40, 50]
    got = run_both(
        ADD, [a, b, [0] * 5, 5], grid=(grid, 1, 1), block=(block, 1, 1), is_cuda=True, spec=spec
    )
    assert got.blocks[2] == got.ptx[2] == [11, 22, 33, 44, 55]


EARLY = """__global__ void k(int *out) {
    __shared__ int s[8];
    int t = threadIdx.x, b = blockIdx.x;
    if (t >= 6 - b) return;
    s[t] = t + 10 * b;
    __syncthreads();
    out[6 * b + t] = s[5 - b - t];
    __syncthreads();
    s[t] = 99;
}"""


def test_threads_that_end_early_take_part_in_the_next_cuda_block() -> None:
    got = run_both(EARLY, [[0] * 18], grid=(3, 1, 1), block=(8, 1, 1), is_cuda=True)
    expected = [5, 4, 3, 2, 1, 0, 14, 13, 12, 11, 10, 0, 23, 22, 21, 20, 0, 0]
    assert got.blocks[0] == got.ptx[0] == expected


COUNT = """__global__ void k(int *bins, int *old, const int *data, int n) {
    int t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) old[i] = atomicAdd(&bins[data[i] & 1], 1);
}"""


@pytest.mark.parametrize("spec", [REFERENCE, SMALL], ids=lambda spec: spec.name)
def test_atomics_stay_whole_where_a_machine_block_is_short(spec: MachineSpec) -> None:
    data = [1, 3, 5, 2, 7, 9, 4, 1, 1]
    got = run_both(COUNT, [[0, 0], [0] * 9, data, 9], block=(8, 1, 1), is_cuda=True, spec=spec)
    assert got.blocks[0] == [2, 7]
    assert sorted(got.blocks[1]) == sorted([*range(2), *range(7)])


@pytest.mark.parametrize("spec", [REFERENCE, SMALL], ids=lambda spec: spec.name)
def test_bytes_beside_each_other(spec: MachineSpec) -> None:
    source = """__global__ void k(unsigned char *out) {
        out[threadIdx.x + 1] = 0x10 + threadIdx.x;
    }"""
    got = run_both(source, [[0xAAAAAAAA, 0xBBBBBBBB]], block=(5, 1, 1), is_cuda=True, spec=spec)
    assert got.blocks[0] == got.ptx[0] == [0x121110AA, 0xBBBB1413]


def test_more_values_than_registers_are_spilled() -> None:
    loads = "\n".join(f"ld.global.u32 %r{n}, [%d1+{4 * n}];" for n in range(24))
    sums = "\n".join(
        f"mad.lo.s32 %r30, %r30, 3, %r{n};\nst.global.u32 [%d2+{4 * n}], %r{23 - n};"
        for n in range(24)
    )
    body = f"""ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r30, 0;
    {loads}
    bar.sync 0;
    {sums}
    st.global.u32 [%d2+96], %r30; ret;"""
    values = [n * n + 1 for n in range(24)]
    got = run_both(ptx_kernel(body), [values, [0] * 25])
    assert got.blocks[1][:24] == values[::-1]
    assert got.blocks == got.ptx
    assert got.lowered.n_registers <= REFERENCE.n_registers


def _lower(body: str, *, block: int = 1, spec: MachineSpec = REFERENCE, n_params: int = 0) -> None:
    module = parse_ptx(ptx_kernel(body, n_params=n_params), "k.ptx")
    lower(module, "k", spec, LaunchShape(block=(block, 1, 1), params=(8,) * n_params))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("add.f32 %r1, %r2, %r3;", "integers only"),
        ("tex.1d.v4.s32.s32 {%r1,%r2,%r3,%r4}, [%d1, {%r5}];", "tex is not supported"),
        ("bar.arrive 0, 64;", "every thread waits"),
        ("shfl.sync.down.b32 %r1, %r2, 1, 31, -1;", "a shuffle over 32 lanes; a warp has 4 here"),
        ("mov.u32 %r1, %clock;", "%clock is not supported"),
    ],
)  # fmt: skip
def test_what_the_machine_cannot_do_is_refused_with_its_line(body: str, reason: str) -> None:
    with pytest.raises(CompileError, match=reason) as caught:
        _lower(body, block=8)
    assert (caught.value.file, caught.value.line) == ("k.ptx", 8)
    assert caught.value.instruction


def test_limits_name_the_need() -> None:
    with pytest.raises(LimitError, match="needs 33 threads in a CUDA block, the machine has 32"):
        _lower("ret;", block=33)
    table = ".shared .align 4 .b8 s[4096]; mov.u32 %r1, s; st.shared.u32 [%r1], 1;"
    with pytest.raises(LimitError, match="words of memory"):
        _lower(table)
    long = "ld.global.u32 %r1, [%d1];" + "".join(
        f"mul.lo.s32 %r1, %r1, %r1; st.global.u32 [%d1+{4 * n}], %r1;" for n in range(150)
    )
    with pytest.raises(LimitError, match="machine blocks, the machine has 128"):
        _lower(long)


def test_unknown_kernels_and_argument_counts() -> None:
    module = parse_ptx(ptx_kernel("ret;"))
    with pytest.raises(UsageError, match="no kernel 'other'; the file has: k"):
        lower(module, "other", REFERENCE, LaunchShape())
    with pytest.raises(UsageError, match="takes 2 arguments, not 0"):
        lower(module, "k", REFERENCE, LaunchShape())


def test_recursion_is_refused() -> None:
    text = """.version 7.0
.target sm_75
.address_size 64
.func f() { call f; ret; }
.visible .entry k() { call f; ret; }
"""
    with pytest.raises(CompileError, match="recursion"):
        lower(parse_ptx(text), "k", REFERENCE, LaunchShape())


def test_an_exchange_loads_before_it_stores() -> None:
    body = """ld.param.u64 %d1, [p0]; ld.global.u32 %r2, [%d1]; setp.ne.u32 %p1, %r2, 0;
    mov.u32 %r1, 5;
    @%p1 atom.global.exch.b32 %r1, [%d1+8], 31;
    st.global.u32 [%d1+4], %r1; ret;"""
    got = run_both(ptx_kernel(body), [[7, 0, 9], 0])
    assert got.blocks[0] == got.ptx[0] == [7, 9, 31]


def test_an_exchange_whose_result_replaces_its_operand() -> None:
    body = """ld.param.u64 %d1, [p0]; ld.global.u32 %r1, [%d1];
    atom.global.exch.b32 %r1, [%d1+4], %r1;
    st.global.u32 [%d1+8], %r1; ret;"""
    got = run_both(ptx_kernel(body), [[7, 9, 0], 0])
    assert got.blocks[0] == got.ptx[0] == [7, 7, 9]


def test_a_branch_reads_a_variable_from_before_its_next_value() -> None:
    body = """ld.param.u64 %d1, [p0]; mov.pred %p2, -1; mov.u32 %r1, 0;
    again: mov.pred %p1, %p2; add.s32 %r1, %r1, 5; mov.pred %p2, 0;
    @%p1 bra again;
    st.global.u32 [%d1], %r1; ret;"""
    got = run_both(ptx_kernel(body), [[1], 0])
    assert got.blocks[0] == got.ptx[0] == [10]


def test_a_trap_leaves_its_mark() -> None:
    body = """ld.param.u64 %d1, [p0]; ld.global.u32 %r1, [%d1]; setp.ne.u32 %p1, %r1, 0;
    @%p1 trap; ret;"""
    for value in (0, 1):
        module = parse_ptx(ptx_kernel(body, n_params=1))
        lowered = lower(module, "k", REFERENCE, LaunchShape(params=(8,), data_base=16))
        run = run_blocks(REFERENCE, lowered.blocks, [0, 0, value], 1)
        assert lowered.trap_word is not None
        reason = "<ptx>:9: trap [@%p1 trap]" if value else None
        assert lowered.trap_reason(run.memory) == reason
