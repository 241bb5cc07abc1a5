"""Strings of bytes, and dynamic programming over strings and numbers."""

from __future__ import annotations

from functools import cache
from math import comb

import numpy as np

from tests.cases import Array, Case
from tests.corpus.build import case, i32, zeros


def chars(text: str, room: int = 0) -> Array:
    """The bytes of a text and its final zero, as ``char`` holds them; at least ``room`` bytes."""
    raw = text.encode() + b"\0"
    return np.frombuffer(raw.ljust(room, b"\0"), np.int8).copy()


STRINGS = [
    case("text_length", """
__global__ void k(const char *s, int *out) {
    int n = 0;
    while (s[n]) n++;
    *out = n;
}""", [chars("hello, warp"), zeros(1)], {1: [11]}),
    case("text_compare", """
__global__ void k(const char *a, const char *b, int *out) {
    while (*a && *a == *b) { a++; b++; }
    *out = *a - *b;
}""", [chars("kernel"), chars("kernal"), zeros(1)], {2: [4]}),
    case("text_reverse", """
__global__ void k(char *s) {
    int n = 0;
    while (s[n]) n++;
    for (int i = 0; i < n / 2; i++) { char c = s[i]; s[i] = s[n - 1 - i]; s[n - 1 - i] = c; }
}""", [chars("abcdefg")], {0: chars("gfedcba")}),
    case("text_upper", """
__global__ void k(char *s) {
    char c = s[threadIdx.x];
    if (c >= 'a' && c <= 'z') s[threadIdx.x] = c - 'a' + 'A';
}""", [chars("Qwen 3.5!")], {0: chars("QWEN 3.5!")}, block=9),
    case("text_vowels", """
__global__ void k(const char *s, int *count) {
    switch (s[threadIdx.x]) { case 'a': case 'e': case 'i': case 'o': case 'u': atomicAdd(count, 1); }
}""", [chars("a machine of words"), zeros(1)], {1: [6]}, block=18),
    case("text_palindromes", """
__global__ void k(const char *s, const int *start, int *out) {
    int i = start[threadIdx.x], j = start[threadIdx.x + 1] - 1, yes = 1;
    while (i < j) if (s[i++] != s[j--]) yes = 0;
    out[threadIdx.x] = yes;
}""", [chars("levelabbaabcax"), i32(0, 5, 9, 13, 14), zeros(4)], {2: [1, 1, 0, 1]}, block=4),
    case("text_caesar", """
__global__ void k(char *s, int by) {
    char c = s[threadIdx.x];
    if (c >= 'a' && c <= 'z') s[threadIdx.x] = 'a' + (c - 'a' + by + 26) % 26;
}""", [chars("xyz-abc"), -3], {0: chars("uvw-xyz")}, block=7),
    case("text_atoi", """
__global__ void k(const char *s, const int *start, int *out) {
    const char *p = s + start[threadIdx.x];
    int sign = 1, v = 0;
    if (*p == '-') { sign = -1; p++; }
    while (*p >= '0' && *p <= '9') v = v * 10 + *p++ - '0';
    out[threadIdx.x] = sign * v;
}""", [chars("12,-405,7x,0"), i32(0, 3, 8, 11), zeros(4)], {2: [12, -405, 7, 0]}, block=4),
    case("text_itoa", """
__global__ void k(int v, char *out) {
    char digits[11];
    int n = 0, at = 0;
    unsigned u = v < 0 ? -(unsigned)v : v;
    do { digits[n++] = '0' + u % 10; u /= 10; } while (u);
    if (v < 0) out[at++] = '-';
    while (n) out[at++] = digits[--n];
    out[at] = 0;
}""", [-2147483648, chars("", 12)], {1: chars("-2147483648", 12)}),
    case("text_search", """
__global__ void k(const char *s, const char *w, int *first) {
    int t = threadIdx.x, i = 0;
    while (w[i] && s[t + i] == w[i]) i++;
    if (!w[i]) atomicMin(first, t);
}""", [chars("a cat sat at"), chars("at"), i32(99)], {2: [3]}, block=12),
    case("text_count_words", """
__global__ void k(const char *s, int *out, int n) {
    int words = 0; bool inside = false;
    for (int i = 0; i < n; i++) {
        if (s[i] == ' ' || s[i] == '\\n') inside = false;
        else if (!inside) { inside = true; words++; }
    }
    *out = words;
}""", [chars("  one two\nthree   4 "), zeros(1), 20], {1: [4]}),
    case("text_brackets", """
__global__ void k(const char *s, int *out) {
    char stack[8];
    int top = 0, ok = 1;
    for (; *s && ok; s++) {
        if (*s == '(' || *s == '[') stack[top++] = *s;
        else if (*s == ')') ok = top > 0 && stack[--top] == '(';
        else if (*s == ']') ok = top > 0 && stack[--top] == '[';
    }
    *out = ok && top == 0;
}""", [chars("a[(b)(c[d])]"), zeros(1)], {1: [1]}),
    case("text_postfix", """
__global__ void k(const char *s, int *out) {
    int stack[8], top = 0;
    for (; *s; s++) {
        if (*s >= '0' && *s <= '9') { stack[top++] = *s - '0'; continue; }
        int b = stack[--top], a = stack[--top];
        switch (*s) { case '+': a += b; break; case '-': a -= b; break; case '*': a *= b; break; case '/': a /= b; }
        stack[top++] = a;
    }
    *out = stack[0];
}""", [chars("93-4*82/+7-"), zeros(1)], {1: [21]}),
    case("text_brainf", """
__global__ void k(const char *program, char *out, int n) {
    unsigned char tape[6] = {0, 0, 0, 0, 0, 0};
    int at = 0, written = 0;
    for (int pc = 0; pc < n; pc++) {
        switch (program[pc]) {
        case '>': at++; break;
        case '<': at--; break;
        case '+': tape[at]++; break;
        case '-': tape[at]--; break;
        case '.': out[written++] = tape[at]; break;
        case '[':
            if (!tape[at]) for (int depth = 1; depth; ) { pc++; depth += (program[pc] == '[') - (program[pc] == ']'); }
            break;
        case ']':
            if (tape[at]) for (int depth = 1; depth; ) { pc--; depth += (program[pc] == ']') - (program[pc] == '['); }
            break;
        }
    }
}""", [chars("+++[>+++[>++++<-]<-]>>-.+."), chars("", 4), 26], {1: chars("#$", 4)}),
    case("text_roman", """
__device__ int value(char c) {
    switch (c) { case 'I': return 1; case 'V': return 5; case 'X': return 10; case 'L': return 50;
    case 'C': return 100; case 'D': return 500; case 'M': return 1000; }
    return 0;
}
__global__ void k(const char *s, int *out) {
    int sum = 0;
    for (; *s; s++) { int v = value(s[0]); sum += v < value(s[1]) ? -v : v; }
    *out = sum;
}""", [chars("MCMXCIV"), zeros(1)], {1: [1994]}),
    case("text_letter_counts", """
__global__ void k(const char *s, int *count) {
    char c = s[threadIdx.x];
    if (c >= 'a' && c <= 'h') atomicAdd(&count[c - 'a'], 1);
}""", [chars("abracadabra gag"), zeros(8)], {1: [6, 2, 1, 1, 0, 0, 2, 0]}, block=15),
    case("text_common_prefix", """
__global__ void k(const char *a, const char *b, int *out) {
    int n = 0;
    while (a[n] && a[n] == b[n]) n++;
    *out = n;
}""", [chars("shared memory"), chars("shared state"), zeros(1)], {2: [7]}),
]  # fmt: skip


