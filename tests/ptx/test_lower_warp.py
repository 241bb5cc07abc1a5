"""Warp-synchronous instructions: lanes in step, member masks, and what is refused."""

from __future__ import annotations

import pytest

from qgpu.errors import CompileError, LaunchError
from qgpu.interp.machine import run_blocks
from qgpu.kernel import LaunchShape
from qgpu.machine import REFERENCE
from qgpu.ptx.align import find_partings
from qgpu.ptx.build_graph import build_graph
from qgpu.ptx.clang import cuda_to_ptx
from qgpu.ptx.inline import inline
from qgpu.ptx.lower import lower
from qgpu.ptx.memory import Memory
from qgpu.ptx.optimise import optimise
from qgpu.ptx.parse import parse_ptx
from tests.ptx.lowering import Outcome, ptx_kernel, run_both

LEVELS = ("-O0", "-O1", "-O3")
DATA = ([10, 21, 30, 47, *[0] * 20], [7, 1, 2, 90, *[1] * 20], [0] * 24)


def cuda(body: str) -> str:
    return f"__global__ void k(int *a, int n) {{ int t = threadIdx.x, v = a[t], x = 0; {body} }}"


def trap_of(source: str, data: list[int], n_threads: int, n: int = 5) -> str | None:
    """Why the launch by blocks fails, if it does."""
    module = parse_ptx(cuda_to_ptx(source, file="k.cu"), "k.ptx")
    shape = LaunchShape((1, 1, 1), (n_threads, 1, 1), (8, n), 0, 8 + 4 * len(data))
    lowered = lower(module, module.kernels[0].name, REFERENCE, shape)
    words = [0, 0, *data, *[0] * (REFERENCE.n_words - 2 - len(data))]
    return lowered.trap_reason(run_blocks(REFERENCE, lowered.blocks, words, n_threads).memory)


def has_no_trap(outcome: Outcome) -> bool:
    return outcome.lowered.trap_word is None


IN_STEP = {
    "an arm at the end of a loop's body": """
        for (int i = 0; i < n; i++) {
            v += __shfl_xor_sync(0xf, v, 1);
            if (v & 1) { a[t] = v * 3; a[t + 8] = i; v = a[(t + 1) & 3] / 3; a[t + 16] = v % 7; }
        }
        a[t] = v;""",
    "continue": """
        for (int i = 0; i < n; i++) {
            v += __shfl_xor_sync(0xf, v, 1);
            if (v & 1) continue;
            a[t + 8] = v * 3; v = v / 3 + t; a[t + 16] = v % 7;
        }
        a[t] = v;""",
    "a loop that a vote ends": """
        while (__any_sync(0xf, v > 3)) {
            x++;
            if (v > 3) { a[t + 8] = v; v = v / (t + 2); a[t + 16] = x; }
        }
        a[t] = v * 100 + x;""",
    "a loop that a vote ends, with two arms": """
        while (__any_sync(0xffffffff, v > 3)) {
            x++;
            if (v & 1) { a[t + 8] = v; v = v / 2; a[t + 16] = x; continue; }
            if (v > 3) { a[t + 12] = v * 5; v = v - v / (t + 2); a[t + 20] = x; }
        }
        a[t] = v * 100 + x;""",
    "a warp barrier in a loop with an arm at its end": """
        __shared__ volatile int s[4];
        s[t] = v;
        for (int i = 0; i < n; i++) {
            __syncwarp();
            v += s[t ^ 1];
            __syncwarp();
            s[t] = v;
            if (v & 2) { a[t + 8] = v; v = v / (t + 2); a[t + 16] += i; }
        }
        a[t] = v;""",
    "a loop of other lengths inside": """
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < t; j++) { a[8 + t] += j; v++; }
            v += __shfl_sync(0xf, v, 3);
        }
        a[t] = v;""",
    "a switch before": """
        switch (v % 3) {
            case 0: a[8 + t] = v; v /= 3; break;
            case 1: v = v * 7 + a[t + 8]; a[12 + t] = v; break;
            default: v ^= a[t + 4]; a[t + 16] = v;
        }
        a[t] = __shfl_down_sync(0xf, v, 1);""",
    "lanes that have ended": "if (t == 1) return; a[t] = __ballot_sync(0xf, v);",
    "goto": """
        again: v += __shfl_xor_sync(0xf, v, 2);
        if (++x < n + (int)(__ballot_sync(0xf, v & 1) & 1)) {
            if (v & 2) { a[8 + t] = v; v /= 3; goto again; }
            a[12 + t] = v; v++; goto again;
        }
        a[t] = v;""",
    "a branch for each half": """
        if (t & 1) { a[8 + t] = 1; x = __shfl_xor_sync(0xa, v, 2); a[12 + t] = x; }
        else { a[8 + t] = 2; x = __shfl_xor_sync(0x5, v, 2); a[12 + t] = 3 * x; }
        a[t] = x;""",
}


