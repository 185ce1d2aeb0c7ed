// Unary elementwise operators, texel by texel, by the functors of ../elementwise/elementwise_unary.cu.
#include "../elementwise/elementwise_unary.cu"
#include "elementwise.cuh"

// Computes: y = Op(x) element by element.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per texel of y.
// Needs: the walk of `unary`.
// Numerics: as `unary`, bit for bit.
template <class Op, class X, class Y>
__global__ void __launch_bounds__(256) draw_unary(
    const Texture<X> x, const Surface<Y> y, const __grid_constant__ Strided<kMaxRank, 2> walk, i64 size, i32 is_vector,
    double alpha, double beta) {
  draw<Y>(y, size, [&](i64 index) {
    const Place<kWidth<X, Y>, 2> place(walk, index, is_vector);
    return cast<Y>(Op::apply(widen(x[place.at[0]]), alpha, beta));
  });
}
