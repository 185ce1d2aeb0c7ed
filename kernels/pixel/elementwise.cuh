// Operand positions of elementwise blits: the walk of ../include/elementwise.cuh, in units.
#pragma once
#include "../include/elementwise.cuh"
#include "texture.cuh"

template <int Width, int Operands>
struct Place {
  i64 at[Operands];  // offset of the element in every operand

  __device__ Place(const Strided<kMaxRank, Operands>& walk, i64 index, bool is_vector) {
    walk.locate(is_vector ? index / Width : index, at);
    if (!is_vector) return;
#pragma unroll
    for (int k = 0; k < Operands; ++k) at[k] += walk.strides[k][0] == 0 ? 0 : index % Width;
  }
};
