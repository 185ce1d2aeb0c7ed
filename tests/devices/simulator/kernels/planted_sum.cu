// A sum by blocks, right with kBug = kNone. Each bug's lines are marked: a finding must name one, and no other line.
#include <cuda_pipeline.h>

enum Bug {
  kNone, kRaceInBlock, kRaceBetweenBlocks, kGlobalOverrun, kSharedOverrun, kMisaligned, kUninitialised, kDivergent,
  kMissingWait
};

template <int kBug>
__global__ void sum(const float* x, float* partial, float* total, int n) {
  __shared__ alignas(16) float staged[256];
  __shared__ float sums[64];
  const int thread = threadIdx.x, first = blockIdx.x * 256 + thread * 4;
  float own = 0;
  if (first + 3 < n) {
    if (kBug == kMisaligned) {
      float4 four = *reinterpret_cast<const float4*>(x + first + 1);  // Misaligned
      own = four.x + four.y + four.z + four.w;
    } else {
      __pipeline_memcpy_async(&staged[thread * 4], x + first, 16);  // MissingWait
      __pipeline_commit();
      __pipeline_wait_prior(kBug == kMissingWait ? 1 : 0);
      for (int i = 0; i < 4; i++) own += staged[thread * 4 + i];  // MissingWait
    }
  } else {
    for (int i = first; kBug == kGlobalOverrun ? i <= n : i < n; i++) own += x[i];  // GlobalOverrun
  }
  if (kBug != kUninitialised || thread != 5) sums[thread] = own;  // RaceInBlock
  if (kBug != kRaceInBlock) __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (kBug == kDivergent) {
      if (thread < half) {
        sums[thread] += sums[thread + half];
        __syncthreads();  // Divergent
      }
    } else {
      const int other = kBug == kSharedOverrun ? thread + 2 * half : thread + half;
      if (thread < half) sums[thread] += sums[other];  // RaceInBlock SharedOverrun Uninitialised
      __syncthreads();
    }
  }
  if (kBug == kDivergent) __syncthreads();  // Divergent
  if (thread != 0) return;
  partial[blockIdx.x] = sums[0];
  if (kBug == kRaceBetweenBlocks) {
    *total += sums[0];  // RaceBetweenBlocks
  } else {
    atomicAdd(total, sums[0]);
  }
}
