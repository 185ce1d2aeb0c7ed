// Element types of all kernels: fixed-width names, accumulators, limits, and conversion between any two of them.
#pragma once
#ifndef GPUEXEC_SIM
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
typedef __half half;
typedef __nv_bfloat16 bf16;

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
