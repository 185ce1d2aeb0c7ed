// Rounding of a tensor to float8e4m3fn by one scale, which is found from its largest magnitude.
#include "dependent_launch.cuh"
#include "narrow_types.cuh"
#include "reduce.cuh"

constexpr int kPerThread = 8;
constexpr float kLargestNumber = 448.0f;
constexpr float kSmallestScale = 7.8886090522101181e-31f;  // 2^-100, the scale of zeros

// Folds a value per thread of a block of kBlockThreads and gives the largest to every thread.
__device__ inline u32 fold_largest(u32 value) {
  __shared__ u32 shared[kBlockThreads / kWarpThreads];
  const Team team(kBlockThreads, 1);
  return team.fold(value, shared, [](u32 a, u32 b) { return a > b ? a : b; });
}

// Computes  the bits of the largest magnitude of each part: magnitudes are ordered as their bits are, and NaN is above all
// Shapes    x [count], largest [parts]: part i has the elements of threads i * 256 and on, parts * 256 apart
// Grid      one block per part: x = part
// Needs     x dense
// Numerics  exact
__global__ void __launch_bounds__(kBlockThreads)
    find_largest(const float* __restrict__ x, u32* __restrict__ largest, i64 count) {
  wait_for_predecessors();
  launch_dependents();
  u32 most = 0;
  for (i64 i = i64(blockIdx.x) * kBlockThreads + threadIdx.x; i < count; i += i64(gridDim.x) * kBlockThreads) {
    const u32 bits = reinterpret<u32>(x[i]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  most = fold_largest(most);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// Computes  scale = max(largest of all parts / 448, 2^-100) and y = x / scale in float8e4m3fn
// Shapes    x and y [count], largest [parts], scale one element
// Grid      one thread per 8 elements, 256 apart: x = element / 2048; one block at least
// Needs     x dense; at most 256 parts
// Numerics  in float, to nearest even; the scale of NaN is NaN
__global__ void __launch_bounds__(kBlockThreads)
    round_by_largest(const float* __restrict__ x, const u32* __restrict__ largest, u8* __restrict__ y,
                     float* __restrict__ scale, i64 count, i32 parts) {
  const int thread = threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  const float quotient = reinterpret<float>(fold_largest(thread < parts ? largest[thread] : 0u)) / kLargestNumber;
  const float step = kSmallestScale > quotient ? kSmallestScale : quotient;
  if (thread == 0 && blockIdx.x == 0) *scale = step;
  const i64 first = i64(blockIdx.x) * kBlockThreads * kPerThread + thread;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const i64 place = first + i * kBlockThreads;
    if (place < count) y[place] = narrow_float(x[place] / step, kE4M3Code, kSaturates);
  }
}
