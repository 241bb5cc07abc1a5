"""The PTX interpreter: warps, barriers, predicates, and the faults it names."""

from __future__ import annotations

import pytest

from qgpu.errors import CompileError, Error, LaunchError, UsageError
from qgpu.interp.ptx import run_ptx
from qgpu.interp.ptx_warp import shuffle_source
from qgpu.kernel import LaunchShape
from qgpu.ptx.parse import parse_ptx
from tests.interp.ptx_run import HEAD, asm, cuda_module, run, words

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
