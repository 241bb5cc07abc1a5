"""Whole PTX kernels as other producers write them: spaces, vectors, calls, branches, barriers."""

from __future__ import annotations

from tests.cases import Array, Case
from tests.corpus.build import (
    PTX_HEAD,
    S8,
    S16,
    S64,
    U8,
    U16,
    U32,
    U64,
    Size,
    case,
    i32,
    u32,
    zeros,
)

REGISTERS = ".reg .pred %p<6>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<12>;"


def ptx(
    name: str,
    body: str,
    args: list[Array | int],
    expect: dict[int, list[int]],
    *,
    block: Size = 1,
    grid: Size = 1,
    declare: str = "",
    params: str = "",
    shared: int = 0,
    warp_sensitive: bool = False,
) -> Case:
    """A kernel ``k``: its pointers are in %rd1, %rd2, .. and the thread in %r0."""
    given = params or ", ".join(f".param .u64 p{n}" for n in range(1, len(args) + 1))
    loads = "" if params else "\n".join(
        f"ld.param.u64 %rd{n}, [p{n}]; cvta.to.global.u64 %rd{n}, %rd{n};"
        for n in range(1, len(args) + 1)
    )  # fmt: skip
    source = f"""{PTX_HEAD}
{declare}
.visible .entry k({given})
{{
{REGISTERS}
mov.u32 %r0, %tid.x;
{loads}
{body}
}}"""
    return case(f"form_{name}", source, args, expect, block=block, grid=grid, kind="ptx",
                shared=shared, warp_sensitive=warp_sensitive)  # fmt: skip


AT = "mul.wide.u32 %rd10, %r0, 4; add.u64 %rd1, %rd1, %rd10; add.u64 %rd2, %rd2, %rd10;"
AT1 = "mul.wide.u32 %rd10, %r0, 4; add.u64 %rd1, %rd1, %rd10;"

