// Greatest common divisor by Euclid's algorithm; every thread loops for as long as its pair needs.
//
// qgpu: kernel=gcd grid=1 block=4
// arg: [12,35,48,17]
// arg: [18,14,180,5]
// arg: zeros:4
// expect 2: [6,7,12,1]
__global__ void gcd(const unsigned *a, const unsigned *b, unsigned *out) {
    int t = threadIdx.x;
    unsigned x = a[t], y = b[t];
    while (y != 0) {
        unsigned rest = x % y;
        x = y;
        y = rest;
    }
    out[t] = x;
}
