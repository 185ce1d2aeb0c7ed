// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.
#include "index.cuh"
#include "softmax_state.cuh"

// Packed by gpuexec/ops/nn/loss.py.
struct Labels {
  i64 rows, classes, inner;  // x is [rows / inner, classes, inner] dense; a row has the label at its place
  i64 ignored;               // a label without loss and weight
  i32 is_wide, has_ignored;  // whether labels are i64
};

// A loss and its weight, or sums of them.
template <class A>
struct Weighed {
  A loss, weight;

  static __device__ Weighed add(Weighed a, Weighed b) { return {a.loss + b.loss, a.weight + b.weight}; }
};

// The loss of one row: that of its label, -x or log(sum(exp(x))) - x, times the weight of the class. A label that is no class
// gives NaN.
template <class T>
__device__ inline Weighed<Acc<T>> weigh_row(
    const T* __restrict__ x, const void* __restrict__ labels, const T* __restrict__ weights,
    const SoftmaxState<Acc<T>>* __restrict__ sums, const Labels& plan, i64 row) {
  typedef Acc<T> A;
  const i64 label = plan.is_wide ? static_cast<const i64*>(labels)[row] : static_cast<const i32*>(labels)[row];
  if (plan.has_ignored && label == plan.ignored) return {A(0), A(0)};
  if (label < 0 || label >= plan.classes) return {limits<A>::nan(), A(0)};
  const A value = widen(x[row_start(row, plan.classes, plan.inner) + label * plan.inner]);
  const A weight = weights ? widen(weights[label]) : A(1);
  const A loss = sums ? sums[row].largest - value + log_of(sums[row].strict_sum()) : -value;
  return {loss * weight, weight};
}

// Computes  states[row] = the largest of a row and the sum of exp(x - largest)
// Shapes    x as Labels says; states [rows]
// Grid      256 / lanes rows per block
// Needs     states aligned to 16 bytes
// Numerics  in Acc<T>; every lanes-th element serially, then a tree over lanes
template <class T>
__global__ void __launch_bounds__(kBlockThreads) sum_exponentials(
    const T* __restrict__ x, SoftmaxState<Acc<T>>* __restrict__ states, Labels plan, int lanes, int lane_stride) {
  typedef SoftmaxState<Acc<T>> State;
  __shared__ State shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < plan.rows;
  const i64 start = is_live ? row_start(team.row, plan.classes, plan.inner) : 0;
  State state = State::empty();
  for (i64 i = team.lane; i < (is_live ? plan.classes : 0); i += lanes) {
    state = State::merge(state, State::of(widen(x[start + i * plan.inner])));
  }
  state = team.fold(state, shared, State::merge);
  if (is_live && team.lane == 0) states[team.row] = state;
}

// Computes  y[row] = loss of the row
// Shapes    x as Labels says; labels, states, y [rows]; weights [classes]
// Grid      one thread per row
// Needs     weights may be null; states too, where x is a logarithm already
// Numerics  in Acc<T>, one rounding
template <class T>
__global__ void __launch_bounds__(kBlockThreads) write_losses(
    const T* __restrict__ x, const void* __restrict__ labels, const T* __restrict__ weights,
    const SoftmaxState<Acc<T>>* __restrict__ states, T* __restrict__ y, Labels plan) {
  const i64 row = i64(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (row < plan.rows) y[row] = cast<T>(weigh_row(x, labels, weights, states, plan, row).loss);
}

// Computes  partials[chunk] = sums of losses and weights of the rows [chunk * length, (chunk + 1) * length)
// Shapes    as write_losses; partials [chunks]
// Grid      one block per chunk
// Needs     as write_losses; partials aligned to 16 bytes
// Numerics  in Acc<T>; every 256th row serially, then a tree
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) sum_losses(
    const T* __restrict__ x, const void* __restrict__ labels, const T* __restrict__ weights,
    const SoftmaxState<Acc<T>>* __restrict__ states, Weighed<Acc<T>>* __restrict__ partials, Labels plan, i64 length) {
  typedef Weighed<Acc<T>> Sum;
  __shared__ Sum shared[kBlockThreads / kWarpThreads];
  const i64 first = blockIdx.x * length;
  const i64 end = first + length < plan.rows ? first + length : plan.rows;
  const Team team(kBlockThreads, 1);
  Sum sum = {0, 0};
  for (i64 row = first + team.lane; row < end; row += kBlockThreads) {
    sum = Sum::add(sum, weigh_row(x, labels, weights, states, plan, row));
  }
  sum = team.fold(sum, shared, Sum::add);
  if (team.lane == 0) partials[blockIdx.x] = sum;
}

// Computes  y[0] = sum of losses, of which the mean is over the sum of weights
// Shapes    partials [chunks]
// Grid      one block
// Needs     partials aligned to 16 bytes
// Numerics  in Acc<T>; every 256th partial serially, then a tree; one rounding. The mean of nothing is NaN
template <class T>
__global__ void __launch_bounds__(kBlockThreads) finish_losses(
    const Weighed<Acc<T>>* __restrict__ partials, T* __restrict__ y, i64 chunks, int is_mean) {
  typedef Weighed<Acc<T>> Sum;
  __shared__ Sum shared[kBlockThreads / kWarpThreads];
  const Team team(kBlockThreads, 1);
  Sum sum = {0, 0};
  for (i64 chunk = team.lane; chunk < chunks; chunk += kBlockThreads) sum = Sum::add(sum, partials[chunk]);
  sum = team.fold(sum, shared, Sum::add);
  if (team.lane == 0) y[0] = cast<T>(is_mean ? sum.loss / sum.weight : sum.loss);
}
