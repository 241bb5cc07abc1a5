/* The kernels of the producer test files; clang and nvcc and NVRTC compile this very file. */

__constant__ int weights[4] = {3, -1, 4, -5};
__device__ unsigned char steps[6] = {1, 2, 4, 8, 16, 32};
__device__ int (*unused)(int) = 0;

struct Pair {
  short first;
  int second;
};

__device__ __noinline__ Pair divide(int a, int b) {
  Pair p;
  p.first = (short)(a / b);
  p.second = a % b;
  return p;
}

/* One thread an element: arithmetic of every width, a call, constants, 64 bits. */
extern "C" __global__ void mix(const int *a, const int *b, int *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Pair p = divide(a[i], b[i]);
  long long wide = (long long)a[i] * b[i] + ((long long)p.second << 33);
  unsigned u = (unsigned)a[i];
  int r = p.first * weights[i & 3] + p.second;
  r += (int)(wide >> 31) + (signed char)a[i] + (unsigned short)b[i];
  r ^= (int)(u << 7 | u >> 25) + __popc(u) * 1000 + __clz(a[i]);
  r += min(a[i], b[i]) - max(u, 77u) + abs(b[i]);
  out[i] = r;
}

/* Shared memory, barriers, a loop with a divergent branch; one result a block. */
extern "C" __global__ void reduce(const int *in, int *out, int n) {
  __shared__ int part[32];
  int t = threadIdx.x;
  int sum = 0;
  for (int i = t; i < n; i += blockDim.x) {
    if (in[i] & 1) sum += in[i];
    else sum -= in[i] / 2;
  }
  part[t] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (t < s) part[t] += part[t + s];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = part[0];
}

/* Atomics on shared and global memory, bytes in and out. */
extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
  __shared__ unsigned local[8];
  int t = threadIdx.x;
  if (t < 8) local[t] = 0;
  __syncthreads();
  for (int i = t; i < n; i += blockDim.x) atomicAdd(&local[data[i] & 7], 1u);
  __syncthreads();
  if (t < 8) {
    atomicAdd(&bins[t], local[t]);
    atomicMax(&bins[8], local[t]);
    atomicXor(&bins[9], local[t] << t);
  }
}

/* A dense switch, a data-dependent loop, a byte table. */
extern "C" __global__ void steps_of(int *state, int rounds) {
  int t = threadIdx.x;
  int x = state[t];
  for (int r = 0; r < rounds; r++) {
    switch (x % 7) {
      case 0: x = x / 7 + 1; break;
      case 1: x = x * 3 + steps[r % 6]; break;
      case 2: x ^= 0x55; break;
      case 3: x = ~x & 0xffff; break;
      case 4: x += 100; if (x > 5000) continue; x -= t; break;
      case 5: x = (x << 2) - 1; break;
      default: x = x >> 1; break;
    }
    if (x < 0) break;
  }
  state[t] = x;
}

/* Shuffles and votes of four lanes; at most four threads a block. */
extern "C" __global__ void warp(int *data, unsigned *masks) {
  int t = threadIdx.x;
  int x = data[t];
  x += __shfl_xor_sync(0xffffffffu, x, 1, 4);
  x += __shfl_xor_sync(0xffffffffu, x, 2, 4);
  int below = __shfl_up_sync(0xffffffffu, data[t], 1, 4);
  if (t == 0) below = 0;
  data[t] = x * 10 + below;
  masks[t] = __ballot_sync(0xffffffffu, (x + t) & 1) & 15u;
}

/* A local array indexed by data, 64-bit shifts and compares, an early return. */
extern "C" __global__ void local_sort(long long *values, int n) {
  long long v[6];
  if (threadIdx.x != 0 || n > 6) return;
  for (int i = 0; i < n; i++) v[i] = values[i];
  for (int i = 1; i < n; i++) {
    long long key = v[i];
    int j = i - 1;
    while (j >= 0 && v[j] > key) {
      v[j + 1] = v[j];
      j--;
    }
    v[j + 1] = key;
  }
  for (int i = 0; i < n; i++) values[i] = v[i] ^ (v[(i + 1) % n] >> 7);
}