@pytest.mark.parametrize("opt", LEVELS)
@pytest.mark.parametrize("body", IN_STEP.values(), ids=IN_STEP.keys())
def test_lanes_meet(body: str, opt: str) -> None:
    for data in DATA:
        got = run_both(cuda(body), [data, 5], block=(4, 1, 1), is_cuda=True, opt=opt)
        assert got.blocks == got.ptx
        if opt != "-O0":
            assert has_no_trap(got)


GRID = """
    if (t < 2) { a[t + 8] += v; x = __ballot_sync(0x3, v & 1); a[t + 12] += x; }
    for (int i = 0; i < n; i++) if (v & 1) { v += __popc(__ballot_sync(__activemask(), 1)); }
    if (t == 3) return;
    a[t + 16 + 4 * blockIdx.x] = __ballot_sync(0x7, v & 4) + x;"""


@pytest.mark.parametrize("opt", LEVELS)
def test_lanes_of_one_cuda_block_do_not_wait_for_those_of_the_next(opt: str) -> None:
    for data in DATA:
        got = run_both(
            cuda(GRID), [data, 3], grid=(2, 1, 1), block=(4, 1, 1), is_cuda=True, opt=opt
        )
        assert got.blocks == got.ptx
        first = cuda("if (t < 2) { a[t + 8] += v; x = __ballot_sync(0x3, v & 1); a[t + 12] = x; }")
        assert has_no_trap(
            run_both(first, [data, 3], grid=(2, 1, 1), block=(4, 1, 1), is_cuda=True, opt=opt)
        )


MASKED = {
    "two halves": "unsigned m = t & 1 ? 0xa : 0x5; a[t] = __ballot_sync(m, v > 20) * 16 + n;",
    "all": "unsigned m = t & 1 ? 0xa : 0x5; a[t] = __all_sync(m, t & 1) + 2 * __uni_sync(m, v);",
    "any": "unsigned m = t & 3 ? 0xe : 0x1; a[t] = __any_sync(m, t == 3);",
    "match": "unsigned m = t & 1 ? 0xa : 0x5; a[t] = __match_any_sync(m, v >> 5);",
    "match all": """unsigned m = t & 1 ? 0xa : 0x5; int p, q = __match_all_sync(m, v & 1, &p);
        a[t] = q * 2 + p;""",
    "the active lanes": """if (v > 20) { unsigned m = __activemask(); a[t + 8] = m;
        a[t] = __ballot_sync(m, v & 1) + 16 * __popc(m); }""",
    "lanes by a vote": """unsigned m = __ballot_sync(0xf, v > 20);
        if (v > 20) { a[t + 8] = m; a[t] = __shfl_sync(m, v, __ffs(m) - 1); }""",
    "in a loop of other lengths": """for (int i = 0; i < 3; i++) for (int j = 0; j <= t; j++)
        v += __popc(__ballot_sync(__activemask(), j)); a[t] = v;""",
}


@pytest.mark.parametrize("n_threads", [4, 8, 7])
@pytest.mark.parametrize("body", MASKED.values(), ids=MASKED.keys())
def test_masks_made_as_it_runs(body: str, n_threads: int) -> None:
    for data in DATA:
        got = run_both(cuda(body), [data, 5], block=(n_threads, 1, 1), is_cuda=True)
        assert got.blocks == got.ptx
        assert trap_of(cuda(body), data, n_threads) is None


def test_redux_and_elect_within_their_mask() -> None:
    body = """ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2; ld.global.u32 %r2, [%d1]; and.b32 %r3, %r1, 1; mov.u32 %r4, 5;
    shl.b32 %r4, %r4, %r3; redux.sync.add.u32 %r5, %r2, %r4; elect.sync %r6|%p1, %r4;
    mad.lo.u32 %r5, %r5, 16, %r6; selp.u32 %r7, 8, 0, %p1; add.u32 %r5, %r5, %r7;
    st.global.u32 [%d1], %r5; ret;"""
    got = run_both(ptx_kernel(body, n_params=1), [[1, 20, 300, 4000]], block=(4, 1, 1))
    even, odd = 301 * 16, 4020 * 16 + 1
    assert got.blocks[0] == got.ptx[0] == [even + 8, odd + 8, even, odd]


