"""Atomics on global and shared memory, on every type, with the old value where it is certain."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tests.cases import Case
from tests.corpus.build import S32, S64, U8, U32, U64, CType, case, i32, random_values, u32, zeros

Step = Callable[[int, int], int]
STEPS: dict[str, Step] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Min": min,
    "Max": max,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
}


def _combine(op: str, ctype: CType, shared: bool) -> Case:
    """Every thread combines into one word; the order cannot show in the sum."""
    name = f"atomic{op}_{'shared' if shared else 'global'}_{ctype.short}"
    n = 8
    data = random_values(name, ctype, n + 1)
    if ctype.signed and op in ("Add", "Sub"):
        data = [v >> 5 for v in data]
    if shared:
        body = f"""
    __shared__ {ctype.c} s;
    if (threadIdx.x == 0) s = *out;
    __syncthreads();
    atomic{op}(&s, in[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) *out = s;"""
    else:
        body = f"\n    atomic{op}(out, in[threadIdx.x]);"
    source = f"__global__ void k(const {ctype.c} *in, {ctype.c} *out) {{{body}\n}}"
    result = ctype.wrap(reduce(STEPS[op], data[:n], data[n]))
    return case(name, source, [ctype.array(data[:n]), ctype.array(data[n:])], {1: [result]},
                block=n)  # fmt: skip


def _old_values(op: str, model: Step, ctype: CType) -> Case:
    """One thread, a chain of operations on one word: each old value is certain."""
    name = f"atomic{op}_old_{ctype.short}"
    chain = [5, 3, 9, 0, 7]
    source = f"""
__global__ void k(const {ctype.c} *in, {ctype.c} *word, {ctype.c} *old, int n) {{
    for (int i = 0; i < n; i++) old[i] = atomic{op}(word, in[i]);
}}"""
    word, olds = 6, []
    for value in chain:
        olds.append(word)
        word = ctype.wrap(model(word, value))
    return case(name, source, [ctype.array(chain), ctype.array([6]), zeros(5, ctype), 5],
                {1: [word], 2: [ctype.wrap(v) for v in olds]})  # fmt: skip


def _own_word(ctype: CType) -> Case:
    """Each lane its own word: old values are certain with all lanes active."""
    name = f"atomic_own_word_{ctype.short}"
    source = f"""
__global__ void k({ctype.c} *words, {ctype.c} *old) {{
    int t = threadIdx.x;
    old[t] = atomicAdd(&words[7 - t], ({ctype.c})(t + 1)) * 2;
}}"""
    return case(name, source, [ctype.array(range(10, 18)), zeros(8, ctype)],
                {0: [10 + n + 8 - n for n in range(8)], 1: [2 * (17 - t) for t in range(8)]},
                block=8)  # fmt: skip


def _inc(limit: int) -> Step:
    return lambda old, _: 0 if old >= limit else old + 1


def _dec(limit: int) -> Step:
    return lambda old, _: limit if old == 0 or old > limit else old - 1


def _wrapping(op: str, limit: int, start: int) -> Case:
    step = (_inc if op == "Inc" else _dec)(limit)
    source = f"""
__global__ void k(unsigned *word) {{
    atomic{op}(word, {limit}u);
}}"""
    result = reduce(step, range(6), start)
    return case(f"atomic{op}_{limit}_from_{start}", source, [u32(start)], {0: [result]}, block=6)


OTHERS = [
    case("atomic_cas_loop_multiply", """
__global__ void k(const unsigned *in, unsigned *out) {
    unsigned old = *out, seen;
    do {
        seen = old;
        old = atomicCAS(out, seen, seen * in[threadIdx.x]);
    } while (old != seen);
}""", [u32(2, 3, 5, 7), u32(1)], {1: [210]}, block=4),
    case("atomic_cas_once", """
__global__ void k(int *words, int *old) {
    int t = threadIdx.x;
    old[t] = atomicCAS(&words[t], 5, 100 + t);
}""", [i32(5, 6, 5, -5), zeros(4)], {0: [100, 6, 102, -5], 1: [5, 6, 5, -5]}, block=4),
    case("atomic_cas_one_winner", """
__global__ void k(int *word, int *wins) {
    if (atomicCAS(word, 0, 1) == 0) atomicAdd(wins, 1);
}""", [zeros(1), zeros(1)], {0: [1], 1: [1]}, block=8, grid=2),
    case("atomic_cas_64", """
__global__ void k(unsigned long long *words) {
    int t = threadIdx.x;
    unsigned long long mine = words[t];
    atomicCAS(&words[t], t & 1 ? mine : mine + 1, 1ull << (40 + t));
}""", [U64.array([7, 1 << 50, 3, 9])], {0: [7, 1 << 41, 3, 1 << 43]}, block=4),
    case("atomic_exch_own", """
__global__ void k(int *words, int *old) {
    int t = threadIdx.x;
    old[t] = atomicExch(&words[t], t * t);
}""", [i32(9, 8, 7, 6), zeros(4)], {0: [0, 1, 4, 9], 1: [9, 8, 7, 6]}, block=4),
    case("atomic_exch_chain_keeps_the_sum", """
__global__ void k(int *word, int *sum) {
    int old = atomicExch(word, (int)threadIdx.x + 1);
    atomicAdd(sum, old);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(sum, atomicExch(word, 0));
}""", [i32(100), zeros(1)], {0: [0], 1: [100 + 36]}, block=8),
    case("atomic_tickets", """
__global__ void k(int *next, int *slots) {
    int ticket = atomicAdd(next, 1);
    slots[ticket] = 1;
}""", [zeros(1), zeros(10)], {0: [8], 1: [1] * 8 + [0] * 2}, block=4, grid=2),
    case("atomic_compaction_sorted", """
__global__ void k(const int *in, int *out, int *n) {
    __shared__ int list[8], count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (in[t] > 3) list[atomicAdd(&count, 1)] = in[t];
    __syncthreads();
    if (t == 0) {
        for (int i = 1; i < count; i++)
            for (int j = i; j > 0 && list[j] < list[j - 1]; j--) {
                int x = list[j]; list[j] = list[j - 1]; list[j - 1] = x;
            }
        for (int i = 0; i < count; i++) out[i] = list[i];
        *n = count;
    }
}""", [i32(3, 1, 4, 1, 5, 9, 2, 6), zeros(8), zeros(1)],
         {1: [4, 5, 6, 9, 0, 0, 0, 0], 2: [4]}, block=8),
    case("atomic_histogram_shared", """
__global__ void k(const unsigned char *in, int *out, int n) {
    __shared__ int bins[4];
    int t = threadIdx.x;
    if (t < 4) bins[t] = 0;
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) atomicAdd(&bins[in[i] >> 6], 1);
    __syncthreads();
    if (t < 4) atomicAdd(&out[t], bins[t]);
}""", [U8.array([0, 63, 64, 127, 128, 200, 255, 255, 1, 2]), zeros(4), 10],
         {1: [4, 2, 1, 3]}, block=8),
    case("atomic_in_a_branch", """
