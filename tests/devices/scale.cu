struct Shift { int by[3]; };

// Computes: y = x * factor + shift.by[2]
// Shapes:   x, y [n]
// Grid:     64 threads a block, one element each
// Needs:    nothing
// Numerics: float
template <typename T>
__global__ void __launch_bounds__(64) scale(const T* __restrict__ x, T* y, T factor, Shift shift, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = (T)((float)x[i] * (float)factor + (float)shift.by[2]);
}

// Faults when given a null pointer.
extern "C" __global__ void fault(int* x) { x[0] = 1; }

// Faults when given a null pointer to read.
extern "C" __global__ void fault_reading(int* x, const int* y) { x[0] = y[0]; }
