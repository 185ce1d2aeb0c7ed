// Vectors of weights, which may be narrow: as they lie in memory, and widened one by one.
#pragma once
#include "narrow.cuh"
#include "vec.cuh"

// Bytes of a vector as CUDA loads them at once.
template <int Nbytes>
struct VectorBits;
template <>
struct VectorBits<4> {
  typedef u32 type;
};
template <>
struct VectorBits<8> {
  typedef uint2 type;
};
template <>
struct VectorBits<16> {
  typedef uint4 type;
};

// Width neighbouring weights, aligned to all of them.
template <class W, int Width>
struct NarrowVector {
  static constexpr int kNbytes = Width * sizeof(W);
  typedef typename VectorBits<kNbytes>::type Bits;
  u32 words[kNbytes / 4];

  // Loads from device memory that nobody writes meanwhile.
  __device__ void load(const W* source) { take(__ldg(reinterpret_cast<const Bits*>(source))); }
  // The same for what is read once.
  __device__ void stream(const W* source) { take(__ldcs(reinterpret_cast<const Bits*>(source))); }
  // The same from any memory, shared memory too.
  __device__ void load_any(const W* source) {
    const Vec<u32, kNbytes / 4> vector = load_vec<kNbytes / 4>(reinterpret_cast<const u32*>(source));
#pragma unroll
    for (int i = 0; i < kNbytes / 4; ++i) words[i] = vector.lanes[i];
  }

  // Weight 4 is the first from here on, as far as there are so many.
  __device__ void drop_four() {
    constexpr int kDropped = sizeof(W);  // words
#pragma unroll
    for (int i = 0; i + kDropped < kNbytes / 4; ++i) words[i] = words[i + kDropped];
  }

  // Of four: swaps weights 0 and 2, and 1 and 3.
  __device__ void swap_pairs() {
    static_assert(Width == 4 && sizeof(W) < 4, "one or two words");
    if constexpr (kNbytes == 4) {
      words[0] = __byte_perm(words[0], 0, 0x1032);
    } else {
      const u32 first = words[0];
      words[0] = words[1], words[1] = first;
    }
  }

  // A weight of float or half; of int8, the float of 2^23 + 128 + weight, whose low byte those are.
  __device__ float as_float(int i) const {
    if constexpr (sizeof(W) == 4) {
      return reinterpret<float>(words[i]);
    } else if constexpr (sizeof(W) == 2) {
      return widen(reinterpret<W>(u16(words[i / 2] >> (i % 2 * 16))));
    } else {
      return reinterpret<float>(__byte_perm(words[i / 4] ^ 0x80808080u, 0x4b000000u, 0x7440 + i % 4));
    }
  }

 private:
  __device__ void take(u32 bits) { words[0] = bits; }
  __device__ void take(const uint2& bits) { words[0] = bits.x, words[1] = bits.y; }
  __device__ void take(const uint4& bits) {
    words[0] = bits.x, words[1] = bits.y, words[2] = bits.z, words[3] = bits.w;
  }
};

// What widens the weights of a line (a row or column of a matrix). Of integers it does what widen_weight does, to the bit:
// both differences are exact. Floats have no scales.
template <class W>
struct LineScale {
  __device__ LineScale() {}
  __device__ LineScale(const Scales<float>&, i64) {}

  template <int Width>
  __device__ float widen_weight(const NarrowVector<W, Width>& vector, int i) const {
    return vector.as_float(i);
  }
  __device__ float widen_weight(W weight) const { return widen(weight); }
};
template <>
struct LineScale<i8> {
  float offset, scale;  // 2^23 + 128 + zero point

  __device__ LineScale() {}
  __device__ LineScale(float offset, float scale) : offset(offset), scale(scale) {}
  __device__ LineScale(const Scales<float>& scales, i64 place)
      : offset(8388736.0f + (scales.zero ? float(scales.zero[place]) : 0.0f)), scale(scales.scale[place]) {}

  template <int Width>
  __device__ float widen_weight(const NarrowVector<i8, Width>& vector, int i) const {
    return (vector.as_float(i) - offset) * scale;
  }
  __device__ float widen_weight(i8 weight) const {
    return (reinterpret<float>(0x4b000000u | (u8(weight) ^ 0x80u)) - offset) * scale;
  }
};
