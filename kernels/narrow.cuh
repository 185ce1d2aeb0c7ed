// Weights stored narrower than what is computed in: half, or 8-bit integers with scales. They are widened in registers
// where they are read, to the value that DequantizeLinear or Cast would have made of them, to the bit.
#pragma once
#include "types.cuh"

// Integers with scales: value = (q - zero) * scale, rounded to T. `zero` may be null: all are zero.
template <class T>
struct Scales {
  const T* scale;
  const i8* zero;
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
