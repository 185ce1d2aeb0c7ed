// Grid-wide synchronisation: a barrier of all blocks, detection of the last block, and signals to blocks that begin later.
//
// All need words of global memory that are 0 before the first launch; each use leaves them ready for the next one.
#pragma once

// Whether the calling thread is the first of its block, which synchronises for all of it.
__device__ inline bool is_first_thread() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }

// Barrier of all threads of the grid: writes before it are visible to every thread after it. All threads of all blocks must
// call it, in a cooperative launch: otherwise a block may wait for one that is not resident.
#ifdef GPUEXEC_SIM
__device__ inline void grid_sync(unsigned* barrier, GPUEXEC_SITE) {
  if (is_first_thread() && (atomicAdd(barrier, 0u) & 0x7fffffffu) != 0) {
    gpuexec_fail("the word of a barrier of the grid was not 0 before the launch", site);
  }
  gpuexec_grid_barrier(site);
}
#else
__device__ inline void grid_sync(unsigned* barrier) {
  __syncthreads();
  if (is_first_thread()) {
    // The blocks together add 2^31: the top bit flips when the last one arrives, and the bits below are 0 again.
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

// Returns true to the threads of the last of `blocks` blocks to count itself in `counter`: they may read what all blocks
// wrote before. All threads of a block must call it. No block waits for another, so the launch need not be cooperative.
__device__ inline bool last_block(unsigned* counter, unsigned blocks) {
  __syncthreads();
  int is_last = 0;
  if (is_first_thread()) {
    __threadfence();  // orders the block's writes, visible to this thread by the barrier, before the count
    is_last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  return __syncthreads_or(is_last) != 0;
}

// Returns how many of the launch's `blocks` blocks have called this before; all threads of a block must call it. What blocks
// do by their turn may need what those of earlier turns do, which are under way or done: so a block may wait for them in any
// launch, however many blocks a device holds.
__device__ inline unsigned take_turn(unsigned* counter, unsigned blocks) {
  __shared__ unsigned turn;
  if (is_first_thread()) turn = atomicInc(counter, blocks - 1);
  __syncthreads();
  return turn;
}

// Lets `blocks` blocks go on that await the signal: they may read what this block wrote before. All threads of a block must
// call it.
__device__ inline void give_signal(unsigned* signal, unsigned blocks) {
  __syncthreads();
  if (is_first_thread()) {
    __threadfence();
    atomicAdd(signal, blocks);
  }
}

// Waits for the signal, once in each of the blocks that it is for; the block that gives it must have taken an earlier turn.
// All threads of a block must call it.
#ifdef GPUEXEC_SIM
__device__ inline void await_signal(unsigned* signal, GPUEXEC_SITE) {
  if (is_first_thread()) {
    while (atomicAdd(signal, 0u) == 0) gpuexec_wait_for_blocks(site);
    atomicSub(signal, 1u);
    __threadfence();
  }
  __syncthreads();
}
#else
__device__ inline void await_signal(unsigned* signal) {
  if (is_first_thread()) {
    while (*static_cast<volatile unsigned*>(signal) == 0) {
    }
    atomicSub(signal, 1u);
    __threadfence();
  }
  __syncthreads();
}
#endif

// The same number or address, of which the compiler knows nothing: what is made of it behind a loop is not kept through the
// loop, and it is kept itself, not made again in each turn.
__device__ inline int opaque(int number) {
#ifndef GPUEXEC_SIM
  asm volatile("" : "+r"(number));
#endif
  return number;
}
template <class T>
__device__ inline const T* opaque(const T* pointer) {
#ifndef GPUEXEC_SIM
  asm volatile("" : "+l"(pointer));
#endif
  return pointer;
}
