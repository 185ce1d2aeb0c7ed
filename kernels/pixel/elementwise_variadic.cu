// Max, Min, Sum and Mean of any number of inputs, texel by texel, by the functors of ../elementwise/elementwise_variadic.cu.
#include "../elementwise/elementwise_variadic.cu"
#include "elementwise.cuh"

// Computes: y = Op(...Op(Op(x0, x1), x2)..., x[count-1]) / divisor.
// Shapes: all inputs broadcast to y by strides of 0.
// Grid: one thread per texel of y.
// Needs: the walk of `fold`. Textures from `count` on are not read.
// Numerics: as `fold`, bit for bit.
template <class Op, class First, class T, class Y>
__global__ void __launch_bounds__(256) draw_fold(
    const Texture<First> x0, const Texture<T> x1, const Texture<T> x2, const Texture<T> x3, const Texture<T> x4,
    const Texture<T> x5, const Texture<T> x6, const Texture<T> x7, const Surface<Y> y,
    const __grid_constant__ Strided<kMaxRank, kMaxInputs + 1> walk, i64 size, i32 is_vector, i32 count, i32 divisor) {
  draw<Y>(y, size, [&](i64 index) {
    const Place<kWidth<First, T, Y>, kMaxInputs + 1> place(walk, index, is_vector);
    Acc<T> sum = cast<Acc<T>>(x0[place.at[0]]);
    const auto add = [&](const Texture<T>& x, int k) {
      if (k < count) sum = Op::apply(sum, widen(x[place.at[k]]));
    };
    add(x1, 1);
    add(x2, 2);
    add(x3, 3);
    add(x4, 4);
    add(x5, 5);
    add(x6, 6);
    add(x7, 7);
    return cast<Y>(divisor == 1 ? sum : Acc<T>(sum / Acc<T>(divisor)));
  });
}
