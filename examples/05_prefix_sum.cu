// Inclusive prefix sum (Hillis and Steele): log2(n) rounds with barriers.
//
// qgpu: kernel=prefix_sum grid=1 block=8
// arg: [3,1,4,1,5,9,2,6]
// arg: zeros:8
// expect 1: [3,4,8,9,14,23,25,31]
__global__ void prefix_sum(const int *in, int *out) {
    __shared__ int sum[8];
    int t = threadIdx.x;
    sum[t] = in[t];
    __syncthreads();
#pragma unroll 1
    for (int offset = 1; offset < blockDim.x; offset *= 2) {
        int left = t >= offset ? sum[t - offset] : 0;
        __syncthreads();
        sum[t] += left;
        __syncthreads();
    }
    out[t] = sum[t];
}
