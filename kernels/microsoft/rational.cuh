// Sigmoid and tanh as rational functions, bit-identical on every device.
// For values that are rounded to bytes afterwards. NumPy has them in gpuexec/ops/microsoft/rational.py.
#pragma once
#include "types.cuh"

// Clamps a number to a range; NaN stays.
__device__ inline float hold(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// A polynomial of x * x, coefficients from the highest power down.
template <int Count>
__device__ inline float evaluate(float square, const float (&coefficients)[Count]) {
  float sum = coefficients[0];
#pragma unroll
  for (int i = 1; i < Count; ++i) sum = fmaf(sum, square, coefficients[i]);
  return sum;
}

__device__ inline float rational_tanh(float x) {
  const float top[] = {-2.76076847742355e-16f, 2.00018790482477e-13f,  -8.60467152213735e-11f, 5.12229709037114e-08f,
                       1.48572235717979e-05f,  6.37261928875436e-04f, 4.89352455891786e-03f};
  const float bottom[] = {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f};
  x = hold(x, -9.0f, 9.0f);
  return x * evaluate(x * x, top) / evaluate(x * x, bottom);
}

__device__ inline float rational_sigmoid(float x) {
  const float top[] = {4.37031012579801e-11f, 1.15627324459942e-07f, 6.08574864600143e-05f, 8.51377133304701e-03f,
                       2.48287947061529e-01f};
  const float bottom[] = {6.10247389755681e-13f, 5.76102136993427e-09f, 6.29106785017040e-06f,
                          1.70198817374094e-03f, 1.16817656904453e-01f, 9.93151921023180e-01f};
  x = hold(x, -18.0f, 18.0f);
  return hold(x * evaluate(x * x, top) / evaluate(x * x, bottom) + 0.5f, 0.0f, 1.0f);
}
