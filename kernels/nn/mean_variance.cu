// MeanVarianceNormalization: rows along any axes normalised to mean 0 and deviation 1.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "reduce.cuh"

// Computes  y = (x - mean) / (sqrt(variance) + 1e-9) over the reduced axes.
// Shapes    x, y by strides, walked by `kept` (a row each) and `reduced` (the terms of a row).
// Grid      256 / lanes rows per block.
// Needs     nothing of alignment.
// Numerics  mean, then the mean of squared distances from it, in Acc<T>, order as reduce; one rounding.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) normalize_mean_variance(
    const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Strided<kMaxRank, 2> kept,
    const __grid_constant__ Strided<kMaxRank, 2> reduced, int lanes, int lane_stride) {
  typedef Acc<T> A;
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const i64 terms = team.row < kept.count ? reduced.count : 0;
  i64 start[2] = {0, 0}, at[2];
  if (terms) kept.locate(team.row, start);
  wait_for_predecessors();
  launch_dependents();
  A sum = A(0), squares = A(0);
  for (i64 term = team.lane; term < terms; term += lanes) {
    reduced.locate(term, at);
    sum += widen(x[start[0] + at[0]]);
  }
  const A mean = team.fold(sum, shared, add<A>) / A(reduced.count);
  for (i64 term = team.lane; term < terms; term += lanes) {
    reduced.locate(term, at);
    const A distance = widen(x[start[0] + at[0]]) - mean;
    squares += distance * distance;
  }
  const A deviation = root_of(team.fold(squares, shared, add<A>) / A(reduced.count)) + A(1e-9);
  for (i64 term = team.lane; term < terms; term += lanes) {
    reduced.locate(term, at);
    y[start[1] + at[1]] = cast<T>((widen(x[start[0] + at[0]]) - mean) / deviation);
  }
}
