// Reductions: sums, products, extrema, norms, log-sum-exp, ArgMax and ArgMin.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "folds.cuh"
#include "index.cuh"

__device__ inline float power_of(float x, float p) { return powf(x, p); }
__device__ inline double power_of(double x, double p) { return pow(x, p); }

// Folds the terms first, first + step, ... below `end` of the row at x, in this order. Where the terms have one stride,
// four are loaded before they are folded.
template <class Op, class T>
__device__ inline typename Op::Partial fold_serially(
    const T* __restrict__ x, const Strided<kMaxRank, 1>& walk, i64 first, i64 step, i64 end) {
  constexpr int kAhead = 4;
  typename Op::Partial partial = Op::identity();
  i64 term = first;
  if (walk.rank <= 1) {
    const i64 stride = walk.strides[0][0];
    for (; term + (kAhead - 1) * step < end; term += kAhead * step) {
      T values[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) values[i] = x[(term + i * step) * stride];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) partial = Op::merge(partial, Op::lift(values[i]));
    }
  }
  for (; term < end; term += step) {
    i64 offset[1];
    walk.locate(term, offset);
    partial = Op::merge(partial, Op::lift(x[offset[0]]));
  }
  return partial;
}

// Computes y[row] = finish(fold of x over the reduced axes).
// Shapes   x any strides, walked by `kept` (a row each) and `reduced` (the terms of a row); y [rows] dense.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment; terms may be 0 (the identity is finished), rows may not.
// Numerics partial in Acc<T>; every lanes-th term serially, then a tree over lanes; one rounding.
template <class Op, class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads) reduce(
    const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, Strided<kMaxRank, 1> kept, Strided<kMaxRank, 1> reduced,
    int lanes, int lane_stride, int finish, Epilogue... epilogue) {
  typedef typename Op::Partial Partial;
  __shared__ Partial shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < kept.count;
  i64 start[1] = {0};
  if (is_live) kept.locate(team.row, start);
  wait_for_predecessors();
  launch_dependents();
  Partial partial = fold_serially<Op>(x + start[0], reduced, team.lane, lanes, is_live ? reduced.count : 0);
  partial = team.fold(partial, shared, Op::merge);
  if (is_live && team.lane == 0) {
    store_made(finish_by<T>(epilogue...), y, team.row, Op::finish(partial, finish, reduced.count));
  }
}

// Computes y[row] = (sum of |x|^power over the reduced axes)^(1 / power).
// Shapes   x any strides, walked by `kept` (a row each) and `reduced` (the terms of a row); y [rows] dense.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics powers and sum in Acc<T>, order as reduce; one rounding.
template <class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads) lp_norm(
    const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, Strided<kMaxRank, 1> kept, Strided<kMaxRank, 1> reduced,
    int lanes, int lane_stride, float power, Epilogue... epilogue) {
  typedef Acc<T> A;
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < kept.count;
  i64 start[1] = {0};
  if (is_live) kept.locate(team.row, start);
  wait_for_predecessors();
  launch_dependents();
  A total = A(0);
  for (i64 term = team.lane; term < (is_live ? reduced.count : 0); term += lanes) {
    i64 offset[1];
    reduced.locate(term, offset);
    total += power_of(magnitude_of(widen(x[start[0] + offset[0]])), A(power));
  }
  total = team.fold(total, shared, add<A>);
  if (is_live && team.lane == 0) {
    store_made(finish_by<T>(epilogue...), y, team.row, cast<T>(power_of(total, A(1) / A(power))));
  }
}

// Computes partials[chunk] = fold of the terms [chunk * length, (chunk + 1) * length): the first half of a reduction to
//          one value.
// Shapes   x any strides, walked by `reduced`; partials [chunks] dense.
// Grid     one block per chunk.
// Needs    partials aligned to 16 bytes.
// Numerics as reduce, with 256 lanes.
template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads) reduce_chunks(
    const T* __restrict__ x, typename Op::Partial* __restrict__ partials, Strided<kMaxRank, 1> reduced, i64 length) {
  typedef typename Op::Partial Partial;
  __shared__ Partial shared[kBlockThreads];
  const i64 first = blockIdx.x * length;
  const i64 end = first + length < reduced.count ? first + length : reduced.count;
  const Team team(kBlockThreads, 1);
  wait_for_predecessors();
  launch_dependents();
  Partial partial = fold_serially<Op>(x, reduced, first + team.lane, kBlockThreads, end);
  partial = team.fold(partial, shared, Op::merge);
  if (team.lane == 0) partials[blockIdx.x] = partial;
}

// Computes y[0] = finish(fold of the partials): the second half.
// Shapes   partials [chunks], y [1].
// Grid     one block.
// Needs    partials aligned to 16 bytes.
// Numerics every 256th partial serially, then a tree; one rounding.
template <class Op, class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads) reduce_partials(
    const typename Op::Partial* __restrict__ partials, Stored<T, Epilogue...>* __restrict__ y, i64 chunks, i64 terms,
    int finish, Epilogue... epilogue) {
  typedef typename Op::Partial Partial;
  __shared__ Partial shared[kBlockThreads];
  const Team team(kBlockThreads, 1);
  wait_for_predecessors();
  launch_dependents();
  Partial partial = Op::identity();
  for (i64 chunk = team.lane; chunk < chunks; chunk += kBlockThreads) partial = Op::merge(partial, partials[chunk]);
  partial = team.fold(partial, shared, Op::merge);
  if (team.lane == 0) store_made(finish_by<T>(epilogue...), y, 0, Op::finish(partial, finish, terms));
}

// Computes y[row] = place of the extremum of x along the reduced axis.
// Shapes   x any strides, walked by `kept` and `reduced`; y [rows] dense.
// Grid     256 / lanes rows per block.
// Needs    at least one term.
// Numerics exact: compares in T (half and bf16 in float), -0 equals 0, a NaN wins.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) find_extremum(
    const T* __restrict__ x, i64* __restrict__ y, Strided<kMaxRank, 1> kept, Strided<kMaxRank, 1> reduced, int lanes,
    int lane_stride, int is_minimum, int is_last_wanted) {
  typedef Placed<Acc<T>> Candidate;
  __shared__ Candidate shared[kBlockThreads];
  const auto merge = [=](Candidate a, Candidate b) { return wins(b, a, is_minimum, is_last_wanted) ? b : a; };
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < kept.count;
  i64 start[1] = {0};
  if (is_live) kept.locate(team.row, start);
  wait_for_predecessors();
  launch_dependents();
  Candidate best = {Acc<T>(0), -1};
  for (i64 term = team.lane; term < (is_live ? reduced.count : 0); term += lanes) {
    i64 offset[1];
    reduced.locate(term, offset);
    best = merge(best, Candidate{widen(x[start[0] + offset[0]]), term});
  }
  best = team.fold(best, shared, merge);
  if (is_live && team.lane == 0) y[team.row] = best.place;
}