SPACES = [
    ptx("loads_extend", """
ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1]; ld.global.s16 %r3, [%rd1+2]; ld.global.u16 %r4, [%rd1+2];
ld.global.s8 %rd3, [%rd1]; ld.global.u32 %rd4, [%rd1+4]; ld.global.s32 %rd5, [%rd1+4];
st.global.u32 [%rd2], %r1; st.global.u32 [%rd2+4], %r2; st.global.u32 [%rd2+8], %r3; st.global.u32 [%rd2+12], %r4;
st.global.u64 [%rd2+16], %rd3; st.global.u64 [%rd2+24], %rd4; st.global.u64 [%rd2+32], %rd5;
ret;""", [u32(0x8001_00FE, 0x80000000), zeros(10, U32)],
        {1: [0xFFFFFFFE, 0xFE, 0xFFFF8001, 0x8001, 0xFFFFFFFE, 0xFFFFFFFF, 0x80000000, 0,
                 0x80000000, 0xFFFFFFFF]}),
    ptx("stores_truncate", """
mov.u32 %r1, 0x12345678; mov.u64 %rd3, 0x1122334455667788; mov.u16 %h0, 0xabcd;
st.global.u8 [%rd1], %r1; st.global.b8 [%rd1+1], %h0; st.global.u16 [%rd1+2], %r1;
st.global.u8 [%rd1+4], %rd3; st.global.u16 [%rd1+6], %rd3; st.global.u32 [%rd1+8], %rd3;
ret;""", [U8.array([255] * 12)],
        {0: [0x78, 0xCD, 0x78, 0x56, 0x88, 255, 0x88, 0x77, 0x88, 0x77, 0x66, 0x55]}),
    ptx("vectors", """
ld.global.v2.u32 {%r1, %r2}, [%rd1]; ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1+16];
ld.global.v2.u64 {%rd3, %rd4}, [%rd1+16]; ld.global.v4.u8 {%h0, %h1, %h2, %h3}, [%rd1+8];
st.global.v4.u32 [%rd2], {%r6, %r5, %r4, %r3}; st.global.v2.u32 [%rd2+16], {%r2, %r1};
st.global.v4.u8 [%rd2+24], {%h3, %h2, %h1, %h0}; st.global.v2.u16 [%rd2+28], {%h0, %h3};
st.global.v2.u64 [%rd2+32], {%rd4, %rd3}; ret;""",
        [u32(1, 2, 0x04030201, 0, 5, 6, 7, 8), zeros(12, U32)],
        {1: [8, 7, 6, 5, 2, 1, 0x01020304, 0x00040001, 7, 8, 5, 6]}),
    ptx("vector_of_shorts", """
ld.global.v2.s16 {%h0, %h1}, [%rd1]; ld.global.v4.s8 {%r1, %r2, %r3, %r4}, [%rd1+4];
cvt.s32.s16 %r5, %h0; cvt.s32.s16 %r6, %h1;
st.global.v2.b32 [%rd2], {%r5, %r6}; st.global.v2.b32 [%rd2+8], {%r1, %r2}; st.global.v2.b32 [%rd2+16], {%r3, %r4}; ret;""",
        [S16.array([-2, 300, 0x7FFF, -32513]), zeros(6)], {1: [-2, 300, -1, 127, -1, -128]}),
    ptx("shared_and_local", f"""
.shared .align 4 .b32 box[8]; .local .align 8 .b8 mine[16];
{AT} ld.global.u32 %r1, [%rd1];
mov.u32 %r2, box; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r1;
st.local.u32 [mine], %r1; st.local.u16 [mine+6], %r0; mov.u32 %r8, 0; st.local.u16 [mine+4], %r8;
bar.sync 0;
sub.u32 %r4, 7, %r0; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];
ld.local.u32 %r6, [mine+4]; ld.local.u32 %r7, [mine]; shr.u32 %r6, %r6, 16;
mad.lo.u32 %r5, %r5, 100, %r6; add.u32 %r5, %r5, %r7; st.global.u32 [%rd2], %r5; ret;""",
        [i32(*range(10, 18)), zeros(8)], {1: [(17 - t) * 100 + t + 10 + t for t in range(8)]},
        block=8),
    ptx("generic_addresses", f"""
.shared .align 8 .b64 box[4];
{AT} mov.u64 %rd3, box; cvta.shared.u64 %rd4, %rd3; mul.wide.u32 %rd5, %r0, 8; add.u64 %rd4, %rd4, %rd5;
ld.global.u32 %r1, [%rd1]; cvt.u64.u32 %rd6, %r1; st.u64 [%rd4], %rd6; bar.sync 0;
xor.b32 %r2, %r0, 1; mul.wide.u32 %rd5, %r2, 8; add.u64 %rd7, %rd3, %rd5; ld.shared.u64 %rd8, [%rd7];
cvta.global.u64 %rd9, %rd2; st.u32 [%rd9], %rd8; isspacep.shared %p0, %rd4; isspacep.global %p1, %rd9;
@!%p0 st.global.u32 [%rd2], %r0; @!%p1 st.global.u32 [%rd2], %r0; ret;""",
        [u32(5, 6, 7, 8), zeros(4, U32)], {1: [6, 5, 8, 7]}, block=4),
    ptx("module_variables", f"""
{AT} ld.global.u32 %r1, [%rd1]; mov.u64 %rd3, table; mul.wide.u32 %rd4, %r1, 2; add.u64 %rd3, %rd3, %rd4;
ld.global.s16 %r2, [%rd3]; ld.const.u32 %r3, [base]; ld.const.u8 %r4, [base+7]; ld.global.u32 %r5, [single];
add.s32 %r2, %r2, %r3; add.s32 %r2, %r2, %r4; add.s32 %r2, %r2, %r5; st.global.u32 [%rd2], %r2; ret;""",
        [i32(0, 1, 2, 3), zeros(4)], {1: [1000 + 9 + 50 + v for v in (5, -5, 32767, -32768)]},
        block=4, declare=""".global .align 2 .s16 table[4] = {5, -5, 32767, -32768};
.const .align 4 .b8 base[8] = {0xe8, 3, 0, 0, 1, 2, 3, 9};
.global .u32 single = 50;"""),
    ptx("address_table", """
mul.wide.u32 %rd3, %r0, 8; mov.u64 %rd4, list; add.u64 %rd4, %rd4, %rd3; ld.global.u64 %rd5, [%rd4];
ld.u32 %r1, [%rd5+4]; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd1, %rd1, %rd3; st.global.u32 [%rd1], %r1; ret;""",
        [zeros(2)], {0: [2, 4]}, block=2, declare=""".global .align 4 .u32 one[2] = {1, 2};
.global .align 4 .u32 two[2] = {3, 4};
.global .align 8 .u64 list[2] = {generic(one), generic(two)};"""),
    ptx("dynamic_shared", f"""
{AT} ld.global.u32 %r1, [%rd1]; shl.b32 %r2, %r0, 2; mov.u32 %r3, pool; add.u32 %r3, %r3, %r2;
st.shared.u32 [%r3], %r1; bar.sync 0; xor.b32 %r2, %r2, 12; mov.u32 %r3, pool; add.u32 %r3, %r3, %r2;
ld.shared.u32 %r4, [%r3]; st.global.u32 [%rd2], %r4; ret;""",
        [i32(1, 2, 3, 4), zeros(4)], {1: [4, 3, 2, 1]}, block=4, shared=4,
        declare=".extern .shared .align 16 .b8 pool[];"),
    ptx("parameters_of_every_width", """
ld.param.s8 %r1, [a]; ld.param.u8 %r2, [a]; ld.param.s16 %r3, [b]; ld.param.u32 %r4, [c];
ld.param.u64 %rd3, [d]; ld.param.v2.u32 {%r5, %r6}, [e]; ld.param.u16 %r7, [e+10]; ld.param.u64 %rd1, [out];
st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; st.global.u32 [%rd1+8], %r3; st.global.u32 [%rd1+12], %r4;
st.global.u64 [%rd1+16], %rd3; st.global.u32 [%rd1+24], %r5; st.global.u32 [%rd1+28], %r6; st.global.u32 [%rd1+32], %r7;
ret;""", [-2, -300, 7, 1 << 40, u32(11, 12, 0x00090008), zeros(9, U32)],
        {5: [0xFFFFFFFE, 0xFE, 0xFFFFFED4, 7, 0, 256, 11, 12, 9]},
        params=".param .u8 a, .param .s16 b, .param .u32 c, .param .u64 d, .param .align 8 .b8 e[12],"
               " .param .u64 .ptr .global .align 4 out"),
    ptx("volatile_and_cached", f"""
{AT} ld.volatile.global.u32 %r1, [%rd1]; ld.global.nc.u32 %r2, [%rd1]; ld.global.ca.u32 %r3, [%rd1];
ld.relaxed.gpu.global.u32 %r4, [%rd1]; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4;
st.volatile.global.u32 [%rd2], %r1; ld.acquire.gpu.global.u32 %r5, [%rd2]; add.u32 %r5, %r5, 1;
st.release.gpu.global.u32 [%rd2], %r5; fence.acq_rel.gpu; membar.gl; ret;""",
        [i32(1, 2, 3), zeros(3)], {1: [5, 9, 13]}, block=3),
    ptx("two_32_bit_pointers_in_64", f"""
{AT} cvt.u32.u64 %r3, %rd1; cvt.u64.u32 %rd3, %r3; shr.u64 %rd4, %rd1, 32; shl.b64 %rd4, %rd4, 32;
or.b64 %rd3, %rd3, %rd4; ld.global.u32 %r1, [%rd3]; neg.s32 %r1, %r1; st.global.u32 [%rd2], %r1; ret;""",
        [i32(4, -5), zeros(2)], {1: [-4, 5]}, block=2),
]  # fmt: skip


