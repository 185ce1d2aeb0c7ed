// Functions of libm that count mode counts: what a call of each takes on the device.
//
// Of special functions this is the number of MUFU instructions on the way of usual arguments; denormals, NaN and very
// large ones may take others. It was read from the machine code that NVRTC 13 makes for sm_75, sm_90 and sm_100 (the same in
// all), and tests/devices/simulator/test_operations.py reads it again. Functions without such instructions (logf, sinf,
// expm1f) are not here; neither are those where it depends on the way (fmodf, lgammaf), nor functions of double.
#pragma once

#define GPUEXEC_SPECIAL_FUNCTIONS(ONE, TWO)                                                     \
  ONE(expf, 1) ONE(exp2f, 1) ONE(exp10f, 1)                                                     \
  ONE(sqrtf, 1) ONE(cbrtf, 2)                                                                   \
  ONE(tanf, 1) ONE(asinf, 1) ONE(acosf, 1) ONE(atanf, 1) TWO(atan2f, 1)                         \
  ONE(sinhf, 2) ONE(coshf, 2) ONE(tanhf, 2) ONE(asinhf, 2) ONE(acoshf, 1) ONE(atanhf, 1)        \
  ONE(erff, 1) ONE(erfcf, 3)                                                                    \
  TWO(powf, 1) TWO(hypotf, 1)

#define GPUEXEC_MULTIPLY_ADDS(FUSED) FUSED(float, fmaf, kFfma) FUSED(double, fma, kDfma)
