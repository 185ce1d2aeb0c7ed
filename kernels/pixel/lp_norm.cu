// LpNormalization, texel by texel: each thread walks the lines of its elements.
#include "reduce.cuh"
#include "texture.cuh"

// Computes y = x / (sum |x|^p)^(1/p) along the columns, p 1 or 2; 0 where the norm is 0.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics in Acc<T>, a row's sum from its first column on, one rounding.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_normalize_lp(
    const Texture<T> x, const Surface<T> y, i64 rows, i64 columns, i64 inner, int, int, int p) {
  typedef Acc<T> A;
  i64 known = -1;  // where the row begins whose norm this is
  A norm = A(0);
  draw<T>(y, rows * columns, [&](i64 index) {
    const i64 first = index / (columns * inner) * (columns * inner) + index % inner;
    if (first != known) {
      known = first;
      A total = A(0);
      for (i64 column = 0; column < columns; ++column) {
        const A value = widen(x[first + column * inner]);
        total += p == 2 ? value * value : magnitude_of(value);
      }
      norm = p == 2 ? root_of(total) : total;
    }
    return cast<T>(norm == A(0) ? A(0) : widen(x[index]) / norm);
  });
}
