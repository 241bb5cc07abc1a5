// Bubble sort by one thread, until a pass swaps nothing.
//
// qgpu: kernel=bubble_sort grid=1 block=1
// arg: [5,-1,4,2,8,0]
// arg: 6
// expect 0: [-1,0,2,4,5,8]
__global__ void bubble_sort(int *data, int n) {
    bool swapped = true;
    while (swapped) {
        swapped = false;
#pragma unroll 1
        for (int i = 1; i < n; i++) {
            int left = data[i - 1], right = data[i];
            if (left > right) {
                data[i - 1] = right;
                data[i] = left;
                swapped = true;
            }
        }
    }
}
