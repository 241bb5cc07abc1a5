// Vector addition with the usual bounds check: two CUDA blocks of four threads for seven elements.
//
// qgpu: kernel=vector_add grid=2 block=4
// arg: [1,2,3,4,5,6,7]
// arg: [10,20,30,40,50,60,70]
// arg: zeros:7
// arg: 7
// expect 2: [11,22,33,44,55,66,77]
__global__ void vector_add(const int *a, const int *b, int *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}
