// 3x3 matrix product: the CUDA block is the row, the thread is the column.
//
// qgpu: kernel=matmul grid=3 block=3
// arg: [1,2,3,4,5,6,7,8,9]
// arg: [9,8,7,6,5,4,3,2,1]
// arg: zeros:9
// arg: 3
// expect 2: [30,24,18,84,69,54,138,114,90]
__global__ void matmul(const int *a, const int *b, int *c, int n) {
    int row = blockIdx.x, column = threadIdx.x;
    int sum = 0;
#pragma unroll 1
    for (int k = 0; k < n; k++)
        sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
