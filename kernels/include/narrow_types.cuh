// Storage-only element types: floats of 8, 6 and 4 bits, integers of 4 and 2.
// The type of a byte is a run-time argument, by ONNX's code: uniform over a launch, and cheap beside the memory.
// A byte holds one element in its low bits; the other bits are written as 0 and ignored when read.
#pragma once
#include "types.cuh"

// TensorProto.DataType, as gpuexec/ir/spec.py has it.
enum TypeCode {
  kFloatCode = 1, kUint8Code = 2, kInt8Code = 3, kUint16Code = 4, kInt16Code = 5, kInt32Code = 6, kInt64Code = 7,
  kBoolCode = 9, kHalfCode = 10, kDoubleCode = 11, kUint32Code = 12, kUint64Code = 13, kBf16Code = 16,
  kE4M3Code = 17, kE4M3FnuzCode = 18, kE5M2Code = 19, kE5M2FnuzCode = 20, kUint4Code = 21, kInt4Code = 22,
  kE2M1Code = 23, kE8M0Code = 24, kUint2Code = 25, kInt2Code = 26, kE2M3Code = 27, kE3M2Code = 28
};

// How values out of range are stored. Packed by pack_mode of gpuexec/ops/quant/narrow_types.py.
constexpr i32 kSaturates = 1;  // to the largest finite value, else to infinity or NaN
constexpr i32 kRoundsDown = 2, kRoundsToNearest = 4;  // to e8m0, which is else rounded up

// A float of sign, exponent and mantissa with gradual underflow. `largest` is the code of the largest finite value.
struct NarrowFloat {
  i32 exponent_bits, mantissa_bits, bias;
  u32 largest, infinity, nan;  // 0: there is none
  bool is_fnuz;                // no negative zero: its code is NaN

  __device__ u32 sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
};

__device__ inline NarrowFloat describe_float(int code) {
  if (code == kE4M3Code) return {4, 3, 7, 0x7e, 0, 0x7f, false};
  if (code == kE4M3FnuzCode) return {4, 3, 8, 0x7f, 0, 0x80, true};
  if (code == kE5M2Code) return {5, 2, 15, 0x7b, 0x7c, 0x7e, false};
  if (code == kE5M2FnuzCode) return {5, 2, 16, 0x7f, 0, 0x80, true};
  if (code == kE2M1Code) return {2, 1, 1, 0x07, 0, 0, false};
  if (code == kE2M3Code) return {2, 3, 1, 0x1f, 0, 0, false};
  return {3, 2, 3, 0x1f, 0, 0, false};  // kE3M2Code
}

__device__ inline bool is_narrow(int code) { return code >= kE4M3Code; }

// Width in bits of a narrow integer type; 0 for any other type.
__device__ inline int narrow_integer_bits(int code) {
  return code == kUint4Code || code == kInt4Code ? 4 : code == kUint2Code || code == kInt2Code ? 2 : 0;
}

__device__ inline i32 widen_narrow_integer(u8 bits, int code) {
  const int unused = 32 - narrow_integer_bits(code);
  const u32 high = u32(bits) << unused;
  return code == kInt4Code || code == kInt2Code ? i32(high) >> unused : i32(high >> unused);
}

// Exact: float has every value of every narrow type.
__device__ inline float widen_narrow(u8 bits, int code) {
  if (narrow_integer_bits(code) > 0) return float(widen_narrow_integer(bits, code));
  if (code == kE8M0Code) {
    if (bits == 0xff) return limits<float>::nan();
    return reinterpret<float>(bits == 0 ? 0x00400000u : u32(bits) << 23);
  }
  const NarrowFloat type = describe_float(code);
  const u32 sign = bits & type.sign_bit(), magnitude = bits & (type.sign_bit() - 1);
  if (type.is_fnuz ? bits == type.nan : type.nan > 0 && magnitude > type.largest) {
    const bool is_infinite = type.infinity > 0 && magnitude == type.infinity;
    return reinterpret<float>((is_infinite ? 0x7f800000u : 0x7fc00000u) | (sign ? 0x80000000u : 0u));
  }
  // Another exponent bias is a product by a power of two, which is right for subnormal numbers too.
  const float scaled = reinterpret<float>(magnitude << (23 - type.mantissa_bits));
  const float value = scaled * reinterpret<float>(u32(254 - type.bias) << 23);
  return sign ? -value : value;
}