def test_a_guarded_vote_counts_only_who_takes_part() -> None:
    body = """ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2; setp.lt.u32 %p1, %r1, 2; setp.eq.u32 %p2, 0, 0; mov.u32 %r2, 77;
    @%p1 vote.sync.ballot.b32 %r2, %p2, 3; @!%p1 activemask.b32 %r2;
    st.global.u32 [%d1], %r2; ret;"""
    got = run_both(ptx_kernel(body, n_params=1), [[0] * 4], block=(4, 1, 1))
    assert got.blocks[0] == got.ptx[0] == [3, 3, 12, 12]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "n_threads", "message"),
    [
        ("x = __shfl_sync(0xffffffff, v, 1, 8);", 5, "a shuffle over 8 lanes; a warp has 4 here"),
        ("x = __ballot_sync(0xff, v);", 8, "a mask of lanes beyond the warp"),
        ("x = __any_sync(0xf0, v);", 8, "a mask of lanes beyond the warp"),
        ("__syncwarp(0xffff);", 16, "a mask of lanes beyond the warp"),
        ("x = __shfl_sync(0x1f, v, 1);", 5, "has 4 lanes here: 0x1f"),
        ("x = __match_any_sync(0x10, v);", 4, "the mask 0x10 names no lane"),
        ("x = __ballot_sync((1u << n) - 1, v);", 8, "a mask of lanes beyond the warp"),
    ],
)
def test_constants_that_mean_other_lanes(body: str, n_threads: int, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        trap_of(f"\n{cuda(body + ' a[t] = x;')}", [0] * 24, n_threads)
    assert str(caught.value).startswith("k.cu:2: ")


@pytest.mark.parametrize(
    ("body", "n_threads"),
    [
        ("x = __shfl_sync(0xffffffff, v, 1, 8);", 4),
        ("x = __ballot_sync(0xff, v);", 4),
        ("x = __ballot_sync(0xffffffff, v);", 32),
        ("x = __ballot_sync(0xf, v);", 32),
        ("x = __ballot_sync(0xff0f, v);", 7 - 3),
    ],
)
def test_constants_that_mean_the_same_lanes(body: str, n_threads: int) -> None:
    assert trap_of(cuda(body + " a[t] = x;"), [0] * 32, n_threads) is None


AS_IT_RUNS = [
    ("x = __shfl_sync(0xffffffff, v, 1, a[20]);", 4, None),
    ("x = __shfl_sync(0xffffffff, v, 1, a[20]);", 2, None),
    ("x = __shfl_sync(0xffffffff, v, 1, a[20]);", 8, "a shuffle over more lanes than a warp has"),
    ("x = __ballot_sync(a[20] * 2 - 1, v);", 8, None),
    ("x = __ballot_sync(a[20] * 2 - 1, v);", 16, "a mask of lanes beyond the warp"),
    ("__syncwarp(a[20] * 2 - 1);", 16, "a mask of lanes beyond the warp"),
]


@pytest.mark.parametrize(("body", "value", "message"), AS_IT_RUNS)
def test_what_is_known_only_as_it_runs(body: str, value: int, message: str | None) -> None:
    source = cuda(f"{body} a[t] = x;")
    data = [5] * 20 + [value] + [0] * 11
    found = trap_of(source, data, 12)
    if message is None:
        assert found is None
        got = run_both(source, [data, 5], block=(12, 1, 1), is_cuda=True)
        assert got.blocks == got.ptx
        return
    assert found is not None
    assert found.startswith(f"k.cu:1: {message}")
    with pytest.raises(LaunchError, match=r"lanes"):
        run_both(source, [data, 5], block=(12, 1, 1), is_cuda=True)


def test_a_mask_that_cannot_be_wrong_is_not_looked_at() -> None:
    body = "x = __ballot_sync(__activemask(), v); a[t] = x;"
    got = run_both(cuda(body), [[3] * 24, 5], block=(8, 1, 1), is_cuda=True)
    assert got.blocks == got.ptx
    assert got.lowered.listing.count(": st ") == 1


# --- where lanes part -----------------------------------------------------------------------------


def partings_of(body: str, n_threads: int = 4) -> int:
    module = parse_ptx(cuda_to_ptx(cuda(body)))
    shape = LaunchShape((1, 1, 1), (n_threads, 1, 1), (8, 5), 0, 200)
    function = inline(module, module.kernels[0])
    memory = Memory(module, function, REFERENCE, shape)
    graph = build_graph(function, REFERENCE, shape, memory, "k", frozenset())
    optimise(graph, n_threads, REFERENCE.n_stages, memory.constants)
    return len(find_partings(graph, n_threads, is_grid=False))


@pytest.mark.parametrize(
    ("body", "n_partings"),
    [
        ("for (int i = 0; i < a[9]; i++) a[t] += i;", 0),
        ("for (int i = 0; i < a[t]; i++) a[t + 4] += i;", 1),
        ("while (__any_sync(0xf, v > x)) { a[t] = x; x++; }", 0),
        ("while (__shfl_sync(0xf, v, t & 1) > x) { a[t] = x; a[t + 4] = x++; }", 1),
        ("if (atomicAdd(a, 1) == 2) { a[t] = 1; a[t + 9] = 3; a[t + 5] = 2; }", 1),
        ("if (a[7] == 2) { a[t] = 1; a[t + 9] = 3; a[t + 5] = 2; }", 0),
    ],
)
def test_branches_that_take_lanes_apart(body: str, n_partings: int) -> None:
    assert partings_of(body) == n_partings
