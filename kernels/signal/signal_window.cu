// Window functions of signals: sums of cosines.
#include "types.cuh"

constexpr int kThreads = 256;

__device__ inline double sum_cosines(i64 i, i64 period, double a0, double a1, double a2) {
  const double turn = double(i) / double(period);
  return a2 * cospi(4 * turn) - a1 * cospi(2 * turn) + a0;  // in this order Blackman's peak is 1
}

// Computes  y[i] = a0 - a1 * cos(2 pi i / period) + a2 * cos(4 pi i / period)
// Shapes    y [count] dense
// Grid      one thread per element
// Needs     nothing; a period of 0 gives NaN, of integers 0
// Numerics  in double, one rounding; integers truncate
template <class T>
__global__ void __launch_bounds__(kThreads) cosine_window(
    T* __restrict__ y, i64 count, i64 period, double a0, double a1, double a2) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  y[i] = cast<T>(sum_cosines(i, period, a0, a1, a2));
}
