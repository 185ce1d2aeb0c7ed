// y = means of three neighbours, several times over, and a histogram of the results; right with kBug = kNone. The lines
// of each bug are marked.
#include <cuda_pipeline.h>

enum Bug {
  kNone, kRaceInBlock, kRaceBetweenBlocks, kGlobalOverrun, kSharedOverrun, kMisaligned, kUninitialised, kDivergent,
  kMissingWait
};

// Grid: 64 elements per block of 64 threads; dynamic shared memory of 2 * 66 floats.
template <int kBug>
__global__ void stencil(float* x, float* y, unsigned* counts, int n) {
  extern __shared__ float rows[];
  __shared__ unsigned local[8];
  float* now = rows;
  float* next = rows + 66;
  const int thread = threadIdx.x, i = blockIdx.x * 64 + thread;
  const float outside = 0.f;
  if (thread < 8 && (kBug != kUninitialised || thread != 3)) local[thread] = 0;
  const int end = kBug == kGlobalOverrun ? n + 1 : n;
  __pipeline_memcpy_async(&now[thread + 1], i < end ? &x[i] : x, 4);  // GlobalOverrun MissingWait RaceBetweenBlocks
  __pipeline_commit();
  if (thread == 0) now[0] = i > 0 ? x[i - 1] : outside;  // RaceBetweenBlocks
  if (thread == 63) now[65] = i + 1 < n ? x[i + 1] : outside;  // RaceBetweenBlocks
  if (kBug != kMissingWait) __pipeline_wait_prior(0);
  __syncthreads();
  for (int step = 0; step < 3; step++) {
    const int reach = kBug == kSharedOverrun ? thread + 3 : thread;
    const float mean = (now[reach] + now[thread + 1] + now[thread + 2]) / 3;  // MissingWait RaceInBlock
    next[kBug == kSharedOverrun ? reach : thread + 1] = mean;                 // RaceInBlock SharedOverrun MissingWait
    if (thread == 0) next[0] = now[0];
    if (thread == 63) next[65] = now[65];
    if (kBug == kDivergent && i >= n) {
      __syncthreads();  // Divergent
      continue;
    }
    if (kBug != kRaceInBlock) __syncthreads();  // Divergent
    float* other = now;
    now = next;
    next = other;
  }
  if (kBug == kDivergent) return;
  if (kBug == kRaceInBlock) __syncthreads();
  float* to = kBug == kRaceBetweenBlocks ? x : y;
  if (i < n) to[i] = now[thread + 1];  // RaceBetweenBlocks
  if (kBug == kMisaligned && thread < 32) {
    *reinterpret_cast<float2*>(&y[blockIdx.x * 64 + 2 * thread + 1]) = make_float2(0.f, 0.f);  // Misaligned
  }
  if (i < n) atomicAdd(&local[int(now[thread + 1]) & 7], 1u);  // Uninitialised
  __syncthreads();
  if (thread < 8) atomicAdd(&counts[thread], local[thread]);  // Uninitialised
}
