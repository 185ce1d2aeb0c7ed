// Batch normalisation by given statistics, texel by texel.
#include "index.cuh"
#include "reduce.cuh"
#include "texture.cuh"

// Computes y = (x - mean) * (scale / sqrt(variance + epsilon)) + bias, parameters per channel.
// Shapes   x, y [n, channels, inner] dense; scale, bias, mean, variance [channels].
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics as normalize_channels, bit for bit.
template <class T, class P, class S>
__global__ void __launch_bounds__(kBlockThreads) draw_normalize_channels(
    const Texture<T> x, const Texture<P> scale, const Texture<P> bias, const Texture<S> mean, const Texture<S> variance,
    const Surface<T> y, i64 count, const FastDiv64 inner, const FastDiv64 channels, double epsilon) {
  typedef Acc<T> A;
  draw<T>(y, count, [&](i64 index) {
    u64 channel;
    channels.divide(inner.divide(u64(index)), channel);
    const i64 c = i64(channel);
    const A centered = widen(x[index]) - cast<A>(mean[c]);
    const A deviation = root_of(cast<A>(variance[c]) + A(epsilon));
    return cast<T>(centered * (cast<A>(scale[c]) / deviation) + cast<A>(bias[c]));
  });
}