# --- control --------------------------------------------------------------------------------------

CONTROL = [
    ptx("loop", f"""
{AT} ld.global.u32 %r1, [%rd1]; mov.u32 %r2, 0;
loop: setp.eq.u32 %p0, %r1, 0; @%p0 bra done; add.u32 %r2, %r2, %r1; sub.u32 %r1, %r1, 1; bra.uni loop;
done: st.global.u32 [%rd2], %r2; ret;""", [u32(0, 1, 4, 10), zeros(4, U32)], {1: [0, 1, 10, 55]},
        block=4),
    ptx("indexed_branch", f"""
{AT} ld.global.u32 %r1, [%rd1]; min.u32 %r1, %r1, 3;
ts: .branchtargets L0, L1, L2, L3;
brx.idx %r1, ts;
L0: mov.u32 %r2, 100; bra end;
L1: mov.u32 %r2, 200; bra end;
L2: mov.u32 %r2, 300;
L3: add.u32 %r2, %r1, 7;
end: st.global.u32 [%rd2], %r2; ret;""", [u32(3, 0, 1, 2, 9, 0, 1, 3), zeros(8, U32)],
        {1: [10, 100, 200, 9, 10, 100, 200, 10]}, block=8),
    ptx("predicated_exit", f"""
{AT1} setp.gt.u32 %p0, %r0, 4; @%p0 exit; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1;
st.global.u32 [%rd1], %r1; setp.lt.u32 %p1, %r0, 2; @%p1 ret; add.u32 %r1, %r1, 10; st.global.u32 [%rd1], %r1; ret;""",
        [zeros(8, U32)], {0: [1, 1, 11, 11, 11, 0, 0, 0]}, block=8),
    ptx("nested_scopes", f"""
{AT} ld.global.u32 %r1, [%rd1];
{{ .reg .b32 %r1x; .reg .b32 t; mov.u32 t, 3; mul.lo.u32 %r1x, %r1, t; mov.u32 %r2, %r1x; }}
{{ .reg .b32 t; add.u32 t, %r2, 1; mov.u32 %r3, t; }}
st.global.u32 [%rd2], %r3; ret;""", [u32(1, 2), zeros(2, U32)], {1: [4, 7]}, block=2),
    ptx("function_call", f"""
{AT} ld.global.u32 %r1, [%rd1];
{{ .param .b32 a; .param .b32 b; .param .b32 back; st.param.b32 [a], %r1; st.param.b32 [b], %r0;
call.uni (back), twist, (a, b); ld.param.b32 %r2, [back]; }}
call.uni (%r3), plain, (%r2); st.global.u32 [%rd2], %r3; ret;""",
        [u32(5, 6, 7), zeros(3, U32)], {1: [(v * 3 + t) ^ 1 for t, v in enumerate((5, 6, 7))]}, block=3,
        declare=""".func (.param .b32 out) twist(.param .b32 x, .param .b32 y)
{ .reg .b32 %a, %b; ld.param.b32 %a, [x]; ld.param.b32 %b, [y]; mad.lo.u32 %a, %a, 3, %b; st.param.b32 [out], %a; ret; }
.func (.reg .b32 %o) plain(.reg .b32 %i) { xor.b32 %o, %i, 1; ret; }"""),
    ptx("call_in_divergence", f"""
{AT} ld.global.u32 %r1, [%rd1]; and.b32 %r2, %r1, 1; setp.eq.u32 %p0, %r2, 1; @!%p0 bra even;
{{ .param .b32 a; .param .b32 back; st.param.b32 [a], %r1; call (back), sum, (a); ld.param.b32 %r1, [back]; }}
even: st.global.u32 [%rd2], %r1; ret;""",
        [u32(1, 2, 5, 8), zeros(4, U32)], {1: [1, 2, 15, 8]}, block=4,
        declare=""".func (.param .b32 out) sum(.param .b32 n)
{ .reg .b32 %n, %s; .reg .pred %q; ld.param.b32 %n, [n]; mov.u32 %s, 0;
again: add.u32 %s, %s, %n; sub.u32 %n, %n, 1; setp.ne.u32 %q, %n, 0; @%q bra again;
st.param.b32 [out], %s; ret; }"""),
    ptx("special_registers", """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %nctaid.x; mov.u32 %r4, %tid.y; mov.u32 %r5, %ctaid.z;
mad.lo.u32 %r6, %r1, %r2, %r0; mul.wide.u32 %rd3, %r6, 4; add.u64 %rd1, %rd1, %rd3;
mad.lo.u32 %r7, %r6, 10, %r3; add.u32 %r7, %r7, %r4; add.u32 %r7, %r7, %r5; st.global.u32 [%rd1], %r7; ret;""",
        [zeros(6, U32)], {0: [10 * n + 2 for n in range(6)]}, grid=2, block=3),
    ptx("infinite_loop_left_by_branch", f"""
{AT1} mov.u32 %r1, 1;
top: shl.b32 %r1, %r1, 1; setp.gt.u32 %p0, %r1, 100; @%p0 bra out; setp.gt.u32 %p1, %r1, %r0; @!%p1 bra top;
add.u32 %r1, %r1, 3; bra top;
out: st.global.u32 [%rd1], %r1; ret;""",
        [zeros(3, U32)], {0: [122, 122, 154]}, block=3),
]  # fmt: skip


