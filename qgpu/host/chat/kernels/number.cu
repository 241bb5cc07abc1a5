// Number theory, one thread an element. Where a result does not fit in 32 bits the kernel keeps
// the low word and sets wrapped[0].

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

static __device__ unsigned magnitude(int x) { return x < 0 ? 0u - (unsigned)x : (unsigned)x; }

static __device__ unsigned common_divisor(unsigned x, unsigned y) {
    while (y) {
        unsigned rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

extern "C" __global__ void gcd(const int *a, const int *b, int *out, int *wrapped, int n,
                               int step_a, int step_b) {
    int i = INDEX;
    if (i >= n) return;
    unsigned r = common_divisor(magnitude(a[i * step_a]), magnitude(b[i * step_b]));
    out[i] = (int)r;
    if ((int)r < 0) wrapped[0] = 1;
}

extern "C" __global__ void lcm(const int *a, const int *b, int *out, int *wrapped, int n,
                               int step_a, int step_b) {
    int i = INDEX;
    if (i >= n) return;
    unsigned x = magnitude(a[i * step_a]), y = magnitude(b[i * step_b]);
    if (x == 0 || y == 0) {
        out[i] = 0;
        return;
    }
    unsigned reduced = x / common_divisor(x, y);
    unsigned r = reduced * y;
    out[i] = (int)r;
    if (__umulhi(reduced, y) || (int)r < 0) wrapped[0] = 1;
}

// By trial division; for numbers below 2^16 or so, above it is_prime_large is shorter.
extern "C" __global__ void is_prime(const int *a, int *out, int n) {
    int i = INDEX;
    if (i >= n) return;
    int x = a[i];
    int prime = x == 2 || (x > 2 && (x & 1));
    for (unsigned d = 3; prime && d * d <= (unsigned)x; d += 2)
        prime = (unsigned)x % d != 0;
    out[i] = prime;
}

// a * b / 2^32 modulo m (Montgomery), for odd m < 2^31, a and b below m.
static __device__ unsigned reduce_product(unsigned a, unsigned b, unsigned m, unsigned inverse) {
    unsigned low = a * b;
    unsigned high = __umulhi(a, b), pull = __umulhi(low * inverse, m);
    return high < pull ? high - pull + m : high - pull;
}

static __device__ unsigned add_modulo(unsigned a, unsigned b, unsigned m) {
    unsigned s = a + b;
    return s >= m ? s - m : s;
}

// Miller and Rabin's test with the bases 2, 7 and 61, which is exact below 4,759,123,141.
extern "C" __global__ void is_prime_large(const int *a, int *out, int n) {
    int i = INDEX;
    if (i >= n) return;
    int x = a[i];
    out[i] = x == 2;
    if (x < 3 || !(x & 1)) return;
    unsigned m = (unsigned)x, inverse = m;
    for (int round = 0; round < 4; round++) inverse *= 2 - m * inverse;
    unsigned one = 1;
    for (int bit = 0; bit < 32; bit++) one = add_modulo(one, one, m);
    unsigned minus_one = m - one;
    int twos = __ffs(x - 1) - 1;
    unsigned odd = (m - 1) >> twos;
    int prime = 1;
    for (int witness = 0; prime && witness < 3; witness++) {
        unsigned base = witness == 0 ? 2u : witness == 1 ? 7u : 61u;
        unsigned root = 0;
        for (; base; base--) root = add_modulo(root, one, m);
        unsigned y = one;
        for (int bit = 31 - __clz(odd); bit >= 0; bit--) {
            y = reduce_product(y, y, m, inverse);
            if (odd >> bit & 1) y = reduce_product(y, root, m, inverse);
        }
        prime = y == one || y == minus_one || root == 0;
        for (int step = 1; !prime && step < twos; step++) {
            y = reduce_product(y, y, m, inverse);
            prime = y == minus_one;
        }
    }
    out[i] = prime;
}

// From 34 on every factorial is a multiple of 2^32, so the low word stays zero.
extern "C" __global__ void factorial(const int *a, int *out, int *wrapped, int n) {
    int i = INDEX;
    if (i >= n) return;
    unsigned x = (unsigned)a[i], r = 1;
    unsigned last = x > 34 ? 34 : x;
    for (unsigned k = 2; k <= last; k++) r *= k;
    out[i] = (int)r;
    if (x > 12) wrapped[0] = 1;
}

extern "C" __global__ void fibonacci(const int *a, int *out, int *wrapped, int n) {
    int i = INDEX;
    if (i >= n) return;
    int x = a[i];
    unsigned now = 0, next = 1;
    for (int k = 0; k < x; k++) {
        unsigned sum = now + next;
        now = next;
        next = sum;
    }
    out[i] = (int)now;
    if (x > 46) wrapped[0] = 1;
}
