// Softmax, LogSoftmax and Hardmax, texel by texel: each thread walks the rows of its elements.
#include "softmax_state.cuh"
#include "texture.cuh"

// SoftmaxForm of kernels/nn/softmax.cu.
enum SoftmaxForm { kPlain, kLog, kGuarded };

// Computes y = exp(x - max) / sum(exp(x - max)) along the columns, or its logarithm x - max - log(sum).
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics in Acc<T>, a row's sum from its first column on, one rounding. A row whose maximum is not finite
//          gives NaN, guarded 0.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_softmax(
    const Texture<T> x, const Surface<T> y, i64 rows, i64 columns, i64 inner, int, int, int form) {
  typedef Acc<T> A;
  i64 known = -1;  // where the row begins whose maximum and sum these are
  A largest = A(0), sum = A(0);
  draw<T>(y, rows * columns, [&](i64 index) {
    const i64 first = index / (columns * inner) * (columns * inner) + index % inner, end = first + columns * inner;
    if (first != known) {
      known = first;
      largest = limits<A>::negative_inf();
      for (i64 i = first; i < end; i += inner) largest = max_keeping_nan(widen(x[i]), largest);
      sum = A(0);
      for (i64 i = first; i < end; i += inner) sum += exp_of(widen(x[i]) - largest);
      if (form == kLog) sum = log_of(sum);
    }
    const A shifted = widen(x[index]) - largest;
    if (form == kGuarded && sum != sum) return cast<T>(A(0));
    return cast<T>(form == kLog ? shifted - sum : exp_of(shifted) / sum);
  });
}

// Computes y = 1 at the first maximum of the columns, 0 elsewhere.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics exact; a NaN counts as the maximum.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_hardmax(
    const Texture<T> x, const Surface<T> y, i64 rows, i64 columns, i64 inner, int, int) {
  typedef Placed<Acc<T>> Candidate;
  draw<T>(y, rows * columns, [&](i64 index) {
    const i64 first = index / (columns * inner) * (columns * inner) + index % inner;
    Candidate best = {Acc<T>(0), -1};
    for (i64 column = 0; column < columns; ++column) {
      const Candidate next = {widen(x[first + column * inner]), column};
      if (wins(next, best, false, false)) best = next;
    }
    return cast<T>(first + best.place * inner == index ? 1.0f : 0.0f);
  });
}
