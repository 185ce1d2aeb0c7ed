// Defined arithmetic where C++ leaves it undefined, or devices and hosts differ.
#pragma once
#include "types.cuh"

// Integer arithmetic is modulo 2^width; floats are computed as usual.
// Unsigned type wide enough that narrow operands don't promote to a signed int that overflows.
template <class T>
using Wrapping = typename Select<(sizeof(T) > 4), u64, u32>::type;

template <class T>
__device__ inline T wrapping_add(T a, T b) {
  if constexpr (kIsInteger<T>) return T(Wrapping<T>(a) + Wrapping<T>(b));
  else return a + b;
}

template <class T>
__device__ inline T wrapping_sub(T a, T b) {
  if constexpr (kIsInteger<T>) return T(Wrapping<T>(a) - Wrapping<T>(b));
  else return a - b;
}

template <class T>
__device__ inline T wrapping_mul(T a, T b) {
  if constexpr (kIsInteger<T>) return T(Wrapping<T>(a) * Wrapping<T>(b));
  else return a * b;
}

template <class T>
__device__ inline T wrapping_neg(T a) {
  if constexpr (kIsInteger<T>) return T(Wrapping<T>(0) - Wrapping<T>(a));
  else return -a;
}

// Whether integer division by b may trap or overflow; such quotients are 0 - a (b == -1) or 0 (b == 0).
template <class T>
__device__ inline bool is_special_divisor(T b) {
  return b == T(0) || (kIsSigned<T> && b == T(-1));
}

// Integer division toward zero; by zero gives 0, lowest / -1 wraps. Floats divide by IEEE.
template <class T>
__device__ inline T divide_truncating(T a, T b) {
  if constexpr (!kIsInteger<T>) {
    return a / b;
  } else {
    if (is_special_divisor(b)) return b == T(0) ? T(0) : wrapping_neg(a);
    return T(a / b);
  }
}

// Remainder with the sign of the dividend (C's %); by zero gives 0.
template <class T>
__device__ inline T remainder_truncating(T a, T b) {
  return is_special_divisor(b) ? T(0) : T(a % b);
}

// Remainder with the sign of the divisor (Python's %); by zero gives 0.
template <class T>
__device__ inline T remainder_flooring(T a, T b) {
  T rest = remainder_truncating(a, b);
  if constexpr (kIsSigned<T>) {
    if (rest != T(0) && (rest < T(0)) != (b < T(0))) rest = T(rest + b);
  }
  return rest;
}

// Shifts by any amount: at the width or beyond, or by a negative amount, all bits are shifted out.
template <class T>
__device__ inline T shift_left(T a, T amount) {
  if (amount < T(0) || amount >= T(8 * sizeof(T))) return T(0);
  return T(Wrapping<T>(a) << int(amount));
}

// An arithmetic shift for signed types: copies of the sign bit are shifted in.
template <class T>
__device__ inline T shift_right(T a, T amount) {
  if (amount < T(0) || amount >= T(8 * sizeof(T))) return a < T(0) ? T(-1) : T(0);
  return T(a >> int(amount));
}

// Maximum and minimum that return a NaN of either side; of equal values (0 and -0) they return the second.
template <class T>
__device__ inline T max_keeping_nan(T a, T b) {
  return a > b || a != a ? a : b;
}

template <class T>
__device__ inline T min_keeping_nan(T a, T b) {
  return a < b || a != a ? a : b;
}

// An unsigned key whose order is the order of the values: -0 counts as 0, every NaN is one value above inf.
template <class T>
__device__ inline Bits<T> sortable_key(T x) {
  constexpr Bits<T> kSign = Bits<T>(Bits<T>(1) << (8 * sizeof(T) - 1));
  if constexpr (kIsFloat<T>) {
    Acc<T> wide = widen(x);
    Bits<T> bits = wide != wide ? reinterpret<Bits<T>>(limits<T>::nan()) : wide == Acc<T>(0) ? Bits<T>(0) : reinterpret<Bits<T>>(x);
    return bits & kSign ? Bits<T>(~bits) : Bits<T>(bits | kSign);
  } else if constexpr (kIsSigned<T>) {
    return Bits<T>(reinterpret<Bits<T>>(x) ^ kSign);
  } else {
    return reinterpret<Bits<T>>(x);
  }
}
