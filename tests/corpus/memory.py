"""Memory of every kind: sub-word and 64-bit data, vectors, structures, local arrays, constants."""

from __future__ import annotations

from tests.cases import Case
from tests.corpus.build import (
    S8,
    S16,
    S32,
    S64,
    TYPES,
    U8,
    U16,
    U32,
    U64,
    CType,
    case,
    i32,
    random_values,
    u32,
    zeros,
)


def _copy(ctype: CType) -> Case:
    """Each thread moves one element; the elements around the moved ones must stay."""
    name = f"copy_{ctype.short}"
    data = random_values(name, ctype, 6)
    source = f"""
__global__ void k(const {ctype.c} *in, {ctype.c} *out) {{
    int t = threadIdx.x;
    out[t + 1] = in[5 - t];
}}"""
    before = ctype.array([ctype.high] * 8)
    after = [ctype.high, *data[::-1], ctype.high]
    return case(name, source, [ctype.array(data), before], {1: after}, block=6)


def _in_place(ctype: CType) -> Case:
    """Read, modify and write neighbours that share words."""
    name = f"in_place_{ctype.short}"
    data = [ctype.wrap(v) for v in [*range(-3, 3), ctype.high, ctype.low]]
    source = f"""
__global__ void k({ctype.c} *data) {{
    int t = threadIdx.x;
    data[t] = data[t] * 2 + t;
}}"""
    if ctype.signed and ctype.bits >= 32:
        data[-2:] = [ctype.high >> 2, ctype.low >> 2]
    return case(name, source, [ctype.array(data)],
                {0: [ctype.wrap(2 * v + t) for t, v in enumerate(data)]}, block=8)  # fmt: skip


def _widen(narrow: CType, wide: CType) -> Case:
    name = f"convert_{narrow.short}_{wide.short}"
    data = [narrow.low, narrow.high, *random_values(name, narrow, 2)]
    source = f"""
__global__ void k(const {narrow.c} *in, {wide.c} *out) {{
    int t = threadIdx.x;
    out[t] = ({wide.c})in[t];
}}"""
    return case(name, source, [narrow.array(data), zeros(4, wide)],
                {1: [wide.wrap(v) for v in data]}, block=4)  # fmt: skip


def _local_array(ctype: CType) -> Case:
    """A per-thread array with indices that only the data decides."""
    name = f"local_{ctype.short}"
    source = f"""
__global__ void k(const int *index, {ctype.c} *out) {{
    {ctype.c} mine[4];
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++)
        mine[i] = ({ctype.c})(10 * t + i);
    mine[index[t]] = ({ctype.c})-1;
    out[t] = ({ctype.c})(mine[index[t + 4]] + mine[3]);
}}"""
    index = [0, 1, 2, 3, 0, 3, 1, 2]
    results = []
    for t in range(4):
        mine = [10 * t + i for i in range(4)]
        mine[index[t]] = ctype.wrap(-1)
        results.append(ctype.wrap(mine[index[t + 4]] + mine[3]))
    return case(name, source, [i32(*index), zeros(4, ctype)], {1: results}, block=4)


def _constant_table(ctype: CType, space: str) -> Case:
    """A module array with initial values, read at an index from memory."""
    name = f"{space.strip('_')}_table_{ctype.short}"
    table = [ctype.wrap(v) for v in (3, -1, ctype.high, ctype.low, 7, 100)]
    literals = ", ".join(f"({ctype.c}){v % (1 << ctype.bits)}ull" for v in table)
    source = f"""
{space} {ctype.c} table[6] = {{{literals}}};
__global__ void k(const int *index, {ctype.c} *out) {{
    out[threadIdx.x] = table[index[threadIdx.x]];
}}"""
    index = [5, 3, 0, 2, 1, 4, 3, 5]
    return case(name, source, [i32(*index), zeros(8, ctype)], {1: [table[n] for n in index]},
                block=8)  # fmt: skip


