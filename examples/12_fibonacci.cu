// Thread t computes the t-th Fibonacci number.
//
// qgpu: kernel=fibonacci grid=1 block=8
// arg: zeros:8
// expect 0: [0,1,1,2,3,5,8,13]
__global__ void fibonacci(int *out) {
    int a = 0, b = 1;
#pragma unroll 1
    for (int i = 0; i < threadIdx.x; i++) {
        int next = a + b;
        a = b;
        b = next;
    }
    out[threadIdx.x] = a;
}
