// MeanVarianceNormalization, texel by texel: each thread walks the rows of its elements.
#include "../nn/mean_variance.cu"
#include "texture.cuh"

// Adds to `start` where, in x, the element at `index` of y stands along the axes of a walk; y is dense.
__device__ inline i64 place_along(const Strided<kMaxRank, 2>& walk, i64 index) {
  i64 start = 0;
  for (int axis = 0; axis < walk.rank; ++axis) {
    start += index / walk.strides[1][axis] % i64(walk.extents[axis].divisor) * walk.strides[0][axis];
  }
  return start;
}

// Computes  what normalize_mean_variance computes.
// Shapes    x by strides, y dense, walked by `kept` (a row each) and `reduced` (the terms of a row).
// Grid      one thread per texel of y.
// Needs     nothing.
// Numerics  as normalize_mean_variance of one lane.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) draw_normalize_mean_variance(
    const Texture<T> x, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 2> kept,
    const __grid_constant__ Strided<kMaxRank, 2> reduced, int, int) {
  typedef Acc<T> A;
  draw<T>(y, kept.count * reduced.count, [&](i64 index) {
    const i64 start = place_along(kept, index);
    i64 at[2];
    A sum = A(0), squares = A(0);
    for (i64 term = 0; term < reduced.count; ++term) {
      reduced.locate(term, at);
      sum += widen(x[start + at[0]]);
    }
    const A mean = sum / A(reduced.count);
    for (i64 term = 0; term < reduced.count; ++term) {
      reduced.locate(term, at);
      const A distance = widen(x[start + at[0]]) - mean;
      squares += distance * distance;
    }
    const A deviation = root_of(squares / A(reduced.count)) + A(1e-9);
    return cast<T>((widen(x[start + place_along(reduced, index)]) - mean) / deviation);
  });
}
