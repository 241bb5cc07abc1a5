// y = a * x + y in integers, in place, with a grid-stride loop.
//
// qgpu: kernel=saxpy grid=1 block=4
// arg: 10
// arg: -3
// arg: [0,1,2,3,4,5,6,7,8,9]
// arg: [100,100,100,100,100,100,100,100,100,100]
// expect 3: [100,97,94,91,88,85,82,79,76,73]
__global__ void saxpy(int n, int a, const int *x, int *y) {
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = a * x[i] + y[i];
}
