// Random tensors: uniform and normal distributions, Bernoulli and dropout masks, and random keys.
#include "philox.cuh"

constexpr int kThreads = 256;

// Computes: y[i] = low + u * span, with u of [0, 1).
// Shapes: y [count]; key two words: seed and number of the run, or null.
// Grid: one thread per block of numbers: 4 elements, 2 of double.
// Needs: nothing.
// Numerics: u has 24 bits, 53 in double; product and sum in Acc<T>, rounded to T once, which may reach low + span.
template <class T>
__global__ void __launch_bounds__(kThreads) random_uniform(
    T* __restrict__ y, i64 count, Acc<T> low, Acc<T> span, const u64* __restrict__ key, const Draw draw) {
  const i64 block = i64(blockIdx.x) * kThreads + threadIdx.x, first = block * kNumbers<Acc<T>>;
  Acc<T> numbers[kNumbers<Acc<T>>];
  draw_uniform(draw, key, u64(block), numbers);
#pragma unroll
  for (int i = 0; i < kNumbers<Acc<T>>; ++i) {
    if (first + i < count) y[first + i] = cast<T>(numbers[i] * span + low);
  }
}

// Computes: y[i] = mean + z * scale, with z of the standard normal distribution.
// Shapes: y [count]; key two words: seed and number of the run, or null.
// Grid: one thread per block of numbers: 4 elements, 2 of double.
// Needs: nothing.
// Numerics: each step rounded in Acc<T>, and to T once; no more than 5.8 deviations from the mean, 8.6 in double.
template <class T>
__global__ void __launch_bounds__(kThreads) random_normal(
    T* __restrict__ y, i64 count, Acc<T> mean, Acc<T> scale, const u64* __restrict__ key, const Draw draw) {
  const i64 block = i64(blockIdx.x) * kThreads + threadIdx.x, first = block * kNumbers<Acc<T>>;
  Acc<T> numbers[kNumbers<Acc<T>>];
  draw_normal(draw, key, u64(block), numbers);
#pragma unroll
  for (int i = 0; i < kNumbers<Acc<T>>; ++i) {
    if (first + i < count) y[first + i] = cast<T>(numbers[i] * scale + mean);
  }
}

// Computes: y[i] = u < x[i] ? one : 0, with u of [0, 1).
// Shapes: x, y [count]; Bits a type as wide as y's elements; key two words: seed and number of the run, or null.
// Grid: one thread per block of numbers: 4 elements, 2 of double.
// Needs: zero is all bits 0.
// Numerics: exact; u has 24 bits, 53 where x is double.
template <class T, class Bits>
__global__ void __launch_bounds__(kThreads) bernoulli(
    const T* __restrict__ x, Bits* __restrict__ y, i64 count, Bits one, const u64* __restrict__ key, const Draw draw) {
  const i64 block = i64(blockIdx.x) * kThreads + threadIdx.x, first = block * kNumbers<Acc<T>>;
  Acc<T> numbers[kNumbers<Acc<T>>];
  draw_uniform(draw, key, u64(block), numbers);
#pragma unroll
  for (int i = 0; i < kNumbers<Acc<T>>; ++i) {
    if (first + i < count) y[first + i] = numbers[i] < cast<Acc<T>>(x[first + i]) ? one : Bits(0);
  }
}

// Computes: mask[i] = u >= ratio, with u of [0, 1); y[i] = mask[i] ? x[i] * scale : 0.
// Shapes: x, y, mask [count], y or mask null where it is not wanted; key two words: seed and number of the run, or null.
// Grid: one thread per block of numbers: 4 elements, 2 of double.
// Needs: nothing.
// Numerics: the product in Acc<T>, rounded once; u has 24 bits, 53 in double.
template <class T>
__global__ void __launch_bounds__(kThreads) dropout(
    const T* __restrict__ x, T* __restrict__ y, bool* __restrict__ mask, i64 count, Acc<T> ratio, Acc<T> scale,
    const u64* __restrict__ key, const Draw draw) {
  const i64 block = i64(blockIdx.x) * kThreads + threadIdx.x, first = block * kNumbers<Acc<T>>;
  Acc<T> numbers[kNumbers<Acc<T>>];
  draw_uniform(draw, key, u64(block), numbers);
#pragma unroll
  for (int i = 0; i < kNumbers<Acc<T>>; ++i) {
    if (first + i >= count) break;
    const bool stays = numbers[i] >= ratio;
    if (y) y[first + i] = stays ? cast<T>(cast<Acc<T>>(x[first + i]) * scale) : cast<T>(Acc<T>(0));
    if (mask) mask[first + i] = stays;
  }
}

// Computes: left = key with its run incremented; or, with an index, with its run replaced by a mix of run and index.
// Shapes: key, left two words: seed and number of the run; index one element, or null.
// Grid: one thread.
// Needs: nothing.
// Numerics: exact.
template <class Index>
__global__ void __launch_bounds__(32) next_key(
    const u64* __restrict__ key, const Index* __restrict__ index, u64* __restrict__ left) {
  if (threadIdx.x != 0) return;
  left[0] = key[0];
  if (!index) {
    left[1] = key[1] + 1;
    return;
  }
  u32 words[4];
  draw_block(Draw{key[1], 0, 1}, nullptr, u64(index[0]), words);
  left[1] = u64(words[1]) << 32 | words[0];
}
