// Value ranges, and the scale and zero point of quantisation that follow from them.
#pragma once
#include "reduce.cuh"

// Minimum and maximum of numbers, widened to include 0.
struct Range {
  float lowest, highest;

  __device__ void widen_to(float x) {
    lowest = fminf(lowest, x);
    highest = fmaxf(highest, x);
  }
  // Scale of the bytes: the range divided into 255 steps; 1 for an empty range.
  __device__ float step() const { return highest == lowest ? 1.0f : (highest - lowest) / 255.0f; }
  // Zero point: the byte that represents 0.
  __device__ i32 origin() const {
    const float shift = rintf((0.0f - lowest) / step());
    return shift >= 0.0f ? i32(fminf(shift, 255.0f)) : 0;
  }
};

// Folds a range per thread of a block of kBlockThreads and gives the result to every thread.
__device__ inline Range fold_ranges(Range range) {
  __shared__ Range shared[kBlockThreads];
  const Team team(kBlockThreads, 1);
  return team.fold(range, shared, [](Range a, Range b) {
    return Range{fminf(a.lowest, b.lowest), fmaxf(a.highest, b.highest)};
  });
}
