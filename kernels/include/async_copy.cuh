// Asynchronous copies from global to shared memory that bypass registers: cp.async and its groups, sm_80 and up.
//
// Each wrapper is one instruction. sm_75 loads and stores in its place. On the simulator the bytes arrive at the wait for
// their group, in random order, and the destination is poison until then.
#pragma once
#include "types.cuh"

#if !defined(GPUEXEC_SIM) && __CUDA_ARCH__ < 800
#define GPUEXEC_COPIES_BY_REGISTERS
constexpr bool kCopiesAsync = false;
#else
constexpr bool kCopiesAsync = true;
#endif

// Copies Bytes (4 or 16) to shared memory, or writes as many zeros where `is_inside` is false: `source` is not read then.
// Both ends are aligned to Bytes. 4 bytes pass through L1, whose lines neighbours share; 16 bytes go by it.
template <int Bytes>
__device__ inline void copy_async(void* destination, const void* source, bool is_inside) {
  static_assert(Bytes == 4 || Bytes == 16, "one or four elements of four bytes");
#if defined(GPUEXEC_SIM)
  gpuexec_copy_async(destination, source, Bytes, is_inside ? Bytes : 0);
#elif defined(GPUEXEC_COPIES_BY_REGISTERS)
  typedef typename Select<Bytes == 16, uint4, u32>::type Copied;
  Copied copied = {};
  if (is_inside) copied = __ldg(reinterpret_cast<const Copied*>(source));
  *reinterpret_cast<Copied*>(destination) = copied;
#else
  const u32 target = u32(__cvta_generic_to_shared(destination));
  const int count = is_inside ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(count) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(count) : "memory");
  }
#endif
}

// An address within the block's shared memory: 32 bits on the device, to which offsets in bytes are added.
#ifdef GPUEXEC_SIM
typedef u8* SharedAddress;
#else
typedef u32 SharedAddress;
#endif

__device__ inline SharedAddress find_shared_address(void* pointer) {
#ifdef GPUEXEC_SIM
  return static_cast<u8*>(pointer);
#else
  return u32(__cvta_generic_to_shared(pointer));
#endif
}

// Copies 16 bytes past L1, both ends aligned to 16. Needs sm_80.
__device__ inline void copy_async_vector(SharedAddress destination, const void* source) {
#ifdef GPUEXEC_SIM
  gpuexec_copy_async(destination, source, 16, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
#endif
}

// Copies the first `nbytes` of 16, and zeros behind them; reads nothing where nbytes is 0. Needs sm_80.
__device__ inline void copy_async_vector(SharedAddress destination, const void* source, int nbytes) {
#ifdef GPUEXEC_SIM
  gpuexec_copy_async(destination, source, 16, nbytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(nbytes) : "memory");
#endif
}

// Closes a group of the thread's copies. Groups may be empty.
__device__ inline void commit_copies() {
#if defined(GPUEXEC_SIM)
  gpuexec_copy_commit();
#elif !defined(GPUEXEC_COPIES_BY_REGISTERS)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all of the thread's groups but the Keep youngest. Other threads see the bytes after a barrier.
template <int Keep>
__device__ inline void wait_copies() {
#if defined(GPUEXEC_SIM)
  gpuexec_copy_wait(Keep);
#elif !defined(GPUEXEC_COPIES_BY_REGISTERS)
  asm volatile("cp.async.wait_group %0;" ::"n"(Keep) : "memory");
#endif
}
