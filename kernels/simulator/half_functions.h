// CUDA's functions on __half, __nv_bfloat16 and their pairs (CUDA Math API, half and bfloat16 modules).
#pragma once
#include "half.h"

#define GPUEXEC_SHORT(T) \
  template <class F>     \
  GPUEXEC_INLINE T
#define GPUEXEC_S gpuexec::ShortFloat<F>
#define GPUEXEC_P gpuexec::Pair<gpuexec::ShortFloat<F>>

GPUEXEC_SHORT(GPUEXEC_S) __hadd(GPUEXEC_S a, GPUEXEC_S b) { return a + b; }
GPUEXEC_SHORT(GPUEXEC_S) __hsub(GPUEXEC_S a, GPUEXEC_S b) { return a - b; }
GPUEXEC_SHORT(GPUEXEC_S) __hmul(GPUEXEC_S a, GPUEXEC_S b) { return a * b; }
GPUEXEC_SHORT(GPUEXEC_S) __hdiv(GPUEXEC_S a, GPUEXEC_S b) { return a / b; }
GPUEXEC_SHORT(GPUEXEC_S) __hneg(GPUEXEC_S a) { return -a; }
GPUEXEC_SHORT(GPUEXEC_S) __habs(GPUEXEC_S a) { return GPUEXEC_S::from_bits(a.bits & 0x7fff); }
namespace gpuexec {
GPUEXEC_SHORT(GPUEXEC_S) fuse_multiply_add(GPUEXEC_S a, GPUEXEC_S b, GPUEXEC_S c) {
  return add_round_to_odd(double(float(a)) * double(float(b)),
                          double(float(c)));  // the product is exact in double
}
}  // namespace gpuexec
GPUEXEC_SHORT(GPUEXEC_S) __hfma(GPUEXEC_S a, GPUEXEC_S b, GPUEXEC_S c) {
  GPUEXEC_ISSUE(kHfma, 1);
  return gpuexec::fuse_multiply_add(a, b, c);
}
GPUEXEC_SHORT(GPUEXEC_S) __hmax(GPUEXEC_S a, GPUEXEC_S b) { return fmaxf(a, b); }
GPUEXEC_SHORT(GPUEXEC_S) __hmin(GPUEXEC_S a, GPUEXEC_S b) { return fminf(a, b); }
GPUEXEC_SHORT(GPUEXEC_S) __hmax_nan(GPUEXEC_S a, GPUEXEC_S b) {
  return a != a || b != b ? GPUEXEC_S::from_bits(0x7fff) : __hmax(a, b);
}
GPUEXEC_SHORT(GPUEXEC_S) __hmin_nan(GPUEXEC_S a, GPUEXEC_S b) {
  return a != a || b != b ? GPUEXEC_S::from_bits(0x7fff) : __hmin(a, b);
}
GPUEXEC_SHORT(bool) __heq(GPUEXEC_S a, GPUEXEC_S b) { return a == b; }
GPUEXEC_SHORT(bool) __hne(GPUEXEC_S a, GPUEXEC_S b) { return a < b || a > b; }
GPUEXEC_SHORT(bool) __hlt(GPUEXEC_S a, GPUEXEC_S b) { return a < b; }
GPUEXEC_SHORT(bool) __hle(GPUEXEC_S a, GPUEXEC_S b) { return a <= b; }
GPUEXEC_SHORT(bool) __hgt(GPUEXEC_S a, GPUEXEC_S b) { return a > b; }
GPUEXEC_SHORT(bool) __hge(GPUEXEC_S a, GPUEXEC_S b) { return a >= b; }
GPUEXEC_SHORT(bool) __hisnan(GPUEXEC_S a) { return a != a; }
GPUEXEC_SHORT(int) __hisinf(GPUEXEC_S a) { return isinf(float(a)) ? (a.bits >> 15 ? -1 : 1) : 0; }

#define GPUEXEC_UNARY(NAME, EXPRESSION)            \
  GPUEXEC_SHORT(GPUEXEC_S) NAME(GPUEXEC_S value) { \
    float x = value;                               \
    return float(EXPRESSION);                      \
  }
GPUEXEC_UNARY(hexp, expf(x))
GPUEXEC_UNARY(hexp2, exp2f(x))
GPUEXEC_UNARY(hlog, logf(x))
GPUEXEC_UNARY(hlog2, log2f(x))
GPUEXEC_UNARY(hsin, sinf(x))
GPUEXEC_UNARY(hcos, cosf(x))
GPUEXEC_UNARY(htanh, tanhf(x))
GPUEXEC_UNARY(hsqrt, sqrtf(x))
GPUEXEC_UNARY(hrsqrt, 1.0f / sqrtf(x))
GPUEXEC_UNARY(hrcp, (GPUEXEC_ISSUE(kMufu, 1), 1.0f / x))
GPUEXEC_UNARY(hfloor, floorf(x))
GPUEXEC_UNARY(hceil, ceilf(x))
GPUEXEC_UNARY(hrint, rintf(x))
GPUEXEC_UNARY(htrunc, truncf(x))
#undef GPUEXEC_UNARY

