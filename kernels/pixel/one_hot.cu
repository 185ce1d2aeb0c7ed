// OneHot, texel by texel.
#include "index.cuh"
#include "texture.cuh"

template <class T, class Index>
__device__ inline void draw_hot(
    const Texture<Index>& indices, const Texture<T>& values, const Surface<T>& y, i64 count, const FastDiv64& depth,
    const FastDiv64& inner) {
  draw<T>(y, count, [&](i64 element) {
    u64 column, place;
    const u64 outer = depth.divide(inner.divide(u64(element), column), place);
    const i64 index = cast<i64>(indices[i64(outer * inner.divisor + column)]);
    return values[i64(place) == index || i64(place) - i64(depth.divisor) == index];
  });
}

// Computes: y[o, d, i] = values[1] where d == indices[o, i] (or depth less, if negative), else values[0].
// Shapes: indices [outer, inner], y [outer, depth, inner], values [2], dense.
// Grid: one thread per texel of y.
// Needs: elements of y of 1, 2, 4 or 8 bytes.
// Numerics: none, bits are kept; an index that is no integer is truncated, one out of range matches nowhere.
template <class Index>
__global__ void __launch_bounds__(kDrawThreads) draw_one_hot(
    const Texture<Index> indices, const Texture<u8> values, const Surface<u8> y, i64 count, const FastDiv64 depth,
    const FastDiv64 inner, int element_bytes) {
  if (element_bytes == 1) draw_hot<u8>(indices, values, y, count, depth, inner);
  else if (element_bytes == 2) draw_hot<u16>(indices, values.as<u16>(), y.as<u16>(), count, depth, inner);
  else if (element_bytes == 4) draw_hot<u32>(indices, values.as<u32>(), y.as<u32>(), count, depth, inner);
  else draw_hot<u64>(indices, values.as<u64>(), y.as<u64>(), count, depth, inner);
}