def _shared_exchange(ctype: CType) -> Case:
    name = f"shared_exchange_{ctype.short}"
    data = random_values(name, ctype, 8)
    source = f"""
__global__ void k({ctype.c} *data) {{
    __shared__ {ctype.c} s[8];
    int t = threadIdx.x;
    s[t] = data[t];
    __syncthreads();
    data[t] = s[(t + 3) % 8];
}}"""
    return case(name, source, [ctype.array(data)], {0: [data[(t + 3) % 8] for t in range(8)]},
                block=8)  # fmt: skip


STRUCTURES = """
struct Particle { short x, y; signed char kind; int mass; };
__global__ void k(const int *in, int *out, Particle *store) {
    int t = threadIdx.x;
    Particle p;
    p.x = in[t]; p.y = -in[t]; p.kind = t - 2; p.mass = 100 * t;
    store[t] = p;
    Particle *other = &store[t];
    other->y += 5;
    out[t] = other->x + other->y * 10 + other->kind * 1000 + other->mass;
}"""


def _structures() -> Case:
    """Fields of 2, 1 and 4 bytes; the padding is never written, so the store is not compared."""
    values = [7, -7, 300, -300]
    store: list[int] = []
    results = []
    for t, v in enumerate(values):
        fields = (v & 0xFFFF) | ((5 - v) & 0xFFFF) << 16
        store += [fields, (t - 2) & 0xFF, 100 * t]
        results.append(v + (5 - v) * 10 + (t - 2) * 1000 + 100 * t)
    source = STRUCTURES.replace(
        "store[t] = p;", "store[t] = p; ((int *)&store[t])[1] = p.kind & 0xff;"
    )
    return case("struct_fields", source, [i32(*values), zeros(4), zeros(12, U32)],
                {1: results, 2: store}, block=4)  # fmt: skip


def _vector_types() -> list[Case]:
    v4 = """
__global__ void k(const int4 *in, int4 *out) {
    int4 v = in[threadIdx.x];
    out[threadIdx.x] = make_int4(v.w, v.z, v.y, v.x + threadIdx.x);
}"""
    data = list(range(1, 13))
    turned = [w for t in range(3) for w in (data[4 * t + 3], data[4 * t + 2], data[4 * t + 1],
                                            data[4 * t] + t)]  # fmt: skip
    v2 = """
__global__ void k(const uint2 *in, unsigned *out) {
    uint2 v = in[threadIdx.x];
    out[threadIdx.x] = v.x * v.y;
}"""
    s2 = """
__global__ void k(const short2 *in, short2 *out) {
    short2 v = in[threadIdx.x];
    out[threadIdx.x] = make_short2(v.y, -v.x);
}"""
    c4 = """
__global__ void k(const uchar4 *in, uchar4 *out) {
    uchar4 v = in[threadIdx.x];
    out[threadIdx.x] = make_uchar4(v.w, v.x + 1, v.y + v.z, 255 - v.w);
}"""
    shorts = [1, -2, 300, -32768, 0, 9]
    swapped = [w for t in range(3) for w in (shorts[2 * t + 1], -shorts[2 * t])]
    bytes_ = [1, 2, 3, 4, 255, 254, 253, 0]
    mixed = [w for t in range(2) for w in (
        bytes_[4 * t + 3], (bytes_[4 * t] + 1) % 256,
        (bytes_[4 * t + 1] + bytes_[4 * t + 2]) % 256, 255 - bytes_[4 * t + 3])]  # fmt: skip
    return [
        case("vector_int4", v4, [i32(*data), zeros(12)], {1: turned}, block=3),
        case("vector_uint2", v2, [u32(3, 4, 5, 6, 70000, 70000), zeros(3, U32)],
             {1: [12, 30, 70000 * 70000 % (1 << 32)]}, block=3),
        case("vector_short2", s2, [S16.array(shorts), zeros(6, S16)],
             {1: S16.array(swapped)}, block=3),
        case("vector_uchar4", c4, [U8.array(bytes_), zeros(8, U8)], {1: mixed}, block=2),
    ]  # fmt: skip


