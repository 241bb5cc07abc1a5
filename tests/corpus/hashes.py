"""Hashes, checksums, random number generators and codes."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable

from tests.cases import Case
from tests.corpus.build import S32, U8, U32, U64, case, elementwise, u32, zeros

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
TEXT = list(b"The quick brown fox")


def over_bytes(name: str, body: str, result: int, *, before: str = "", data: list[int] = TEXT,
               wide: bool = False) -> Case:  # fmt: skip
    """A single thread folds the bytes of ``data`` into one word ``h``."""
    out = U64 if wide else U32
    source = f"""
{before}
__global__ void k(const unsigned char *data, {out.c} *out, int n) {{
    {body}
    out[0] = h;
}}"""
    return case(f"hash_{name}", source, [U8.array(data), zeros(1, out), len(data)],
                {1: [out.wrap(result)]})  # fmt: skip


def _fold(start: int, step: Callable[[int, int], int], mask: int = M32) -> int:
    h = start
    for byte in TEXT:
        h = step(h, byte) & mask
    return h


def _crc(poly: int, bits: int, start: int, data: list[int]) -> int:
    """Most significant bit first, no reflection."""
    crc, top, mask = start, 1 << (bits - 1), (1 << bits) - 1
    for byte in data:
        crc ^= byte << (bits - 8)
        for _ in range(8):
            crc = (crc << 1 ^ poly if crc & top else crc << 1) & mask
    return crc


def _rotl(x: int, n: int) -> int:
    return (x << n | x >> (32 - n)) & M32


def _murmur3(data: list[int], seed: int) -> int:
    h = seed
    for i in range(0, len(data), 4):
        key = int.from_bytes(bytes(data[i : i + 4]), "little")
        key = _rotl(key * 0xCC9E2D51 & M32, 15) * 0x1B873593 & M32
        h ^= key
        if i + 4 <= len(data):
            h = (_rotl(h, 13) * 5 + 0xE6546B64) & M32
    return _fmix(h ^ len(data))


def _fmix(h: int) -> int:
    h = (h ^ h >> 16) * 0x85EBCA6B & M32
    h = (h ^ h >> 13) * 0xC2B2AE35 & M32
    return h ^ h >> 16


def _adler() -> int:
    return zlib.adler32(bytes(TEXT))


def _fletcher() -> int:
    a = b = 0
    for byte in TEXT:
        a = (a + byte) % 255
        b = (b + a) % 255
    return b << 8 | a


def _jenkins() -> int:
    h = _fold(0, lambda h, c: (lambda g: g ^ g >> 6)(((h + c) & M32) * 1025 & M32))
    h = (h + (h << 3)) & M32
    h ^= h >> 11
    return (h + (h << 15)) & M32


HASHES = [
    over_bytes("fnv1a", "unsigned h = 2166136261u; for (int i = 0; i < n; i++) { h ^= data[i]; h *= 16777619u; }",
               _fold(2166136261, lambda h, c: (h ^ c) * 16777619)),
    over_bytes("fnv1a_64", "unsigned long long h = 14695981039346656037ull; for (int i = 0; i < n; i++) { h ^= data[i]; h *= 1099511628211ull; }",
               _fold(14695981039346656037, lambda h, c: (h ^ c) * 1099511628211, M64), wide=True),
    over_bytes("djb2", "unsigned h = 5381; for (int i = 0; i < n; i++) h = (h << 5) + h + data[i];",
               _fold(5381, lambda h, c: h * 33 + c)),
    over_bytes("sdbm", "unsigned h = 0; for (int i = 0; i < n; i++) h = data[i] + (h << 6) + (h << 16) - h;",
               _fold(0, lambda h, c: c + h * 65599)),
    over_bytes("java_string", "int h = 0; for (int i = 0; i < n; i++) h = (int)((unsigned)h * 31u + data[i]);",
               _fold(0, lambda h, c: h * 31 + c)),
    over_bytes("jenkins", """unsigned h = 0;
    for (int i = 0; i < n; i++) { h += data[i]; h += h << 10; h ^= h >> 6; }
    h += h << 3; h ^= h >> 11; h += h << 15;""", _jenkins()),
    over_bytes("murmur3", """unsigned h = 42;
    for (int i = 0; i < n; i += 4) {
        unsigned key = 0;
        for (int j = 0; j < 4 && i + j < n; j++) key |= (unsigned)data[i + j] << 8 * j;
        key *= 0xcc9e2d51u; key = key << 15 | key >> 17; key *= 0x1b873593u;
        h ^= key;
        if (i + 4 <= n) { h = h << 13 | h >> 19; h = h * 5 + 0xe6546b64u; }
    }
    h ^= n;
    h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;""",
               _murmur3(TEXT, 42)),
    over_bytes("crc32_bitwise", """unsigned h = ~0u;
    for (int i = 0; i < n; i++) {
        h ^= data[i];
        for (int b = 0; b < 8; b++) h = h & 1 ? h >> 1 ^ 0xedb88320u : h >> 1;
    }
    h = ~h;""", zlib.crc32(bytes(TEXT))),
    over_bytes("crc32_nibble_table", """unsigned h = ~0u;
    for (int i = 0; i < n; i++) {
        h ^= data[i];
        h = h >> 4 ^ table[h & 15];
        h = h >> 4 ^ table[h & 15];
    }
    h = ~h;""", zlib.crc32(bytes(TEXT)), before="""__constant__ unsigned table[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};"""),
    over_bytes("crc16_ccitt", """unsigned short h = 0xffff;
    for (int i = 0; i < n; i++) {
        h ^= data[i] << 8;
        for (int b = 0; b < 8; b++) h = h & 0x8000 ? h << 1 ^ 0x1021 : h << 1;
    }""", _crc(0x1021, 16, 0xFFFF, TEXT)),
    over_bytes("crc16_xmodem", """unsigned h = 0;
    for (int i = 0; i < n; i++) {
        h ^= data[i] << 8;
        for (int b = 0; b < 8; b++) h = (h & 0x8000 ? h << 1 ^ 0x1021 : h << 1) & 0xffff;
    }""", binascii.crc_hqx(bytes(TEXT), 0)),
    over_bytes("crc8", """unsigned char h = 0;
    for (int i = 0; i < n; i++) {
        h ^= data[i];
        for (int b = 0; b < 8; b++) h = h & 0x80 ? h << 1 ^ 7 : h << 1;
    }""", _crc(7, 8, 0, TEXT)),
    over_bytes("adler32", "unsigned a = 1, b = 0; for (int i = 0; i < n; i++) { a = (a + data[i]) % 65521; b = (b + a) % 65521; } unsigned h = b << 16 | a;",
               _adler()),
    over_bytes("fletcher16", "unsigned a = 0, b = 0; for (int i = 0; i < n; i++) { a = (a + data[i]) % 255; b = (b + a) % 255; } unsigned h = b << 8 | a;",
               _fletcher()),
    over_bytes("internet_checksum", """unsigned h = 0;
    for (int i = 0; i < n; i += 2) h += data[i] << 8 | (i + 1 < n ? data[i + 1] : 0);
    while (h >> 16) h = (h & 0xffff) + (h >> 16);
    h = ~h & 0xffff;""", ~(lambda s: (s & 0xFFFF) + (s >> 16))(sum(
        (TEXT[i] << 8) + (TEXT[i + 1] if i + 1 < len(TEXT) else 0)
        for i in range(0, len(TEXT), 2))) & 0xFFFF),
    over_bytes("xor_and_sum", "unsigned char x = 0; unsigned s = 0; for (int i = 0; i < n; i++) { x ^= data[i]; s += data[i]; } unsigned h = s << 8 | x;",
               sum(TEXT) << 8 | _fold(0, lambda h, c: h ^ c)),
]  # fmt: skip


# --- random numbers -------------------------------------------------------------------------------


def _xorshift32(x: int, times: int) -> int:
    for _ in range(times):
        x ^= x << 13 & M32
        x ^= x >> 17
        x ^= x << 5 & M32
    return x


def _xorshift64(x: int) -> int:
    for _ in range(2):
        x ^= x << 13 & M64
        x ^= x >> 7
        x ^= x << 17 & M64
    return x


def _splitmix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def _pcg(x: int) -> int:
    state = (x * 747796405 + 2891336453) & M32
    word = ((state >> (state >> 28) + 4) ^ state) * 277803737 & M32
    return word >> 22 ^ word


def _lfsr(x: int) -> int:
    for _ in range(20):
        x = x >> 1 ^ (0xB400 if x & 1 else 0)
    return x


def _tea(x: int, y: int) -> int:
    s = 0
    for _ in range(8):
        s = (s + 0x9E3779B9) & M32
        x = (x + ((y << 4) + 0xA341316C ^ y + s ^ (y >> 5) + 0xC8013EA4)) & M32
        y = (y + ((x << 4) + 0xAD90777D ^ x + s ^ (x >> 5) + 0x7E95761E)) & M32
    return x ^ y


def _lcg(x: int, times: int) -> int:
    for _ in range(times):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    return x


def _middle_square(x: int) -> int:
    for _ in range(5):
        x = x * x // 100 % 10000
    return x


def _park_miller(x: int) -> int:
    for _ in range(3):
        x = x * 48271 % 2147483647
    return x


def _wang(x: int) -> int:
    x = (x ^ 61 ^ x >> 16) * 9 & M32
    x = (x ^ x >> 4) * 0x27D4EB2D & M32
    return x ^ x >> 15


def _philox(c0: int) -> int:
    c, key = [c0, 7, 11, 13], [0xCAFE, 0xF00D]
    for _ in range(3):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ key[0], p1 & M32, p0 >> 32 ^ c[3] ^ key[1], p0 & M32]
        key = [(key[0] + 0x9E3779B9) & M32, (key[1] + 0xBB67AE85) & M32]
    return c[0] ^ c[1] ^ c[2] ^ c[3]


SEEDS = [1, 0xDEADBEEF, 12345, 0x80000000]
RANDOM = [
    elementwise("rng_lcg", [(U32, [1, 7, 99, 12345])], U32, "x", lambda x: _lcg(x, 4),
                body="for (int i = 0; i < 4; i++) x = (x * 1103515245u + 12345u) & 0x7fffffffu;"),
    elementwise("rng_xorshift32", [(U32, SEEDS)], U32, "x", lambda x: _xorshift32(x, 3),
                body="for (int i = 0; i < 3; i++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }"),
    elementwise("rng_xorshift64", [(U64, [1, 0xDEADBEEFCAFEBABE])], U64, "x", _xorshift64,
                body="for (int i = 0; i < 2; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }"),
    elementwise("rng_splitmix64", [(U64, [0, 1])], U64, "z ^ z >> 31", _splitmix,
                body="""unsigned long long z = x + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;"""),
    elementwise("rng_pcg", [(U32, SEEDS)], U32, "word >> 22 ^ word", _pcg,
                body="""unsigned state = x * 747796405u + 2891336453u;
    unsigned word = (state >> ((state >> 28) + 4) ^ state) * 277803737u;"""),
    elementwise("rng_lfsr16", [(U32, [0xACE1, 1, 0xFFFF, 0x8000])], U32, "x", _lfsr,
                body="for (int i = 0; i < 20; i++) x = x >> 1 ^ (x & 1 ? 0xb400u : 0u);"),
    elementwise("rng_middle_square", [(U32, [1234, 5678, 9999, 4321])], U32, "x", _middle_square,
                body="for (int i = 0; i < 5; i++) x = x * x / 100 % 10000;"),
    elementwise("rng_park_miller", [(U32, [1, 2, 12345, 2147483646])], U32, "x", _park_miller,
                body="for (int i = 0; i < 3; i++) x = (unsigned)((unsigned long long)x * 48271u % 2147483647u);"),
    elementwise("hash_fmix32", [(U32, [0, 1, *SEEDS, 0xFFFFFFFF, 77])], U32, "x", _fmix,
                body="x ^= x >> 16; x *= 0x85ebca6bu; x ^= x >> 13; x *= 0xc2b2ae35u; x ^= x >> 16;"),
    elementwise("hash_tea", [(U32, SEEDS), (U32, [2, 3, 5, 0xFFFFFFFF])], U32, "x ^ y", _tea,
                body="""unsigned s = 0;
    for (int i = 0; i < 8; i++) {
        s += 0x9e3779b9u;
        x += (y << 4) + 0xa341316cu ^ y + s ^ (y >> 5) + 0xc8013ea4u;
        y += (x << 4) + 0xad90777du ^ x + s ^ (x >> 5) + 0x7e95761eu;
    }"""),
    elementwise("hash_wang", [(U32, [0, 1, 2, 0xFFFFFFFF])], U32, "x",
                _wang, body="""x = (x ^ 61) ^ (x >> 16); x *= 9; x ^= x >> 4;
    x *= 0x27d4eb2du; x ^= x >> 15;"""),
    case("rng_philox_rounds", """
