// CUDA's scalar intrinsics missing from host headers (CUDA Math API; CUDA C++ Programming Guide, built-in functions).
//
// The names below answer exactly as the device does, except functions of libm accuracy: __expf and its kind are libm's
// here.
#pragma once
#include <math.h>
#include <string.h>

#include "half.h"
#include "warp.h"

// Loads and stores of device memory by one kind of cache or another.
#define GPUEXEC_LOAD(NAME)                                     \
  template <class T>                                           \
  GPUEXEC_INLINE T NAME(const T* address, GPUEXEC_SITE) {      \
    gpuexec_expect_global(address, site);                      \
    return *address;                                           \
  }
#define GPUEXEC_STORE(NAME)                                        \
  template <class T>                                               \
  GPUEXEC_INLINE void NAME(T* address, T value, GPUEXEC_SITE) {    \
    gpuexec_expect_global(address, site);                          \
    *address = value;                                              \
  }
GPUEXEC_LOAD(__ldg)
GPUEXEC_LOAD(__ldcg)
GPUEXEC_LOAD(__ldcs)
GPUEXEC_STORE(__stcg)
GPUEXEC_STORE(__stcs)
#undef GPUEXEC_LOAD
#undef GPUEXEC_STORE

// min and max: CUDA's overloads, mixed signs included; integers of different width are as ambiguous as there.
#define GPUEXEC_MIN_MAX(A, B, T)                                      \
  static inline T min(A a, B b) { return (T)b < (T)a ? (T)b : (T)a; } \
  static inline T max(A a, B b) { return (T)a < (T)b ? (T)b : (T)a; }
#define GPUEXEC_MIN_MAX_PAIR(S)                       \
  GPUEXEC_MIN_MAX(S, S, S)                            \
  GPUEXEC_MIN_MAX(unsigned S, unsigned S, unsigned S) \
  GPUEXEC_MIN_MAX(S, unsigned S, unsigned S)          \
  GPUEXEC_MIN_MAX(unsigned S, S, unsigned S)
GPUEXEC_MIN_MAX_PAIR(int)
GPUEXEC_MIN_MAX_PAIR(long)
GPUEXEC_MIN_MAX_PAIR(long long)
#undef GPUEXEC_MIN_MAX_PAIR
#undef GPUEXEC_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

// Bits.
static inline float __int_as_float(int x) { return gpuexec::bit_cast<float>(x); }
static inline int __float_as_int(float x) { return gpuexec::bit_cast<int>(x); }
static inline float __uint_as_float(unsigned x) { return gpuexec::bit_cast<float>(x); }
static inline unsigned __float_as_uint(float x) { return gpuexec::bit_cast<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return gpuexec::bit_cast<double>(x); }
static inline long long __double_as_longlong(double x) { return gpuexec::bit_cast<long long>(x); }
static inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
static inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

// Integers.
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
  return result;
}
static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned long long bytes = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
GPUEXEC_COUNTED int __dp4a(int a, int b, int c) {
  GPUEXEC_ISSUE(kDp4a, 4);
  unsigned sum = unsigned(c);
  for (int i = 0; i < 4; i++) sum += unsigned(int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i)));
  return int(sum);
}
GPUEXEC_COUNTED unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  GPUEXEC_ISSUE(kDp4a, 4);
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}

// Arithmetic with the rounding written out. The compiler contracts nothing, so plain operators round the same.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
GPUEXEC_COUNTED float __fdiv_rn(float a, float b) { return GPUEXEC_ISSUE(kMufu, 1), a / b; }
GPUEXEC_COUNTED float __frcp_rn(float a) { return GPUEXEC_ISSUE(kMufu, 1), 1.0f / a; }
GPUEXEC_COUNTED float __fsqrt_rn(float a) { return sqrtf(a); }
GPUEXEC_COUNTED float __frsqrt_rn(float a) { return GPUEXEC_ISSUE(kMufu, 1), float(1.0 / sqrt(double(a))); }
GPUEXEC_COUNTED float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
GPUEXEC_COUNTED double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// Floats to integers saturate, and NaN is zero (PTX ISA, cvt).
namespace gpuexec {
template <class To>
static inline To saturate(double x, double low, double high, To lowest, To highest) {
  return x != x ? (To)0 : x <= low ? lowest : x >= high ? highest : (To)x;
}
static inline int to_int(double x) {
  return saturate<int>(x, -2147483648.0, 2147483647.0, -2147483647 - 1, 2147483647);
}
static inline unsigned to_uint(double x) { return saturate<unsigned>(x, 0.0, 4294967295.0, 0u, 4294967295u); }
static inline long long to_longlong(double x) {
  return saturate<long long>(x, -0x1p63, 0x1p63, (long long)(1ull << 63), (long long)~(1ull << 63));
}
static inline unsigned long long to_ulonglong(double x) {
  return saturate<unsigned long long>(x, 0.0, 0x1p64, 0ull, ~0ull);
}
}  // namespace gpuexec

