// Binary elementwise operators, texel by texel, by the functors of ../elementwise/elementwise_binary.cu.
#include "../elementwise/elementwise_binary.cu"
#include "elementwise.cuh"

// Computes: y = Op(a, b) element by element.
// Shapes: a and b broadcast to y by strides of 0.
// Grid: one thread per texel of y.
// Needs: the walk of `binary`.
// Numerics: as `binary`, bit for bit.
template <class Op, class T, class Y>
__global__ void __launch_bounds__(256) draw_binary(
    const Texture<T> a, const Texture<T> b, const Surface<Y> y, const __grid_constant__ Strided<kMaxRank, 3> walk,
    i64 size, i32 is_vector) {
  draw<Y>(y, size, [&](i64 index) {
    const Place<kWidth<T, Y>, 3> place(walk, index, is_vector);
    return cast<Y>(Op::apply(widen(a[place.at[0]]), widen(b[place.at[1]])));
  });
}
