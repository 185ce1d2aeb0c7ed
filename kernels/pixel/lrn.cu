// LRN, texel by texel.
#include "../include/elementwise.cuh"
#include "texture.cuh"

// Computes: y = x / (bias + scale * sum of x^2 over channels c - before .. c + after that exist)^beta.
// Shapes: x, y [n, channels, inner] dense.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: as normalize_neighbours, bit for bit.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_normalize_neighbours(
    const Texture<T> x, const Surface<T> y, i64 size, const FastDiv64 channels, const FastDiv64 inner, i64 before,
    i64 after, Acc<T> scale, Acc<T> beta, Acc<T> bias) {
  typedef Acc<T> A;
  draw<T>(y, size, [&](i64 index) {
    u64 channel;
    channels.divide(inner.divide(u64(index)), channel);
    const i64 c = i64(channel), step = i64(inner.divisor), left = i64(channels.divisor) - 1 - c;
    A sum = A(0);
    for (i64 offset = c < before ? -c : -before; offset <= (left < after ? left : after); ++offset) {
      const A value = cast<A>(x[index + offset * step]);
      sum += value * value;
    }
    return cast<T>(cast<A>(x[index]) / math::pow(bias + scale * sum, beta));
  });
}
