// Narrow weights in textures, widened where they are read.
#pragma once
#include "../include/narrow.cuh"
#include "texture.cuh"

// Weights in the type of the product.
template <class T>
struct PlainTexels {
  Texture<T> weights;

  __device__ Acc<T> at(i64 place, i64) const { return widen(weights[place]); }
};

// Narrow weights by the arithmetic of widen_weight; scale (of half weights) and zero may be absent.
template <class T, class W>
struct NarrowTexels {
  Texture<W> weights;
  Texture<T> scale;
  Texture<i8> zero;

  __device__ Acc<T> at(i64 place, i64 scale_place) const {
    if constexpr (kIsFloat<W>) {
      return widen_weight<T>(weights[place], Scales<T>{nullptr, nullptr}, 0);
    } else {
      const T factor = scale[scale_place];
      const i8 nothing = zero ? zero[scale_place] : i8(0);
      return widen_weight<T>(weights[place], Scales<T>{&factor, &nothing}, 0);
    }
  }
};
