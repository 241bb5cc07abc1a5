"""Shuffles and votes. Blocks of 4 threads, widths up to 4: the same in a warp of 4 and of 32."""

from __future__ import annotations

from collections.abc import Callable

from tests.cases import Case
from tests.corpus.build import S32, S64, U32, CType, Size, case, i32, random_values, u32, zeros

FOUR = [10, 20, 30, 40]


def _shuffle(name: str, call: str, source_lane: Callable[[int], int], ctype: CType = S32) -> Case:
    data = random_values(name, ctype, 4)
    source = f"""
__global__ void k(const {ctype.c} *in, {ctype.c} *out) {{
    int t = threadIdx.x;
    {ctype.c} v = in[t];
    out[t] = {call};
}}"""
    return case(f"warp_{name}", source, [ctype.array(data), zeros(4, ctype)],
                {1: [data[source_lane(t)] for t in range(4)]}, block=4,
                warp_sensitive=True)  # fmt: skip


def _up(by: int, width: int) -> Callable[[int], int]:
    return lambda t: t - by if t % width >= by else t


def _down(by: int, width: int) -> Callable[[int], int]:
    return lambda t: t + by if t % width + by < width else t


SHUFFLES = [
    *(_shuffle(f"shfl_{lane}_width_{width}", f"__shfl_sync(0xf, v, {lane}, {width})",
               lambda t, lane=lane, width=width: t // width * width + lane % width)
      for lane in (0, 1, 3) for width in (2, 4)),
    *(_shuffle(f"shfl_up_{by}_width_{width}", f"__shfl_up_sync(0xf, v, {by}, {width})",
               _up(by, width)) for by in (1, 2, 3) for width in (2, 4)),
    *(_shuffle(f"shfl_down_{by}_width_{width}", f"__shfl_down_sync(0xf, v, {by}, {width})",
               _down(by, width)) for by in (1, 2, 3) for width in (2, 4)),
    *(_shuffle(f"shfl_xor_{mask}_width_4", f"__shfl_xor_sync(0xf, v, {mask}, 4)",
               lambda t, mask=mask: t ^ mask) for mask in (1, 2, 3)),
    _shuffle("shfl_xor_1_width_2", "__shfl_xor_sync(0xf, v, 1, 2)", lambda t: t ^ 1),
    _shuffle("shfl_lane_from_data", "__shfl_sync(0xf, v, (t * 3 + 1) & 3, 4)",
             lambda t: (t * 3 + 1) & 3),
    _shuffle("shfl_lane_wraps_in_width", "__shfl_sync(0xf, v, t + 5, 4)", lambda t: (t + 5) % 4),
    _shuffle("shfl_negative_lane", "__shfl_sync(0xf, v, -1, 4)", lambda t: 3),
    _shuffle("shfl_64", "__shfl_sync(0xf, v, 3 - t, 4)", lambda t: 3 - t, S64),
    _shuffle("shfl_unsigned", "__shfl_xor_sync(0xf, v, 2, 4)", lambda t: t ^ 2, U32),
    _shuffle("shfl_full_mask", "__shfl_sync(0xffffffff, v, 2, 4)", lambda t: 2),
]  # fmt: skip


def _warp_case(name: str, body: str, data: list[int], results: list[int], *, block: Size = 4,
               grid: int = 1, before: str = "") -> Case:  # fmt: skip
    source = f"""
{before}
__global__ void k(const int *in, int *out) {{
    int t = threadIdx.x, lane = t & 3;
    int v = in[blockIdx.x * blockDim.x + t];
    {body}
    out[blockIdx.x * blockDim.x + t] = v;
}}"""
    return case(f"warp_{name}", source, [i32(*data), zeros(len(results))], {1: results},
                block=block, grid=grid, warp_sensitive=True)  # fmt: skip


PATTERNS = [
    _warp_case("reduce_down",
               "for (int d = 2; d; d >>= 1) v += __shfl_down_sync(0xf, v, d, 4); v = __shfl_sync(0xf, v, 0, 4);",
               FOUR, [100] * 4),
    _warp_case("reduce_xor_max", "for (int d = 2; d; d >>= 1) v = max(v, __shfl_xor_sync(0xf, v, d, 4));",
               [3, -7, 12, 5], [12] * 4),
    _warp_case("scan_up",
               "for (int d = 1; d < 4; d *= 2) { int left = __shfl_up_sync(0xf, v, d, 4); if (lane >= d) v += left; }",
               FOUR, [10, 30, 60, 100]),
    _warp_case("reverse", "v = __shfl_sync(0xf, v, 3 - lane, 4);", FOUR, FOUR[::-1]),
    _warp_case("rotate", "v = __shfl_sync(0xf, v, lane + 1, 4);", FOUR, [20, 30, 40, 10]),
    _warp_case("broadcast_over_blocks", "v = __shfl_sync(0xf, v, 1, 4) + lane;",
               [1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 6, 7, 8, 9], grid=2),
    _warp_case("bitonic_sort_four", """
    for (int size = 2; size <= 4; size *= 2)
        for (int d = size / 2; d; d /= 2) {
            int other = __shfl_xor_sync(0xf, v, d, 4);
            bool up = (lane & size) == 0, low = (lane & d) == 0;
            v = (up == low) ? min(v, other) : max(v, other);
        }""", [9, -3, 27, 4], [-3, 4, 9, 27]),
    _warp_case("transpose_2x2", "v = __shfl_sync(0xf, v, (lane & 1) * 2 + (lane >> 1), 4);",
               [1, 2, 3, 4], [1, 3, 2, 4]),
    _warp_case("ballot", "v = __ballot_sync(0xf, v > 15);", FOUR, [0b1110] * 4),
    _warp_case("ballot_none", "v = __ballot_sync(0xf, v > 99);", FOUR, [0] * 4),
    _warp_case("all_any",
               "v = (__all_sync(0xf, v > 5) != 0) * 100 + (__any_sync(0xf, v > 35) != 0) * 10 + (__any_sync(0xf, v > 50) != 0) + (__all_sync(0xf, v > 15) != 0) * 1000;",
               FOUR, [110] * 4),
    _warp_case("rank_by_ballot", "unsigned m = __ballot_sync(0xf, v & 1); v = __popc(m & ((1u << lane) - 1));",
               [1, 3, 2, 5], [0, 1, 2, 2]),
    _warp_case("compaction", """
    unsigned m = __ballot_sync(0xf, v > 0);
    int place = __popc(m & ((1u << lane) - 1));
    int mine = v;
    v = -1;
    out[t] = -1;
    __syncwarp(0xf);
    if (mine > 0) out[place] = mine;
    __syncwarp(0xf);
    v = out[t];""", [0, 7, -2, 5], [7, 5, -1, -1]),
    _warp_case("vote_in_a_branch", """
    if (lane < 2) v = __ballot_sync(0x3, v == 10) + 100;
    else v = __ballot_sync(0xc, v == 40) + 200;""", FOUR, [101, 101, 208, 208]),
    _warp_case("shuffle_in_a_branch", """
    if (lane >= 2) v = __shfl_xor_sync(0xc, v, 1, 4) + 1;""", FOUR, [10, 20, 41, 31]),
    _warp_case("match_any", "v = __match_any_sync(0xf, v);", [7, 9, 7, 7], [13, 2, 13, 13]),
    _warp_case("match_all",
               "int same; unsigned m = __match_all_sync(0xf, v, &same); int other; unsigned n = __match_all_sync(0xf, v + lane, &other); v = m + (same != 0) * 100 + n * 1000 + (other != 0) * 10;",
               [7, 7, 7, 7], [115] * 4),
    _warp_case("leader_by_ffs",
               "unsigned m = __ballot_sync(0xf, v > 15); int leader = __ffs(m) - 1; v = __shfl_sync(0xf, v, leader, 4);",
               FOUR, [20] * 4),
    _warp_case("syncwarp_exchange", """
    __shared__ int s[4];
    s[t] = v * 2;
    __syncwarp(0xf);
    v = s[3 - t];""", FOUR, [80, 60, 40, 20]),
    _warp_case("loop_until_all_done", """
    int n = 0;
    while (__any_sync(0xf, v > 0)) { v -= lane + 1; n++; }
    v = v * 100 + n;""", [5, 5, 5, 5], [(5 - 5 * (t + 1)) * 100 + 5 for t in range(4)]),
    _warp_case("three_threads", "v = __shfl_sync(0x7, v, (lane + 1) % 3, 4);", [4, 5, 6],
               [5, 6, 4], block=3),
    _warp_case("popc_of_ballots", """
    int total = 0;
    for (int bit = 0; bit < 4; bit++) total += __popc(__ballot_sync(0xf, v >> bit & 1)) << bit;
    v = total;""", [3, 9, 14, 1], [27] * 4),
    _warp_case("horner_by_shuffle", """
    int sum = 0;
    for (int i = 0; i < 4; i++) sum = sum * 3 + __shfl_sync(0xf, v, i, 4);
    v = sum;""", [1, 2, 0, 1], [46] * 4),
    case("warp_uniform_vote", """
__global__ void k(const unsigned *in, unsigned *out) {
    int t = threadIdx.x;
    out[t] = (__uni_sync(0xf, in[t] > 1) != 0) + (__uni_sync(0xf, in[t] > 9) != 0) * 2;
}""", [u32(1, 2, 3, 4), zeros(4, U32)], {1: [2] * 4}, block=4, warp_sensitive=True),
    case("warp_activemask_of_all", """
__global__ void k(unsigned *out) {
    out[threadIdx.x] = __activemask() & 0xf;
}""", [zeros(4, U32)], {0: [15] * 4}, block=4, warp_sensitive=True),
]  # fmt: skip


def _halved(values: list[int]) -> list[int]:
    values, rounds = list(values), 0
    while any(v > 3 for v in values):
        rounds += 1
        values = [v // (lane + 2) if v > 3 else v for lane, v in enumerate(values)]
    return [v * 100 + rounds for v in values]


def _exchanged(values: list[int]) -> list[int]:
    for n in range(5):
        values = [v + values[lane ^ 1] for lane, v in enumerate(values)]
        values = [v // 3 + lane if v & 1 else v + n for lane, v in enumerate(values)]
    return values


def _through_shared(values: list[int]) -> list[int]:
    for _ in range(4):
        values = [v + values[lane ^ 1] for lane, v in enumerate(values)]
        values = [v // (lane + 2) if v & 2 else v for lane, v in enumerate(values)]
    return values


def _after_loops(values: list[int]) -> list[int]:
    for _ in range(3):
        values = [v + sum(range(lane)) for lane, v in enumerate(values)]
        values = [v + values[3] for v in values]
    return values


HALVE = """
    int n = 0;
    while (__any_sync(0xf, v > 3)) {
        n++;
        if (v > 3) { out[t] = v; v = v / (lane + 2); out[t] += n; }
    }
    v = v * 100 + n;"""
EXCHANGE = """
    for (int n = 0; n < 5; n++) {
        v += __shfl_xor_sync(0xf, v, 1, 4);
        if (v & 1) { out[t] = v; v = v / 3 + lane; out[t] += n; continue; }
        v += n;
    }"""
UNEVEN = [[10, 21, 30, 47], [7, 1, 2, 90], [0, 0, 0, 5]]

# Lanes part and come back to the instruction in a loop, or meet in groups with a mask of their own.
IN_STEP = [
    *(_warp_case(f"vote_ends_loop_with_an_arm_{n}", HALVE, data, _halved(data))
      for n, data in enumerate(UNEVEN)),
    *(_warp_case(f"shuffle_before_a_continue_{n}", EXCHANGE, data, _exchanged(data))
      for n, data in enumerate(UNEVEN)),
    _warp_case("syncwarp_before_an_arm", """
    __shared__ volatile int s[4];
    s[t] = v;
    for (int n = 0; n < 4; n++) {
        __syncwarp(0xf);
        v += s[t ^ 1];
        __syncwarp(0xf);
        if (v & 2) { out[t] = v; v = v / (lane + 2); out[t] += n; }
        s[t] = v;
    }""", [1, 2, 3, 4], _through_shared([1, 2, 3, 4])),
    _warp_case("ballot_of_two_groups",
               "unsigned m = lane & 1 ? 0xa : 0x5; v = __ballot_sync(m, v > 15) * 16 + __all_sync(m, v > 5);",
               FOUR, [65, 161, 65, 161]),
    _warp_case("any_of_two_groups",
               "unsigned m = lane & 1 ? 0xa : 0x5; v = (__any_sync(m, v == 20) != 0) + 2 * (__uni_sync(m, lane > 1) != 0);",
               FOUR, [0, 1, 0, 1]),
    _warp_case("match_of_two_groups", "unsigned m = lane & 1 ? 0xa : 0x5; v = __match_any_sync(m, v);",
               [7, 7, 7, 8], [5, 2, 5, 8]),
    _warp_case("ballot_of_the_active", """
    if (v > 15) { unsigned m = __activemask(); out[t] = m; v = __ballot_sync(m, v > 25) * 16 + __popc(m); }""",
               FOUR, [10, 12 * 16 + 3, 12 * 16 + 3, 12 * 16 + 3]),
    _warp_case("shuffle_of_a_vote", """
    unsigned m = __ballot_sync(0xf, v > 15);
    if (v > 15) { out[t] = m; v = __shfl_sync(m, v, __ffs(m) - 1, 4) + 1; }""",
               FOUR, [10, 21, 21, 21]),
    _warp_case("shuffle_after_loops_of_other_lengths", """
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < lane; j++) { out[t] = v; v += j; }
        v += __shfl_sync(0xf, v, 3, 4);
    }""", [1, 2, 3, 4], _after_loops([1, 2, 3, 4])),
]  # fmt: skip

CASES: tuple[Case, ...] = (*SHUFFLES, *PATTERNS, *IN_STEP)
