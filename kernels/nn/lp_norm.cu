// LpNormalization along one axis of a dense tensor.
#include "reduce.cuh"

// Computes y = x / (sum |x|^p)^(1/p) along the columns, p 1 or 2; 0 where the norm is 0.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics in Acc<T>, one rounding; two reads.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) normalize_lp(
    const T* __restrict__ x, T* __restrict__ y, i64 rows, i64 columns, i64 inner, int lanes, int lane_stride, int p) {
  typedef Acc<T> A;
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const i64 end = team.row < rows ? columns : 0;
  const i64 start = end > 0 ? row_start(team.row, columns, inner) : 0;
  A total = A(0);
  for (i64 column = team.lane; column < end; column += lanes) {
    const A value = widen(x[start + column * inner]);
    total += p == 2 ? value * value : magnitude_of(value);
  }
  total = team.fold(total, shared, add<A>);
  const A norm = p == 2 ? root_of(total) : total;
  for (i64 column = team.lane; column < end; column += lanes) {
    y[start + column * inner] = cast<T>(norm == A(0) ? A(0) : widen(x[start + column * inner]) / norm);
  }
}
