// Many numbers to one. What a launch leaves behind the next launch goes on from, so that vectors
// longer than the memory go in pieces.
//
// A running total is three words: total[0] is the 32-bit sum, total[1] how often it left 32 bits
// upwards (the high word, so to say), total[2] is set if that count itself left 32 bits.

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

static __device__ int wrapping_add(int a, int b) { return (int)((unsigned)a + (unsigned)b); }

static __device__ void carry(int *total, int x) {
    int old = atomicAdd(total + 1, x);
    int now = wrapping_add(old, x);
    if (((old ^ now) & (x ^ now)) < 0) total[2] = 1;
}

static __device__ void accumulate(int *total, int x) {
    int old = atomicAdd(total, x);
    int now = wrapping_add(old, x);
    if (((old ^ now) & (x ^ now)) < 0) carry(total, x < 0 ? -1 : 1);
}

// Where the numbers are so small that no sum can leave 32 bits.
extern "C" __global__ void sum(const int *v, int *total, int n) {
    int i = INDEX;
    if (i < n) atomicAdd(total, v[i]);
}

extern "C" __global__ void dot(const int *a, const int *b, int *total, int n) {
    int i = INDEX;
    if (i < n) atomicAdd(total, a[i] * b[i]);
}

extern "C" __global__ void sum_wide(const int *v, int *total, int n) {
    int i = INDEX;
    if (i < n) accumulate(total, v[i]);
}

extern "C" __global__ void dot_wide(const int *a, const int *b, int *total, int n) {
    int i = INDEX;
    if (i >= n) return;
    int x = a[i], y = b[i];
    int low = (int)((unsigned)x * (unsigned)y);
    int high = __mulhi(x, y) - (low >> 31);
    accumulate(total, low);
    if (high) carry(total, high);
}

extern "C" __global__ void minimum(const int *v, int *best, int n) {
    int i = INDEX;
    if (i < n) atomicMin(best, v[i]);
}

extern "C" __global__ void maximum(const int *v, int *best, int n) {
    int i = INDEX;
    if (i < n) atomicMax(best, v[i]);
}

extern "C" __global__ void count_equal(const int *v, int *total, int n, int x) {
    int i = INDEX;
    if (i < n && v[i] == x) atomicAdd(total, 1);
}

extern "C" __global__ void count_nonzero(const int *v, int *total, int n) {
    int i = INDEX;
    if (i < n && v[i]) atomicAdd(total, 1);
}

// counts[bins] holds how many values lie outside 0 .. bins - 1.
extern "C" __global__ void histogram(const int *v, int *counts, int n, int bins) {
    int i = INDEX;
    if (i >= n) return;
    unsigned bin = (unsigned)v[i];
    atomicAdd(&counts[bin < (unsigned)bins ? bin : (unsigned)bins], 1);
}

// state: the product, its magnitude, whether it is negative, whether the magnitude left 32 bits,
// and whether the product does not fit. A zero ends it: the product of all is then exactly zero.
extern "C" __global__ void prod(const int *v, int *state, int n) {
    unsigned m = (unsigned)state[1], negative = (unsigned)state[2], lost = (unsigned)state[3];
    for (int i = 0; i < n; i++) {
        int x = v[i];
        unsigned y = x < 0 ? 0u - (unsigned)x : (unsigned)x;
        negative ^= x < 0;
        lost |= __umulhi(m, y);
        m *= y;
        if (x == 0) lost = 0;
        if (x == 0) negative = 0;
    }
    state[0] = (int)(negative ? 0u - m : m);
    state[1] = (int)m;
    state[2] = (int)negative;
    state[3] = lost != 0;
    state[4] = lost || m > 0x7fffffffu + negative;
}

// state: the best value and its index; the first of equals wins. first is the index of v[0].
extern "C" __global__ void argmin(const int *v, int *state, int n, int first) {
    int best = state[0], at = state[1];
    for (int i = 0; i < n; i++) {
        int x = v[i];
        if (x < best) {
            best = x;
            at = first + i;
        }
    }
    state[0] = best;
    state[1] = at;
}

extern "C" __global__ void argmax(const int *v, int *state, int n, int first) {
    int best = state[0], at = state[1];
    for (int i = 0; i < n; i++) {
        int x = v[i];
        if (x > best) {
            best = x;
            at = first + i;
        }
    }
    state[0] = best;
    state[1] = at;
}

// total as above; total[2] is set where a running sum does not fit.
extern "C" __global__ void cumsum(const int *v, int *out, int *total, int n) {
    int running = total[0], high = total[1];
    for (int i = 0; i < n; i++) {
        int x = v[i];
        int now = wrapping_add(running, x);
        if (((running ^ now) & (x ^ now)) < 0) high += x < 0 ? -1 : 1;
        running = now;
        out[i] = now;
        if (high) total[2] = 1;
    }
    total[0] = running;
    total[1] = high;
}

// out: the mean rounded down and the remainder, of a total of n numbers that fits in 32 bits.
extern "C" __global__ void mean(const int *total, int *out, int n) {
    int x = total[0];
    unsigned m = x < 0 ? 0u - (unsigned)x : (unsigned)x;
    unsigned q = m / (unsigned)n;
    unsigned rest = m - q * (unsigned)n;
    if (x < 0) {
        q = 0u - q;
        if (rest) {
            q -= 1;
            rest = (unsigned)n - rest;
        }
    }
    out[0] = (int)q;
    out[1] = (int)rest;
}

// The same for a total of any size, by long division of its 64 bits.
extern "C" __global__ void mean_wide(const int *total, int *out, int n) {
    unsigned low = (unsigned)total[0], high = (unsigned)(total[1] + (total[0] >> 31));
    unsigned negative = high >> 31;
    if (negative) {
        low = 0u - low;
        high = ~high + (low == 0);
    }
    unsigned q = 0, rest = 0;
    for (int bit = 0; bit < 64; bit++) {
        rest = rest << 1 | high >> 31;
        high = high << 1 | low >> 31;
        low <<= 1;
        q <<= 1;
        if (rest >= (unsigned)n) {
            rest -= (unsigned)n;
            q |= 1;
        }
    }
    if (negative) {
        q = 0u - q;
        if (rest) {
            q -= 1;
            rest = (unsigned)n - rest;
        }
    }
    out[0] = (int)q;
    out[1] = (int)rest;
}
