// Atomics, with CUDA's overloads and no others, each an instruction or a loop on the device.
#pragma once
#include <string.h>

#include "half.h"

namespace gpuexec {

// Applies `update` to the bits of *address, as an integer of the same size, until nobody came between.
template <class Bits, class T, class Update>
GPUEXEC_INLINE T exchange_loop(T* address, Update update) {
  static_assert(sizeof(Bits) == sizeof(T), "");
  Bits* bits = reinterpret_cast<Bits*>(address);
  Bits old_bits = __atomic_load_n(bits, __ATOMIC_RELAXED), new_bits;
  T old;
  do {
    memcpy(&old, &old_bits, sizeof old);
    T updated = update(old);
    memcpy(&new_bits, &updated, sizeof updated);
  } while (!__atomic_compare_exchange_n(bits, &old_bits, new_bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

}  // namespace gpuexec

#define GPUEXEC_ATOMIC_INTEGER(T)                                                               \
  GPUEXEC_INLINE T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }   \
  GPUEXEC_INLINE T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); } \
  GPUEXEC_ATOMIC_BITWISE(T)                                                                     \
  GPUEXEC_INLINE T atomicCAS(T* p, T expected, T v) {                                            \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);    \
    return expected;                                                                            \
  }
#define GPUEXEC_ATOMIC_BITWISE(T)                                                             \
  GPUEXEC_INLINE T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); } \
  GPUEXEC_INLINE T atomicOr(T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }   \
  GPUEXEC_INLINE T atomicXor(T* p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); }
#define GPUEXEC_ATOMIC_SELECT(T)                                                   \
  GPUEXEC_INLINE T atomicMin(T* p, T v) {                                           \
    return gpuexec::exchange_loop<T>(p, [=](T old) { return v < old ? v : old; }); \
  }                                                                                \
  GPUEXEC_INLINE T atomicMax(T* p, T v) {                                           \
    return gpuexec::exchange_loop<T>(p, [=](T old) { return v > old ? v : old; }); \
  }

GPUEXEC_ATOMIC_INTEGER(int)
GPUEXEC_ATOMIC_INTEGER(unsigned)
GPUEXEC_ATOMIC_INTEGER(unsigned long long)
GPUEXEC_ATOMIC_BITWISE(long long)
GPUEXEC_ATOMIC_SELECT(int)
GPUEXEC_ATOMIC_SELECT(unsigned)
GPUEXEC_ATOMIC_SELECT(long long)
GPUEXEC_ATOMIC_SELECT(unsigned long long)

#undef GPUEXEC_ATOMIC_INTEGER
#undef GPUEXEC_ATOMIC_BITWISE
#undef GPUEXEC_ATOMIC_SELECT

GPUEXEC_INLINE int atomicSub(int* p, int v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }
GPUEXEC_INLINE unsigned atomicSub(unsigned* p, unsigned v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }
GPUEXEC_INLINE unsigned atomicInc(unsigned* p, unsigned limit) {
  return gpuexec::exchange_loop<unsigned>(p, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
GPUEXEC_INLINE unsigned atomicDec(unsigned* p, unsigned limit) {
  return gpuexec::exchange_loop<unsigned>(p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
GPUEXEC_INLINE unsigned short atomicCAS(unsigned short* p, unsigned short expected, unsigned short v) {
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

GPUEXEC_INLINE float atomicAdd(float* p, float v) {
  return gpuexec::exchange_loop<unsigned>(p, [=](float old) { return old + v; });
}
GPUEXEC_INLINE double atomicAdd(double* p, double v) {
  return gpuexec::exchange_loop<unsigned long long>(p, [=](double old) { return old + v; });
}
GPUEXEC_INLINE __half atomicAdd(__half* p, __half v) {
  return gpuexec::exchange_loop<unsigned short>(p, [=](__half old) { return old + v; });
}
GPUEXEC_INLINE __nv_bfloat16 atomicAdd(__nv_bfloat16* p, __nv_bfloat16 v) {
  return gpuexec::exchange_loop<unsigned short>(p, [=](__nv_bfloat16 old) { return old + v; });
}
GPUEXEC_INLINE float atomicExch(float* p, float v) {
  return gpuexec::exchange_loop<unsigned>(p, [=](float) { return v; });
}

GPUEXEC_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
GPUEXEC_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
GPUEXEC_INLINE void __threadfence_block() {}
