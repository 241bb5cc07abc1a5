"""Threads that wait for each other in loops: locks, flags, barriers in software, queues.

What each kernel leaves does not depend on who comes first, so the expectation is plain Python; the
block interpreter has to end and leave it, whatever the launch's size and clang's level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import pytest

import qgpu.ptx.lower
from qgpu.errors import LaunchError
from qgpu.interp.machine import Machine, run_blocks
from qgpu.ptx.mir import Edge
from qgpu.tokens import Barrier, Resume
from tests.cases import Array, Case
from tests.levels import in_blocks, in_ptx

LEVELS = ("-O0", "-O1", "-O3")
SIZES = (1, 2, 3, 4, 5, 8, 13, 32)
WARPS = (4, 8, 32)
PAIRS = (2, 4, 5, 13)
HEAD = """
#define T ((int)threadIdx.x)
#define N ((int)blockDim.x)
#define LOCK(l) while (atomicCAS(l, 0, 1) != 0) {} __threadfence();
#define UNLOCK(l) __threadfence(); atomicExch(l, 0);
typedef volatile int vint;
"""
Words = list[int]
Launch = tuple[list[Words | int], dict[int, Words]]  # arguments, and those that change


@dataclass(frozen=True)
class Wait:
    """A kernel's parameters and body; ``launch(n, g)``: of n threads in each of g CUDA blocks."""

    params: str
    body: str
    launch: Callable[[int, int], Launch]
    sizes: tuple[int, ...] = SIZES
    grids: tuple[int, ...] = (1,)
    dtype: str = "int32"
    functions: str = ""

    def case(self, n: int, g: int) -> Case:
        args, final = self.launch(n, g)
        source = f'{HEAD}{self.functions}\nextern "C" __global__ void k({self.params})'
        return Case("k", f"{source} {{{self.body}}}", "k", (g, 1, 1), (n, 1, 1),
                    tuple(arg if isinstance(arg, int) else self._array(arg) for arg in args),
                    {at: self._array(words) for at, words in final.items()})  # fmt: skip

    def _array(self, words: Words) -> Array:
        return np.array(words, dtype=np.int64).astype(self.dtype)


def zeros(n: int) -> Words:
    return [0] * n


def counted(n: int, g: int, rounds: int = 1) -> Launch:
    """A lock and a counter to which every thread adds."""
    return [zeros(1), zeros(1)], {1: [n * g * rounds]}


def bucket_sums(n: int, g: int) -> Launch:
    keys = [i * 7 % 5 for i in range(n * g)]
    sums = [sum(i % n + 1 for i, key in enumerate(keys) if key == b) for b in range(5)]
    return [zeros(5), zeros(5), keys], {1: sums}


def software_barrier(n: int, g: int) -> Launch:
    before = [t + r for r in range(3) for t in range(n)]
    after = [(t + 1) % n + r for r in range(3) for t in range(n)]
    return [zeros(1), zeros(1), zeros(6 * n)], {2: before + after}


def pipeline(n: int, g: int) -> Launch:
    out = [reduce(lambda x, t: x * 2 + t, range(n), i) for i in range(3)]
    return [zeros(n), zeros(n), zeros(3)], {0: zeros(n), 1: [0] * n, 2: out}


