// CUDA C++ for a host compiler, put before a kernel source by -include.
//
// Kernels written for NVRTC compile on this unchanged. GPUEXEC_SIM tells wrappers of inline PTX to offer a host body.
#pragma once
#define GPUEXEC_SIM 1

#include <math.h>
#include <stdio.h>
#include <string.h>

// NVRTC has no host headers: code that leans on these must not pass here either.
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF

// In check and count mode these are inlined always, so that what they access is known by the kernel's line.
#ifdef GPUEXEC_CHECK
#define GPUEXEC_ALWAYS inline __attribute__((always_inline))
#else
#define GPUEXEC_ALWAYS inline
#endif
#define GPUEXEC_INLINE static GPUEXEC_ALWAYS

// In count mode, says that the thread comes to an instruction of a unit, worth so many operations of a lane (for one of
// the matrix units, a lane's part of what the warp multiplies and adds). It stands in functions that are
// GPUEXEC_COUNTED: inlined then, so that the kernel's line is known.
#ifdef GPUEXEC_COUNT
#include "runtime.h"
extern "C" __attribute__((visibility("hidden"))) void gpuexec_issue(int unit, unsigned operations);
#define GPUEXEC_ISSUE(UNIT, OPERATIONS) gpuexec_issue(gpuexec::UNIT, OPERATIONS)
#define GPUEXEC_COUNTED static GPUEXEC_ALWAYS
#else
#define GPUEXEC_ISSUE(UNIT, OPERATIONS) ((void)0)
#define GPUEXEC_COUNTED static inline
#endif

#include "arithmetic.h"
#include "atomics.h"
#include "entry.h"
#include "half.h"
#include "runtime.h"
#include "vectors.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define __grid_constant__

#define threadIdx (gpuexec_position.thread)
#define blockIdx (gpuexec_position.block)
#define blockDim (gpuexec_position.block_dim)
#define gridDim (gpuexec_position.grid_dim)
constexpr int warpSize = 32;

static inline void __trap(GPUEXEC_SITE) { gpuexec_fail("__trap was called", site); }

namespace gpuexec {
// The block's copy of a __shared__ variable; the loader writes the calls.
template <class T, size_t kAlignment>
static inline T& shared(const void* key, const char* name) {
  constexpr size_t kOwn = alignof(T) < 16 ? 16 : alignof(T);
  return *static_cast<T*>(gpuexec_shared(key, sizeof(T), kOwn < kAlignment ? kAlignment : kOwn, name));
}
}  // namespace gpuexec
