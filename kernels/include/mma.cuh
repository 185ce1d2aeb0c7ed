// Fragments of matrices and their products on tensor cores: ldmatrix and mma.sync, sm_80 and up.
//
// Each wrapper is one instruction, which all lanes of a warp come to together (PTX ISA 9.0, section 9.7). Their host bodies,
// by which the simulator runs the same kernels, sum exact products in double and round once for an instruction: hardware
// keeps fewer bits, so that integers alone compare to the bit.
#pragma once
#include "async_copy.cuh"
#include "types.cuh"

// How an operand that is read 16 bytes at a time lies in memory: dense along the inner extent, or across it.
enum class Lie { kAlongK, kAcross };

#ifdef GPUEXEC_SIM
// Loads four matrices of 8 x 8 elements of 16 bits. Each lane reads the word that it would get of matrices as they lie, so
// that a matrix counts as the one wavefront that the device takes.
__device__ inline void load_matrices_on_host(u32 (&words)[4], SharedAddress row, bool is_transposed, gpuexec::Site site) {
  if (reinterpret_cast<uintptr_t>(row) % 16) gpuexec_fail("ldmatrix expects rows aligned to 16 bytes", site);
  const gpuexec::Meeting warp = gpuexec_meet(~0u, &row, sizeof row, gpuexec::kLoadMatrix, site);
  const u32 lane = gpuexec_position.lane;
  u32 own[4];
  for (u32 m = 0; m < 4; ++m) {
    own[m] = *reinterpret_cast<const u32*>(gpuexec::read_lane<SharedAddress>(warp, 8 * m + lane / 4) + lane % 4 * 4);
  }
  if (!is_transposed) {
    for (u32 m = 0; m < 4; ++m) words[m] = own[m];
    return;
  }
  struct Words {
    u32 of[4];
  };
  const gpuexec::Meeting read = gpuexec_meet(~0u, own, sizeof own, gpuexec::kLoadMatrix, site);
  const u32 shift = lane / 4 % 2 * 16;
  const Words first = gpuexec::read_lane<Words>(read, lane % 4 * 8 + lane / 8);
  const Words second = gpuexec::read_lane<Words>(read, lane % 4 * 8 + 4 + lane / 8);
  for (u32 m = 0; m < 4; ++m) words[m] = (first.of[m] >> shift & 0xffff) | second.of[m] >> shift << 16;
}

// Numbers that a word holds, and what they are summed in.
struct HalfWord {
  typedef float Number;
  typedef double Sum;
  static constexpr int kCount = 2;
  static Number decode(u32 word, int i) { return gpuexec::HalfFormat::decode(u16(word >> 16 * i)); }
};
struct BfloatWord {
  typedef float Number;
  typedef double Sum;
  static constexpr int kCount = 2;
  static Number decode(u32 word, int i) { return gpuexec::Bfloat16Format::decode(u16(word >> 16 * i)); }
};
struct Tf32Word {  // the device cuts off the low 13 bits
  typedef float Number;
  typedef double Sum;
  static constexpr int kCount = 1;
  static Number decode(u32 word, int) { return gpuexec::bit_cast<float>(word & 0xffffe000u); }
};
template <class Byte>
struct IntegerWord {
  typedef i16 Number;
  typedef i64 Sum;
  static constexpr int kCount = 4;
  static Number decode(u32 word, int i) { return Byte(word >> 8 * i); }
};
// Numbers of 8 bits, all of which a half can hold.
template <int MantissaBits, int Bias, bool HasInfinity>
struct Float8Word {
  typedef half Number;
  typedef double Sum;
  static constexpr int kCount = 4;
  static Number decode(u32 word, int i) {
    const u32 bits = word >> 8 * i & 127, least = (1u << MantissaBits) - 1;
    const int exponent = int(bits >> MantissaBits), mantissa = int(bits & least), most = 127 >> MantissaBits;
    double size = exponent ? __builtin_ldexp(double(least + 1 + mantissa), exponent - Bias - MantissaBits)
                           : __builtin_ldexp(double(mantissa), 1 - Bias - MantissaBits);
    if (HasInfinity && exponent == most) size = mantissa ? __builtin_nan("") : __builtin_inf();
    if (!HasInfinity && bits == 127) size = __builtin_nan("");
    return cast<half>(word >> 8 * i & 128 ? -size : size);
  }
};

