#include "types.cuh"

// Computes: y = x + sin(frequency * x)^2 / frequency, the Snake activation of audio models.
// Shapes: x, y [n, channels, width] dense; frequency [channels].
// Grid: one thread per element.
// Needs: nothing.
// Numerics: in float; sin of the math library.
template <class T>
__global__ void __launch_bounds__(256) snake(
    const T* __restrict__ x, const T* __restrict__ frequency, T* __restrict__ y, i64 count, i64 channels, i64 width) {
  const i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  const float a = float(frequency[i / width % channels]), wave = sinf(a * float(x[i]));
  y[i] = T(float(x[i]) + wave * wave / a);
}