WAITS = {
    "a lock": Wait("int *l, vint *c", "LOCK(l) *c += 1; UNLOCK(l)", counted, grids=(1, 3)),
    "a lock taken inside an if": Wait(
        "int *l, vint *c",
        """bool done = false;
        while (!done) {
            if (atomicExch(l, 1) == 0) { *c += 1; UNLOCK(l) done = true; }
            else __nanosleep(20);
        }""",
        counted,
    ),
    "test, then test and set": Wait(
        "int *l, vint *c",
        """for (int r = 0; r < 2; r++) {
            for (;;) {
                while (*(vint *)l) {}
                if (!atomicExch(l, 1)) break;
            }
            *c += 1; __threadfence(); *(vint *)l = 0;
        }""",
        lambda n, g: counted(n, g, 2),
        grids=(1, 2),
    ),
    "a lock of 64 bits": Wait(
        "unsigned long long *l, vint *c",
        "while (atomicCAS(l, 0ull, 1ull << 33)) {} *c += 1; __threadfence(); atomicExch(l, 0ull);",
        lambda n, g: ([zeros(2), zeros(1)], {1: [n]}),
    ),
    "a lock that goto goes round": Wait(
        "int *l, vint *c",
        """int tries = 0;
        again: if (atomicCAS(l, 0, 1) != 0) {
            tries++;
            if (tries & 1) goto again;
            __nanosleep(8); goto again;
        }
        *c += 1; UNLOCK(l)""",
        counted,
    ),
    "a lock in functions": Wait(
        "int *l, vint *c",
        """lock(l); c[0] = c[0] + 1; unlock(l);
        if (wait_for(c, N) >= N) { lock(l + 1); c[1] = c[1] + 2; unlock(l + 1); }""",
        lambda n, g: ([zeros(2), zeros(2)], {1: [n, 2 * n]}),
        functions="""
        __device__ __noinline__ void lock(int *l) { while (atomicCAS(l, 0, 1)) {} __threadfence(); }
        __device__ __noinline__ void unlock(int *l) { __threadfence(); atomicExch(l, 0); }
        __device__ __noinline__ int wait_for(vint *p, int v) { int r; while ((r = *p) < v) {}
            return r; }""",
    ),
    "what a try has found goes by reference": Wait(
        "int *l, vint *c",
        "int ok; do try_lock(l, &ok); while (!ok); *c += 1; UNLOCK(l)",
        counted,
        functions="""__device__ __noinline__ void try_lock(int *l, int *ok) {
            *ok = atomicCAS(l, 0, 1) == 0; }""",
    ),
    "what a try has found lies in an array": Wait(
        "int *l, vint *c, int k",
        """int found[4];
        do { found[k] = atomicCAS(l, 0, 1); found[k ^ 1] = 0; } while (found[k * k & 3] != 0);
        *c += 1; UNLOCK(l)""",
        lambda n, g: ([zeros(1), zeros(1), 1], {1: [n]}),
        PAIRS,
    ),
    "a machine of states": Wait(
        "int *l, vint *c",
        """int state = 0;
        while (state < 3) switch (state) {
            case 0: if (atomicCAS(l, 0, 1) == 0) state = 1; break;
            case 1: *c = *c + 1; __threadfence(); state = 2; break;
            case 2: atomicExch(l, 0); state = 3; break;
        }""",
        counted,
        PAIRS,
    ),
    "a lock for each bucket": Wait(
        "int *l, vint *c, int *keys",
        "int b = keys[T + blockIdx.x * N]; LOCK(l + b) c[b] += T + 1; UNLOCK(l + b)",
        bucket_sums,
        grids=(1, 2),
    ),
    "tickets": Wait(
        "int *next, vint *serving, vint *c",
        """int mine = atomicAdd(next, 1);
        while (*serving != mine) {}
        *c = *c + T; __threadfence(); *serving = mine + 1;""",
        lambda n, g: ([zeros(1), zeros(1), zeros(1)],
                      {0: [n * g], 1: [n * g], 2: [g * n * (n - 1) // 2]}),
        grids=(1, 2),
    ),
    "a queue of waiting threads (MCS)": Wait(
        "int *tail, vint *next, vint *locked, vint *c",
        """int me = T + 1;
        next[me] = 0; locked[me] = 1; __threadfence();
        int before = atomicExch(tail, me);
        if (before) { next[before] = me; while (locked[me]) {} }
        *c = *c + me; __threadfence();
        if (next[me] == 0) {
            if (atomicCAS(tail, me, 0) == me) { locked[me] = 0; next[me] = 0; return; }
            while (next[me] == 0) {}
        }
        locked[next[me]] = 0; __threadfence(); next[me] = 0; locked[me] = 0;""",
        lambda n, g: ([zeros(1), zeros(n + 1), zeros(n + 1), zeros(1)], {3: [n * (n + 1) // 2]}),
    ),
    "readers and a writer": Wait(
        "int *l, vint *d, int *o",
        """if (T % 3 == 0) {
            while (atomicCAS(l, 0, -1)) {}
            d[0] += 1; d[1] += 1; UNLOCK(l)
        } else {
            for (;;) { int v = *(vint *)l; if (v >= 0 && atomicCAS(l, v, v + 1) == v) break; }
            o[T] = d[0] == d[1]; __threadfence(); atomicSub(l, 1);
        }""",
        lambda n, g: ([zeros(1), zeros(2), zeros(n)],
                      {1: [-(-n // 3)] * 2, 2: [int(t % 3 != 0) for t in range(n)]}),
    ),
    "a sequence lock": Wait(
        "vint *s, vint *d, int *o",
        """if (T == 0) for (int i = 1; i <= 3; i++) {
            *s = *s + 1; __threadfence(); d[0] = i; d[1] = i * 2; __threadfence(); *s = *s + 1;
        } else {
            int a, b, q;
            do {
                do q = *s; while (q & 1);
                __threadfence(); a = d[0]; b = d[1]; __threadfence();
            } while (*s != q || a != 3);
            o[T] = a * 10 + b;
        }""",
        lambda n, g: ([zeros(1), zeros(2), zeros(n)], {0: [6], 1: [3, 6], 2: [0] + [36] * (n - 1)}),
    ),
    "Peterson's lock, first and last": Wait(
        "vint *flag, vint *turn, vint *c",
        """if (T == 0 || T == N - 1) {
            int me = T != 0;
            for (int i = 0; i < 3; i++) {
                flag[me] = 1; *turn = 1 - me; __threadfence();
                while (flag[1 - me] && *turn == 1 - me) {}
                *c = *c + 1; __threadfence(); flag[me] = 0;
            }
            atomicExch((int *)turn, 0);
        }""",
        lambda n, g: ([zeros(2), zeros(1), zeros(1)], {2: [6]}),
        (4, 5, 32),
    ),
    "flags of 8 bits, up": Wait(
        "volatile unsigned char *f",
        "if (T == 0) f[0] = 1; else { while (f[T - 1] == 0) {} f[T] = f[T - 1] + 1; }",
        lambda n, g: ([zeros(n)], {0: list(range(1, n + 1))}),
        dtype="uint8",
    ),
    "flags of 16 bits, down": Wait(
        "volatile unsigned short *f",
        """int t = N - 1 - T;
        if (t == 0) f[0] = 1; else { while (!f[t - 1]) {} f[t] = f[t - 1] + 1; }""",
        lambda n, g: ([zeros(n)], {0: list(range(1, n + 1))}),
        dtype="uint16",
    ),
    "flags of 64 bits, of which the high word tells": Wait(
        "volatile unsigned long long *f",
        """int t = N - 1 - T;
        if (t == 0) f[0] = 1ull << 40; else { while (!f[t - 1]) {} f[t] = f[t - 1] + 1; }""",
        lambda n, g: ([zeros(2 * n)], {0: [w for t in range(n) for w in (t, 256)]}),
    ),
    "acquire and release": Wait(
        "int *f, int *o",
        """if (T == N - 1) {
            o[T] = 4;
            asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(f) : "memory");
        } else {
            int v;
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(f) : "memory");
            while (!v);
            o[T] = o[N - 1] + T;
        }""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [1], 1: [*range(4, n + 3), 4]}),
    ),
    "atomic operations that only read": Wait(
        "int *f, int *o, int zero",
        """if (T == N - 1) atomicOr(f, 4);
        while (!(atomicAnd(f, -1) & 4)) {}
        while (!(atomicOr(f, 0) & 4)) {}
        while (!(atomicCAS(f, 0, 0) & 4)) {}
        while (!(atomicMax(f, 0) & 4)) {}
        while (!(atomicAdd(f, zero) & 4)) {}
        while (!(atomicXor(f, zero) & 4)) {}
        o[T] = 1;""",
        lambda n, g: ([zeros(1), zeros(n), 0], {0: [4], 1: [1] * n}),
    ),
    "a barrier that changes its sense": Wait(
        "int *c, vint *sense, vint *o",
        """int my = 0;
        for (int r = 0; r < 3; r++) {
            o[r * N + T] = T + r; my = !my; __threadfence();
            if (atomicAdd(c, 1) == N - 1) { *(vint *)c = 0; __threadfence(); *sense = my; }
            else while (*sense != my) {}
            o[(3 + r) * N + T] = o[r * N + (T + 1) % N];
        }""",
        lambda n, g: (software_barrier(n, g)[0], software_barrier(n, g)[1] | {1: [1]}),
    ),
    "a barrier by dissemination": Wait(
        "vint *f, int *o",
        """for (int r = 1; r <= 2; r++) {
            int p = 0;
            for (int d = 1; d < N; d *= 2, p++) {
                f[p * N + (T + d) % N] += 1; __threadfence();
                while (f[p * N + T] < r) {}
            }
            o[T] += r;
        }""",
        lambda n, g: ([zeros(6 * n), zeros(n)],
                      {0: [2 * (1 << p < n) for p in range(6) for _ in range(n)], 1: [3] * n}),
    ),
    "a ring between the first and the last": Wait(
        "vint *ring, vint *head, vint *tail, int *o, int n",
        """if (T == N - 1) for (int i = 0; i < n; i++) {
            while (*head - *tail == 2) {}
            ring[*head & 1] = i * i + 1; __threadfence(); *head = *head + 1;
        } else if (T == 0) for (int i = 0; i < n; i++) {
            while (*tail == *head) {}
            o[i] = ring[*tail & 1]; __threadfence(); *tail = *tail + 1;
        }""",
        lambda n, g: ([zeros(2), zeros(1), zeros(1), zeros(11), 11],
                      {0: [101, 82], 1: [11], 2: [11], 3: [i * i + 1 for i in range(11)]}),
        (2, 4, 5, 32),
    ),
    "a pipeline of threads": Wait(
        "vint *full, vint *v, int *o",
        """for (int i = 0; i < 3; i++) {
            int x = i;
            if (T > 0) {
                while (!full[T - 1]) {}
                x = v[T - 1]; v[T - 1] = 0; __threadfence(); full[T - 1] = 0;
            }
            x = x * 2 + T;
            if (T == N - 1) o[i] = x;
            else { while (full[T]) {} v[T] = x; __threadfence(); full[T] = 1; }
        }""",
        pipeline,
        (2, 3, 4, 5, 8, 13),
    ),
    "sums that look back": Wait(
        "vint *state, int *o",
        """int t = N - 1 - T, sum = t + 1, j = t - 1;
        state[t] = (t ? 1 : 2) | sum << 2;
        while (j >= 0) {
            int s; do s = state[j]; while ((s & 3) == 0);
            sum += s >> 2;
            if ((s & 3) == 2) break;
            j--;
        }
        if (t) state[t] = 2 | sum << 2;
        o[t] = sum;""",
        lambda n, g: ([zeros(n), zeros(n)],
                      {0: [2 | (t + 1) * (t + 2) // 2 << 2 for t in range(n)],
                       1: [(t + 1) * (t + 2) // 2 for t in range(n)]}),
    ),
    "some spin while others wait at a barrier": Wait(
        "vint *f, int *o",
        """if (T == N - 1) { while (*f == 0) {} } else if (T == 0) *f = 1;
        __syncthreads(); o[T] = *f; __syncthreads();
        if (T == 0) { while (*f != 3) {} } else if (T == 1) *f = 3;
        __syncthreads(); o[T] += *f;""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [3], 1: [4] * n}),
        (2, 3, 4, 5, 8, 13, 32),
    ),
    "some are at a barrier while others are resumed many times": Wait(
        "vint *f, int *o",
        """if (T == 0) { for (int i = 0; i < 40; i++) while (*f < N - 2) {} o[0] = 7; }
        if (T == 1 && N > 2) { while (*f < N - 2) {} }
        else if (T > 1) atomicAdd((int *)f, 1);
        __syncthreads();
        if (T > 0) o[T] = ((vint *)o)[0] + 1;""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [max(n - 2, 0)], 1: [7] + [8] * (n - 1)}),
        (2, 3, 4, 5, 8, 13, 32),
    ),
    "a lock before a barrier": Wait(
        "int *l, vint *c, int *o",
        """__shared__ int s[32];
        LOCK(l) s[T] = *c; *c += 1; UNLOCK(l)
        __syncthreads();
        int sum = 0;
        for (int i = 0; i < N; i++) sum += s[i];
        o[T + blockIdx.x * N] = sum - N * N * (int)blockIdx.x;""",
        lambda n, g: ([zeros(1), zeros(1), zeros(n * g)],
                      {1: [n * g], 2: [n * (n - 1) // 2] * (n * g)}),
        grids=(1, 2),
    ),
    "CUDA blocks one after another": Wait(
        "vint *f, int *o",
        """int b = blockIdx.x;
        if (T == 0) while (*f < b) {}
        __syncthreads(); o[b * N + T] = *f; __syncthreads();
        if (T == N - 1) *f = b + 1;""",
        lambda n, g: ([zeros(1), zeros(n * g)],
                      {0: [g], 1: [b for b in range(g) for _ in range(n)]}),
        grids=(2, 3),
    ),
    "a shuffle behind a lock, several times": Wait(
        "int *l, vint *c, int *o",
        """int s = 0;
        for (int r = 0; r < 3; r++) {
            LOCK(l) *c += 1; UNLOCK(l)
            s = s * 10 + __shfl_sync(0xffffffff, T + r, T & 3 ^ 1, 4);
        }
        o[T] = s;""",
        lambda n, g: ([zeros(1), zeros(1), zeros(n)],
                      {1: [3 * n], 2: [(t ^ 1) * 111 + 12 for t in range(n)]}),
        WARPS,
    ),
    "masks of two halves that come a different number of times": Wait(
        "int *l, vint *c, int *o",
        """unsigned m = T & 2 ? 0xc : 0x3;
        int s = 0;
        for (int r = 0; r < 4; r++) if (T & 2 || r < 2) {
            LOCK(l) *c += 1; UNLOCK(l)
            s += __popc(__ballot_sync(m, r & 1)) + __shfl_xor_sync(m, T, 1) * 10;
        }
        o[T] = s;""",
        lambda n, g: ([zeros(1), zeros(1), zeros(n)], {1: [12], 2: [22, 2, 124, 84]}),
        (4,),
    ),
    "lanes in different rounds": Wait(
        "int *o",
        """int x = T * 3, b = blockIdx.x;
        for (int i = 0; i < 4; i++)
            if (i == (T + b & 3)) x += __shfl_sync(0xffffffff, x, T + 1 & 3, 4);
        o[b * N + T] = x;""",
        lambda n, g: ([zeros(n * g)],
                      {0: [t * 3 + (t // 4 * 4 + (t + 1) % 4) * 3 for _ in range(g)
                           for t in range(n)]}),
        WARPS,
        (1, 2),
    ),
    "equal keys, each with a lock": Wait(
        "int *l, int *keys, vint *c, int *o",
        """int key = keys[T];
        LOCK(l + key) c[key] += 1; UNLOCK(l + key)
        o[T] = __match_any_sync(0xffffffff, key);""",
        lambda n, g: ([zeros(3), [0, 1, 2, 0][:n], zeros(3), zeros(n)],
                      {2: [[0, 1, 2, 0][:n].count(k) for k in range(3)],
                       3: [sum(1 << j for j in range(n) if j % 3 == t % 3) for t in range(n)]}),
        (2, 3, 4),
    ),
    "one lane looks for the whole warp": Wait(
        "vint *f, int *o",
        """if (T >= 4) { __threadfence(); *f = 9; }
        else {
            int v;
            do { v = 0; if (T == 0) v = *f; v = __shfl_sync(0xf, v, 0, 4); } while (v == 0);
            o[T] = v;
        }""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [9], 1: [9] * 4 + [0] * (n - 4)}),
        (5, 8),
    ),
    "a warp goes round by several ways until another has set a flag": Wait(
        "vint *f, vint *o, vint *p",
        """if (T < 4) for (;;) {
            int v = *f, s = __shfl_sync(0xf, v, 3, 4);
            if (s == 0) { o[T] = s; if (T & 1) continue; p[T] = o[T ^ 1]; p[T] = o[T]; continue; }
            p[T] = 0; o[T] = s;
            if (s == 9) break;
        } else *f = 9;""",
        lambda n, g: ([zeros(1), zeros(4), zeros(4)], {0: [9], 1: [9] * 4}),
        (5, 8),
    ),
    "a vote of a warp on the flags of another": Wait(
        "vint *f, int *o",
        """if (T < 4) { while (!__all_sync(0xf, f[T] != 0)) {} } else f[T - 4] = 1;
        o[T] = 1;""",
        lambda n, g: ([zeros(4), zeros(n)], {0: [1] * 4, 1: [1] * n}),
        (8,),
    ),
    "a lock by adding, taken back": Wait(
        "int *l, vint *c",
        """while (atomicAdd(l, 1) != 0) atomicSub(l, 1);
        *c += 1; __threadfence(); atomicSub(l, 1);""",
        counted,
        (1, 2, 3, 4),
    ),
    "a semaphore of two places": Wait(
        "int *s, int *c",
        """for (;;) { if (atomicSub(s, 1) > 0) break; atomicAdd(s, 1); }
        atomicAdd(c, 1); atomicAdd(s, 1);""",
        lambda n, g: ([[2], zeros(1)], {0: [2], 1: [n]}),
        (1, 2, 3, 4, 5),
    ),
    "a lock that is one bit of a word": Wait(
        "int *w, vint *c",
        """int v;
        do { v = *(vint *)w & ~1; } while (atomicCAS(w, v, v | 1) != v);
        *c += 1; __threadfence(); atomicAnd(w, ~1);""",
        lambda n, g: ([[6], zeros(1)], {0: [6], 1: [n]}),
    ),
    "writers of a sequence lock": Wait(
        "unsigned *q, vint *c",
        """unsigned v;
        do { v = *(volatile unsigned *)q; } while ((v & 1) || atomicCAS(q, v, v + 1) != v);
        *c += T + 1; __threadfence(); atomicAdd(q, 1u);""",
        lambda n, g: ([zeros(1), zeros(1)], {0: [2 * n], 1: [n * (n + 1) // 2]}),
    ),
    "a flag seen several times, counted by shifts": Wait(
        "vint *f, int *o",
        """if (T == 0) { o[0] = 1; *f = 1; return; }
        unsigned seen = 0;
        while ((seen & 7) != 7) seen = seen << 1 | *f;
        o[T] = 1;""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [1], 1: [1] * n}),
    ),
    "flags looked for one after another, round and round": Wait(
        "vint *f, int *o",
        """if (T == N - 1) { f[N / 2] = 1; o[T] = N / 2; return; }
        int i = 0;
        while (!f[i]) i = (i + 1) % N;
        o[T] = i;""",
        lambda n, g: ([zeros(n), zeros(n)],
                      {0: [int(t == n // 2) for t in range(n)], 1: [n // 2] * n}),
    ),
    "plain accesses and fences": Wait(
        "int *f, int *o",
        """if (T == N - 1) { o[T] = 7; __threadfence(); f[0] = 1; __threadfence(); return; }
        for (;;) { int v = f[0]; __threadfence(); if (v) break; }
        o[T] = 7;""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [1], 1: [7] * n}),
    ),
    "a lock around a loop that waits": Wait(
        "int *l, vint *turn, vint *o",
        """bool done = false;
        while (!done) {
            LOCK(l)
            if (*turn == T) { o[T] = *turn + 1; *turn = T + 1; done = true; }
            UNLOCK(l)
        }""",
        lambda n, g: ([zeros(1), zeros(1), zeros(n)], {1: [n], 2: list(range(1, n + 1))}),
    ),
    "lanes that ended are not waited for": Wait(
        "int *o",
        """if (T == 2) return;
        for (int i = 0; i < 4; i++)
            if (i == (T & 3)) o[T] = __shfl_sync(0xf, T + 10, T & 1, 4) + __ballot_sync(0xf, 1);""",
        lambda n, g: ([zeros(n)],
                      {0: [0 if t == 2 else t // 4 * 4 + t % 2 + 10 + (
                          11 if t < 4 else (1 << min(4, n - t // 4 * 4)) - 1) for t in range(n)]}),
        (4, 5, 8, 13),
        (1, 3),
    ),
    "lanes of the same CUDA block meet": Wait(
        "int *o",
        """int b = blockIdx.x;
        for (int i = 0; i < 4; i++)
            if (i == ((T + b) & 3)) o[b * N + T] = __shfl_sync(0xf, T + b * 10, T ^ 1, 4);""",
        lambda n, g: ([zeros(n * g)], {0: [(t ^ 1) + b * 10 for b in range(g) for t in range(n)]}),
        WARPS[:2],
        (1, 2, 4),
    ),
    "lanes that ended in some CUDA blocks": Wait(
        "int *o",
        """int b = blockIdx.x;
        if ((T & 3) == b) return;
        for (int i = 0; i < 4; i++)
            if (i == (T & 3)) o[b * N + T] = __ballot_sync(0xf, 1) + b * 100;""",
        lambda n, g: ([zeros(n * g)],
                      {0: [0 if t % 4 == b else b * 100 + (15 & ~(1 << b) if b < 4 else 15)
                           for b in range(g) for t in range(n)]}),
        WARPS[:2],
        (1, 5),
    ),
    "a flag read past the cache": Wait(
        "int *f, int *o",
        """if (T == N - 1) { *f = 1; o[T] = 7; return; }
        while (!__ldcg(f)) {}
        while (!__ldcv(f)) {}
        o[T] = 7;""",
        lambda n, g: ([zeros(1), zeros(n)], {0: [1], 1: [7] * n}),
    ),
    "a vote behind a way out of the kernel, in rounds": Wait(
        "int *o, int q",
        """int r = -1;
        for (int i = 0; i < 4; i++)
            if (i == (T & 3)) { if (q == T) { o[T] = 9; return; } r = __ballot_sync(0xf, 1); }
        o[T] = r;""",
        lambda n, g: ([zeros(n), 1], {0: [
            9 if t == 1 else 13 if t < 4 else (1 << min(4, n - t // 4 * 4)) - 1 for t in range(n)
        ]}),
        (4, 5, 8),
    ),
    "a vote behind a way out of the loop, in rounds": Wait(
        "int *o, int q",
        """int r = -1;
        for (int i = 0; i < 4; i++)
            if (i == (T & 3)) { if (q == T) break; r = __ballot_sync(0xf, 1); }
        o[T] = r;""",
        lambda n, g: ([zeros(n), 77],
                      {0: [(1 << min(4, n - t // 4 * 4)) - 1 for t in range(n)]}),
        (4, 5, 8),
    ),
    "a vote before a break, in rounds": Wait(
        "int *o",
        """int r = 0;
        for (int i = 0; i < 4; i++)
            if ((T ^ i) & 1) { r = r * 16 + __ballot_sync(0xf, 1); if (T == 1) break; }
        o[T] = r;""",
        lambda n, g: ([zeros(4)], {0: [253, 15, 253, 253]}),
        (4,),
    ),
    "masks that are known as the kernel runs, in rounds": Wait(
        "int *o, unsigned *m",
        """int r = 0;
        for (int i = 0; i < 4; i++)
            if (i == (T & 3)) r = __ballot_sync(m[T], 1);
        o[T] = r;""",
        lambda n, g: ([zeros(n), [15] * n], {0: [15] * n}),
        WARPS[:2],
    ),
}  # fmt: skip


def differences(wait: Wait, n: int, g: int, opt: str) -> list[str]:
    case = wait.case(n, g)
    return case.differences(in_blocks(case, opt=opt)[0])


@pytest.mark.parametrize("name", WAITS)
def test_threads_that_wait_for_each_other(name: str) -> None:
    wait = WAITS[name]
    for n in wait.sizes:
        for g in wait.grids:
            for opt in LEVELS:
                assert not differences(wait, n, g, opt), (n, g, opt)


@pytest.mark.parametrize("name", WAITS)
def test_the_ptx_interpreter_agrees(name: str) -> None:
    wait = WAITS[name]
    case = wait.case(wait.sizes[-1] if wait.sizes is not SIZES else 5, wait.grids[-1])
    assert not case.differences(in_ptx(case))


# --- planted faults: that the kernels above tell -------------------------------------------------


def found(names: tuple[str, ...], n: int = 8) -> list[str]:
    """The kernels that go wrong at some level."""
    wrong = []
    for name in names:
        for opt in LEVELS:
            try:
                is_right = not differences(WAITS[name], n, 1, opt)
            except LaunchError:
                is_right = False
            if not is_right:
                wrong.append(name)
                break
    return wrong


def test_without_yields_they_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qgpu.ptx.lower, "mark_waits", lambda graph, n_threads, has_fence: None)
    monkeypatch.setattr("tests.levels.run_blocks", partial(run_blocks, max_tokens=20_000))
    names = ("a lock", "tickets", "flags of 16 bits, down", "a barrier that changes its sense",
             "sums that look back", "a ring between the first and the last")  # fmt: skip
    assert found(names) == list(names)


def test_lanes_that_are_not_told_to_have_ended_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qgpu.ptx.build_graph.note_ended", lambda s: None)
    names = ("lanes that ended are not waited for", "lanes that ended in some CUDA blocks")
    assert found(names) == list(names)


def test_a_yield_that_a_pass_drops_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def behind(edge: Edge, first: Edge) -> Edge:
        return Edge(edge.block, edge.barrier or first.barrier, edge.yields)

    monkeypatch.setattr(Edge, "behind", behind)
    monkeypatch.setattr("tests.levels.run_blocks", partial(run_blocks, max_tokens=20_000))
    assert found(("a warp goes round by several ways until another has set a flag",))


def test_a_resume_that_frees_a_barrier_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(machine: Machine, token: Barrier | Resume) -> None:
        for warp in machine.lanes:
            for lane in warp:
                lane.yielded = lane.waiting = False

    monkeypatch.setattr(Machine, "_release", release)
    assert found(("some are at a barrier while others are resumed many times",))