__global__ void k(const unsigned *counter, unsigned *out) {
    unsigned c0 = counter[threadIdx.x], c1 = 7, c2 = 11, c3 = 13, k0 = 0xcafe, k1 = 0xf00d;
    for (int i = 0; i < 3; i++) {
        unsigned h0 = __umulhi(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
        unsigned h1 = __umulhi(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9e3779b9u; k1 += 0xbb67ae85u;
    }
    out[threadIdx.x] = c0 ^ c1 ^ c2 ^ c3;
}""", [u32(0, 1, 0xFFFFFFFF), zeros(3, U32)], {1: [_philox(c) for c in (0, 1, M32)]},
         block=3),
]  # fmt: skip

# --- codes ----------------------------------------------------------------------------------------

CARD = [7, 9, 9, 2, 7, 3, 9, 8, 7, 1, 3]
ISBN = [9, 7, 8, 0, 3, 0, 6, 4, 0, 6, 1, 5]
CODES = [
    case("code_luhn", """
__global__ void k(const int *digits, int *ok, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int d = digits[n - 1 - i];
        if (i & 1) { d *= 2; if (d > 9) d -= 9; }
        sum += d;
    }
    *ok = sum % 10 == 0;
}""", [S32.array(CARD), zeros(1), 11], {1: [1]}),
    case("code_isbn13", """
__global__ void k(const int *d, int *check) {
    int sum = 0;
    for (int i = 0; i < 12; i++) sum += d[i] * (i % 2 ? 3 : 1);
    *check = (10 - sum % 10) % 10;
}""", [S32.array(ISBN), zeros(1)], {1: [7]}),
    case("code_hamming_7_4", """
__global__ void k(const unsigned *in, unsigned *out) {
    unsigned d = in[threadIdx.x];
    unsigned a = d & 1, b = d >> 1 & 1, c = d >> 2 & 1, e = d >> 3 & 1;
    out[threadIdx.x] = (a ^ b ^ e) | (a ^ c ^ e) << 1 | a << 2 | (b ^ c ^ e) << 3 | b << 4 | c << 5 | e << 6;
}""", [u32(0, 1, 8, 15, 11, 6), zeros(6, U32)],
         {1: [0, 0b0000111, 0b1001011, 0b1111111, 0b1010101, 0b0110011]}, block=6),
    case("code_base64", """
__device__ char letter(int v) {
    return v < 26 ? 'A' + v : v < 52 ? 'a' + v - 26 : v < 62 ? '0' + v - 52 : v == 62 ? '+' : '/';
}
__global__ void k(const unsigned char *in, char *out) {
    int t = threadIdx.x;
    const unsigned char *p = in + 3 * t;
    unsigned v = p[0] << 16 | p[1] << 8 | p[2];
    for (int i = 0; i < 4; i++) out[4 * t + i] = letter(v >> (18 - 6 * i) & 63);
}""", [U8.array(b"Hello, \xff\xfbGP"[:9]), zeros(12, U8)],
         {1: U8.array(base64.b64encode(b"Hello, \xff\xfbGP"[:9]))}, block=3),
    case("code_hex", """
__global__ void k(const unsigned char *in, char *out) {
    int v = in[threadIdx.x];
    int high = v >> 4, low = v & 15;
    out[2 * threadIdx.x] = high < 10 ? '0' + high : 'a' + high - 10;
    out[2 * threadIdx.x + 1] = low < 10 ? '0' + low : 'a' + low - 10;
}""", [U8.array([0, 255, 0x3C, 0xA9]), zeros(8, U8)],
         {1: U8.array(bytes([0, 255, 0x3C, 0xA9]).hex().encode())}, block=4),
    case("code_varint", """
__global__ void k(const unsigned *in, unsigned char *out, int *n) {
    int at = 0;
    for (int i = 0; i < 3; i++) {
        unsigned v = in[i];
        while (v > 127) { out[at++] = v | 128; v >>= 7; }
        out[at++] = v;
    }
    *n = at;
}""", [u32(5, 300, 0xFFFFFFFF), zeros(10, U8), zeros(1)],
         {1: [5, 0xAC, 2, 255, 255, 255, 255, 15, 0, 0], 2: [8]}),
    case("code_zigzag", """
__global__ void k(const int *in, unsigned *out, int *back) {
    int v = in[threadIdx.x];
    unsigned z = (unsigned)v << 1 ^ (unsigned)(v >> 31);
    out[threadIdx.x] = z;
    back[threadIdx.x] = (int)(z >> 1) ^ -(int)(z & 1);
}""", [S32.array([0, -1, 1, -(1 << 31)]), zeros(4, U32), zeros(4)],
         {1: [0, 1, 2, M32], 2: [0, -1, 1, -(1 << 31)]}, block=4),
]  # fmt: skip

CASES: tuple[Case, ...] = (*HASHES, *RANDOM, *CODES)
