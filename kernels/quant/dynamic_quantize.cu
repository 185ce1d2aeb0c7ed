// DynamicQuantizeLinear: the range of a tensor, and its 8-bit quantisation by that range.
#include "dependent_launch.cuh"
#include "requantize.cuh"
#include "value_range.cuh"

constexpr int kPerThread = 8;

// Computes  the range of the elements of each part, which 0 belongs to
// Shapes    x [count], ranges [parts, 2]: part i has the elements of threads i * 256 and on, parts * 256 apart
// Grid      one block per part: x = part
// Needs     x dense
// Numerics  exact; NaN counts as nothing
__global__ void __launch_bounds__(kBlockThreads)
    find_range(const float* __restrict__ x, float* __restrict__ ranges, i64 count) {
  wait_for_predecessors();
  launch_dependents();
  Range range = {0.0f, 0.0f};
  for (i64 i = i64(blockIdx.x) * kBlockThreads + threadIdx.x; i < count; i += i64(gridDim.x) * kBlockThreads) {
    range.widen_to(x[i]);
  }
  range = fold_ranges(range);
  if (threadIdx.x > 0) return;
  ranges[2 * blockIdx.x] = range.lowest + 0.0f;
  ranges[2 * blockIdx.x + 1] = range.highest + 0.0f;
}

// Computes  scale = (highest - lowest) / 255 of all parts (1 where they are equal), zero = round(-lowest / scale) and
//           y = saturate(round(x / scale) + zero)
// Shapes    x and y [count], ranges [parts, 2], scale and zero one element
// Grid      one thread per 8 elements, 256 apart: x = element / 2048; one block at least
// Needs     x dense; at most 256 parts
// Numerics  in float, halves to even; NaN gives zero
__global__ void __launch_bounds__(kBlockThreads)
    quantize_by_range(const float* __restrict__ x, const float* __restrict__ ranges, u8* __restrict__ y,
                      float* __restrict__ scale, u8* __restrict__ zero, i64 count, i32 parts) {
  const int thread = threadIdx.x;
  Range range = {0.0f, 0.0f};
  wait_for_predecessors();
  launch_dependents();
  if (thread < parts) range = {ranges[2 * thread], ranges[2 * thread + 1]};
  range = fold_ranges(range);
  const float step = range.step();
  const i32 origin = range.origin();
  if (thread == 0 && blockIdx.x == 0) {
    *scale = step;
    *zero = u8(origin);
  }
  i64 first = i64(blockIdx.x) * kBlockThreads * kPerThread + thread;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    i64 place = first + i * kBlockThreads;
    if (place < count) y[place] = round_to_byte(x[place] / step, origin - 128, 128);
  }
}
