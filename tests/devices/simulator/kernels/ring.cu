// Sums of slabs that come by asynchronous copies into a ring of three, right with kBug = kNone.
#include "async_copy.cuh"

enum Bug { kNone, kMissingWait, kWaitForTooFew, kMissingBarrier, kSlabStillRead };

constexpr int kThreads = 64, kStages = 3;

// y[i] = sum over slabs of x[slab][kThreads - 1 - i]; each thread copies one element that another reads.
// Grid: one block of kThreads; groups of the slabs that are not there are empty.
template <int kBug>
__global__ void __launch_bounds__(kThreads) sum_ring(const float* x, float* y, int slabs) {
  __shared__ alignas(16) float ring[kStages][kThreads];
  const int thread = threadIdx.x;
  constexpr int kAhead = kBug == kSlabStillRead ? kStages : kStages - 1;
  for (int slab = 0; slab < kAhead; ++slab) {
    copy_async<4>(&ring[slab % kStages][thread], x + slab * kThreads + thread, slab < slabs);
    commit_copies();
  }
  float sum = 0.0f;
  for (int slab = 0; slab < slabs; ++slab) {
    if (kBug != kMissingWait) wait_copies<kBug == kWaitForTooFew ? kAhead : kAhead - 1>();
    if (kBug != kMissingBarrier) __syncthreads();
    const int next = slab + kAhead;
    if (next < slabs) copy_async<4>(&ring[next % kStages][thread], x + next * kThreads + thread, true);
    commit_copies();
    sum += ring[slab % kStages][kThreads - 1 - thread];
  }
  y[thread] = sum;
}

// y[0..3] = x[0..3] by one copy of 16 bytes, y[4..7] zeros.
__global__ void __launch_bounds__(32) copy_sixteen_bytes(const float* x, float* y) {
  __shared__ alignas(16) float held[8];
  if (threadIdx.x == 0) {
    copy_async<16>(held, x, true);
    copy_async<16>(held + 4, x + 4, false);
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  if (threadIdx.x < 8) y[threadIdx.x] = held[threadIdx.x];
}

// Two copies of one group to the same place.
__global__ void __launch_bounds__(1) copy_twice(const float* x, float* y) {
  __shared__ alignas(16) float held[4];
  copy_async<4>(held, x, true);
  copy_async<4>(held, x + 1, true);
  commit_copies();
  wait_copies<0>();
  y[blockIdx.x] = held[0];
}
