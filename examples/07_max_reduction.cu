// Maximum of an array: a tree in dynamic shared memory, half of the threads leaving each round.
//
// qgpu: kernel=max_reduction grid=1 block=8 shared=8
// arg: [-7,12,-3,40,5,39,-41,0]
// arg: zeros:1
// expect 1: [40]
__global__ void max_reduction(const int *in, int *out) {
    extern __shared__ int best[];
    int t = threadIdx.x;
    best[t] = in[t];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half)
            best[t] = max(best[t], best[t + half]);
        __syncthreads();
    }
    if (t == 0)
        out[0] = best[0];
}
