// Random numbers, texel by texel: bit-identical to those of ../random/random.cu.
#include "philox.cuh"
#include "texture.cuh"

// Random numbers of a node by element; a block of them is computed once for consecutive elements.
template <class F>
struct Numbers {
  Draw from;
  u64 key[2];
  bool has_key, is_normal;
  i64 known;  // the block whose numbers these are
  F numbers[kNumbers<F>];

  __device__ Numbers(const Draw& from, const Texture<u64>& key, bool is_normal)
      : from(from), has_key(bool(key)), is_normal(is_normal), known(-1) {
    this->key[0] = has_key ? key[0] : 0;
    this->key[1] = has_key ? key[1] : 0;
  }

  __device__ F at(i64 index) {
    const i64 block = index / kNumbers<F>;
    if (block != known) {
      known = block;
      if (is_normal) draw_normal(from, has_key ? key : nullptr, u64(block), numbers);
      else draw_uniform(from, has_key ? key : nullptr, u64(block), numbers);
    }
    F found = numbers[0];
#pragma unroll
    for (int i = 1; i < kNumbers<F>; ++i) found = index % kNumbers<F> == i ? numbers[i] : found;
    return found;
  }
};

// Computes: y[i] = low + u * span, with u of [0, 1).
// Shapes: y [count]; key two words: seed and number of the run, or absent.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: as random_uniform, bit for bit.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_random_uniform(
    const Surface<T> y, i64 count, Acc<T> low, Acc<T> span, const Texture<u64> key, const Draw from) {
  Numbers<Acc<T>> numbers(from, key, false);
  draw<T>(y, count, [&](i64 index) { return cast<T>(numbers.at(index) * span + low); });
}

// Computes: y[i] = mean + z * scale, with z of the standard normal distribution.
// Shapes: y [count]; key two words: seed and number of the run, or absent.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: as random_normal, bit for bit.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_random_normal(
    const Surface<T> y, i64 count, Acc<T> mean, Acc<T> scale, const Texture<u64> key, const Draw from) {
  Numbers<Acc<T>> numbers(from, key, true);
  draw<T>(y, count, [&](i64 index) { return cast<T>(numbers.at(index) * scale + mean); });
}

// Computes: y[i] = u < x[i] ? one : 0, with u of [0, 1).
// Shapes: x, y [count]; Word a type as wide as y's elements; key two words: seed and number of the run, or absent.
// Grid: one thread per texel of y.
// Needs: zero is all bits 0.
// Numerics: exact.
template <class T, class Word>
__global__ void __launch_bounds__(kDrawThreads) draw_bernoulli(
    const Texture<T> x, const Surface<Word> y, i64 count, Word one, const Texture<u64> key, const Draw from) {
  Numbers<Acc<T>> numbers(from, key, false);
  draw<Word>(y, count, [&](i64 index) { return numbers.at(index) < cast<Acc<T>>(x[index]) ? one : Word(0); });
}

// Computes: y[i] = u >= ratio ? x[i] * scale : 0, with u of [0, 1).
// Shapes: x, y [count]; key two words: seed and number of the run, or absent.
// Grid: one thread per texel of y.
// Needs: nothing; the mask is absent.
// Numerics: as dropout, bit for bit.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_dropout(
    const Texture<T> x, const Surface<T> y, const Surface<bool>, i64 count, Acc<T> ratio, Acc<T> scale,
    const Texture<u64> key, const Draw from) {
  Numbers<Acc<T>> numbers(from, key, false);
  draw<T>(y, count, [&](i64 index) {
    return numbers.at(index) >= ratio ? cast<T>(cast<Acc<T>>(x[index]) * scale) : cast<T>(Acc<T>(0));
  });
}

// Computes: mask[i] = u >= ratio, with u of [0, 1).
// Shapes: mask [count]; key two words: seed and number of the run, or absent.
// Grid: one thread per texel of mask.
// Needs: nothing; y is absent, x is not read.
// Numerics: exact.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_dropout_mask(
    const Texture<T>, const Surface<T>, const Surface<bool> mask, i64 count, Acc<T> ratio, Acc<T>,
    const Texture<u64> key, const Draw from) {
  Numbers<Acc<T>> numbers(from, key, false);
  draw<bool>(mask, count, [&](i64 index) { return numbers.at(index) >= ratio; });
}

// Computes: left = key with its run incremented; or, with an index, with its run replaced by a mix of run and index.
// Shapes: key, left two words: seed and number of the run; index one element, or absent.
// Grid: one thread per texel of left.
// Needs: nothing.
// Numerics: exact.
template <class Index>
__global__ void __launch_bounds__(kDrawThreads) draw_next_key(
    const Texture<u64> key, const Texture<Index> index, const Surface<u64> left) {
  draw<u64>(left, 2, [&](i64 word) {
    if (word == 0) return key[0];
    if (!index) return key[1] + 1;
    u32 words[4];
    draw_block(Draw{key[1], 0, 1}, nullptr, u64(index[0]), words);
    return u64(words[1]) << 32 | words[0];
  });
}
