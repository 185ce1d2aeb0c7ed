// Kernels of a chain of dependent launches, right ones and wrong ones: y[i] = (x[i] + x[(i + 1) % n]) * w[i] + 1.
#include "async_copy.cuh"
#include "dependent_launch.cuh"

__device__ inline int index() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ inline float join(const float* x, float w, int i, int n) { return (x[i] + x[(i + 1) % n]) * w + 1.0f; }

extern "C" __global__ void right(const float* x, const float* w, float* y, int n) {
  const int i = index();
  wait_for_predecessors();
  launch_dependents();
  if (i < n) y[i] = join(x, w[i], i, n);
}

extern "C" __global__ void prefetches(const float* x, const float* w, float* y, int n) {
  const int i = index();
  const float own = i < n ? w[i] : 0.0f;
  wait_for_predecessors();
  launch_dependents();
  if (i < n) y[i] = join(x, own, i, n);
}

extern "C" __global__ void signals_at_once(const float* x, const float* w, float* y, int n) {
  launch_dependents();
  const int i = index();
  wait_for_predecessors();
  if (i < n) y[i] = join(x, w[i], i, n);
}

// One thread waits for its block.
extern "C" __global__ void waits_for_block(const float* x, const float* w, float* y, int n) {
  const int i = index();
  if (threadIdx.x == 0) wait_for_predecessors();
  __syncthreads();
  if (i < n) y[i] = join(x, w[i], i, n);
}

// Belongs to no dependent launch: it does not wait.
extern "C" __global__ void plain(const float* x, const float* w, float* y, int n) {
  const int i = index();
  if (i < n) y[i] = join(x, w[i], i, n);
}

extern "C" __global__ void waits_in_some_blocks(const float* x, const float* w, float* y, int n) {
  const int i = index();
  if (blockIdx.x % 2) wait_for_predecessors();
  if (i < n) y[i] = join(x, w[i], i, n);
}

extern "C" __global__ void signals_and_never_waits(const float* x, const float* w, float* y, int n) {
  launch_dependents();
  const int i = index();
  if (n < 0) wait_for_predecessors();
  if (i < n) y[i] = join(x, w[i], i, n);
}

extern "C" __global__ void reads_before_it_waits(const float* x, const float* w, float* y, int n) {
  const int i = index();
  const float own = i < n ? x[i] : 0.0f;
  wait_for_predecessors();
  launch_dependents();
  if (i < n) y[i] = (own + x[(i + 1) % n]) * w[i] + 1.0f;
}

extern "C" __global__ void writes_before_it_waits(const float* x, const float* w, float* y, int n) {
  const int i = index();
  if (i < n) y[i] = 0.0f;
  wait_for_predecessors();
  launch_dependents();
  if (i < n) y[i] = join(x, w[i], i, n);
}

// Lanes of a block wait beside others that come to its barrier.
extern "C" __global__ void waits_beside_a_barrier(const float* x, const float* w, float* y, int n) {
  __shared__ float own[64];
  const int i = index();
  own[threadIdx.x] = i < n ? w[i] : 0.0f;
  if (threadIdx.x % 2) wait_for_predecessors();
  __syncthreads();
  if (threadIdx.x % 2 == 0) wait_for_predecessors();
  if (i < n) y[i] = join(x, own[threadIdx.x], i, n);
}

// Adds up what a grid of one thread for each element has done so far: y += x + 1.
extern "C" __global__ void counts(const int* x, int* y) {
  const int i = index();
  wait_for_predecessors();
  launch_dependents();
  y[i] += x[i] + 1;
}

// Copies what the thread joins, asynchronously.
__device__ inline void copy_pair(float (&pair)[2], const float* x, int i, int n) {
  copy_async<4>(&pair[0], x + i % n, i < n);
  copy_async<4>(&pair[1], x + (i + 1) % n, i < n);
  commit_copies();
}

extern "C" __global__ void copies_behind_its_wait(const float* x, const float* w, float* y, int n) {
  __shared__ float pairs[64][2];
  const int i = index();
  wait_for_predecessors();
  launch_dependents();
  copy_pair(pairs[threadIdx.x], x, i, n);
  wait_copies<0>();
  if (i < n) y[i] = (pairs[threadIdx.x][0] + pairs[threadIdx.x][1]) * w[i] + 1.0f;
}

// The copies are waited for behind the predecessors, and may have read their sources long before.
extern "C" __global__ void copies_before_it_waits(const float* x, const float* w, float* y, int n) {
  __shared__ float pairs[64][2];
  const int i = index();
  copy_pair(pairs[threadIdx.x], x, i, n);
  wait_for_predecessors();
  launch_dependents();
  wait_copies<0>();
  if (i < n) y[i] = (pairs[threadIdx.x][0] + pairs[threadIdx.x][1]) * w[i] + 1.0f;
}
