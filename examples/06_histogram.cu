// Histogram of small values with atomic adds to global memory.
//
// qgpu: kernel=histogram grid=3 block=4
// arg: [0,3,1,3,2,3,0,1,3,3]
// arg: zeros:4
// arg: 10
// expect 1: [2,2,1,5]
__global__ void histogram(const int *data, int *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&bins[data[i]], 1);
}
