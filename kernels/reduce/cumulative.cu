// CumSum and CumProd along one axis of a dense tensor.
#include "dependent_launch.cuh"
#include "reduce.cuh"

// The second number of __launch_bounds__ keeps ptxas from spilling held elements for more blocks at a time.
constexpr int kMaxItems = 16;  // elements of a tile that one lane holds

struct Sum {
  template <class A>
  static __device__ inline A identity() {
    return A(0);
  }
  template <class A>
  static __device__ inline A combine(A a, A b) {
    return wrapping_add(a, b);
  }
};

struct Product {
  template <class A>
  static __device__ inline A identity() {
    return A(1);
  }
  template <class A>
  static __device__ inline A combine(A a, A b) {
    return wrapping_mul(a, b);
  }
};

// Combines the values of the lanes before this one, and in `total` those of all lanes. The order is fixed by the team.
template <class Fold, class A>
__device__ inline A scan_lanes(const Team& team, A sum, A (&shared)[2][kBlockThreads], A& total) {
  const int thread = threadIdx.x, stride = team.lane_stride;
  int side = 0;
  shared[side][thread] = sum;
  __syncthreads();
  for (int distance = 1; distance < team.lanes; distance *= 2) {
    if (team.lane >= distance) sum = Fold::combine(shared[side][thread - distance * stride], sum);
    side = 1 - side;
    shared[side][thread] = sum;
    __syncthreads();
  }
  total = shared[side][thread + (team.lanes - 1 - team.lane) * stride];
  const A before = team.lane > 0 ? shared[side][thread - stride] : Fold::template identity<A>();
  __syncthreads();
  return before;
}

// Computes y[i] = x[0] + ... + x[i] along the columns (Product: times); without x[i] if is_exclusive, from the last column
//          on if is_reverse.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     256 / lanes rows per block; a tile is lanes * items columns, and its total is carried to the next.
// Needs    nothing of alignment; items is 1 to 16.
// Numerics in Acc<T>, each output rounded once; integers wrap, so their unsigned type serves both.
template <class Fold, class T>
__global__ void __launch_bounds__(kBlockThreads, 1) cumulative(
    const T* __restrict__ x, T* __restrict__ y, i64 rows, i64 columns, i64 inner, int lanes, int lane_stride, int items,
    int is_exclusive, int is_reverse) {
  typedef Acc<T> A;
  __shared__ A shared[2][kBlockThreads];
  const Team team(lanes, lane_stride);
  const i64 end = team.row < rows ? columns : 0;
  const i64 start = end > 0 ? row_start(team.row, columns, inner) + (is_reverse ? (columns - 1) * inner : 0) : 0;
  const i64 step = is_reverse ? -inner : inner;
  wait_for_predecessors();
  launch_dependents();
  A carry = Fold::template identity<A>();
  for (i64 tile = 0; tile < columns; tile += lanes * items) {
    const i64 first = tile + team.lane * items;
    A values[kMaxItems], sum = Fold::template identity<A>(), total;
#pragma unroll
    for (int i = 0; i < kMaxItems; ++i) {
      values[i] = i < items && first + i < end ? widen(x[start + (first + i) * step]) : Fold::template identity<A>();
      sum = Fold::combine(sum, values[i]);
    }
    A running = Fold::combine(carry, scan_lanes<Fold>(team, sum, shared, total));
#pragma unroll
    for (int i = 0; i < kMaxItems; ++i) {
      const A before = running;
      running = Fold::combine(running, values[i]);
      if (i < items && first + i < end) y[start + (first + i) * step] = cast<T>(is_exclusive ? before : running);
    }
    carry = Fold::combine(carry, total);
  }
}
