// Copies between windows of any strides, texel by texel of the destination.
#include "index.cuh"
#include "texture.cuh"

constexpr int kCopyRank = 8;

// A window of the destination by its axes, longest stride first; packed by gpuexec/ops/lib/pixel.py. No two elements of it
// lie at one place, so an element's place tells its coordinates.
struct CopyWindow {
  i64 span;  // elements from the first to behind the last of the destination
  i64 rank;
  FastDiv64 to[kCopyRank];  // strides in the destination
  i64 extents[kCopyRank];
  i64 from[kCopyRank];      // strides in the source
};

// Computes: destination[w] = source[w] over a window of each; what lies between elements of the destination stays.
// Shapes: any strides in the source, positive ones in the destination. T is an unsigned integer as wide as the elements.
// Grid: one thread per texel of the destination's span.
// Needs: windows without common bytes.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_copy(
    const Texture<T> source, const Surface<T> destination, const __grid_constant__ CopyWindow window) {
  draw_some<T>(destination, window.span, [&](i64 index, T& value) {
    u64 rest = u64(index);
    i64 offset = 0;
    for (int axis = 0; axis < int(window.rank); ++axis) {
      u64 within;
      const i64 coordinate = i64(window.to[axis].divide(rest, within));
      if (coordinate >= window.extents[axis]) return false;
      rest = within;
      offset += coordinate * window.from[axis];
    }
    if (rest != 0) return false;
    value = source[offset];
    return true;
  });
}

// Computes: y[i] = pattern.
// Shapes: y [count]. T is an unsigned integer as wide as the elements.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_fill(const Surface<T> y, i64 count, T pattern) {
  draw<T>(y, count, [&](i64) { return pattern; });
}