// Converts wider types to float by rounding to odd: a value between two floats becomes the one whose last bit is set. So
// rounding the result to a mantissa of 16 bits or fewer gives what rounding the value once would give.
template <class T>
__device__ inline float narrow_to_odd(T x) {
  if constexpr (kIsSmallFloat<T> || kIsSame<T, float> || sizeof(T) < 4) {
    return cast<float>(x);
  } else {
    const float nearest = float(x);
    bool is_above, is_below;  // in magnitude
    if constexpr (kIsFloat<T>) {
      if (!(x == x)) return nearest;
      const double back = nearest, value = x;
      is_above = value < 0 ? back < value : back > value;
      is_below = value < 0 ? back > value : back < value;
    } else {
      // Only integers of 2^24 and more are rounded, to floats that are integers too; so both are compared as integers.
      const bool is_negative = kIsSigned<T> && x < T(0);
      const u64 value = is_negative ? u64(0) - u64(x) : u64(x);
      const float magnitude = is_negative ? -nearest : nearest;
      const bool is_beyond = magnitude >= 18446744073709551616.0f;
      const u64 back = is_beyond ? 0 : u64(magnitude);
      is_above = is_beyond || back > value;
      is_below = !is_beyond && back < value;
    }
    if (!is_above && !is_below) return nearest;
    return reinterpret<float>((reinterpret<u32>(nearest) - (is_above ? 1u : 0u)) | 1u);
  }
}

__device__ inline u8 round_to_power(float x, i32 mode) {
  const u32 bits = reinterpret<u32>(x) & 0x7fffffffu, above = (mode & kSaturates) ? 0xfeu : 0xffu;
  if (bits > 0x7f800000u) return 0xff;
  if (bits < 0x00400000u) return (mode & kSaturates) ? 0x00 : 0xff;
  // Subnormal floats: the only power of two among the codes of e8m0 is 2^-127, the first bit of the mantissa.
  const u32 first = bits < 0x00800000u ? 0x00400000u : bits & 0x7f800000u;
  const u32 half = first == 0x00400000u ? 0x00200000u : 0x00400000u, rest = bits - first;
  const bool is_next = (mode & kRoundsDown) ? false : (mode & kRoundsToNearest) ? rest >= half : rest > 0;
  const u32 code = (bits >> 23) + (is_next ? 1u : 0u);
  return u8(code > 0xfeu ? above : code);
}

// Rounds to nearest even. What exceeds the largest finite number saturates, or becomes infinity (NaN in a type without).
// NaN becomes -0 in a type without NaN, whatever its sign, which devices may change. e8m0 has no sign, so it is dropped.
__device__ inline u8 narrow_float(float x, int code, i32 mode) {
  if (code == kE8M0Code) return round_to_power(x, mode);
  const NarrowFloat type = describe_float(code);
  const u32 bits = reinterpret<u32>(x), magnitude = bits & 0x7fffffffu;
  const u32 sign = bits >> 31 ? type.sign_bit() : 0u;
  if (magnitude > 0x7f800000u) return u8(type.is_fnuz ? type.nan : type.nan > 0 ? sign | type.nan : type.sign_bit());
  const i32 dropped = 23 - type.mantissa_bits;
  u32 rounded;
  if (magnitude < u32(128 - type.bias) << 23) {
    // Subnormal numbers are evenly spaced, and the code counts their steps.
    const float steps = reinterpret<float>(magnitude) * reinterpret<float>(u32(126 + type.bias + type.mantissa_bits) << 23);
    rounded = u32(rintf(steps));
  } else {
    const u32 nearest = magnitude + ((1u << (dropped - 1)) - 1u) + ((magnitude >> dropped) & 1u);
    rounded = (nearest >> dropped) - (u32(127 - type.bias) << type.mantissa_bits);
  }
  if (rounded > type.largest) {
    const bool has_finite_alone = type.nan == 0;
    if ((mode & kSaturates) || has_finite_alone) rounded = type.largest;
    else if (type.is_fnuz) return u8(type.nan);
    else rounded = type.infinity > 0 ? type.infinity : type.nan;
  }
  return u8(type.is_fnuz && rounded == 0 ? 0u : sign | rounded);
}