// Adds a product of 16 x 32 bytes by 32 bytes x 8.
template <class Word, class Sum>
__device__ __attribute__((noinline)) void multiply_on_host(Sum (&sums)[4], const u32 (&a)[4], const u32 (&b)[2],
                                                           gpuexec::Site site) {
  struct Fragments {
    typename Word::Number a[4][Word::kCount], b[2][Word::kCount];
  } own;
  static_assert(sizeof own <= gpuexec::kSlotBytes, "a lane brings at most 64 bytes to a warp operation");
  for (int i = 0; i < Word::kCount; ++i) {
    for (int word = 0; word < 4; ++word) own.a[word][i] = Word::decode(a[word], i);
    for (int word = 0; word < 2; ++word) own.b[word][i] = Word::decode(b[word], i);
  }
  const gpuexec::Meeting warp = gpuexec_meet(~0u, &own, sizeof own, gpuexec::kMatrix, site);
  const u32 lane = gpuexec_position.lane;
  typename Word::Sum added[4] = {};
  for (u32 k = 0; k < 4; ++k) {
    const Fragments left = gpuexec::read_lane<Fragments>(warp, lane / 4 * 4 + k);
    for (u32 column = 0; column < 2; ++column) {
      const Fragments right = gpuexec::read_lane<Fragments>(warp, (lane % 4 * 2 + column) * 4 + k);
      for (int word = 0; word < 4; ++word) {
        for (int i = 0; i < Word::kCount; ++i) {
          typedef typename Word::Sum S;
          added[word % 2 * 2 + column] += S(left.a[word][i]) * S(right.b[word / 2][i]);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) sums[i] = Sum(sums[i] + added[i]);
}

// Of four 8 x 8 matrices of elements of 16 bits, lane i names row i % 8 of matrix i / 8: 16 bytes, aligned to 16. Of each
// matrix it gets elements 2 * (i % 4) and the next of row i / 4.
__device__ inline void load_matrices(u32 (&words)[4], SharedAddress row, GPUEXEC_SITE) {
  load_matrices_on_host(words, row, false, site);
}
// The same of each matrix transposed.
__device__ inline void load_matrices_transposed(u32 (&words)[4], SharedAddress row, GPUEXEC_SITE) {
  load_matrices_on_host(words, row, true, site);
}

// sums (16 x 8) += a (16 x k) * b (k x 8), where k are 32 bytes. Of the eight words of a row of a and of a column of b, lane
// i holds word i % 4 and that + 4: of a those of row i / 4 (words 0 and 2) and i / 4 + 8 (1 and 3), of b those of column
// i / 4. Of sums it holds columns 2 * (i % 4) and the next of row i / 4, then of row i / 4 + 8.
__device__ __forceinline__ void mma_half(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 16 / 32);
  multiply_on_host<HalfWord>(sums, a, b, site);
}
__device__ __forceinline__ void mma_bf16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 16 / 32);
  multiply_on_host<BfloatWord>(sums, a, b, site);
}
__device__ __forceinline__ void mma_tf32(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 8 / 32);
  multiply_on_host<Tf32Word>(sums, a, b, site);
}
__device__ __forceinline__ void mma_i8(i32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 32 / 32);
  multiply_on_host<IntegerWord<i8>>(sums, a, b, site);
}
__device__ __forceinline__ void mma_u8(i32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 32 / 32);
  multiply_on_host<IntegerWord<u8>>(sums, a, b, site);
}
// One instruction on sm_89 and sm_120 alone: other architectures widen to half and multiply twice.
__device__ __forceinline__ void mma_e4m3(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 32 / 32);
  multiply_on_host<Float8Word<3, 7, false>>(sums, a, b, site);
}
__device__ __forceinline__ void mma_e5m2(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], GPUEXEC_SITE) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 32 / 32);
  multiply_on_host<Float8Word<2, 15, true>>(sums, a, b, site);
}

// A float rounded to the 19 bits of tf32, ties away from zero.
__device__ inline u32 convert_to_tf32(float x) {
  const u32 bits = gpuexec::bit_cast<u32>(x);
  return x - x == 0 ? (bits + 0x1000u) & 0xffffe000u : bits;
}
#else
__device__ __forceinline__ void load_matrices(u32 (&words)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&words)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

#define GPUEXEC_MMA_OPERANDS(LETTER)                                                       \
  "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                        \
      : "+" LETTER(sums[0]), "+" LETTER(sums[1]), "+" LETTER(sums[2]), "+" LETTER(sums[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])

__device__ __forceinline__ void mma_half(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " GPUEXEC_MMA_OPERANDS("f"));
}

__device__ __forceinline__ void mma_bf16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " GPUEXEC_MMA_OPERANDS("f"));
}

__device__ __forceinline__ void mma_tf32(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " GPUEXEC_MMA_OPERANDS("f"));
}

__device__ __forceinline__ void mma_i8(i32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 " GPUEXEC_MMA_OPERANDS("r"));
}

__device__ __forceinline__ void mma_u8(i32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 " GPUEXEC_MMA_OPERANDS("r"));
}

__device__ __forceinline__ void mma_e4m3(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 " GPUEXEC_MMA_OPERANDS("f"));
}