#define GPUEXEC_TO_INTEGER(FROM, T, NAME, CONVERT)                                      \
  static inline T __##FROM##2##NAME##_rn(FROM x) { return gpuexec::CONVERT(rint(x)); }  \
  static inline T __##FROM##2##NAME##_rz(FROM x) { return gpuexec::CONVERT(trunc(x)); } \
  static inline T __##FROM##2##NAME##_ru(FROM x) { return gpuexec::CONVERT(ceil(x)); }  \
  static inline T __##FROM##2##NAME##_rd(FROM x) { return gpuexec::CONVERT(floor(x)); }
#define GPUEXEC_TO_INTEGERS(FROM)                      \
  GPUEXEC_TO_INTEGER(FROM, int, int, to_int)           \
  GPUEXEC_TO_INTEGER(FROM, unsigned, uint, to_uint)    \
  GPUEXEC_TO_INTEGER(FROM, long long, ll, to_longlong) \
  GPUEXEC_TO_INTEGER(FROM, unsigned long long, ull, to_ulonglong)
GPUEXEC_TO_INTEGERS(float)
GPUEXEC_TO_INTEGERS(double)
#undef GPUEXEC_TO_INTEGERS
#undef GPUEXEC_TO_INTEGER
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline float __ull2float_rn(unsigned long long x) { return float(x); }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
static inline double __ll2double_rn(long long x) { return double(x); }
static inline double __ull2double_rn(unsigned long long x) { return double(x); }
static inline float __double2float_rn(double x) { return float(x); }

// Functions of libm accuracy.
GPUEXEC_COUNTED float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
GPUEXEC_COUNTED float rcbrtf(float x) { return 1.0f / cbrtf(x); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }
static inline double sinpi(double x) {
  double r = remainder(x, 2.0);
  return fabs(r) == 1.0 ? 0.0 * x : sin(r * 3.141592653589793);
}
static inline double cospi(double x) {
  double r = fabs(remainder(x, 2.0));
  return r == 0.5 ? 0.0 : cos(r * 3.141592653589793);
}
static inline float sinpif(float x) { return float(sinpi(x)); }
static inline float cospif(float x) { return float(cospi(x)); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.7071067811865476); }
GPUEXEC_COUNTED float normcdff(float x) { return GPUEXEC_ISSUE(kMufu, 3), float(normcdf(x)); }
GPUEXEC_COUNTED float __fdividef(float a, float b) { return GPUEXEC_ISSUE(kMufu, 1), a / b; }
// The C library has declared these reserved names already, so they are macros. Counted is what they take beyond what the
// function of libm's does (operations.h).
#define __expf expf
#define __exp10f exp10f
#define __logf(X) (GPUEXEC_ISSUE(kMufu, 1), logf(X))
#define __log2f(X) (GPUEXEC_ISSUE(kMufu, 1), log2f(X))
#define __log10f(X) (GPUEXEC_ISSUE(kMufu, 1), log10f(X))
#define __sinf(X) (GPUEXEC_ISSUE(kMufu, 1), sinf(X))
#define __cosf(X) (GPUEXEC_ISSUE(kMufu, 1), cosf(X))
#define __sincosf(X, SIN, COS) (GPUEXEC_ISSUE(kMufu, 2), sincosf(X, SIN, COS))
#define __tanf(X) (GPUEXEC_ISSUE(kMufu, 2), tanf(X))
#define __powf(X, Y) (GPUEXEC_ISSUE(kMufu, 1), powf(X, Y))
