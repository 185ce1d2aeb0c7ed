// SwiGLU, texel by texel.
#include "../nn/swiglu.cu"
#include "elementwise.cuh"

// Computes  what `swiglu` computes.
// Shapes    a, b and y alike, by strides.
// Grid      one thread per texel of y.
// Needs     the walk of `swiglu`.
// Numerics  as `swiglu`, bit for bit.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_swiglu(
    const Texture<T> a, const Texture<T> b, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 3> walk,
    i64 size, i32 is_vector, double alpha) {
  draw<T>(y, size, [&](i64 index) {
    const Place<kWidth<T>, 3> place(walk, index, is_vector);
    return cast<T>(gate(widen(a[place.at[0]]), widen(b[place.at[1]]), Acc<T>(alpha)));
  });
}