GPUEXEC_SHORT(GPUEXEC_P) __hadd2(GPUEXEC_P a, GPUEXEC_P b) { return {a.x + b.x, a.y + b.y}; }
GPUEXEC_SHORT(GPUEXEC_P) __hsub2(GPUEXEC_P a, GPUEXEC_P b) { return {a.x - b.x, a.y - b.y}; }
GPUEXEC_SHORT(GPUEXEC_P) __hmul2(GPUEXEC_P a, GPUEXEC_P b) { return {a.x * b.x, a.y * b.y}; }
GPUEXEC_SHORT(GPUEXEC_P) __h2div(GPUEXEC_P a, GPUEXEC_P b) { return {a.x / b.x, a.y / b.y}; }
GPUEXEC_SHORT(GPUEXEC_P) __hneg2(GPUEXEC_P a) { return {-a.x, -a.y}; }
GPUEXEC_SHORT(GPUEXEC_P) __hmax2(GPUEXEC_P a, GPUEXEC_P b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
GPUEXEC_SHORT(GPUEXEC_P) __hmin2(GPUEXEC_P a, GPUEXEC_P b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
GPUEXEC_SHORT(GPUEXEC_P) __hfma2(GPUEXEC_P a, GPUEXEC_P b, GPUEXEC_P c) {
  GPUEXEC_ISSUE(kHfma, 2);
  return {gpuexec::fuse_multiply_add(a.x, b.x, c.x), gpuexec::fuse_multiply_add(a.y, b.y, c.y)};
}

#undef GPUEXEC_SHORT
#undef GPUEXEC_S
#undef GPUEXEC_P

// Names that carry their type. N is how CUDA spells it (half, bfloat16).
#define GPUEXEC_CONVERT(T, N)                                                   \
  GPUEXEC_INLINE float __##N##2float(T x) { return x; }                          \
  GPUEXEC_INLINE T __float2##N(float x) { return x; }                            \
  GPUEXEC_INLINE T __float2##N##_rn(float x) { return x; }                       \
  GPUEXEC_INLINE T __double2##N(double x) { return x; }                          \
  GPUEXEC_INLINE T __int2##N##_rn(int x) { return x; }                           \
  GPUEXEC_INLINE T __uint2##N##_rn(unsigned x) { return x; }                     \
  GPUEXEC_INLINE T __short2##N##_rn(short x) { return x; }                       \
  GPUEXEC_INLINE T __ushort2##N##_rn(unsigned short x) { return x; }             \
  GPUEXEC_INLINE T __ll2##N##_rn(long long x) { return x; }                      \
  GPUEXEC_INLINE T __ull2##N##_rn(unsigned long long x) { return x; }            \
  GPUEXEC_INLINE unsigned short __##N##_as_ushort(T x) { return x.bits; }        \
  GPUEXEC_INLINE short __##N##_as_short(T x) { return (short)x.bits; }           \
  GPUEXEC_INLINE T __ushort_as_##N(unsigned short x) { return T::from_bits(x); } \
  GPUEXEC_INLINE T __short_as_##N(short x) { return T::from_bits((unsigned short)x); }
GPUEXEC_CONVERT(__half, half)
GPUEXEC_CONVERT(__nv_bfloat16, bfloat16)
#undef GPUEXEC_CONVERT

#define GPUEXEC_PAIRS(T, P, N)                                        \
  GPUEXEC_INLINE float __low2float(P a) { return a.x; }                \
  GPUEXEC_INLINE float __high2float(P a) { return a.y; }               \
  GPUEXEC_INLINE T __low2##N(P a) { return a.x; }                      \
  GPUEXEC_INLINE T __high2##N(P a) { return a.y; }                     \
  GPUEXEC_INLINE P __##N##2##N##2(T a) { return {a, a}; }              \
  GPUEXEC_INLINE P __halves2##N##2(T a, T b) { return {a, b}; }        \
  GPUEXEC_INLINE P __float2##N##2_rn(float a) { return {T(a), T(a)}; } \
  GPUEXEC_INLINE P __floats2##N##2_rn(float a, float b) { return {T(a), T(b)}; }
GPUEXEC_PAIRS(__half, __half2, half)
GPUEXEC_PAIRS(__nv_bfloat16, __nv_bfloat162, bfloat16)
#undef GPUEXEC_PAIRS

GPUEXEC_INLINE __half2 make_half2(__half a, __half b) { return {a, b}; }
GPUEXEC_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
GPUEXEC_INLINE float2 __half22float2(__half2 a) { return {float(a.x), float(a.y)}; }
GPUEXEC_INLINE float2 __bfloat1622float2(__nv_bfloat162 a) { return {float(a.x), float(a.y)}; }
GPUEXEC_INLINE __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
GPUEXEC_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)}; }
