// Philox 4x32-10 random numbers (Salmon et al., SC 2011), to the same bits as gpuexec/ops/random/philox.py.
#pragma once
#include "types.cuh"

// The stream of random numbers of a node. Packed by Draw of gpuexec/ops/random/philox.py.
struct Draw {
  u64 seed;
  u32 stream;
  i32 is_seeded;  // else the seed is that of the key
};

// Computes the words of a block. The key is seed and number of the run, or null for 0 and 0.
__device__ inline void draw_block(const Draw& draw, const u64* key, u64 block, u32 (&words)[4]) {
  const u64 run = key ? key[1] : 0;
  u64 seed = draw.is_seeded ? draw.seed : key ? key[0] : 0;
  seed += (run >> 32) * 0x9E3779B97F4A7C15ull;
  u32 c0 = u32(block), c1 = u32(block >> 32), c2 = draw.stream, c3 = u32(run);
  u32 k0 = u32(seed), k1 = u32(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64(c0) * 0xD2511F53u, p1 = u64(c2) * 0xCD9E8D57u;
    c0 = u32(p1 >> 32) ^ c1 ^ k0;
    c1 = u32(p1);
    c2 = u32(p0 >> 32) ^ c3 ^ k1;
    c3 = u32(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Numbers that a block gives: a word each for float, two for double.
template <class F>
constexpr int kNumbers = sizeof(F) == 4 ? 4 : 2;

// Numbers of [0, 1): multiples of 2^-24 or 2^-53.
template <class F>
__device__ inline void to_uniform(const u32 (&words)[4], F (&numbers)[kNumbers<F>]) {
  if constexpr (sizeof(F) == 4) {
    for (int i = 0; i < 4; ++i) numbers[i] = float(words[i] >> 8) * 5.9604644775390625e-08f;
  } else {
    for (int i = 0; i < 2; ++i) {
      const u64 bits = u64(words[2 * i] >> 5) << 26 | words[2 * i + 1] >> 6;
      numbers[i] = double(bits) * 1.1102230246251565e-16;
    }
  }
}

template <class F>
__device__ inline void draw_uniform(const Draw& draw, const u64* key, u64 block, F (&numbers)[kNumbers<F>]) {
  u32 words[4];
  draw_block(draw, key, block, words);
  to_uniform(words, numbers);
}

// Natural logarithm of a number of (0, 1], as a series of atanh.
template <class F>
__device__ inline F log_unit(F x) {
  constexpr int kTerms = sizeof(F) == 4 ? 6 : 12;
  int exponent;
  F mantissa;
  if constexpr (sizeof(F) == 4) {
    const u32 bits = reinterpret<u32>(x);
    exponent = int(bits >> 23) - 127;
    mantissa = reinterpret<float>((bits & 0x007fffffu) | 0x3f800000u);
  } else {
    const u64 bits = reinterpret<u64>(x);
    exponent = int(bits >> 52) - 1023;
    mantissa = reinterpret<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  }
  if (mantissa > F(1.4142135623730951)) {
    mantissa = mantissa * F(0.5);
    exponent += 1;
  }
  const F s = (mantissa - F(1)) / (mantissa + F(1)), square = s * s;
  F p = F(1.0 / (2 * kTerms - 1));
#pragma unroll
  for (int k = kTerms - 2; k >= 0; --k) p = p * square + F(1.0 / (2 * k + 1));
  return F(exponent) * F(0.6931471805599453) + F(2) * s * p;
}

// Cosine and sine of x turns, for x of [0, 1).
template <class F>
__device__ inline void turn(F x, F& cosine, F& sine) {
  constexpr int kTerms = sizeof(F) == 4 ? 6 : 10;
  const F quarters = x * F(4);
  const int quadrant = int(quarters);
  const F part = quarters - F(quadrant);
  const bool is_upper = part > F(0.5);
  const F angle = (is_upper ? F(1) - part : part) * F(1.5707963267948966), square = angle * angle;
  F c = F(1), s = F(1);
#pragma unroll
  for (int k = kTerms - 1; k > 0; --k) {
    s = F(1) - square * s * F(1.0 / (2 * k * (2 * k + 1)));
    c = F(1) - square * c * F(1.0 / (2 * k * (2 * k - 1)));
  }
  s = angle * s;
  if (is_upper) {
    const F swapped = c;
    c = s, s = swapped;
  }
  if (quadrant & 1) {
    const F turned = -s;
    s = c, c = turned;
  }
  cosine = quadrant >= 2 ? -c : c;
  sine = quadrant >= 2 ? -s : s;
}

__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

// Numbers of the standard normal distribution, two of each pair (Box and Muller).
template <class F>
__device__ inline void draw_normal(const Draw& draw, const u64* key, u64 block, F (&numbers)[kNumbers<F>]) {
  draw_uniform(draw, key, block, numbers);
  constexpr F kUlp = F(sizeof(F) == 4 ? 5.9604644775390625e-08 : 1.1102230246251565e-16);
  for (int i = 0; i < kNumbers<F>; i += 2) {
    const F radius = square_root(F(-2) * log_unit(numbers[i] + kUlp));
    F cosine, sine;
    turn(numbers[i + 1], cosine, sine);
    numbers[i] = radius * cosine;
    numbers[i + 1] = radius * sine;
  }
}
