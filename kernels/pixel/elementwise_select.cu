// Clip and Where, texel by texel.
#include "safe.cuh"
#include "elementwise.cuh"

// Computes: y = condition ? a : b.
// Shapes: all three inputs broadcast to y by strides of 0. T is an unsigned integer as wide as the elements.
// Grid: one thread per texel of y.
// Needs: the walk of `where`.
// Numerics: bits are kept, those of a NaN too.
template <class T>
__global__ void __launch_bounds__(256) draw_where(
    const Texture<bool> condition, const Texture<T> a, const Texture<T> b, const Surface<T> y,
    const __grid_constant__ Strided<kMaxRank, 4> walk, i64 size, i32 is_vector) {
  draw<T>(y, size, [&](i64 index) {
    const Place<kWidth<T>, 4> place(walk, index, is_vector);
    return condition[place.at[0]] ? a[place.at[1]] : b[place.at[2]];
  });
}

// Computes: y = min(max(x, low), high); a bound not given is left out.
// Shapes: x any strides, y of the same shape, low and high one element each.
// Grid: one thread per texel of y.
// Needs: the walk of `clip`. Where a bound is not given, its texture is that of x and is not read.
// Numerics: exact; a NaN in x or a bound gives NaN; where low > high the result is high.
template <class T>
__global__ void __launch_bounds__(256) draw_clip(
    const Texture<T> x, const Texture<T> low, const Texture<T> high, const Surface<T> y,
    const __grid_constant__ Strided<kMaxRank, 2> walk, i64 size, i32 is_vector, i32 has_low, i32 has_high) {
  draw<T>(y, size, [&](i64 index) {
    const Place<kWidth<T>, 2> place(walk, index, is_vector);
    Acc<T> value = widen(x[place.at[0]]);
    if (has_low) value = max_keeping_nan(value, widen(low[0]));
    if (has_high) value = min_keeping_nan(value, widen(high[0]));
    return cast<T>(value);
  });
}
