// Exclusive prefix sum over the threads of a block.
#pragma once
#include "reduce.cuh"

constexpr int kMaxWarps = 32;

// Returns the sum over the threads before this one, and in `total` that over all. For integers and blocks of whole
// warps; every thread takes part. `shared` may be used again at once.
template <class A>
__device__ inline A sum_before(A value, A (&shared)[kMaxWarps], A& total) {
  const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads, warps = blockDim.x / kWarpThreads;
  A sum = value;
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const A other = __shfl_up_sync(kWholeWarp, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarpThreads - 1) shared[warp] = sum;
  __syncthreads();
  A before = A(0);
  total = A(0);
  for (int i = 0; i < warps; ++i) {
    if (i == warp) before = total;
    total += shared[i];
  }
  __syncthreads();
  return before + sum - value;
}