# --- barriers, votes, shuffles, atomics -----------------------------------------------------------

TOGETHER = [
    ptx("barrier_reductions", f"""
{AT} ld.global.u32 %r1, [%rd1]; setp.gt.u32 %p0, %r1, 3;
bar.red.popc.u32 %r2, 0, %p0; bar.red.and.pred %p1, 0, %p0; bar.red.or.pred %p2, 0, !%p0;
selp.u32 %r3, 100, 0, %p1; selp.u32 %r4, 1000, 0, %p2; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
st.global.u32 [%rd2], %r2; ret;""", [u32(1, 5, 9, 2, 7, 8), zeros(6, U32)], {1: [1004] * 6}, block=6),
    ptx("barrier_sync_aligned", f"""
.shared .u32 s[6]; {AT1} mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0;
barrier.sync.aligned 0; add.u32 %r4, %r0, 1; rem.u32 %r4, %r4, 6; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r1;
ld.shared.u32 %r5, [%r4]; barrier.sync 0; st.global.u32 [%rd1], %r5; ret;""",
        [zeros(6, U32)], {0: [1, 2, 3, 4, 5, 0]}, block=6),
    ptx("votes", f"""
{AT1} setp.gt.u32 %p0, %r0, 1; vote.sync.ballot.b32 %r1, %p0, 0xf; vote.sync.all.pred %p1, %p0, 0xf;
vote.sync.any.pred %p2, %p0, 0xf; vote.sync.uni.pred %p3, %p0, 0xf;
selp.u32 %r2, 100, 0, %p1; selp.u32 %r3, 200, 0, %p2; selp.u32 %r4, 400, 0, %p3;
add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4; st.global.u32 [%rd1], %r1; ret;""",
        [zeros(4, U32)], {0: [212] * 4}, block=4, warp_sensitive=True),
    ptx("shuffle_with_predicate", f"""
{AT1} add.u32 %r1, %r0, 10; shfl.sync.down.b32 %r2|%p0, %r1, 1, 0x1c1f, 0xf; selp.u32 %r3, 100, 0, %p0;
shfl.sync.up.b32 %r4|%p1, %r1, 2, 0x1c00, 0xf; selp.u32 %r5, 1000, 0, %p1; add.u32 %r2, %r2, %r3;
mad.lo.u32 %r4, %r4, 10000, %r5; add.u32 %r2, %r2, %r4; st.global.u32 [%rd1], %r2; ret;""",
        [zeros(4, U32)], {0: [100000 + 111, 110000 + 112, 101000 + 113, 111000 + 13]},
        block=4, warp_sensitive=True),
    ptx("shuffle_idx_and_bfly", f"""
{AT1} mul.lo.u32 %r1, %r0, %r0; shfl.sync.idx.b32 %r2, %r1, 3, 0x1c1f, 0xffffffff;
shfl.sync.bfly.b32 %r3, %r1, 3, 0x1c1f, 0xffffffff; mad.lo.u32 %r2, %r2, 100, %r3; st.global.u32 [%rd1], %r2; ret;""",
        [zeros(4, U32)], {0: [909, 904, 901, 900]}, block=4, warp_sensitive=True),
    ptx("match_any_b32", f"""
{AT} ld.global.u32 %r1, [%rd1]; match.any.sync.b32 %r2, %r1, 0xf; st.global.u32 [%rd2], %r2; ret;""",
        [u32(4, 5, 4, 5), zeros(4, U32)], {1: [5, 10, 5, 10]}, block=4, warp_sensitive=True),
    ptx("atomics_of_every_kind", """
atom.global.add.u32 %r1, [%rd1], 5; atom.global.min.s32 %r2, [%rd1+4], -9; atom.global.max.u32 %r3, [%rd1+8], 77;
atom.global.and.b32 %r4, [%rd1+12], 12; atom.global.or.b32 %r5, [%rd1+16], 3; atom.global.xor.b32 %r6, [%rd1+20], 6;
atom.global.exch.b32 %r7, [%rd1+24], 42; atom.global.cas.b32 %r8, [%rd1+28], 8, 80;
atom.global.inc.u32 %r9, [%rd1+32], 9; atom.global.dec.u32 %r10, [%rd1+36], 3;
st.global.u32 [%rd2], %r1; st.global.u32 [%rd2+4], %r2; st.global.u32 [%rd2+8], %r3; st.global.u32 [%rd2+12], %r4;
st.global.u32 [%rd2+16], %r5; st.global.u32 [%rd2+20], %r6; st.global.u32 [%rd2+24], %r7; st.global.u32 [%rd2+28], %r8;
st.global.u32 [%rd2+32], %r9; st.global.u32 [%rd2+36], %r10; ret;""",
        [u32(1, 2, 3, 10, 4, 5, 6, 8, 9, 0), zeros(10, U32)],
        {0: [6, (1 << 32) - 9, 77, 8, 7, 3, 42, 80, 0, 3], 1: [1, 2, 3, 10, 4, 5, 6, 8, 9, 0]}),
    ptx("reductions_without_result", """
red.global.add.u32 [%rd1], 3; red.global.max.s32 [%rd1+4], %r0; red.global.xor.b32 [%rd1+8], 1;
red.global.inc.u32 [%rd1+12], 100; red.relaxed.gpu.global.add.u64 [%rd1+16], 1; ret;""",
        [zeros(6, U32)], {0: [24, 7, 0, 8, 8, 0]}, block=8),
    ptx("atomics_of_64_bits", """
atom.global.add.u64 %rd3, [%rd1], 0x100000001; atom.global.cas.b64 %rd4, [%rd1+8], 5, -1;
atom.global.exch.b64 %rd5, [%rd1+16], 7; atom.global.min.s64 %rd6, [%rd1+24], -3; atom.global.max.u64 %rd7, [%rd1+32], -3;
st.global.u64 [%rd2], %rd3; st.global.u64 [%rd2+8], %rd4; st.global.u64 [%rd2+16], %rd5;
st.global.u64 [%rd2+24], %rd6; st.global.u64 [%rd2+32], %rd7; ret;""",
        [S64.array([(1 << 32) - 1, 5, 1 << 50, 4, 4]), zeros(5, S64)],
        {0: [(1 << 33), -1, 7, -3, -3], 1: [(1 << 32) - 1, 5, 1 << 50, 4, 4]}),
    ptx("atomics_on_shared", f"""
.shared .align 8 .b32 s[2]; {AT} setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [s], 0; @%p0 st.shared.u32 [s+4], 99;
bar.sync 0; ld.global.u32 %r1, [%rd1]; atom.shared.add.u32 %r2, [s], %r1; red.shared.min.u32 [s+4], %r1; bar.sync 0;
ld.shared.u32 %r3, [s]; ld.shared.u32 %r4, [s+4]; mad.lo.u32 %r3, %r4, 1000, %r3; st.global.u32 [%rd2], %r3; ret;""",
        [u32(5, 3, 9, 4, 7, 6), zeros(6, U32)], {1: [3034] * 6}, block=6),
    ptx("generic_atomic", """
.shared .u32 s; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [s], 0; bar.sync 0; mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3;
setp.lt.u32 %p1, %r0, 3; selp.b64 %rd4, %rd3, %rd1, %p1; atom.add.u32 %r1, [%rd4], 1; bar.sync 0;
@!%p0 ret; ld.shared.u32 %r2, [s]; st.global.u32 [%rd1+4], %r2; ret;""",
        [zeros(2, U32)], {0: [5, 3]}, block=8),
]  # fmt: skip

