// Powers of two by the one instruction of the special function units: ex2.approx.
#pragma once
#include "types.cuh"

// 2 to the power x within 2 units in the last place; 0 in place of a subnormal number.
#ifdef GPUEXEC_SIM
__device__ inline float exp2_fast(float x) {
  const float power = exp2f(x);
  return power < 0x1p-126f ? 0.0f : power;
}
#else
__device__ __forceinline__ float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
#endif