__global__ void k(const int *in, int *even, int *odd) {
    int v = in[threadIdx.x];
    if (v & 1) atomicAdd(odd, v); else atomicMax(even, v);
}""", [i32(1, 2, 3, 4, 5, 6, 7, 8), i32(-1), zeros(1)], {1: [8], 2: [16]}, block=8),
    case("atomic_in_a_loop", """
__global__ void k(int *out) {
    for (int i = 0; i <= (int)threadIdx.x; i++) atomicAdd(&out[i & 1], i);
}""", [zeros(2)], {0: [sum(i for t in range(6) for i in range(t + 1) if i % 2 == p)
                       for p in (0, 1)]}, block=6),
    case("atomic_last_block_sums", """
__device__ unsigned done = 0;
__global__ void k(const int *in, int *partial, int *out) {
    __shared__ bool last;
    int b = blockIdx.x, t = threadIdx.x;
    atomicAdd(&partial[b], in[b * 4 + t]);
    __syncthreads();
    if (t == 0) {
        __threadfence();
        last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        int sum = 0;
        for (unsigned i = 0; i < gridDim.x; i++) sum += ((volatile int *)partial)[i];
        *out = sum;
    }
}""", [i32(*range(1, 13)), zeros(3), zeros(1)], {1: [10, 26, 42], 2: [78]}, block=4, grid=3),
    case("atomic_argmax_packed", """
__global__ void k(const int *in, unsigned *out) {
    unsigned t = threadIdx.x;
    atomicMax(out, (unsigned)in[t] << 8 | (255 - t));
}""", [i32(3, 9, 4, 9, 1, 0), zeros(1, U32)], {1: [9 << 8 | 254]}, block=6),
    case("atomic_spin_lock_by_blocks", """
__global__ void k(int *lock, int *value) {
    while (atomicCAS(lock, 0, 1) != 0) { }
    *(volatile int *)value = *(volatile int *)value * 2 + 1;
    __threadfence();
    atomicExch(lock, 0);
}""", [zeros(1), i32(1)], {0: [0], 1: [63]}, grid=5),
    case("atomic_bitmap", """
__global__ void k(const int *in, unsigned *map) {
    int v = in[threadIdx.x];
    atomicOr(&map[v >> 5], 1u << (v & 31));
}""", [i32(0, 31, 32, 63, 40, 0, 7, 33), zeros(2, U32)],
         {1: [1 | 1 << 31 | 1 << 7, 1 | 1 << 31 | 1 << 8 | 1 << 1]}, block=8),
]  # fmt: skip

CASES: tuple[Case, ...] = (
    *(_combine(op, t, s) for op in STEPS for t in (S32, U32) for s in (False, True)),
    *(_combine(op, U64, False) for op in STEPS if op != "Sub"),
    *(_combine(op, S64, False) for op in ("Min", "Max")),
    *(_old_values(op, model, S32) for op, model in STEPS.items()),
    _old_values("Exch", lambda old, new: new, S32),
    *(_old_values(op, STEPS[op], U64) for op in ("Add", "Max", "Xor")),
    _old_values("Exch", lambda old, new: new, U64),
    *(_own_word(t) for t in (S32, U32, U64)),
    *(_wrapping(op, limit, start) for op in ("Inc", "Dec")
      for limit, start in [(4, 0), (4, 9), (6, 6), (100, 3), (0, 0)]),
    *OTHERS,
)  # fmt: skip