NARROW = [
    ptx("bytes_in_place", """
cvt.u64.u32 %rd3, %r0; add.u64 %rd1, %rd1, %rd3; ld.global.s8 %h0, [%rd1]; neg.s16 %h0, %h0; st.global.b8 [%rd1], %h0; ret;""",
        [S8.array([1, -1, 127, -128, 0, 5, -7])], {0: [-1, 1, -127, -128, 0, -5, 7]}, block=7),
    ptx("halfword_arithmetic_wraps", """
mul.wide.u32 %rd3, %r0, 2; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; ld.global.u16 %h0, [%rd1];
add.u16 %h1, %h0, 40000; shr.u16 %h2, %h1, 3; sub.u16 %h2, %h2, %h0; setp.lt.u16 %p0, %h1, %h0;
selp.b16 %h3, %h2, %h1, %p0; st.global.u16 [%rd2], %h3; ret;""",
        [U16.array([0, 30000, 65535]), zeros(3, U16)],
        {1: [40000, ((70000 - 65536 >> 3) - 30000) % 65536, ((105535 - 65536 >> 3) - 65535) % 65536]},
        block=3),
    ptx("wide_immediates", """
mov.u64 %rd3, 0xFEDCBA9876543210; add.u64 %rd4, %rd3, -1; mul.lo.u64 %rd5, %rd3, 0x100000001; and.b64 %rd6, %rd3, 0xFF00FF00FF00FF00;
st.global.u64 [%rd1], %rd4; st.global.u64 [%rd1+8], %rd5; st.global.u64 [%rd1+16], %rd6; mov.s32 %r1, -2147483648;
cvt.s64.s32 %rd7, %r1; st.global.u64 [%rd1+24], %rd7; ret;""",
        [zeros(4, U64)],
        {0: [0xFEDCBA987654320F, 0xFEDCBA9876543210 * 0x100000001 % (1 << 64),
             0xFE00BA0076003200, 0xFFFFFFFF80000000]}),
    ptx("literals_of_every_base", """
mov.u32 %r1, 0x1F; mov.u32 %r2, 017; mov.u32 %r3, 0b101; mov.u32 %r4, 12U; mov.s32 %r5, -5; add.u32 %r1, %r1, %r2;
add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4; add.s32 %r1, %r1, %r5; mad.lo.u32 %r1, %r1, 10, 1;
st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r5; ret;""",
        [zeros(2)], {0: [(31 + 15 + 5 + 12 - 5) * 10 + 1, -5]}),
]  # fmt: skip

CASES: tuple[Case, ...] = (*SPACES, *CONTROL, *TOGETHER, *NARROW)