// Loads an element whose type is known at run time only, from storage of its width.
template <class S>
__device__ inline float load_as_float(S bits, int code) {
  if constexpr (sizeof(S) == 1) {
    if (is_narrow(code)) return widen_narrow(bits, code);
    return code == kInt8Code ? float(i8(bits)) : float(bits);  // or u8, or bool
  } else if constexpr (sizeof(S) == 2) {
    if (code == kHalfCode) return widen(reinterpret<half>(bits));
    if (code == kBf16Code) return widen(reinterpret<bf16>(bits));
    return code == kInt16Code ? float(i16(bits)) : float(bits);
  } else if constexpr (sizeof(S) == 4) {
    if (code == kFloatCode) return reinterpret<float>(bits);
    return code == kInt32Code ? narrow_to_odd(i32(bits)) : narrow_to_odd(bits);
  } else {
    if (code == kDoubleCode) return narrow_to_odd(reinterpret<double>(bits));
    return code == kInt64Code ? narrow_to_odd(i64(bits)) : narrow_to_odd(bits);
  }
}

// The low bits of an element as an integer; floats are truncated first.
template <class S>
__device__ inline u8 load_low_bits(S bits, int code) {
  if constexpr (sizeof(S) == 8) {
    if (code == kDoubleCode) return u8(truncate_to_i64(reinterpret<double>(bits)));
  }
  const bool is_float = code == kFloatCode || code == kHalfCode || code == kBf16Code;
  if (is_float || (is_narrow(code) && narrow_integer_bits(code) == 0)) return u8(truncate_to_i64(load_as_float(bits, code)));
  return narrow_integer_bits(code) > 0 ? u8(widen_narrow_integer(u8(bits), code)) : u8(bits);
}

template <class S>
__device__ inline u8 store_narrow(S bits, int from, int to, i32 mode) {
  const int count = narrow_integer_bits(to);
  return count > 0 ? u8(load_low_bits(bits, from) & ((1 << count) - 1)) : narrow_float(load_as_float(bits, from), to, mode);
}

// Converts an element of a narrow type to a type that is not narrow.
template <class S>
__device__ inline S store_wide(u8 bits, int from, int to) {
  const float value = widen_narrow(bits, from);
  if constexpr (sizeof(S) == 1) {
    return to == kBoolCode ? S(value != 0.0f) : cast<u8>(value);
  } else if constexpr (sizeof(S) == 2) {
    if (to == kHalfCode) return reinterpret<u16>(cast<half>(value));
    return to == kBf16Code ? reinterpret<u16>(cast<bf16>(value)) : cast<u16>(value);
  } else if constexpr (sizeof(S) == 4) {
    return to == kFloatCode ? reinterpret<u32>(value) : cast<u32>(value);
  } else {
    if (to == kDoubleCode) return reinterpret<u64>(double(value));
    return to == kUint64Code ? cast<u64>(value) : cast<u64>(cast<i64>(value));
  }
}

// Converts an element between two types of which at least one is narrow.
template <class To, class From>
__device__ inline To convert_narrow_element(From bits, int from, int to, i32 mode) {
  if constexpr (sizeof(To) == 1) {
    if (is_narrow(to)) return store_narrow(bits, from, to, mode);
  }
  return store_wide<To>(u8(bits), from, to);
}
