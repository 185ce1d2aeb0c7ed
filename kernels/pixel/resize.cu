// Resize by tables, texel by texel; the tables are textures too.
#include "../vision/resize.cu"
#include "texture.cuh"

// Whether an output element lies outside the input along some axis.
__device__ inline bool is_outside(const ResizePlace& place, const ResizeWalk& walk, const Texture<i32>& positions) {
  bool outside = false;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) outside |= level < walk.levels && positions[place.rows[level]] < 0;
  return outside;
}

// Computes  y = x at one position along each axis, or fill where a position is -1
// Shapes    x by strides, y dense; positions: a table [extent of y, 1] per level, one after the other
// Grid      one thread per texel of y
// Needs     nothing; elements move as bits of their width
// Numerics  exact
template <class T>
__global__ void __launch_bounds__(256, 1) draw_resize_nearest(
    const Texture<T> x, const Texture<i32> positions, const Surface<T> y, const __grid_constant__ ResizeWalk walk,
    T fill) {
  draw<T>(y, walk.count, [&](i64 index) {
    const ResizePlace place(walk, index);
    i64 offset = place.base;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (level < walk.levels) offset += positions[place.rows[level]] * walk.level_strides[level];
    }
    return is_outside(place, walk, positions) ? fill : x[offset];
  });
}

// Blends along the axes from `Level` inwards: the innermost axis is summed first.
template <int Level, class T, class W>
__device__ inline W blend_texels(const Texture<T>& x, i64 offset, const Texture<i32>& positions,
                                 const Texture<W>& weights, const ResizeWalk& walk, const ResizePlace& place) {
  if constexpr (Level == kLevels) {
    return cast<W>(x[offset]);
  } else {
    if (Level >= walk.levels) return cast<W>(x[offset]);
    W sum = W(0);
    for (int tap = 0; tap < walk.taps[Level]; ++tap) {
      const int row = place.rows[Level] + tap;
      const i64 shifted = offset + positions[row] * walk.level_strides[Level];
      const W part = blend_texels<Level + 1>(x, shifted, positions, weights, walk, place) * weights[row];
      sum = tap == 0 ? part : sum + part;
    }
    return sum;
  }
}

// Computes  y = the weighted sum of x at the positions along each axis, or fill where a position is -1
// Shapes    x by strides, y dense; positions and weights: a table [extent of y, taps] per level, one after the other
// Grid      one thread per texel of y
// Needs     nothing
// Numerics  as resize_blend, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_resize_blend(
    const Texture<T> x, const Texture<i32> positions, const Texture<Weight<T>> weights, const Surface<T> y,
    const __grid_constant__ ResizeWalk walk, double fill) {
  draw<T>(y, walk.count, [&](i64 index) {
    const ResizePlace place(walk, index);
    if (is_outside(place, walk, positions)) return round_blend<T>(fill);
    return round_blend<T>(blend_texels<0, T, Weight<T>>(x, place.base, positions, weights, walk, place));
  });
}
