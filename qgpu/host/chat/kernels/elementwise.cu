// One thread an element. A scalar operand has step 0, an array step 1. Where a result does not fit
// in 32 bits the kernel keeps the low word and sets wrapped[0].

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

#define BINARY(NAME, ...)                                                                      \
    extern "C" __global__ void NAME(const int *a, const int *b, int *out, int *wrapped, int n, \
                                    int step_a, int step_b) {                                  \
        int i = INDEX;                                                                         \
        if (i >= n) return;                                                                    \
        int x = a[i * step_a], y = b[i * step_b];                                              \
        __VA_ARGS__                                                                            \
    }

#define SIMPLE(NAME, VALUE)                                                                    \
    extern "C" __global__ void NAME(const int *a, const int *b, int *out, int n, int step_a,   \
                                    int step_b) {                                              \
        int i = INDEX;                                                                         \
        if (i >= n) return;                                                                    \
        int x = a[i * step_a], y = b[i * step_b];                                              \
        out[i] = VALUE;                                                                        \
    }

#define UNARY(NAME, ...)                                                                       \
    extern "C" __global__ void NAME(const int *a, int *out, int *wrapped, int n) {             \
        int i = INDEX;                                                                         \
        if (i >= n) return;                                                                    \
        int x = a[i];                                                                          \
        __VA_ARGS__                                                                            \
    }

static __device__ unsigned magnitude(int x) { return x < 0 ? 0u - (unsigned)x : (unsigned)x; }

// Where the operands are so small that no result can leave 32 bits.
SIMPLE(add, x + y)
SIMPLE(subtract, x - y)
SIMPLE(multiply, x * y)

BINARY(add_wide, {
    int r = (int)((unsigned)x + (unsigned)y);
    out[i] = r;
    if (((x ^ r) & (y ^ r)) < 0) wrapped[0] = 1;
})

BINARY(subtract_wide, {
    int r = (int)((unsigned)x - (unsigned)y);
    out[i] = r;
    if (((x ^ y) & (x ^ r)) < 0) wrapped[0] = 1;
})

BINARY(multiply_wide, {
    int r = (int)((unsigned)x * (unsigned)y);
    out[i] = r;
    if (__mulhi(x, y) != r >> 31) wrapped[0] = 1;
})

// The quotient rounded down, as in Python; the host has refused a zero divisor.
BINARY(floor_divide, {
    unsigned m = magnitude(y);
    unsigned q = magnitude(x) / m;
    unsigned rest = magnitude(x) - q * m;
    if ((x ^ y) < 0) {
        q = 0u - q;
        if (rest) q -= 1;
    } else if ((int)q < 0) {
        wrapped[0] = 1;
    }
    out[i] = (int)q;
})

// The remainder with the sign of the divisor, as in Python.
SIMPLE(modulo, ({
    unsigned m = magnitude(y);
    unsigned rest = magnitude(x) % m;
    if (rest && (x ^ y) < 0) rest = m - rest;
    (int)(y < 0 ? 0u - rest : rest);
}))

// Square and multiply over magnitudes; the host has refused a negative exponent.
BINARY(power, {
    unsigned base = magnitude(x), result = 1, base_lost = 0, lost = 0, left = (unsigned)y;
    while (left) {
        if (left & 1) {
            lost |= __umulhi(result, base) | (base_lost && result);
            result *= base;
        }
        left >>= 1;
        base_lost |= __umulhi(base, base);
        base *= base;
    }
    unsigned negative = x < 0 && (y & 1);
    if (lost || result > 0x7fffffffu + negative) wrapped[0] = 1;
    out[i] = (int)(negative ? 0u - result : result);
})

SIMPLE(equal, x == y)
SIMPLE(not_equal, x != y)
SIMPLE(less, x < y)
SIMPLE(less_equal, x <= y)
SIMPLE(greater, x > y)
SIMPLE(greater_equal, x >= y)
SIMPLE(bit_and, x & y)
SIMPLE(bit_or, x | y)
SIMPLE(bit_xor, x ^ y)

// Shift amounts are not negative: the host refuses those.
SIMPLE(shift_right, x >> (y > 31 ? 31 : y))

BINARY(shift_left, {
    int r = y > 31 ? 0 : (int)((unsigned)x << y);
    out[i] = r;
    if (r >> (y > 31 ? 31 : y) != x) wrapped[0] = 1;
})

UNARY(absolute, {
    int r = (int)magnitude(x);
    out[i] = r;
    if (r < 0) wrapped[0] = 1;
})

extern "C" __global__ void popcount(const int *a, int *out, int n) {
    int i = INDEX;
    if (i < n) out[i] = __popc(a[i]);
}

extern "C" __global__ void range(int *out, int n, int start, int step) {
    int i = INDEX;
    if (i < n) out[i] = start + i * step;
}
