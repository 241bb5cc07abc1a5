"""The PTX interpreter is fair: a thread that waits in a loop for another one gets what it needs."""

from __future__ import annotations

import pytest

from qgpu.errors import LaunchError
from tests.interp.ptx_run import asm, cuda_module, words

LEVELS = ("-O0", "-O1", "-O3")

SPIN_LOCK = """
__device__ int lock;
__global__ void k(int *a) {
    while (atomicCAS(&lock, 0, 1)) ;
    __threadfence();
    volatile int *v = a;
    v[0] = v[0] * 3 + 1 - v[0] * 2;
    v[1] = v[1] + 2;
    __threadfence();
    atomicExch(&lock, 0);
}"""
TICKET_LOCK = """
__device__ unsigned next, now;
__global__ void k(int *a) {
    unsigned mine = atomicAdd(&next, 1);
    while (*(volatile unsigned *)&now != mine) ;
    __threadfence();
    volatile int *v = a;
    v[0] = v[0] + 1;
    v[1] = v[1] + 2;
    __threadfence();
    atomicAdd(&now, 1);
}"""
TRY_LOCK_WITH_BACKOFF = """
__device__ int lock;
__global__ void k(int *a) {
    bool done = false;
    for (int wait = 1; !done; wait = wait * 2 & 63 | 1) {
        if (atomicExch(&lock, 1) == 0) {
            __threadfence();
            volatile int *v = a;
            v[0] = v[0] + 1;
            v[1] = v[1] + 2;
            __threadfence();
            atomicExch(&lock, 0);
            done = true;
        } else for (volatile int n = 0; n < wait; n = n + 1) ;
    }
}"""


@pytest.mark.parametrize("opt", LEVELS)
@pytest.mark.parametrize("block", [2, 4, 13, 32])
@pytest.mark.parametrize("source", [SPIN_LOCK, TICKET_LOCK, TRY_LOCK_WITH_BACKOFF])
def test_locks(source: str, block: int, opt: str) -> None:
    assert words(cuda_module(source, opt), [0, 0], block=block, limit=2_000_000) == [
        block, 2 * block
    ]  # fmt: skip


@pytest.mark.parametrize("opt", LEVELS)
@pytest.mark.parametrize("block", [2, 4, 9])
@pytest.mark.parametrize("upwards", [False, True])
def test_a_baton_goes_through_all_threads(upwards: bool, block: int, opt: str) -> None:
    """Each waits for its neighbour's flag, in either direction of the lanes and warps."""
    first, ahead = (0, "t - 1") if upwards else (block - 1, "t + 1")
    source = f"""__global__ void k(volatile int *a) {{
        int t = threadIdx.x;
        if (t != {first}) while (!a[{ahead}]) ;
        a[t] = t == {first} ? 5 : a[{ahead}] * 2 + 1;
    }}"""
    right = [5]
    while len(right) < block:
        right.append(right[-1] * 2 + 1)
    assert words(cuda_module(source, opt), [0] * block, block=block) == (
        right if upwards else right[::-1]
    )


@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 0), (1, 6), (7, 2)])
def test_ping_pong(one: int, other: int) -> None:
    source = f"""__global__ void k(volatile int *a) {{
        int t = threadIdx.x;
        if (t != {one} && t != {other}) return;
        for (int n = t == {other}; n < 20; n += 2) {{
            while (a[0] != n) ;
            a[1] = a[1] * 3 + t;
            a[0] = n + 1;
        }}
    }}"""
    value = 0
    for n in range(20):
        value = (value * 3 + (other if n % 2 else one)) % 2**32
    assert words(cuda_module(source), [0, 0], block=8, form="I") == [20, value]


def test_a_consumer_and_a_producer_through_a_ring() -> None:
    source = """__global__ void k(volatile int *a) {
        __shared__ volatile int ring[3], head, tail;
        if (threadIdx.x == 0) { head = 0; tail = 0; }
        __syncthreads();
        if (threadIdx.x == 5)
            for (int n = 0; n < 15; ++n) {
                while (head - tail == 3) ;
                ring[head % 3] = n * n;
                __threadfence_block();
                head = head + 1;
            }
        if (threadIdx.x == 1)
            for (int n = 0; n < 15; ++n) {
                while (head == tail) ;
                a[n] = ring[tail % 3];
                __threadfence_block();
                tail = tail + 1;
            }
    }"""
    assert words(cuda_module(source), [0] * 15, block=6) == [n * n for n in range(15)]


