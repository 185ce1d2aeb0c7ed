// CDist, texel by texel: each thread walks the rows of its distances.
#include "../microsoft/cdist.cu"
#include "texture.cuh"

// Computes  y[i, j] = the metric's distance between row i of a and row j of b
// Shapes    a [rows, inner], b [columns, inner] by strides; y [rows, columns] dense
// Grid      one thread per texel of y
// Needs     nothing
// Numerics  as distances, bit for bit
template <class Metric, class T>
__global__ void __launch_bounds__(kDrawThreads) draw_distances(
    const Texture<T> a, const Texture<T> b, const Surface<T> y, const __grid_constant__ Pairs pairs, double p) {
  draw<T>(y, pairs.rows * pairs.columns, [&](i64 index) {
    const i64 row = index / pairs.columns * pairs.a_row, column = index % pairs.columns * pairs.b_row;
    typename Metric::template Sums<T> sums = {};
#pragma unroll 1
    for (i64 k = 0; k < pairs.inner; ++k) {
      Metric::add(sums, a[row + k * pairs.a_inner], b[column + k * pairs.b_inner], T(p));
    }
    return Metric::finish(sums, T(p), pairs.inner);
  });
}
