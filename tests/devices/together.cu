// What blocks of a grid do together. kBug = 0 is right; 1 leaves out what orders the blocks, 2 has them wait for later ones.
#include "grid.cuh"

__device__ float sum_block(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

// Computes: shares = x / sum(x), turned = shares, one element on
// Shapes:   x, shares, turned [n]; partial [blocks]; barrier: one word, 0 before the first launch
// Grid:     64 threads a block, one element each, cooperative
// Needs:    nothing
// Numerics: float
template <int kBug>
__global__ void __launch_bounds__(64) share(const float* x, float* shares, float* turned, float* partial,
                                            unsigned* barrier, int n) {
  __shared__ float shared[64];
  const int i = blockIdx.x * 64 + threadIdx.x;
  const float sum = sum_block(i < n ? x[i] : 0.f, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  grid_sync(barrier);
  float total = 0;
  for (int block = 0; block < gridDim.x; block++) total += partial[block];
  if (i < n) shares[i] = x[i] / total;
  if (kBug == 0) grid_sync(barrier);
  if (i < n) turned[i] = shares[(i + 1) % n];
}

// Computes: out = sum(x)
// Shapes:   x [n]; out [1]; partial [blocks]; counter: one word, 0 before the first launch
// Grid:     64 threads a block, one element each
// Needs:    nothing
// Numerics: float; the blocks' sums in order
template <int kBug>
__global__ void __launch_bounds__(64) sum_by_last(const float* x, float* out, float* partial, unsigned* counter,
                                                  int n) {
  __shared__ float shared[64];
  __shared__ bool is_last;
  const int i = blockIdx.x * 64 + threadIdx.x;
  const float sum = sum_block(i < n ? x[i] : 0.f, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  if (kBug == 0) {
    if (!last_block(counter, gridDim.x)) return;
  } else {  // no fence between the sum and the count
    if (threadIdx.x == 0) is_last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
  }
  if (threadIdx.x != 0) return;
  float total = 0;
  for (int block = 0; block < gridDim.x; block++) total += partial[block];
  out[0] = total;
}

// Computes: shares = x / sum(x)
// Shapes:   x, shares [n]; partial [1 + parts], the sum and those of parts; words: three, 0 before the first launch
// Grid:     64 threads a block, two blocks for each part of 64 elements
// Needs:    nothing
// Numerics: float; the parts' sums in order
template <int kBug>
__global__ void __launch_bounds__(64) share_by_turns(const float* x, float* shares, float* partial, unsigned* words,
                                                     int n) {
  __shared__ float shared[64];
  const int parts = gridDim.x / 2, turn = take_turn(words, gridDim.x);
  const int i = turn % parts * 64 + threadIdx.x;
  if ((turn < parts) == (kBug != 2)) {
    const float sum = sum_block(i < n ? x[i] : 0.f, shared);
    if (threadIdx.x == 0) partial[1 + turn % parts] = sum;
    if (!last_block(words + 1, parts)) return;
    if (threadIdx.x == 0) {
      float total = 0;
      for (int part = 0; part < parts; part++) total += partial[1 + part];
      partial[0] = total;
    }
    give_signal(words + 2, parts);
  } else {
    if (kBug != 1) await_signal(words + 2);
    if (i < n) shares[i] = x[i] / partial[0];
  }
}