def _others() -> list[Case]:
    words = random_values("others", S32, 8)
    return [
        case("gather", """
__global__ void k(const int *data, const int *index, int *out) {
    out[threadIdx.x] = data[index[threadIdx.x]];
}""", [i32(*words), i32(7, 0, 3, 3, 5, 1), zeros(6)],
             {2: [words[n] for n in (7, 0, 3, 3, 5, 1)]}, block=6),
        case("scatter", """
__global__ void k(const int *data, const int *index, int *out) {
    out[index[threadIdx.x]] = data[threadIdx.x];
}""", [i32(10, 11, 12, 13), i32(5, 0, 7, 2), zeros(8)],
             {2: [11, 0, 13, 0, 0, 10, 0, 12]}, block=4),
        case("stride_two", """
__global__ void k(const int *in, int *out) {
    out[2 * threadIdx.x] = in[threadIdx.x];
    out[2 * threadIdx.x + 1] = -in[threadIdx.x];
}""", [i32(1, 2, 3, 4), zeros(8)], {1: [1, -1, 2, -2, 3, -3, 4, -4]}, block=4),
        case("pointer_walk", """
__global__ void k(const int *p, int *out, int n) {
    const int *end = p + n;
    int sum = 0;
    for (p += threadIdx.x; p < end; p += blockDim.x)
        sum += *p;
    out[threadIdx.x] = sum;
}""", [i32(*range(1, 12)), zeros(4), 11], {1: [15, 18, 21, 12]}, block=4),
        case("negative_index", """
__global__ void k(const int *data, int *out) {
    const int *middle = data + 4;
    int t = (int)threadIdx.x - 3;
    out[threadIdx.x] = middle[t];
}""", [i32(*range(10, 18)), zeros(6)], {1: [11, 12, 13, 14, 15, 16]}, block=6),
        case("byte_view", """
__global__ void k(const unsigned *words, unsigned char *out) {
    const unsigned char *bytes = (const unsigned char *)words;
    out[threadIdx.x] = bytes[7 - threadIdx.x];
}""", [u32(0x04030201, 0x08070605), zeros(8, U8)], {1: [8, 7, 6, 5, 4, 3, 2, 1]}, block=8),
        case("word_view_of_bytes", """
__global__ void k(const unsigned char *bytes, unsigned *out) {
    out[threadIdx.x] = ((const unsigned *)bytes)[threadIdx.x] + 1;
}""", [U8.array([255, 0, 0, 0, 255, 255, 255, 127]), zeros(2, U32)],
             {1: [256, 0x80000000]}, block=2),
        case("unaligned_word_by_bytes", """
__global__ void k(const unsigned char *b, unsigned *out) {
    const unsigned char *p = b + threadIdx.x;
    out[threadIdx.x] = p[0] | p[1] << 8 | p[2] << 16 | (unsigned)p[3] << 24;
}""", [U8.array(range(1, 9)), zeros(5, U32)],
             {1: [sum((n + 1 + i) << (8 * i) for i in range(4)) for n in range(5)]}, block=5),
        case("memcpy_small", """
__global__ void k(const int *in, int *out) {
    int mine[3];
    memcpy(mine, in + 3 * threadIdx.x, sizeof mine);
    out[threadIdx.x] = mine[0] * mine[1] - mine[2];
}""", [i32(1, 2, 3, 4, 5, 6, 7, 8, 9), zeros(3)], {1: [-1, 14, 47]}, block=3),
        case("memset_local", """
__global__ void k(const int *index, int *out) {
    int mine[6];
    memset(mine, 0, sizeof mine);
    mine[index[threadIdx.x]] = 5;
    int sum = 0;
    for (int i = 0; i < 6; i++) sum = sum * 3 + mine[i];
    out[threadIdx.x] = sum;
}""", [i32(0, 5, 2), zeros(3)], {1: [5 * 243, 5, 135]}, block=3),
        case("bool_array", """
__global__ void k(const int *in, bool *out, int *count) {
    bool odd = in[threadIdx.x] & 1;
    out[threadIdx.x] = odd;
    if (out[threadIdx.x]) atomicAdd(count, 1);
}""", [i32(1, 2, 3, -1, 0, -6), zeros(6, U8), zeros(1)],
             {1: [1, 0, 1, 1, 0, 0], 2: [3]}, block=6),
        case("device_counter", """
__device__ int counter = 40;
__device__ int spare[2];
__global__ void k(int *out) {
    atomicAdd(&counter, (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x < 2) spare[threadIdx.x] = 1;
    out[threadIdx.x] = counter;
}""", [zeros(4)], {0: [46] * 4}, block=4),
        case("constant_2d", """
__constant__ int table[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
__global__ void k(const int *row, const int *column, int *out) {
    out[threadIdx.x] = table[row[threadIdx.x]][column[threadIdx.x]];
}""", [i32(0, 1, 2, 2), i32(3, 0, 1, 3), zeros(4)], {2: [4, 5, 10, 12]}, block=4),
        case("shared_2d", """
__global__ void k(const int *in, int *out) {
    __shared__ int tile[4][3];
    int t = threadIdx.x, r = t / 2, c = t % 2;
    tile[r][c] = in[t];
    if (c == 0) tile[r][2] = 0;
    __syncthreads();
    out[t] = tile[3 - r][1 - c] + tile[r][2];
}""", [i32(*range(1, 9)), zeros(8)], {1: [8, 7, 6, 5, 4, 3, 2, 1]}, block=8),
        case("two_shared_arrays", """
__global__ void k(const int *in, int *out) {
    __shared__ unsigned char small[4];
    __shared__ int big[4];
    int t = threadIdx.x;
    small[t] = in[t];
    big[t] = in[t] >> 8;
    __syncthreads();
    out[t] = big[3 - t] * 1000 + small[3 - t];
}""", [i32(0x101, 0x2FF, 0x340, 0x400), zeros(4)],
             {1: [4000, 3064, 2255, 1001]}, block=4),
        case("dynamic_shared_split", """
extern __shared__ int pool[];
__global__ void k(const int *in, int *out) {
    int *low = pool, *high = pool + blockDim.x;
    int t = threadIdx.x;
    low[t] = in[t];
    high[t] = in[t] * in[t];
    __syncthreads();
    out[t] = low[(t + 1) % 4] + high[(t + 2) % 4];
}""", [i32(1, 2, 3, 4), zeros(4)], {1: [11, 19, 5, 5]}, block=4, shared=8),
        case("dynamic_and_static_shared", """
extern __shared__ short tail[];
__global__ void k(const int *in, int *out) {
    __shared__ int head[3];
    int t = threadIdx.x;
    if (t < 3) head[t] = 100 * t;
    tail[t] = in[t];
    __syncthreads();
    out[t] = head[t % 3] + tail[5 - t];
}""", [i32(-1, 2, -3, 4, -5, 6), zeros(6)], {1: [6, 95, 204, -3, 102, 199]}, block=6, shared=3),
        case("local_matrix", """
__global__ void k(const int *pick, int *out) {
    int m[3][3];
    int t = threadIdx.x;
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++)
            m[r][c] = r * 10 + c + t;
    int p = pick[t];
    out[t] = m[p][2 - p] + m[2 - p][p];
}""", [i32(0, 1, 2, 0), zeros(4)], {1: [22, 24, 26, 28]}, block=4),
        case("pointer_to_local", """
__device__ __noinline__ void bump(int *p, int by) { *p += by; }
__global__ void k(int *out) {
    int a = threadIdx.x, b = 100;
    bump(&a, 7);
    bump(&b, a);
    out[threadIdx.x] = a * 1000 + b;
}""", [zeros(3)], {0: [7107, 8108, 9109]}, block=3),
        case("union_pun", """
union Both { unsigned u; unsigned char c[4]; };
__global__ void k(const unsigned *in, unsigned *out) {
    Both b;
    b.u = in[threadIdx.x];
    out[threadIdx.x] = b.c[0] + b.c[1] * 2 + b.c[2] * 4 + b.c[3] * 8;
}""", [u32(0x01010101, 0xFF000000, 0x04030201), zeros(3, U32)],
             {1: [15, 2040, 1 + 4 + 12 + 32]}, block=3),
        case("scalars_of_every_width", """
__global__ void k(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
                  long long g, unsigned long long h, bool i, long long *out) {
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f; out[6] = g;
    out[7] = (long long)h; out[8] = i;
}""", [-128, 255, -32768, 65535, -(1 << 31), (1 << 32) - 1, -(1 << 63), (1 << 64) - 1, 1,
       zeros(9, S64)],
             {9: [-128, 255, -32768, 65535, -(1 << 31), (1 << 32) - 1, -(1 << 63), -1, 1]}),
        case("struct_by_value", """
struct Box { int lo, hi; short step; };
__global__ void k(Box box, int *out) {
    out[threadIdx.x] = box.lo + (int)threadIdx.x * box.step + box.hi;
}""", [i32(5, -100, 0x00010007), zeros(4)], {1: [-95, -88, -81, -74]}, block=4),
        case("restrict_and_const", """
__global__ void k(const int *__restrict__ a, int *__restrict__ b) {
    b[threadIdx.x] = __ldg(a + threadIdx.x) * 3;
}""", [i32(1, -2, 3), zeros(3)], {1: [3, -6, 9]}, block=3),
        case("alias_in_place_rotate", """
__global__ void k(int *data) {
    int mine = data[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    data[threadIdx.x] = mine;
}""", [i32(1, 2, 3, 4, 5, 6)], {0: [2, 3, 4, 5, 6, 1]}, block=6),
        case("sixty_four_sum", """
__global__ void k(const long long *in, long long *out, int n) {
    long long sum = 0;
    for (int i = 0; i < n; i++) sum += in[i];
    out[0] = sum;
}""", [S64.array([1 << 40, -1, 1 << 33, -(1 << 62)]), zeros(1, S64), 4],
             {1: [(1 << 40) - 1 + (1 << 33) - (1 << 62)]}),
        case("long_index", """
__global__ void k(const int *in, const long long *index, int *out) {
    out[threadIdx.x] = in[index[threadIdx.x]];
}""", [i32(5, 6, 7, 8), S64.array([3, 0, 2]), zeros(3)], {2: [8, 5, 7]}, block=3),
        case("size_t_loop", """
__global__ void k(const unsigned char *in, int *out, unsigned long long n) {
    int sum = 0;
    for (size_t i = threadIdx.x; i < n; i += 2) sum += in[i];
    out[threadIdx.x] = sum;
}""", [U8.array([200, 1, 100, 2, 50]), zeros(2), 5], {1: [350, 3]}, block=2),
        case("halfwords_packed", """
__global__ void k(const short *a, const short *b, unsigned *out) {
    int t = threadIdx.x;
    out[t] = (unsigned)(unsigned short)a[t] | (unsigned)(unsigned short)b[t] << 16;
}""", [S16.array([-1, 2]), S16.array([3, -4]), zeros(2, U32)],
             {2: [0x0003FFFF, 0xFFFC0002]}, block=2),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (
    *(_copy(t) for t in TYPES),
    *(_in_place(t) for t in TYPES),
    *(_widen(a, b) for a, b in [(S8, S16), (S8, S32), (U8, S32), (S8, S64), (U16, S64), (S16, U32),
                                (S32, S64), (U32, S64), (S64, S32), (S64, S8), (S32, S8), (U32, U16),
                                (S32, U64), (U64, S16)]),
    *(_local_array(t) for t in (S8, U16, S32, S64)),
    *(_constant_table(t, "__constant__") for t in (S8, U16, S32, S64)),
    *(_constant_table(t, "__device__") for t in (U8, S16, U32, U64)),
    *(_shared_exchange(t) for t in (U8, S16, S32, U64)),
    _structures(),
    *_vector_types(),
    *_others(),
)  # fmt: skip
