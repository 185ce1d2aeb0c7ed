// LRN: local response normalization over neighbouring channels.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "index.cuh"

// Computes: y = x / (bias + scale * sum of x^2 over channels c - before .. c + after that exist)^beta.
// Shapes: x, y [n, channels, inner] dense.
// Grid: one thread per element.
// Needs: nothing of alignment.
// Numerics: in Acc<T>, summed from the first channel on, one rounding.
template <class T>
__global__ void __launch_bounds__(kThreads) normalize_neighbours(
    const T* __restrict__ x, T* __restrict__ y, i64 size, const FastDiv64 channels, const FastDiv64 inner, i64 before,
    i64 after, Acc<T> scale, Acc<T> beta, Acc<T> bias) {
  typedef Acc<T> A;
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 channel;
  channels.divide(inner.divide(u64(i)), channel);
  wait_for_predecessors();
  launch_dependents();
  if (i >= size) return;
  const i64 c = i64(channel), step = i64(inner.divisor);
  const i64 first = c < before ? -c : -before;
  const i64 last = i64(channels.divisor) - 1 - c < after ? i64(channels.divisor) - 1 - c : after;
  A sum = A(0);
  for (i64 offset = first; offset <= last; ++offset) {
    const A value = cast<A>(x[i + offset * step]);
    sum += value * value;
  }
  y[i] = cast<T>(cast<A>(x[i]) / math::pow(bias + scale * sum, beta));
}
