// Teams of threads per row, and folding over the lanes of a team. gpuexec/ops/lib/team.py chooses the team.
#pragma once
#include "safe.cuh"
#include "types.cuh"

constexpr int kBlockThreads = 256;

constexpr int kWarpThreads = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

// A value of any size as the 32-bit words that warps exchange.
template <class Value>
union Words {
  static constexpr int kCount = (sizeof(Value) + 3) / 4;
  Value value;
  u32 words[kCount];

  __device__ Words(Value given) {
    words[kCount - 1] = 0;
    value = given;
  }
};

// The value of the lane `distance` further within groups of `width` lanes.
template <class Value>
__device__ inline Value shuffle_down(Value value, int distance, int width) {
  Words<Value> pun(value);
#pragma unroll
  for (int i = 0; i < Words<Value>::kCount; ++i) {
    pun.words[i] = __shfl_down_sync(kWholeWarp, pun.words[i], distance, width);
  }
  return pun.value;
}

// The value of the first lane of each group of `width` lanes.
template <class Value>
__device__ inline Value shuffle_first(Value value, int width) {
  Words<Value> pun(value);
#pragma unroll
  for (int i = 0; i < Words<Value>::kCount; ++i) pun.words[i] = __shfl_sync(kWholeWarp, pun.words[i], 0, width);
  return pun.value;
}

// The threads that work on one row; see team.py. All threads of a block take part in folds, those past the last row too.
struct Team {
  int lane, lanes, lane_stride;
  i64 row;

  __device__ Team(int lanes, int lane_stride) : Team(lanes, lane_stride, threadIdx.x, blockIdx.x) {}

  // That of a thread of some block.
  __device__ Team(int lanes, int lane_stride, int thread, i64 block) : lanes(lanes), lane_stride(lane_stride) {
    const int rows = kBlockThreads / lanes;
    lane = thread / lane_stride & (lanes - 1);
    row = block * rows + (lane_stride == 1 ? thread / lanes : thread & (rows - 1));
  }

  // Folds one value per lane in a fixed order and gives the result to every lane. `shared` holds a value per thread and
  // may be used again at once.
  template <class Value, class Merge>
  __device__ Value fold(Value value, Value* shared, Merge merge) const {
    return lane_stride == 1 ? fold_warps(value, shared, merge) : fold_columns(value, shared, merge);
  }

  // As `fold`, where neighbouring threads are neighbouring lanes: a tree within each warp, then the warps of the team in order.
  // `shared` holds a value per warp.
  template <class Value, class Merge>
  __device__ Value fold_warps(Value value, Value* shared, Merge merge) const {
    const int width = lanes < kWarpThreads ? lanes : kWarpThreads;
    for (int half = width / 2; half > 0; half /= 2) value = merge(value, shuffle_down(value, half, width));
    if (lanes <= kWarpThreads) return shuffle_first(value, width);
    const int warp = threadIdx.x / kWarpThreads, warps = lanes / kWarpThreads, first = warp & ~(warps - 1);
    if (threadIdx.x % kWarpThreads == 0) shared[warp] = value;
    __syncthreads();
    Value result = shared[first];
    for (int i = 1; i < warps; ++i) result = merge(result, shared[first + i]);
    __syncthreads();
    return result;
  }

 private:
  // Neighbouring threads belong to neighbouring rows: a tree over the block.
  template <class Value, class Merge>
  __device__ Value fold_columns(Value value, Value* shared, Merge merge) const {
    const int thread = threadIdx.x;
    shared[thread] = value;
    __syncthreads();
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane < half) shared[thread] = merge(shared[thread], shared[thread + half * lane_stride]);
      __syncthreads();
    }
    Value result = shared[thread - lane * lane_stride];
    __syncthreads();
    return result;
  }
};

__device__ inline float root_of(float x) { return sqrtf(x); }
__device__ inline double root_of(double x) { return sqrt(x); }

template <class A>
__device__ inline A add(A a, A b) {
  return a + b;
}

template <class A>
__device__ inline A magnitude_of(A x) {
  if constexpr (kIsFloat<A>) return x < A(0) ? -x : x + A(0);
  else return x < A(0) ? wrapping_neg(x) : x;
}

// Where a row of a dense [outer, columns, inner] tensor starts; its elements are `inner` apart, rows lie side by side.
__device__ inline i64 row_start(i64 row, i64 columns, i64 inner) {
  return inner == 1 ? row * columns : row / inner * columns * inner + row % inner;
}

// Of two zeros the positive one is greater, a NaN on either side is returned: so the result does not depend on the order.
template <class A>
__device__ inline A greater_of(A a, A b) {
  if constexpr (kIsFloat<A>) {
    if (a != a || b != b) return a + b;
    if (a == b) return a == A(0) ? a + b : a;
  }
  return a > b ? a : b;
}

template <class A>
__device__ inline A lesser_of(A a, A b) {
  if constexpr (kIsFloat<A>) {
    if (a != a || b != b) return a + b;
    if (a == b) return a == A(0) ? -(-a + -b) : a;
  }
  return a < b ? a : b;
}

// A value and its place along the row; place -1: none yet.
template <class A>
struct Placed {
  A value;
  i64 place;
};

// Whether `a` is preferred to `b` as an extremum: NaN to any number, or where it is not wanted, any number to NaN; of equal
// values the first place, or the last if asked. This is a total order, so the result does not depend on the order of
// comparisons.
template <bool IsNanWanted = true, class A>
__device__ inline bool wins(Placed<A> a, Placed<A> b, bool is_minimum, bool is_last_wanted) {
  if (a.place < 0 || b.place < 0) return b.place < 0;
  const bool is_a_nan = a.value != a.value, is_b_nan = b.value != b.value;
  if (is_a_nan != is_b_nan) return IsNanWanted ? is_a_nan : is_b_nan;
  if (!is_a_nan && a.value != b.value) return is_minimum ? a.value < b.value : a.value > b.value;
  return is_last_wanted ? a.place > b.place : a.place < b.place;
}
