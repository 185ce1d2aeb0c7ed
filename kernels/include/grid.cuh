// Grid-wide synchronisation: a barrier of all blocks, and detection of the last block.
//
// Both need words of global memory that are 0 before the first launch; each use leaves them ready for the next one.
#pragma once

// Whether the calling thread speaks for its block.
__device__ inline bool is_first_thread() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }

// Waits for every thread of the grid; what any of them wrote before, all may read after. All threads of all blocks come
// here, in a launch that is cooperative: else a block may wait for one that has no place to run.
#ifdef GPUEXEC_SIM
__device__ inline void grid_sync(unsigned* barrier, GPUEXEC_SITE) {
  if (is_first_thread()) atomicAdd(barrier, 0u);
  gpuexec_grid_barrier(site);
}
#else
__device__ inline void grid_sync(unsigned* barrier) {
  __syncthreads();
  if (is_first_thread()) {
    // All blocks together add 2^31: the top bit turns when the last one has come, and the bits below are 0 again.
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    const bool is_first_block = (blockIdx.x | blockIdx.y | blockIdx.z) == 0;
    __threadfence();
    const unsigned before = atomicAdd(barrier, is_first_block ? 0x80000000u - (blocks - 1) : 1u);
    while (((before ^ *static_cast<volatile unsigned*>(barrier)) & 0x80000000u) == 0) {
    }
    __threadfence();
  }
  __syncthreads();
}
#endif

// Answers every thread of the block that comes last to `counter`: it may read what all `blocks` wrote before they came.
// All threads of a block come here. No block waits for another, so the launch need not be cooperative.
__device__ inline bool last_block(unsigned* counter, unsigned blocks) {
  __syncthreads();
  int is_last = 0;
  if (is_first_thread()) {
    __threadfence();  // what the block wrote, and this thread knows of by the barrier, comes before the count
    is_last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  return __syncthreads_or(is_last) != 0;
}
