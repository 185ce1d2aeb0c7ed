// Batch normalisation: statistics of channels, and the affine map by given statistics.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "reduce.cuh"

// Computes y = (x - mean) * (scale / sqrt(variance + epsilon)) + bias, parameters per channel.
// Shapes   x, y [n, channels, inner] dense; scale, bias, mean, variance [channels].
// Grid     1024 elements per block.
// Needs    nothing of alignment.
// Numerics in Acc<T>, in the order written; one rounding; then the epilogue.
template <class T, class P, class S, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads) normalize_channels(
    const T* __restrict__ x, const P* __restrict__ scale, const P* __restrict__ bias, const S* __restrict__ mean,
    const S* __restrict__ variance, T* __restrict__ y, i64 count, FastDiv64 inner, FastDiv64 channels, double epsilon,
    Epilogue... epilogue) {
  typedef Acc<T> A;
  constexpr int kPerThread = 4;
  const auto finish = finish_by<T>(epilogue...);
  const i64 first = i64(blockIdx.x) * kPerThread * kBlockThreads + threadIdx.x;
  A values[1][kPerThread];
  wait_for_predecessors();
  launch_dependents();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const i64 element = first + i * kBlockThreads;
    values[0][i] = A(0);
    if (element >= count) continue;
    u64 channel;
    channels.divide(inner.divide(element), channel);
    const A centered = widen(x[element]) - cast<A>(mean[channel]);
    const A deviation = root_of(cast<A>(variance[channel]) + A(epsilon));
    values[0][i] = centered * (cast<A>(scale[channel]) / deviation) + cast<A>(bias[channel]);
  }
  const i64 own = (count - first + kBlockThreads - 1) / kBlockThreads;
  finish.many(values, {first}, {own < kPerThread ? int(own) : kPerThread}, kBlockThreads);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const i64 element = first + i * kBlockThreads;
    if (element < count) y[element] = cast<T>(values[0][i]);
  }
}

// Computes mean and variance of each channel, and running = running * momentum + statistic * rest.
// Shapes   x [n, channels, inner] dense; batch_mean, batch_variance [channels] in Acc<T>; the others [channels].
// Grid     one block per channel.
// Needs    nothing of alignment.
// Numerics in Acc<T>, mean before variance, divided by n * inner; 256 lanes.
template <class T, class S>
__global__ void __launch_bounds__(kBlockThreads) measure_channels(
    const T* __restrict__ x, const S* __restrict__ mean, const S* __restrict__ variance,
    Acc<T>* __restrict__ batch_mean, Acc<T>* __restrict__ batch_variance, S* __restrict__ running_mean,
    S* __restrict__ running_variance, i64 n, i64 channels, FastDiv64 inner_divisor, double momentum, double rest) {
  typedef Acc<T> A;
  __shared__ A shared[kBlockThreads];
  const Team team(kBlockThreads, 1);
  const i64 channel = blockIdx.x;
  const i64 inner = inner_divisor.divisor, terms = n * inner;
  wait_for_predecessors();
  launch_dependents();
  const auto sum_over = [&](auto value) {
    A total = A(0);
    for (i64 term = team.lane; term < terms; term += kBlockThreads) {
      u64 pixel;
      const i64 image = inner_divisor.divide(term, pixel);
      total += value(widen(x[(image * channels + channel) * inner + i64(pixel)]));
    }
    return team.fold(total, shared, add<A>);
  };
  const A center = sum_over([](A x) { return x; }) / A(terms);
  const A spread = sum_over([=](A x) { return (x - center) * (x - center); }) / A(terms);
  if (team.lane) return;
  batch_mean[channel] = center;
  batch_variance[channel] = spread;
  running_mean[channel] = cast<S>(cast<A>(mean[channel]) * A(momentum) + center * A(rest));
  running_variance[channel] = cast<S>(cast<A>(variance[channel]) * A(momentum) + spread * A(rest));
}
