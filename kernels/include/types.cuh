// Element types of all kernels: fixed-width names, accumulators, limits, and conversion between any two of them.
#pragma once
#ifdef GPUEXEC_CUDA_HALF
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Kernels of other packages have CUDA's own types, with all their functions; kernel_source.py tells. The package's have
// what they use alone: CUDA's headers take a program as long to read as a small kernel takes to compile.
#if defined(GPUEXEC_SIM) || defined(GPUEXEC_CUDA_HALF)
typedef __half half;
typedef __nv_bfloat16 bf16;
#else
struct half {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

__device__ inline float __half2float(half x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
__device__ inline half __float2half_rn(float x) {
  half narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
}
__device__ inline half __double2half(double x) {
  half narrow;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(narrow.bits) : "d"(x));
  return narrow;
}
__device__ inline float __bfloat162float(bf16 x) {
  float wide;
  asm("mov.b32 %0, {0, %1};" : "=f"(wide) : "h"(x.bits));
  return wide;
}
__device__ inline bf16 __float2bfloat16_rn(float x) {
  bf16 narrow;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
#else
  const u32 bits = __float_as_uint(x);
  narrow.bits = x != x ? u16(0x7fff) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
  return narrow;
}
__device__ inline u16 __half_as_ushort(half x) { return x.bits; }
__device__ inline u16 __bfloat16_as_ushort(bf16 x) { return x.bits; }
__device__ inline half __ldg(const half* place) { return {__ldg(reinterpret_cast<const u16*>(place))}; }
__device__ inline bf16 __ldg(const bf16* place) { return {__ldg(reinterpret_cast<const u16*>(place))}; }
#endif

template <class A, class B>
constexpr bool kIsSame = false;
template <class A>
constexpr bool kIsSame<A, A> = true;

// half and bf16: two bytes of storage, arithmetic in float.
template <class T>
constexpr bool kIsSmallFloat = kIsSame<T, half> || kIsSame<T, bf16>;
template <class T>
constexpr bool kIsFloat = kIsSmallFloat<T> || kIsSame<T, float> || kIsSame<T, double>;
template <class T>
constexpr bool kIsSigned = kIsFloat<T> || kIsSame<T, i8> || kIsSame<T, i16> || kIsSame<T, i32> || kIsSame<T, i64>;
template <class T>
constexpr bool kIsInteger = !kIsFloat<T> && !kIsSame<T, bool>;

template <bool Condition, class A, class B>
struct Select {
  typedef A type;
};
template <class A, class B>
struct Select<false, A, B> {
  typedef B type;
};

// The accumulator type, of sums and arithmetic: float for half and bf16, else the type itself.
template <class T>
using Acc = typename Select<kIsSmallFloat<T>, float, T>::type;

// Unsigned integer type of a width in bytes, for moving bits.
template <int Bytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  typedef u8 type;
};
template <>
struct BitsOf<2> {
  typedef u16 type;
};
template <>
struct BitsOf<4> {
  typedef u32 type;
};
template <>
struct BitsOf<8> {
  typedef u64 type;
};
template <class T>
using Bits = typename BitsOf<sizeof(T)>::type;

// Converts float or double to integer: truncates; beyond 64 bits it saturates; NaN gives 0.
template <class F>
__device__ inline i64 truncate_to_i64(F x) {
  if (!(x == x)) return 0;
  if (x >= F(9223372036854775808.0)) return 0x7fffffffffffffffll;
  if (x < F(-9223372036854775808.0)) return -0x7fffffffffffffffll - 1;
  return (i64)x;
}

template <class F>
__device__ inline u64 truncate_to_u64(F x) {
  if (!(x >= F(9223372036854775808.0))) return (u64)truncate_to_i64(x);
  return x >= F(18446744073709551616.0) ? 0xffffffffffffffffull : (u64)x;
}

// Converts as the Cast operator does: to a float rounded to nearest even (overflow gives inf), float to integer through
// 64 bits of which the low ones stay, integers by their low bits, to bool as x != 0 (NaN is true).
// double to half rounds once; double and integers go to bf16 through float.
template <class To, class From>
__device__ inline To cast(From x) {
  if constexpr (kIsSame<To, From>) {
    return x;
  } else if constexpr (kIsSame<From, half>) {
    return cast<To>(__half2float(x));
  } else if constexpr (kIsSame<From, bf16>) {
    return cast<To>(__bfloat162float(x));
  } else if constexpr (kIsSame<To, bool>) {
    return x != From(0);
  } else if constexpr (kIsSame<To, half> && kIsSame<From, double>) {
    return __double2half(x);
  } else if constexpr (kIsSame<To, half>) {
    return __float2half_rn((float)x);
  } else if constexpr (kIsSame<To, bf16>) {
    return __float2bfloat16_rn((float)x);
  } else if constexpr (kIsFloat<From> && kIsSame<To, u64>) {
    return truncate_to_u64(x);
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    return (To)truncate_to_i64(x);
  } else {
    return (To)x;
  }
}

// Reads an element as its accumulator type.
template <class T>
__device__ inline Acc<T> widen(T x) {
  return cast<Acc<T>>(x);
}

// The same bits as another type of that size.
template <class To, class From>
__device__ inline To reinterpret(From x) {
  static_assert(sizeof(To) == sizeof(From), "reinterpret keeps the size");
  union Pun {
    From from;
    To to;
    __device__ Pun() {}
  } pun;
  pun.from = x;
  return pun.to;
}

// Limits of an element type, by bit pattern, since NVRTC has no host headers.
// lowest and max are finite; inf and negative_inf are the identities of min and max: the bounds themselves for integers.
template <class T>
struct limits {
  static __device__ T max() {
    if constexpr (kIsSame<T, float>) return reinterpret<float>(0x7f7fffffu);
    else if constexpr (kIsSame<T, double>) return reinterpret<double>(0x7fefffffffffffffull);
    else if constexpr (kIsSame<T, half>) return cast<half>(65504.0f);
    else if constexpr (kIsSame<T, bf16>) return cast<bf16>(reinterpret<float>(0x7f7f0000u));
    else if constexpr (kIsSame<T, bool>) return true;
    else if constexpr (kIsSigned<T>) return T(Bits<T>(~Bits<T>(0)) >> 1);
    else return T(~T(0));
  }
  static __device__ T lowest() {
    if constexpr (kIsFloat<T>) return cast<T>(-widen(max()));
    else if constexpr (kIsSigned<T>) return T(-max() - 1);
    else return T(0);
  }
  static __device__ T inf() {
    if constexpr (kIsSame<T, double>) return reinterpret<double>(0x7ff0000000000000ull);
    else if constexpr (kIsFloat<T>) return cast<T>(reinterpret<float>(0x7f800000u));
    else return max();
  }
  static __device__ T negative_inf() {
    if constexpr (kIsFloat<T>) return cast<T>(-widen(inf()));
    else return lowest();
  }
  // Quiet NaN of a float type; integers have none.
  static __device__ T nan() {
    static_assert(kIsFloat<T>, "only float types have a NaN");
    if constexpr (kIsSame<T, double>) return reinterpret<double>(0x7ff8000000000000ull);
    else return cast<T>(reinterpret<float>(0x7fc00000u));
  }
};