__device__ __forceinline__ void mma_e5m2(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 " GPUEXEC_MMA_OPERANDS("f"));
}
#undef GPUEXEC_MMA_OPERANDS

__device__ __forceinline__ u32 convert_to_tf32(float x) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
#endif

// The same number, of which the compiler knows nothing: what is made of it behind a loop is not kept through the loop.
__device__ inline u32 forget(u32 number) {
#ifndef GPUEXEC_SIM
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// Two floats rounded to half or bf16, in the halves of a word. Needs sm_80.
#ifdef GPUEXEC_SIM
__device__ inline u32 pack_halves(float low, float high) {
  return __half_as_ushort(cast<half>(low)) | u32(__half_as_ushort(cast<half>(high))) << 16;
}
__device__ inline u32 pack_bf16s(float low, float high) {
  return __bfloat16_as_ushort(cast<bf16>(low)) | u32(__bfloat16_as_ushort(cast<bf16>(high))) << 16;
}
#else
__device__ __forceinline__ u32 pack_halves(float low, float high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ u32 pack_bf16s(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

// The same in type T.
template <class T>
__device__ __forceinline__ u32 pack_pair(float low, float high) {
  static_assert(kIsSmallFloat<T>, "two numbers of 16 bits are a word");
  if constexpr (kIsSame<T, half>) return pack_halves(low, high);
  else return pack_bf16s(low, high);
}

// Numbers of type float8e4m3fn: multiplied by one instruction (sm_89 and sm_120), or widened to half in registers.
struct E4m3 {
  u8 bits;
};
struct WidenedE4m3 {
  u8 bits;
};

// Two codes of e4m3, in the low half of a word, as halves in a word, and the product of two pairs of halves.
#ifdef GPUEXEC_SIM
__device__ inline u32 convert_e4m3_pair(u32 codes) {
  const half low = Float8Word<3, 7, false>::decode(codes, 0), high = Float8Word<3, 7, false>::decode(codes, 1);
  return __half_as_ushort(low) | u32(__half_as_ushort(high)) << 16;
}
#elif __CUDA_ARCH__ >= 890
__device__ __forceinline__ u32 convert_e4m3_pair(u32 codes) {
  u32 word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(u16(codes)));
  return word;
}
#else
__device__ __forceinline__ u32 multiply_halves(u32 a, u32 b) {
  u32 word;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
}
#endif

// Four codes of e4m3 as halves: exact, NaN as NaN.
__device__ __forceinline__ void widen_e4m3(u32 word, u32 (&pairs)[2]) {
#if defined(GPUEXEC_SIM) || __CUDA_ARCH__ >= 890
  pairs[0] = convert_e4m3_pair(word & 0xffff);
  pairs[1] = convert_e4m3_pair(word >> 16);
#else
  // A half has one more bit of exponent, which NaN sets, and its bias is 8 more: the bits in place, times 2^8.
  const u32 size = word & 0x7f7f7f7f, nan = size + 0x01010101 & 0x80808080;
  const u32 high = (word & 0x80808080) | ((size | nan) >> 1 & 0x7f7f7f7f), low = word << 7 & 0x80808080;
  pairs[0] = multiply_halves(__byte_perm(low, high, 0x5140), 0x5c005c00);
  pairs[1] = multiply_halves(__byte_perm(low, high, 0x7362), 0x5c005c00);
#endif
}

// What mma_e4m3 does, by two products of halves. Of 32 numbers along k a lane has four neighbours and the four 16 further
// on: the first product takes the former, the second one the latter, in an order of k that both operands share.
__device__ __forceinline__ void mma_widened_e4m3(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    u32 first_row[2], other_row[2], column[2];
    widen_e4m3(a[2 * i], first_row);
    widen_e4m3(a[2 * i + 1], other_row);
    widen_e4m3(b[i], column);
    const u32 left[4] = {first_row[0], other_row[0], first_row[1], other_row[1]};
    mma_half(sums, left, column);
  }
}

// The product of numbers of type T, floats as tf32.
template <class T>
__device__ __forceinline__ void multiply_matrices(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (kIsSame<T, half>) {
    mma_half(sums, a, b);
  } else if constexpr (kIsSame<T, bf16>) {
    mma_bf16(sums, a, b);
  } else if constexpr (kIsSame<T, E4m3>) {
    mma_e4m3(sums, a, b);
  } else if constexpr (kIsSame<T, WidenedE4m3>) {
    mma_widened_e4m3(sums, a, b);
  } else {
    static_assert(kIsSame<T, float>, "products of half, bf16, tf32 or e4m3");
    mma_tf32(sums, a, b);
  }
}
// That of signed bytes, modulo 2^32.
template <class T>
__device__ __forceinline__ void multiply_matrices(i32 (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(kIsSame<T, i8>, "integer sums are of bytes");
  mma_i8(sums, a, b);
}
