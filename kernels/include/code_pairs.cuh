// Codes of 2, 4 or 8 bits less a zero point, as half or bf16, two to a word (sm_80 and up).
//
// A code in the low bits of the fraction of a power of two is that power and the code. What is subtracted is the power and
// the zero point, both at once, so that the difference is exact. The fraction of bf16 is too short for codes of 8 bits,
// which go through float.
#pragma once
#include "mma.cuh"
#include "vec.cuh"

// a * b + c of two numbers each, in the halves of a word.
#ifdef GPUEXEC_SIM
template <class T>
__device__ inline u32 multiply_add_on_host(u32 a, u32 b, u32 c) {
  u32 word = 0;
  for (int i = 0; i < 2; ++i) {
    const auto number = [&](u32 pair) { return double(widen(reinterpret<T>(u16(pair >> 16 * i)))); };
    word |= u32(reinterpret<u16>(cast<T>(number(a) * number(b) + number(c)))) << 16 * i;
  }
  return word;
}
__device__ inline u32 multiply_add_halves(u32 a, u32 b, u32 c) { return multiply_add_on_host<half>(a, b, c); }
__device__ inline u32 multiply_add_bf16s(u32 a, u32 b, u32 c) { return multiply_add_on_host<bf16>(a, b, c); }
#else
__device__ __forceinline__ u32 multiply_add_halves(u32 a, u32 b, u32 c) {
  u32 word;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}

__device__ __forceinline__ u32 multiply_add_bf16s(u32 a, u32 b, u32 c) {
  u32 word;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}
#endif

// Widens codes that share a zero point, which is a code, too. Eight of them become the 16 bytes of a chunk.
template <class T, int Bits>
struct CodePairs {
  static_assert(Bits == 2 || Bits == 4 || Bits == 8, "codes of 2, 4 or 8 bits");
  static constexpr bool kIsHalf = kIsSame<T, half>, kHasFloats = Bits == 8 && !kIsHalf;
  static constexpr int kPairs = 16 / Bits;                            // of a word
  static constexpr u32 kPower = kIsHalf ? 0x64006400u : 0x43004300u;  // 1024 or 128
  static constexpr u32 kOne = kIsHalf ? 0x3c003c00u : 0x3f803f80u;
  static constexpr u32 kMask = ((1u << Bits) - 1) * 0x10001u;
  u32 offset;     // the power and the zero point, negative; of floats 2^23 and that
  u32 offset_up;  // of pairs that are sixteen times as large: a 16th of the power, 64, and the zero point, negative
  u32 mask;       // kMask, kept in a register

  __device__ explicit CodePairs(u32 zero)
      : offset(kHasFloats ? 0x4b000000u | zero : zero * 0x10001u + (kPower | 0x80008000u)),
        offset_up(zero * 0x100010u + 0xd400d400u), mask(kMask) {}
  __device__ CodePairs(u32 zero, u32 mask) : CodePairs(zero) { this->mask = mask; }

  // Codes 2 * i and 2 * i + 1 of a word.
  __device__ u32 widen_pair(u32 word, int i) const {
    if constexpr (kHasFloats) {
      const float zero = reinterpret<float>(offset);
      return pack_pair<T>(reinterpret<float>(__byte_perm(word, 0x4b000000u, 0x7440 + 2 * i)) - zero,
                          reinterpret<float>(__byte_perm(word, 0x4b000000u, 0x7441 + 2 * i)) - zero);
    } else {
      u32 pair;
      if constexpr (Bits == 8) {
        pair = __byte_perm(word, kPower, 0x5150 + 0x202 * i);
      } else {
        // The byte that has both, as it lies and moved by a code.
        const int byte = i * Bits / 4, shift = i * 2 * Bits % 8;
        pair = (__byte_perm(word >> shift, word >> (shift + Bits), byte | (byte + 4) << 8) & kMask) | kPower;
      }
      return kIsHalf ? multiply_add_halves(pair, kOne, offset) : multiply_add_bf16s(pair, kOne, offset);
    }
  }

  // Codes i and i + kPairs of a word. Of 4 bits the fraction of a half has room for a code and four bits below it: so every
  // other pair takes no shift, is sixteen times as large, and is divided by that where the zero point is subtracted.
  __device__ u32 widen_apart(u32 word, int i) const {
    static_assert(!kHasFloats, "the fraction has no room for the codes");
    constexpr bool kHasRoom = kIsHalf && Bits == 4;
    const int up = kHasRoom ? i % 2 * Bits : 0;
    const u32 pair = (word >> (Bits * i - up) & mask << up) | kPower;
    if (up) return multiply_add_halves(pair, 0x2c002c00u, offset_up);  // 1 / 16
    return kIsHalf ? multiply_add_halves(pair, kOne, offset) : multiply_add_bf16s(pair, kOne, offset);
  }

  // Codes 8 * chunk and the seven behind it.
  template <int Words>
  __device__ Vec<u32, 4> widen_eight(const Vec<u32, Words>& words, int chunk) const {
    Vec<u32, 4> eight;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = chunk * 4 + i;
      eight.lanes[i] = widen_pair(words.lanes[pair / kPairs], pair % kPairs);
    }
    return eight;
  }
};