# --- dynamic programming --------------------------------------------------------------------------


def _lcs(a: str, b: str) -> int:
    @cache
    def best(i: int, j: int) -> int:
        if not i or not j:
            return 0
        if a[i - 1] == b[j - 1]:
            return best(i - 1, j - 1) + 1
        return max(best(i - 1, j), best(i, j - 1))

    return best(len(a), len(b))


def _edit(a: str, b: str) -> int:
    @cache
    def least(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(least(i - 1, j) + 1, least(i, j - 1) + 1,
                   least(i - 1, j - 1) + (a[i - 1] != b[j - 1]))  # fmt: skip

    return least(len(a), len(b))


def _knapsack(weights: list[int], values: list[int], room: int) -> int:
    sums = [(sum(weights[i] for i in chosen), sum(values[i] for i in chosen))
            for chosen in ([i for i in range(len(weights)) if m >> i & 1]
                           for m in range(1 << len(weights)))]  # fmt: skip
    return max(v for w, v in sums if w <= room)


WEIGHTS, VALUES = [3, 4, 5, 9, 4], [3, 4, 4, 10, 5]
DYNAMIC = [
    case("dp_lcs", """
__global__ void k(const char *a, const char *b, int *out, int m, int n) {
    int row[9];
    for (int j = 0; j <= n; j++) row[j] = 0;
    for (int i = 1; i <= m; i++) {
        int corner = 0;
        for (int j = 1; j <= n; j++) {
            int up = row[j];
            row[j] = a[i - 1] == b[j - 1] ? corner + 1 : max(up, row[j - 1]);
            corner = up;
        }
    }
    *out = row[n];
}""", [chars("aggtab"), chars("gxtxayb"), zeros(1), 6, 7], {2: [_lcs("aggtab", "gxtxayb")]}),
    case("dp_edit_distance", """
__global__ void k(const char *a, const char *b, int *table, int m, int n) {
    for (int i = 0; i <= m; i++)
        for (int j = 0; j <= n; j++) {
            int v;
            if (i == 0 || j == 0) v = i + j;
            else {
                v = table[(i - 1) * (n + 1) + j - 1] + (a[i - 1] != b[j - 1]);
                v = min(v, table[(i - 1) * (n + 1) + j] + 1);
                v = min(v, table[i * (n + 1) + j - 1] + 1);
            }
            table[i * (n + 1) + j] = v;
        }
}""", [chars("kitten"), chars("sitting"), zeros(56), 6, 7],
         {2: [_edit("kitten"[:i], "sitting"[:j]) for i in range(7) for j in range(8)]}),
    case("dp_edit_distance_wavefront", """
__global__ void k(const char *a, const char *b, int *d, int m, int n) {
    int i = threadIdx.x;
    for (int wave = 0; wave <= m + n; wave++) {
        int j = wave - i;
        if (i <= m && j >= 0 && j <= n) {
            int v = i + j;
            if (i && j) v = min(d[(i - 1) * (n + 1) + j - 1] + (a[i - 1] != b[j - 1]),
                                min(d[(i - 1) * (n + 1) + j], d[i * (n + 1) + j - 1]) + 1);
            d[i * (n + 1) + j] = v;
        }
        __syncthreads();
    }
}""", [chars("warp"), chars("wrap"), zeros(25), 4, 4],
         {2: [_edit("warp"[:i], "wrap"[:j]) for i in range(5) for j in range(5)]}, block=5),
    case("dp_knapsack", """
__global__ void k(const int *weight, const int *value, int *best, int n, int room) {
    for (int i = 0; i < n; i++)
        for (int w = room; w >= weight[i]; w--)
            best[w] = max(best[w], best[w - weight[i]] + value[i]);
}""", [i32(*WEIGHTS), i32(*VALUES), zeros(13), 5, 12],
         {2: [_knapsack(WEIGHTS, VALUES, room) for room in range(13)]}),
    case("dp_coin_ways", """
__global__ void k(const int *coins, int *ways, int n, int total) {
    ways[0] = 1;
    for (int c = 0; c < n; c++)
        for (int v = coins[c]; v <= total; v++) ways[v] += ways[v - coins[c]];
}""", [i32(1, 2, 5), zeros(11), 3, 10], {1: [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 10]}),
    case("dp_fewest_coins", """
__global__ void k(const int *coins, int *least, int n, int total) {
    for (int v = 1; v <= total; v++) {
        least[v] = 99;
        for (int c = 0; c < n; c++)
            if (coins[c] <= v) least[v] = min(least[v], least[v - coins[c]] + 1);
    }
}""", [i32(1, 3, 4), zeros(11), 3, 10], {1: [0, 1, 2, 1, 1, 2, 2, 2, 2, 3, 3]}),
    case("dp_increasing_subsequence", """
__global__ void k(const int *in, int *best, int n) {
    for (int i = 0; i < n; i++) {
        best[i] = 1;
        for (int j = 0; j < i; j++) if (in[j] < in[i]) best[i] = max(best[i], best[j] + 1);
    }
}""", [i32(3, 1, 8, 2, 5, 7, 4), zeros(7), 7], {1: [1, 1, 2, 2, 3, 4, 3]}),
    case("dp_catalan", """
__global__ void k(int *c, int n) {
    c[0] = 1;
    for (int i = 1; i <= n; i++) { c[i] = 0; for (int j = 0; j < i; j++) c[i] += c[j] * c[i - 1 - j]; }
}""", [zeros(8), 7], {0: [comb(2 * n, n) // (n + 1) for n in range(8)]}),
    case("dp_grid_paths", """
__global__ void k(int *paths, int w, int h) {
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            paths[y * w + x] = x && y ? paths[y * w + x - 1] + paths[(y - 1) * w + x] : 1;
}""", [zeros(12), 4, 3], {0: [comb(x + y, x) for y in range(3) for x in range(4)]}),
    case("dp_matrix_chain", """
__global__ void k(const int *size, int *cost, int n) {
    for (int length = 2; length <= n; length++)
        for (int i = 0; i + length <= n; i++) {
            int j = i + length - 1, best = 1 << 30;
            for (int m = i; m < j; m++)
                best = min(best, cost[i * n + m] + cost[(m + 1) * n + j] + size[i] * size[m + 1] * size[j + 1]);
            cost[i * n + j] = best;
        }
}""", [i32(4, 3, 5, 2, 6), zeros(16), 4],
         {1: [0, 60, 54, 102, 0, 0, 30, 66, 0, 0, 0, 60, 0, 0, 0, 0]}),
    case("dp_house_robber", """
__global__ void k(const int *money, int *out, int n) {
    int take = 0, skip = 0;
    for (int i = 0; i < n; i++) { int t = skip + money[i]; skip = max(skip, take); take = t; }
    *out = max(take, skip);
}""", [i32(2, 7, 9, 3, 1, 8), zeros(1), 6], {1: [19]}),
    case("dp_partition_count", """
__global__ void k(int *p, int n) {
    p[0] = 1;
    for (int part = 1; part <= n; part++)
        for (int v = part; v <= n; v++) p[v] += p[v - part];
}""", [zeros(9), 8], {0: [1, 1, 2, 3, 5, 7, 11, 15, 22]}),
    case("dp_viterbi", """
__global__ void k(const int *observed, int *score, int n) {
    __shared__ int now[2];
    int s = threadIdx.x;
    now[s] = 0;
    for (int i = 0; i < n; i++) {
        __syncthreads();
        int stay = now[s] + 3, come = now[1 - s] + 1;
        int v = max(stay, come) + (observed[i] == s ? 2 : 0);
        __syncthreads();
        now[s] = v;
    }
    score[s] = now[s];
}""", [i32(0, 0, 1, 1, 0), zeros(2), 5], {1: [21, 21]}, block=2),
]  # fmt: skip

CASES: tuple[Case, ...] = (*STRINGS, *DYNAMIC)
