// Collatz: how many steps until 1. Neighbouring threads take both arms and different trip counts.
//
// qgpu: kernel=collatz grid=1 block=8
// arg: [1,2,3,4,5,6,7,8]
// arg: zeros:8
// expect 1: [0,1,7,2,5,8,16,3]
__global__ void collatz(const int *start, int *steps) {
    int t = threadIdx.x;
    int n = start[t], count = 0;
    while (n != 1) {
        if (n % 2 == 0)
            n /= 2;
        else
            n = 3 * n + 1;
        count++;
    }
    steps[t] = count;
}
