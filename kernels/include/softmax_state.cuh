// The running state of sum(exp(x)): the largest x and the sum of exp(x - largest).
#pragma once
#include "reduce.cuh"

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float log_of(float x) { return logf(x); }
__device__ inline double log_of(double x) { return log(x); }

// Of no values: largest -inf, sum 0. An x of +-inf that is the largest adds 1, so log(sum) + largest stays right.
template <class A>
struct SoftmaxState {
  A largest, sum;

  static __device__ SoftmaxState empty() { return {limits<A>::negative_inf(), A(0)}; }
  static __device__ SoftmaxState of(A x) { return {x, A(1)}; }

  // Factor that rescales a sum of exp(x - largest) to exp(x - common); the comparison avoids inf - inf.
  static __device__ A weight(A largest, A common) { return largest == common ? A(1) : exp_of(largest - common); }

  // Merges the states of two consecutive parts of a row, the earlier first.
  static __device__ SoftmaxState merge(SoftmaxState a, SoftmaxState b) {
    const A common = greater_of(a.largest, b.largest);
    return {common, a.sum * weight(a.largest, common) + b.sum * weight(b.largest, common)};
  }

  // The sum as NumPy's softmax has it: NaN where the largest is not finite.
  __device__ A strict_sum() const { return sum + (largest - largest); }

  __device__ A log_sum() const { return log_of(sum) + largest; }
};
