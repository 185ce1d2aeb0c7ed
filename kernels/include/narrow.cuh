// Narrow weights: half, or 8-bit integers with scales, for products computed in a wider type.
// They are widened in registers where they are read, to the bit as DequantizeLinear or Cast would have widened them.
#pragma once
#include "types.cuh"

// Integers with scales: value = (q - zero) * scale, rounded to T. `zero` may be null: all are zero.
template <class T>
struct Scales {
  const T* scale;
  const i8* zero;
};

// The strides of scales and zero points of a matrix, in elements; 0 along an axis they don't vary over, and along batches.
struct ScaleSteps {
  i64 inner, column;
};

template <class T, class W>
__device__ inline Acc<T> widen_weight(W q, const Scales<T>& scales, i64 place) {
  if constexpr (kIsFloat<W>) {
    return cast<Acc<T>>(q);
  } else {
    int zero = scales.zero ? int(scales.zero[place]) : 0;
    return widen(cast<T>(float(int(q) - zero) * widen(scales.scale[place])));
  }
}
