"""CUDA's integer intrinsics and the usual bit tricks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.cases import Case
from tests.corpus.build import S32, S64, U32, U64, CType, elementwise, random_values

EDGES32 = [0, 1, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x00010000]
EDGES64 = [0, 1 << 63, (1 << 64) - 1, 0x100000000]


def _signed24(x: int) -> int:
    x &= 0xFFFFFF
    return x - (1 << 24) if x >> 23 else x


def _clz(x: int, bits: int) -> int:
    return bits - (x & ((1 << bits) - 1)).bit_length()


def _ffs(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return (x & -x).bit_length()


def _reversed(x: int, bits: int) -> int:
    return int(f"{x & ((1 << bits) - 1):0{bits}b}"[::-1], 2)


def _rotl(x: int, n: int) -> int:
    return x << (n & 31) | x >> (-n & 31) if n & 31 else x


def _byte_perm(x: int, y: int, s: int) -> int:
    source = (y << 32 | x).to_bytes(8, "little")
    return int.from_bytes(bytes(source[s >> (4 * n) & 7] for n in range(4)), "little")


def _dp4a(x: int, y: int, z: int, signed: bool) -> int:
    xs, ys = (
        [int.from_bytes(bytes([b]), "little", signed=signed) for b in v.to_bytes(4, "little")]
        for v in (x & 0xFFFFFFFF, y & 0xFFFFFFFF)
    )
    return sum(a * b for a, b in zip(xs, ys, strict=True)) + z


def _spread(x: int) -> int:
    """Bit n of the low half at bit 2n."""
    return sum((x >> n & 1) << (2 * n) for n in range(16))


Row = tuple[str, Sequence[CType], CType, str, Callable[..., int]]

# name, operand types, result type, expression, model
INTRINSICS: list[Row] = [
    ("popc", [U32], S32, "__popc(x)", lambda x: x.bit_count()),
    ("popcll", [U64], S32, "__popcll(x)", lambda x: x.bit_count()),
    ("clz", [S32], S32, "__clz(x)", lambda x: _clz(x, 32)),
    ("clzll", [S64], S32, "__clzll(x)", lambda x: _clz(x, 64)),
    ("ffs", [S32], S32, "__ffs(x)", lambda x: _ffs(x, 32)),
    ("ffsll", [S64], S32, "__ffsll(x)", lambda x: _ffs(x, 64)),
    ("brev", [U32], U32, "__brev(x)", lambda x: _reversed(x, 32)),
    ("brevll", [U64], U64, "__brevll(x)", lambda x: _reversed(x, 64)),
    ("mulhi", [S32, S32], S32, "__mulhi(x, y)", lambda x, y: x * y >> 32),
    ("umulhi", [U32, U32], U32, "__umulhi(x, y)", lambda x, y: x * y >> 32),
    ("mul64hi", [S64, S64], S64, "__mul64hi(x, y)", lambda x, y: x * y >> 64),
    ("umul64hi", [U64, U64], U64, "__umul64hi(x, y)", lambda x, y: x * y >> 64),
    ("mul24", [S32, S32], S32, "__mul24(x, y)", lambda x, y: _signed24(x) * _signed24(y)),
    ("umul24", [U32, U32], U32, "__umul24(x, y)", lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
    ("hadd", [S32, S32], S32, "__hadd(x, y)", lambda x, y: (x + y) >> 1),
    ("rhadd", [S32, S32], S32, "__rhadd(x, y)", lambda x, y: (x + y + 1) >> 1),
    ("uhadd", [U32, U32], U32, "__uhadd(x, y)", lambda x, y: (x + y) >> 1),
    ("urhadd", [U32, U32], U32, "__urhadd(x, y)", lambda x, y: (x + y + 1) >> 1),
    ("sad", [S32, S32, U32], U32, "__sad(x, y, z)", lambda x, y, z: abs(x - y) + z),
    ("usad", [U32, U32, U32], U32, "__usad(x, y, z)", lambda x, y, z: abs(x - y) + z),
    ("min_int", [S32, S32], S32, "min(x, y)", min),
    ("max_uint", [U32, U32], U32, "max(x, y)", max),
    ("min_ll", [S64, S64], S64, "min(x, y)", min),
    ("max_ull", [U64, U64], U64, "max(x, y)", max),
    ("funnel_l", [U32, U32, U32], U32, "__funnelshift_l(x, y, z)",
     lambda x, y, z: (y << 32 | x) << (z & 31) >> 32),
    ("funnel_lc", [U32, U32, U32], U32, "__funnelshift_lc(x, y, z)",
     lambda x, y, z: (y << 32 | x) << min(z, 32) >> 32),
    ("funnel_r", [U32, U32, U32], U32, "__funnelshift_r(x, y, z)",
     lambda x, y, z: (y << 32 | x) >> (z & 31)),
    ("funnel_rc", [U32, U32, U32], U32, "__funnelshift_rc(x, y, z)",
     lambda x, y, z: (y << 32 | x) >> min(z, 32)),
    ("byte_perm", [U32, U32, U32], U32, "__byte_perm(x, y, z & 0x7777)", _byte_perm),
    ("dp4a_s", [S32, S32, S32], S32, "__dp4a(x, y, z)", lambda x, y, z: _dp4a(x, y, z, True)),
    ("dp4a_u", [U32, U32, U32], U32, "__dp4a(x, y, z)", lambda x, y, z: _dp4a(x, y, z, False)),
]  # fmt: skip

TRICKS: list[Row] = [
    ("rotate_left", [U32, U32], U32, "x << (y & 31) | x >> (-y & 31)", _rotl),
    ("rotate_const", [U32], U32, "x << 13 | x >> 19", lambda x: _rotl(x, 13)),
    ("byte_swap", [U32], U32, "x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24",
     lambda x: int.from_bytes(x.to_bytes(4, "little"), "big")),
    ("lowest_bit", [U32], U32, "x & -x", lambda x: x & -x),
    ("clear_lowest", [U32], U32, "x & (x - 1)", lambda x: x & (x - 1)),
    ("is_power_of_two", [U32], S32, "x && !(x & (x - 1))", lambda x: x.bit_count() == 1),
    ("parity", [U32], S32, "__popc(x) & 1", lambda x: x.bit_count() % 2),
    ("gray_code", [U32], U32, "x ^ x >> 1", lambda x: x ^ x >> 1),
    ("log2", [U32], S32, "31 - __clz(x | 1)", lambda x: (x | 1).bit_length() - 1),
    ("next_power", [U32], U32, "x / 2 <= 1 ? 1 : 1u << (32 - __clz(x / 2 - 1))",
     lambda x: 1 << (x // 2 - 1).bit_length() if x > 3 else 1),
    ("sign", [S32], S32, "(x > 0) - (x < 0)", lambda x: (x > 0) - (x < 0)),
    ("average_floor", [U32, U32], U32, "(x & y) + ((x ^ y) >> 1)", lambda x, y: (x + y) >> 1),
    ("field_extract", [U32], U32, "x >> 7 & 0x1ff", lambda x: x >> 7 & 0x1FF),
    ("field_signed", [S32], S32, "x << 11 >> 20", lambda x: ((x >> 9 & 0xFFF) ^ 0x800) - 0x800),
    ("field_insert", [U32, U32], U32, "(x & ~0x3f0u) | (y << 4 & 0x3f0)",
     lambda x, y: x & ~0x3F0 | y << 4 & 0x3F0),
    ("swap_xor_mask", [U32, U32], U32, "x ^ ((x ^ y) & 0x0f0f0f0f)",
     lambda x, y: x & 0xF0F0F0F0 | y & 0x0F0F0F0F),
    ("saturating_add", [U32, U32], U32, "x + y < x ? 0xffffffffu : x + y",
     lambda x, y: min(x + y, 0xFFFFFFFF)),
    ("saturating_sub", [U32, U32], U32, "x > y ? x - y : 0", lambda x, y: max(x - y, 0)),
    ("carry_of_add", [U32, U32], S32, "x + y < x", lambda x, y: x + y >> 32),
    ("select_by_mask", [U32, U32, S32], U32, "(x & -(z & 1)) | (y & ~-(z & 1))",
     lambda x, y, z: x if z & 1 else y),
    ("nibble_swap", [U32], U32, "(x & 0x0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f)",
     lambda x: int("".join(x.to_bytes(4, "big").hex()[n ^ 1] for n in range(8)), 16)),
    ("high_word", [U64], U32, "(unsigned)(x >> 32)", lambda x: x >> 32),
    ("rotate64", [U64], U64, "x << 40 | x >> 24", lambda x: x << 40 | x >> 24),
    ("mask64", [U64, U32], U64, "x & ((1ull << (y & 63)) - 1)", lambda x, y: x % (1 << y % 64)),
    ("mul_wide", [S32, S32], S64, "(long long)x * y", lambda x, y: x * y),
    ("mul_wide_u", [U32, U32], U64, "(unsigned long long)x * y", lambda x, y: x * y),
    ("mad_wide", [U32, U32, U32], U64, "(unsigned long long)x * y + z", lambda x, y, z: x * y + z),
    ("mul_shift_mod", [U32], U32, "(unsigned)((unsigned long long)x * 0xcccccccdu >> 35)",
     lambda x: x // 10),
]  # fmt: skip


def _operand(name: str, place: int, ctype: CType, n: int) -> list[int]:
    """Edges, turned by the operand's place so that they meet, then random values."""
    edges = EDGES64 if ctype.bits == 64 else EDGES32
    turned = edges[place * 2 :] + edges[: place * 2]
    given = turned[: n // 2] + random_values(f"{name}{place}", ctype, n)
    return [ctype.wrap(value) for value in given[:n]]


def _case(row: Row) -> Case:
    name, types, out, expression, model = row
    n = 4 if any(t.bits == 64 for t in types) else 8
    inputs = [(t, _operand(name, place, t, n)) for place, t in enumerate(types)]
    if name.startswith("funnel"):
        inputs[2] = (U32, [0, 1, 12, 31, 32, 44, 63, 0xFFFFFFFF])
    if name == "byte_perm":
        inputs[2] = (U32, [0x3210, 0x7654, 0x0123, 0x4567, 0x0000, 0x7777, 0x5140, 0x2736])
    return elementwise(f"bits_{name}", inputs, out, expression, model)


LOOPS: tuple[Case, ...] = (
    elementwise("bits_popcount_loop", [(U32, [0, 1, 0xFFFF, 0xF0F0F0F0])], S32, "count",
                lambda x: x.bit_count(),
                body="int count = 0; while (x) { x &= x - 1; count++; }"),
    elementwise("bits_reverse_loop", [(U32, [1, 0x80000001, 0x12345678, 0xFFFF0000])], U32, "r",
                lambda x: _reversed(x, 32),
                body="unsigned r = 0; for (int i = 0; i < 32; i++) { r = r << 1 | (x & 1); x >>= 1; }"),
    elementwise("bits_morton", [(U32, [0, 1, 0xFFFF, 0x1234]), (U32, [0, 2, 0xFFFF, 0xBEEF])],
                U32, "spread(x) | spread(y) << 1", lambda x, y: _spread(x) | _spread(y) << 1,
                before="""__device__ unsigned spread(unsigned v) {
    v = (v | v << 8) & 0x00ff00ff;
    v = (v | v << 4) & 0x0f0f0f0f;
    v = (v | v << 2) & 0x33333333;
    return (v | v << 1) & 0x55555555;
}"""),
    elementwise("bits_mulhi_by_halves", [(U32, [1, 0xFFFFFFFF, 0x12345678, 0x80000000]),
                                         (U32, [1, 0xFFFFFFFF, 0x9ABCDEF0, 0x80000000])],
                U32, "high", lambda x, y: x * y >> 32,
                body="""unsigned xl = x & 0xffff, xh = x >> 16, yl = y & 0xffff, yh = y >> 16;
    unsigned middle = xh * yl + (xl * yl >> 16);
    unsigned high = xh * yh + (middle >> 16) + ((xl * yh + (middle & 0xffff)) >> 16);"""),
    elementwise("bits_gray_decode", [(U32, [0, 1, 3, 0xFFFFFFFF])], U32, "x",
                lambda x: x ^ x >> 1 ^ x >> 2 ^ x >> 3 if x < 16 else 0xAAAAAAAA,
                body="for (int s = 16; s; s >>= 1) x ^= x >> s;"),
)  # fmt: skip

CASES: tuple[Case, ...] = (*(_case(row) for row in (*INTRINSICS, *TRICKS)), *LOOPS)
