// CumSum and CumProd, texel by texel: each thread walks the terms before its elements.
#include "../reduce/cumulative.cu"
#include "texture.cuh"

// Computes y[i] = x[0] + ... + x[i] along the columns (Product: times); without x[i] if is_exclusive, from the last column
//          on if is_reverse.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics in Acc<T>, from the first term on, each output rounded once; integers wrap.
template <class Fold, class T>
__global__ void __launch_bounds__(kDrawThreads, 1) draw_cumulative(
    const Texture<T> x, const Surface<T> y, i64 rows, i64 columns, i64 inner, int, int, int, int is_exclusive,
    int is_reverse) {
  typedef Acc<T> A;
  draw<T>(y, rows * columns, [&](i64 index) {
    const i64 column = index / inner % columns;
    const i64 terms = (is_reverse ? columns - 1 - column : column) + (is_exclusive ? 0 : 1);
    const i64 step = is_reverse ? -inner : inner;
    const i64 first = index + ((is_reverse ? columns - 1 : 0) - column) * inner;
    A sum = Fold::template identity<A>();
    for (i64 term = 0; term < terms; ++term) sum = Fold::combine(sum, widen(x[first + term * step]));
    return cast<T>(sum);
  });
}
