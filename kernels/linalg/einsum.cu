// Einsum: sums of products of two operands that are not a matrix product.
#include "index.cuh"
#include "reduce.cuh"

// Computes  y[row] = sum over terms of a * b; without b, of a alone.
// Shapes    a, b, y any strides, walked by `kept` (a row each); a and b by `reduced` too (the terms of a row).
// Grid      256 / lanes rows per block.
// Needs     b may be null; terms may be 0.
// Numerics  product and sum in Acc<T>, each rounded, integers wrap; every lanes-th term serially, then a tree over lanes;
//           one rounding at the end.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) contract(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, Strided<kMaxRank, 3> kept,
    Strided<kMaxRank, 2> reduced, int lanes, int lane_stride) {
  typedef Acc<T> A;
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < kept.count;
  i64 start[3] = {0, 0, 0};
  if (is_live) kept.locate(team.row, start);
  A sum = A(0);
  for (i64 term = team.lane; term < (is_live ? reduced.count : 0); term += lanes) {
    i64 offsets[2];
    reduced.locate(term, offsets);
    const A value = widen(a[start[0] + offsets[0]]);
    sum = wrapping_add(sum, b ? wrapping_mul(value, widen(b[start[1] + offsets[1]])) : value);
  }
  sum = team.fold(sum, shared, wrapping_add<A>);
  if (is_live && team.lane == 0) y[start[2]] = cast<T>(sum);
}