def test_philosophers_who_put_their_fork_back() -> None:
    source = """__device__ int fork[5];
    __global__ void k(int *a) {
        int t = threadIdx.x, meals = 0;
        while (meals < 3) {
            if (atomicCAS(&fork[t], 0, 1)) continue;
            if (atomicCAS(&fork[(t + 1) % 5], 0, 1) == 0) {
                ++meals;
                atomicExch(&fork[(t + 1) % 5], 0);
            }
            atomicExch(&fork[t], 0);
        }
        a[t] = meals;
    }"""
    assert words(cuda_module(source), [0] * 5, block=5, limit=2_000_000) == [3] * 5


def test_a_waiting_loop_that_counts_in_memory() -> None:
    """No two of its rounds are equal: only the length of its turn ends it."""
    source = """__global__ void k(volatile int *a) {
        if (threadIdx.x < 3) while (!a[0]) a[1] = a[1] + 1;
        else a[0] = 7;
    }"""
    flag, rounds = words(cuda_module(source), [0, 0], block=4)
    assert flag == 7
    assert rounds > 0


def test_a_greedy_owner_of_a_lock_lets_others_in() -> None:
    source = """__device__ int lock;
    __global__ void k(volatile int *a) {
        int t = threadIdx.x;
        if (t != 0 && t != 6) return;
        for (bool done = false; !done;) {
            while (atomicCAS(&lock, 0, 1)) ;
            if (t == 0) { a[1] = a[1] + 1; done = a[0] == 1; }
            else { a[0] = 1; done = true; }
            atomicExch(&lock, 0);
        }
    }"""
    flag, rounds = words(cuda_module(source), [0, 0], block=7, limit=2_000_000)
    assert flag == 1
    assert rounds > 0


def test_arrivals_at_a_barrier_of_flags_over_two_warps() -> None:
    """A grid-style barrier by a counter that all threads watch, twice."""
    source = """__device__ int count;
    __device__ void meet(int n) {
        __threadfence();
        atomicAdd(&count, 1);
        while (*(volatile int *)&count < n) ;
        __threadfence();
    }
    __global__ void k(int *a) {
        volatile int *v = a;
        int t = threadIdx.x;
        v[t] = t + 1;
        meet(8);
        int sum = v[t] + v[7 - t];
        meet(16);
        v[t] = sum * 10 + t;
    }"""
    assert words(cuda_module(source), [0] * 8, block=8) == [90 + t for t in range(8)]


def test_lanes_that_wait_at_a_warp_barrier_for_one_that_spins() -> None:
    source = """__global__ void k(volatile int *a) {
        int t = threadIdx.x;
        if (t == 2) while (!a[0]) ;
        if (t == 5) a[0] = 1;
        __syncwarp();
        a[t + 1] = __shfl_sync(0xf, t * 10, 2);
    }"""
    assert words(cuda_module(source), [0] * 9, block=8) == [1] + [20] * 4 + [60] * 4


def test_a_wait_that_nobody_ends_stops_at_the_limit() -> None:
    body = "$L: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra $L;"
    with pytest.raises(LaunchError, match="more than 5000 instructions were executed"):
        asm(body, [0] * 4, block=4, limit=5000)


def test_programs_without_waits_keep_their_order() -> None:
    """The long loop at lower addresses runs to its end first, although it is long."""
    source = """__global__ void k(int *a) {
        int t = threadIdx.x;
        if (t & 1) for (int n = 0; n < 300; ++n) atomicXor(&a[t], n);
        a[t] = a[t] * 100 + atomicAdd(&a[8], 1);
    }"""
    out = words(cuda_module(source), [0] * 9, block=8)
    odd = 0
    for n in range(300):
        odd ^= n
    assert out == [0, odd * 100 + 1, 2, odd * 100 + 3, 4, odd * 100 + 5, 6, odd * 100 + 7, 8]
