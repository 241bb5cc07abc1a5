// Matrix products, one thread a result; long rows go in pieces.

// Where the numbers are so small that no sum can leave 32 bits.
extern "C" __global__ void matmul(const int *a, const int *b, int *out, int rows, int inner,
                                  int columns) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= columns) return;
    int at = row * columns + column;
    int sum = out[at];
    for (int k = 0; k < inner; k++) sum += a[row * inner + k] * b[k * columns + column];
    out[at] = sum;
}

// out[] and high[] together hold the exact sums so far, in the form of reduce.cu's totals;
// lost[0] is set beyond 64 bits.
extern "C" __global__ void matmul_wide(const int *a, const int *b, int *out, int *high,
                                       int *lost, int rows, int inner, int columns) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= rows || column >= columns) return;
    int at = row * columns + column;
    int sum = out[at], carry = high[at];
    for (int k = 0; k < inner; k++) {
        int x = a[row * inner + k], y = b[k * columns + column];
        int low = (int)((unsigned)x * (unsigned)y);
        int now = (int)((unsigned)sum + (unsigned)low);
        int up = __mulhi(x, y) - (low >> 31);
        if (((sum ^ now) & (low ^ now)) < 0) up += low < 0 ? -1 : 1;
        sum = now;
        int next = (int)((unsigned)carry + (unsigned)up);
        if (((carry ^ next) & (up ^ next)) < 0) lost[0] = 1;
        carry = next;
    }
    out[at] = sum;
    if (carry) high[at] = carry;
}
