// Order and place. Sorting is by rank: each thread counts the values that come before its own
// (equal values keep their order) and writes to that place.

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void sort(const int *v, int *out, int n) {
    int i = INDEX;
    if (i >= n) return;
    int x = v[i], rank = 0;
    for (int j = 0; j < n; j++) {
        int y = v[j];
        if (y < x || (y == x && j < i)) rank++;
    }
    out[rank] = x;
}

// For long vectors: adds to rank[] how many of other[] come before each of v[]. first and
// first_other are the indices of v[0] and other[0] in the whole vector.
extern "C" __global__ void rank(const int *v, const int *other, int *rank, int n, int n_other,
                                int first, int first_other) {
    int i = INDEX;
    if (i >= n) return;
    int x = v[i], before = rank[i];
    for (int j = 0; j < n_other; j++) {
        int y = other[j];
        if (y < x || (y == x && first_other + j < first + i)) before++;
    }
    rank[i] = before;
}

// Writes v[] to its ranks, as far as they lie in the window out[0 .. n_out) that begins at start.
extern "C" __global__ void place(const int *v, const int *rank, int *out, int n, int start,
                                 int n_out) {
    int i = INDEX;
    if (i >= n) return;
    unsigned at = (unsigned)(rank[i] - start);
    if (at < (unsigned)n_out) out[at] = v[i];
}

extern "C" __global__ void reverse(const int *v, int *out, int n) {
    int i = INDEX;
    if (i < n) out[n - 1 - i] = v[i];
}
