// Dot product: one thread for each element, summed by an atomic add.
//
// qgpu: kernel=dot grid=1 block=3
// arg: [1,2,3]
// arg: [4,5,6]
// arg: zeros:1
// expect 2: [32]
__global__ void dot(const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    atomicAdd(out, a[i] * b[i]);
}
