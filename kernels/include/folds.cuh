// Operations that fold the elements of a row.
#pragma once
#include "reduce.cuh"
#include "safe.cuh"
#include "softmax_state.cuh"

// The last step of a reduction, by its code in the table of gpuexec/ops/reduce/reduce.py.
enum Finish : int { kAsIs, kMean, kRoot, kLog };

// An operation has a Partial, its identity, the lift of an element, an order-keeping merge, and the finish.
// Integers wrap; then mean and root are taken in double and truncated. The mean of nothing is NaN, or 0 for integers.
template <class T>
struct Sum {
  typedef Acc<T> Partial;
  static __device__ Partial identity() { return Partial(0); }
  static __device__ Partial lift(T x) { return widen(x); }
  static __device__ Partial merge(Partial a, Partial b) { return wrapping_add(a, b); }
  static __device__ T finish(Partial total, int finish, i64 terms) {
    typedef typename Select<kIsInteger<T>, double, Partial>::type Wide;
    if (finish == kMean) return cast<T>(Wide(total) / Wide(terms));
    if (finish == kRoot) return cast<T>(root_of(Wide(total)));
    if (finish == kLog) return cast<T>(log_of(Wide(total)));
    return cast<T>(total);
  }
};

template <class T>
struct SumMagnitude : Sum<T> {
  static __device__ Acc<T> lift(T x) { return magnitude_of(widen(x)); }
};

template <class T>
struct SumSquare : Sum<T> {
  static __device__ Acc<T> lift(T x) { return wrapping_mul(widen(x), widen(x)); }
};

template <class T>
struct Prod {
  typedef Acc<T> Partial;
  static __device__ Partial identity() { return Partial(1); }
  static __device__ Partial lift(T x) { return widen(x); }
  static __device__ Partial merge(Partial a, Partial b) { return wrapping_mul(a, b); }
  static __device__ T finish(Partial product, int, i64) { return cast<T>(product); }
};

template <class T>
struct Max {
  typedef Acc<T> Partial;
  static __device__ Partial identity() { return limits<Partial>::negative_inf(); }
  static __device__ Partial lift(T x) { return widen(x); }
  static __device__ Partial merge(Partial a, Partial b) { return greater_of(a, b); }
  static __device__ T finish(Partial greatest, int, i64) { return cast<T>(greatest); }
};

template <class T>
struct Min {
  typedef Acc<T> Partial;
  static __device__ Partial identity() { return limits<Partial>::inf(); }
  static __device__ Partial lift(T x) { return widen(x); }
  static __device__ Partial merge(Partial a, Partial b) { return lesser_of(a, b); }
  static __device__ T finish(Partial least, int, i64) { return cast<T>(least); }
};

template <class T>
struct LogSumExp {
  typedef SoftmaxState<Acc<T>> Partial;
  static __device__ Partial identity() { return Partial::empty(); }
  static __device__ Partial lift(T x) { return Partial::of(widen(x)); }
  static __device__ Partial merge(Partial a, Partial b) { return Partial::merge(a, b); }
  static __device__ T finish(Partial state, int, i64) { return cast<T>(state.log_sum()); }
};

// The largest element as softmax takes it, whose sign of zero is any.
template <class A>
struct Largest {
  typedef A Partial;
  static __device__ Partial identity() { return limits<A>::negative_inf(); }
  static __device__ Partial merge(Partial a, Partial b) { return max_keeping_nan(a, b); }
};

// The extremum of elements and its place.
template <class A, bool IsMinimum, bool IsLastWanted>
struct Extremum {
  typedef Placed<A> Partial;
  static __device__ Partial identity() { return {A(0), -1}; }
  static __device__ Partial merge(Partial a, Partial b) { return wins(b, a, IsMinimum, IsLastWanted) ? b : a; }
};

// The first element in the order of TopK, and its place: NaN counts as the largest, of equal elements the first place.
template <class A, bool IsLargest>
struct First {
  typedef Placed<A> Partial;
  static __device__ Partial identity() { return {A(0), -1}; }
  static __device__ Partial merge(Partial a, Partial b) { return wins<IsLargest>(b, a, !IsLargest, false) ? b : a; }
};

// Folds what the lanes of a team have, in the order of reduce.cuh. Lanes are neighbours.
template <class Fold>
__device__ inline typename Fold::Partial fold_team(const Team& team, typename Fold::Partial partial) {
  __shared__ typename Fold::Partial shared[kBlockThreads / kWarpThreads];
  return team.fold_warps(partial, shared, Fold::merge);
}
