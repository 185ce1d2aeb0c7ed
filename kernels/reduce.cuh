// How the threads of a block share rows, and how lanes fold what they hold. gpuexec/ops/team.py chooses lanes and lane_stride.
#pragma once
#include "safe.cuh"
#include "types.cuh"

constexpr int kBlockThreads = 256;

// The threads that work on one row; see team.py. All threads of a block, those past the last row too, must take part in folds.
struct Team {
  int lane, lanes, lane_stride;
  i64 row;

  __device__ Team(int lanes, int lane_stride) : lanes(lanes), lane_stride(lane_stride) {
    const int thread = threadIdx.x, rows = kBlockThreads / lanes;
    lane = thread / lane_stride & (lanes - 1);
    row = i64(blockIdx.x) * rows + (lane_stride == 1 ? thread / lanes : thread & (rows - 1));
  }

  // Folds one value per lane in a fixed tree and gives the result to every lane. `shared` holds a value per thread and may
  // be used again at once.
  template <class Value, class Merge>
  __device__ Value fold(Value value, Value* shared, Merge merge) const {
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

// Of two zeros the positive one is greater, a NaN on either side wins: so the result does not depend on the order.
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

// A value and its place along the row; place -1 is nothing yet.
template <class A>
struct Placed {
  A value;
  i64 place;
};

// Whether `a` comes before `b` as an extremum: a NaN before any number, of equals the first place, or the last if so asked.
// The answer is the same in whatever order candidates meet.
template <class A>
__device__ inline bool wins(Placed<A> a, Placed<A> b, bool is_minimum, bool is_last_wanted) {
  if (a.place < 0 || b.place < 0) return b.place < 0;
  const bool is_a_nan = a.value != a.value, is_b_nan = b.value != b.value;
  if (is_a_nan != is_b_nan) return is_a_nan;
  if (!is_a_nan && a.value != b.value) return is_minimum ? a.value < b.value : a.value > b.value;
  return is_last_wanted ? a.place > b.place : a.place < b.place;
}
