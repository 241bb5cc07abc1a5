// Reverses an array through shared memory: every thread writes, all wait, every thread reads.
//
// qgpu: kernel=reverse grid=1 block=8
// arg: [1,2,3,4,5,6,7,8]
// expect 0: [8,7,6,5,4,3,2,1]
__global__ void reverse(int *data) {
    __shared__ int tile[8];
    int t = threadIdx.x;
    tile[t] = data[t];
    __syncthreads();
    data[t] = tile[blockDim.x - 1 - t];
}
