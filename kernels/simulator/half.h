// __half and __nv_bfloat16 with CUDA's names: bits in storage, arithmetic in float, one rounding (to even) each.
//
// Rounding through float is exact for + - * / and sqrt, since float has more than twice the digits and two more.
#pragma once
#include <math.h>
#include <string.h>

#include "vectors.h"

namespace gpuexec {

template <class To, class From>
GPUEXEC_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Rounds a double once to a format of 1 sign, kExponent and kMantissa bits. Every NaN becomes 0x7fff, as on the device.
template <int kExponent, int kMantissa>
GPUEXEC_INLINE unsigned short round_to_bits(double value) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr unsigned kInfinity = ((1u << kExponent) - 1) << kMantissa;
  unsigned long long bits = bit_cast<unsigned long long>(value);
  unsigned sign = unsigned(bits >> 63) << 15;
  int exponent = int(bits >> 52 & 0x7ff) - 1023;
  if (value != value) return 0x7fff;
  if (exponent > kBias) return (unsigned short)(sign | kInfinity);
  unsigned long long significand = (bits & ((1ull << 52) - 1)) | 1ull << 52;
  int below = exponent < 1 - kBias ? 1 - kBias - exponent : 0;  // denormal by so many bits
  int shift = 52 - kMantissa + below;
  if (shift > 53) return (unsigned short)sign;
  unsigned kept = unsigned(significand >> shift);
  unsigned long long rest = significand & ((1ull << shift) - 1), tie = 1ull << (shift - 1);
  if (rest > tie || (rest == tie && (kept & 1))) kept++;
  // The hidden bit, and a carry out of the mantissa, both add one to the exponent field.
  unsigned magnitude = (below ? 0u : unsigned(exponent + kBias - 1) << kMantissa) + kept;
  return (unsigned short)(sign | magnitude);
}

// Half a rounding: the nearest double towards zero, its last bit set when something was lost. Rounding that once more
// to a short format is as good as rounding the exact value.
GPUEXEC_INLINE double add_round_to_odd(double a, double b) {
  double sum = a + b, other = sum - a, error = (a - (sum - other)) + (b - other);
  long long bits = bit_cast<long long>(sum);
  if (error == 0 || error != error || (bits & 1)) return sum;
  return bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

GPUEXEC_INLINE double to_odd_double(unsigned long long value) {
  return value >> 53 ? double(value >> 11 | ((value & 0x7ff) != 0)) * 2048.0 : double(value);
}
GPUEXEC_INLINE double to_odd_double(long long value) {
  return value < 0 ? -to_odd_double(0ull - (unsigned long long)value) : to_odd_double((unsigned long long)value);
}

#ifdef __F16C__
typedef float Float4 __attribute__((vector_size(16)));
typedef short Short8 __attribute__((vector_size(16)));
#endif

struct HalfFormat {
  static unsigned short encode(double value) { return round_to_bits<5, 10>(value); }
#ifdef __F16C__
  static unsigned short encode(float value) {
    return value != value ? 0x7fff : (unsigned short)__builtin_ia32_vcvtps2ph(Float4{value, 0, 0, 0}, 0)[0];
  }
  static float decode(unsigned short bits) {
    return __builtin_ia32_vcvtph2ps(Short8{(short)bits, 0, 0, 0, 0, 0, 0, 0})[0];
  }
#else
  static unsigned short encode(float value) { return round_to_bits<5, 10>(value); }
  static float decode(unsigned short bits) {
    unsigned sign = unsigned(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 0) return bit_cast<float>(sign | bit_cast<unsigned>(float(mantissa) * 0x1p-24f));
    return bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13);
  }
#endif
};

struct Bfloat16Format {
  static unsigned short encode(double value) { return round_to_bits<8, 7>(value); }
  static unsigned short encode(float value) {
    unsigned bits = bit_cast<unsigned>(value);
    return value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static float decode(unsigned short bits) { return bit_cast<float>(unsigned(bits) << 16); }
};

template <class Format>
struct ShortFloat {
  unsigned short bits;

  ShortFloat() = default;
  ShortFloat(float value) : bits(Format::encode(value)) {}
  ShortFloat(double value) : bits(Format::encode(value)) {}
  ShortFloat(int value) : bits(Format::encode(double(value))) {}
  ShortFloat(unsigned value) : bits(Format::encode(double(value))) {}
  ShortFloat(short value) : bits(Format::encode(float(value))) {}
  ShortFloat(unsigned short value) : bits(Format::encode(float(value))) {}
  ShortFloat(long value) : bits(Format::encode(to_odd_double((long long)value))) {}
  ShortFloat(unsigned long value) : bits(Format::encode(to_odd_double((unsigned long long)value))) {}
  ShortFloat(long long value) : bits(Format::encode(to_odd_double(value))) {}
  ShortFloat(unsigned long long value) : bits(Format::encode(to_odd_double(value))) {}
  GPUEXEC_ALWAYS operator float() const { return Format::decode(bits); }

  static ShortFloat from_bits(unsigned short bits) {
    ShortFloat value;
    value.bits = bits;
    return value;
  }

  friend ShortFloat operator+(ShortFloat a, ShortFloat b) { return float(a) + float(b); }
  friend ShortFloat operator-(ShortFloat a, ShortFloat b) { return float(a) - float(b); }
  friend ShortFloat operator*(ShortFloat a, ShortFloat b) { return float(a) * float(b); }
  friend ShortFloat operator/(ShortFloat a, ShortFloat b) { return float(a) / float(b); }
  friend ShortFloat operator-(ShortFloat a) { return from_bits(a.bits ^ 0x8000); }
  friend ShortFloat operator+(ShortFloat a) { return a; }
  friend bool operator==(ShortFloat a, ShortFloat b) { return float(a) == float(b); }
  friend bool operator!=(ShortFloat a, ShortFloat b) { return float(a) != float(b); }
  friend bool operator<(ShortFloat a, ShortFloat b) { return float(a) < float(b); }
  friend bool operator>(ShortFloat a, ShortFloat b) { return float(a) > float(b); }
  friend bool operator<=(ShortFloat a, ShortFloat b) { return float(a) <= float(b); }
  friend bool operator>=(ShortFloat a, ShortFloat b) { return float(a) >= float(b); }
  GPUEXEC_ALWAYS ShortFloat& operator+=(ShortFloat b) { return *this = *this + b; }
  GPUEXEC_ALWAYS ShortFloat& operator-=(ShortFloat b) { return *this = *this - b; }
  GPUEXEC_ALWAYS ShortFloat& operator*=(ShortFloat b) { return *this = *this * b; }
  GPUEXEC_ALWAYS ShortFloat& operator/=(ShortFloat b) { return *this = *this / b; }
};

template <class T>
struct alignas(4) Pair {
  T x, y;
  Pair() = default;
  Pair(T x, T y) : x(x), y(y) {}
};

}  // namespace gpuexec

typedef gpuexec::ShortFloat<gpuexec::HalfFormat> __half;
typedef gpuexec::ShortFloat<gpuexec::Bfloat16Format> __nv_bfloat16;
typedef gpuexec::Pair<__half> __half2;
typedef gpuexec::Pair<__nv_bfloat16> __nv_bfloat162;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#include "half_functions.h"
