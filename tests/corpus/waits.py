"""Threads that wait in loops for each other: locks, tickets, flags, queues, barriers by hand.

What a launch leaves does not depend on who comes first. A GPU gets each of them done since lanes
of a warp advance on their own (compute capability 7.0).
"""

from __future__ import annotations

from tests.cases import Case
from tests.corpus.build import S32, U32, U64, case, i32, u32, zeros

# How a lock is taken, around {0}; each leaves it free.
LOCKS = {
    "compare_and_swap": """
    while (atomicCAS(lock, 0, 1) != 0) ;
    __threadfence();
    {0}
    __threadfence();
    atomicExch(lock, 0);""",
    "exchange": """
    while (atomicExch(lock, 1)) ;
    __threadfence();
    {0}
    __threadfence();
    *(volatile int *)lock = 0;""",
    "done_flag": """
    bool done = false;
    while (!done) {{
        if (atomicCAS(lock, 0, 1) == 0) {{
            __threadfence();
            {0}
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }}
    }}""",
    "look_before": """
    for (;;) {{
        while (*(volatile int *)lock) ;
        if (atomicCAS(lock, 0, 1) == 0) break;
    }}
    __threadfence();
    {0}
    __threadfence();
    atomicExch(lock, 0);""",
    "many_tries": """
    int tries = 0;
    for (; tries < 100000; tries++)
        if (atomicCAS(lock, 0, 1) == 0) {{
            __threadfence();
            {0}
            __threadfence();
            atomicExch(lock, 0);
            break;
        }}
    if (tries == 100000) value[0] = -1;""",
    "growing_pause": """
    for (unsigned pause = 1; atomicCAS(lock, 0, 1); pause = pause * 2 & 15 | 1)
        for (unsigned n = 0; n < pause; n++) asm volatile("");
    __threadfence();
    {0}
    __threadfence();
    atomicExch(lock, 0);""",
}
CRITICAL = "volatile int *v = value; v[0] = v[0] + t; v[1] = v[1] * 2 + 1;"


def _lock(style: str, block: int, grid: int = 1) -> Case:
    body = LOCKS[style].format(CRITICAL)
    source = f"""
__global__ void k(int *lock, int *value) {{
    int t = threadIdx.x + 1;{body}
}}"""
    n = block * grid
    total = grid * block * (block + 1) // 2
    return case(f"waits_lock_{style}_{block}" + (f"_by_{grid}" if grid > 1 else ""), source,
                [zeros(1), zeros(2)], {1: [total, S32.wrap((1 << n) - 1)]}, block=block,
                grid=grid)  # fmt: skip


def _baton(upwards: bool, block: int) -> Case:
    """Each thread waits for its neighbour's word, in either direction of lanes and warps."""
    first, ahead = ("0", "t - 1") if upwards else (f"{block - 1}", "t + 1")
    source = f"""
__global__ void k(volatile int *word) {{
    int t = threadIdx.x;
    if (t != {first}) while (!word[{ahead}]) ;
    word[t] = t == {first} ? 5 : word[{ahead}] * 2 + t;
}}"""
    order = range(1, block) if upwards else range(block - 2, -1, -1)
    words = [5 if t == int(first) else 0 for t in range(block)]
    for t in order:
        words[t] = words[t - 1 if upwards else t + 1] * 2 + t
    name = f"waits_baton_{'up' if upwards else 'down'}_{block}"
    return case(name, source, [zeros(block)], {0: words}, block=block)


def _turns(block: int) -> Case:
    log = [t * 10 + i for i in range(3) for t in range(block)]
    return case(f"waits_turns_{block}", """
__global__ void k(volatile int *turn, int *log, int n) {
    int t = threadIdx.x;
    for (int i = 0; i < 3; i++) {
        while (*turn % n != t) ;
        log[*turn] = t * 10 + i;
        __threadfence();
        *turn = *turn + 1;
    }
}""", [zeros(1), zeros(3 * block), block], {0: [3 * block], 1: log}, block=block)  # fmt: skip


