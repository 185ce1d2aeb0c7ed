// Cast between any two element types, texel by texel.
#include "narrow_types.cuh"
#include "elementwise.cuh"

// Computes: y = x converted as `cast` of types.cuh says.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per texel of y.
// Needs: the walk of `convert`.
// Numerics: as `convert`, bit for bit.
template <class To, class From>
__global__ void __launch_bounds__(256) draw_convert(
    const Texture<From> x, const Surface<To> y, const __grid_constant__ Strided<kMaxRank, 2> walk, i64 size,
    i32 is_vector) {
  draw<To>(y, size, [&](i64 index) {
    const Place<kWidth<From, To>, 2> place(walk, index, is_vector);
    return cast<To>(x[place.at[0]]);
  });
}

// Computes: y = x converted as `convert_narrow_element` says; x or y, or both, are of a narrow type.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per texel of y.
// Needs: the walk of `convert_narrow`.
// Numerics: as `convert_narrow`, bit for bit.
template <class To, class From>
__global__ void __launch_bounds__(256) draw_convert_narrow(
    const Texture<From> x, const Surface<To> y, const __grid_constant__ Strided<kMaxRank, 2> walk, i64 size,
    i32 is_vector, i32 from, i32 to, i32 mode) {
  draw<To>(y, size, [&](i64 index) {
    const Place<kWidth<From, To>, 2> place(walk, index, is_vector);
    return convert_narrow_element<To>(x[place.at[0]], from, to, mode);
  });
}