def _counted_barrier(block: int) -> Case:
    """Rounds with a barrier that the threads make themselves, its sense turning each time."""
    words = list(range(1, block + 1))
    for _ in range(3):
        words = [words[t] + words[(t + 1) % block] for t in range(block)]
    return case(f"waits_barrier_by_hand_{block}", """
__device__ int arrived = 0;
__device__ volatile int sense = 0;
__device__ void wait_for_all(int n, int *mine) {
    *mine = !*mine;
    __threadfence();
    if (atomicAdd(&arrived, 1) == n - 1) { arrived = 0; __threadfence(); sense = *mine; }
    else while (sense != *mine) ;
    __threadfence();
}
__global__ void k(volatile int *word, int n) {
    int t = threadIdx.x, mine = 0;
    for (int i = 0; i < 3; i++) {
        int sum = word[t] + word[(t + 1) % n];
        wait_for_all(n, &mine);
        word[t] = sum;
        wait_for_all(n, &mine);
    }
}""", [i32(*range(1, block + 1)), block], {0: words}, block=block)  # fmt: skip


OTHERS = [
    *(case(f"waits_ticket_{block}", """
__device__ int next = 0;
__device__ volatile int serving = 0;
__global__ void k(int *value, int *order) {
    int mine = atomicAdd(&next, 1);
    while (serving != mine) ;
    __threadfence();
    volatile int *v = value;
    *v = *v * 3 + 1;
    order[mine] = mine * mine;
    __threadfence();
    serving = mine + 1;
}""", [zeros(1), zeros(block)], {0: [(3**block - 1) // 2], 1: [m * m for m in range(block)]},
           block=block) for block in (3, 8)),
    case("waits_lock_per_bucket", """
__global__ void k(const int *in, int *locks, int *count, int *sum) {
    int v = in[threadIdx.x], b = v & 3;
    bool done = false;
    do {
        if (atomicCAS(&locks[b], 0, 1) == 0) {
            ((volatile int *)count)[b]++;
            ((volatile int *)sum)[b] += v;
            __threadfence();
            atomicExch(&locks[b], 0);
            done = true;
        }
    } while (!done);
}""", [i32(7, 4, 3, 9, 12, 1, 2, 11, 8, 5), zeros(4), zeros(4), zeros(4)],
         {2: [3, 3, 1, 3], 3: [24, 15, 2, 21]}, block=10),
    case("waits_two_locks_in_order", """
__global__ void k(const int *from, const int *to, int *locks, int *account) {
    int a = from[threadIdx.x], b = to[threadIdx.x], low = min(a, b), high = max(a, b);
    while (atomicCAS(&locks[low], 0, 1)) ;
    while (atomicCAS(&locks[high], 0, 1)) ;
    __threadfence();
    volatile int *v = account;
    v[a] -= 10; v[b] += 10;
    __threadfence();
    atomicExch(&locks[high], 0);
    atomicExch(&locks[low], 0);
}""", [i32(0, 1, 2, 0, 3, 1), i32(1, 2, 0, 3, 0, 3), zeros(4), i32(100, 100, 100, 100)],
         {3: [100, 90, 100, 110]}, block=6),
    case("waits_lock_in_shared_memory", """
__global__ void k(const int *in, int *out) {
    __shared__ int lock, best, where;
    int t = threadIdx.x;
    if (t == 0) { lock = 0; best = -1; where = -1; }
    __syncthreads();
    bool done = false;
    while (!done)
        if (atomicExch(&lock, 1) == 0) {
            volatile int *b = &best, *w = &where;
            if (in[t] > *b || (in[t] == *b && t < *w)) { *b = in[t]; *w = t; }
            __threadfence_block();
            atomicExch(&lock, 0);
            done = true;
        }
    __syncthreads();
    out[t] = t == where ? best : 0;
}""", [i32(3, 8, 1, 8, 5, 2), zeros(6)], {1: [0, 8, 0, 0, 0, 0]}, block=6),
    case("waits_lock_of_64_bits", """
__global__ void k(unsigned long long *lock, unsigned *value) {
    unsigned long long me = 0x100000000ull * (threadIdx.x + 1);
    while (atomicCAS(lock, 0ull, me) != 0ull) ;
    __threadfence();
    *(volatile unsigned *)value = *(volatile unsigned *)value * 5u + 2u;
    __threadfence();
    atomicExch(lock, 0ull);
}""", [zeros(1, U64), zeros(1, U32)], {1: [(5**5 - 1) // 2]}, block=5),
    case("waits_swap_until_it_holds", """
__global__ void k(unsigned *word, unsigned *seen) {
    unsigned old = *word, before;
    do { before = old; old = atomicCAS(word, before, before * 3 + 1); } while (old != before);
    atomicAdd(seen, old);
}""", [u32(1), u32(0)], {0: [9841], 1: [sum((3**n - 1) // 2 for n in range(1, 9))]}, block=8),
    case("waits_queue_of_two_places", """
__global__ void k(volatile int *place, volatile int *head, volatile int *tail, int *out, int n) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < n; i++) {
            while (*head - *tail == 2) ;
            place[*head & 1] = i * i + 1;
            __threadfence();
            *head = *head + 1;
        }
    } else {
        for (int i = 0; i < n; i++) {
            while (*head == *tail) ;
            __threadfence();
            out[i] = place[*tail & 1];
            __threadfence();
            *tail = *tail + 1;
        }
    }
}""", [zeros(2), zeros(1), zeros(1), zeros(6), 6],
         {0: [17, 26], 1: [6], 2: [6], 3: [1, 2, 5, 10, 17, 26]}, block=2),
    case("waits_pipeline_through_warps", """
__global__ void k(const int *in, volatile int *stage, int *out, int n) {
    int t = threadIdx.x;
    for (int i = 0; i < 3; i++) {
        int v = in[i];
        if (t) {
            while (!stage[(t - 1) * 3 + i]) ;
            v = stage[(t - 1) * 3 + i];
        }
        v = v * 2 + t;
        if (t == n - 1) out[i] = v; else stage[t * 3 + i] = v;
    }
}""", [i32(1, 5, 9), zeros(15), zeros(3), 6],
         {1: [(v << t + 1) + (2 << t) - t - 2 for t in range(5) for v in (1, 5, 9)],
          2: [(v << 6) + (2 << 5) - 5 - 2 for v in (1, 5, 9)]}, block=6),
    case("waits_beside_a_barrier", """
__global__ void k(volatile int *flag, int *out) {
    __shared__ int s[8];
    int t = threadIdx.x;
    if (t == 6) { s[0] = 41; __threadfence(); *flag = 1; }
    else if (t < 3) { while (*flag == 0) ; }
    __syncthreads();
    out[t] = s[0] + t;
}""", [zeros(1), zeros(8)], {0: [1], 1: [41 + t for t in range(8)]}, block=8),
    case("waits_two_of_peterson", """
__global__ void k(volatile int *want, volatile int *turn, volatile int *value) {
    int me = threadIdx.x, other = 1 - me;
    for (int i = 0; i < 3; i++) {
        want[me] = 1;
        __threadfence();
        *turn = other;
        __threadfence();
        while (want[other] && *turn == other) ;
        __threadfence();
        *value = *value + me + 1;
        __threadfence();
        want[me] = 0;
    }
    if (atomicAdd((int *)want + 2, 1) == 1) *turn = 0;
}""", [zeros(3), i32(0), zeros(1)], {0: [0, 0, 2], 2: [9]}, block=2),
    case("waits_acquire_and_release", """
__global__ void k(int *flag, int *data, int *out) {
    int t = threadIdx.x;
    if (t == 5) {
        data[0] = 77;
        asm volatile("st.release.gpu.u32 [%0], 1;" :: "l"(flag) : "memory");
    } else {
        int seen;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (!seen);
        out[t] = data[0] + t;
    }
}""", [zeros(1), zeros(1), zeros(6)], {0: [1], 1: [77], 2: [77, 78, 79, 80, 81, 0]}, block=6),
    case("waits_reads_by_atomics", """
__global__ void k(int *count, int *out, int n) {
    int t = threadIdx.x;
    out[t] = t * t;
    __threadfence();
    atomicAdd(count, 1);
    while (atomicAdd(count, 0) < n) ;
    __threadfence();
    out[n + t] = ((volatile int *)out)[(t + 1) % n];
}""", [zeros(1), zeros(12), 6], {0: [6], 1: [0, 1, 4, 9, 16, 25, 1, 4, 9, 16, 25, 0]}, block=6),
    case("waits_earlier_cuda_blocks", """
__global__ void k(volatile int *done, volatile int *sum) {
    if (threadIdx.x == 0) { while (*done != (int)blockIdx.x) ; }
    __syncthreads();
    atomicAdd((int *)sum, (int)blockIdx.x * 2 + 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *done = *done + 1;
}""", [zeros(1), zeros(1)], {0: [3], 1: [4 * 9]}, block=4, grid=3),
]  # fmt: skip


def _lanes(name: str, body: str, results: list[int], left: int = 0) -> Case:
    """Warp-synchronous instructions whose lanes come at different times."""
    source = f"""
__global__ void k(const int *in, int *out, int *lock) {{
    int t = threadIdx.x, lane = t & 3, v = in[t], r = 0;
    {body}
    out[t] = r;
}}"""
    return case(f"waits_{name}", source, [i32(*LANES), zeros(4), zeros(1)],
                {1: results, 2: [left]}, block=4, warp_sensitive=True)  # fmt: skip


LANES = [3, 5, 7, 11]
LOCKED = """bool done = false;
    while (!done)
        if (atomicExch(lock, 1) == 0) {
            r = v * 2;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }"""
TOGETHER = [
    _lanes("shuffle_in_a_round_of_its_own", """
    for (int i = 0; i < 4; i++)
        if (i == lane) r = __shfl_sync(0xf, v, (lane + 1) & 3, 4);""", [5, 7, 11, 3]),
    _lanes("ballot_in_a_round_of_its_own", """
    for (int i = 3; i >= 0; i--) {
        if (i != lane) continue;
        r = __ballot_sync(0xf, v > 4);
    }""", [14] * 4),
    _lanes("pairs_in_rounds_of_their_own", """
    for (int i = 0; i < 4; i++)
        if (i == lane) r = __shfl_xor_sync(lane < 2 ? 0x3 : 0xc, v, 1, 4) + i;""", [5, 4, 13, 10]),
    _lanes("shuffle_behind_a_lock", f"""
    {LOCKED}
    r += __shfl_sync(0xf, v, lane ^ 2, 4);""", [6 + 7, 10 + 11, 14 + 3, 22 + 5]),
    _lanes("syncwarp_behind_a_lock", f"""
    {LOCKED}
    __shared__ int s[4];
    s[lane] = r;
    __syncwarp(0xf);
    r = s[3 - lane];""", [22, 14, 10, 6]),
    _lanes("vote_behind_flags", """
    volatile int *flag = lock;
    while (*flag != lane) ;
    __threadfence();
    *flag = lane + 1;
    r = __all_sync(0xf, *flag > 0) * 8 + __popc(__ballot_sync(0xf, v & 2));""", [11] * 4, left=4),
]

CASES: tuple[Case, ...] = (
    *(_lock(style, block) for style in LOCKS for block in (4, 9)),
    _lock("compare_and_swap", 32),
    _lock("done_flag", 6, grid=3),
    *(_baton(upwards, block) for upwards in (False, True) for block in (4, 10)),
    *(_turns(block) for block in (2, 5)),
    *(_counted_barrier(block) for block in (2, 7)),
    *OTHERS,
    *TOGETHER,
)
