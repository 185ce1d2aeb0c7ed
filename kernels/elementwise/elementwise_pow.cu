// Pow: the base decides the type of the result, the exponent may be of any type.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "safe.cuh"

// An exponent's element type by its ONNX code; launch scalar of `power`.
enum ExponentType : i32 {
  kFloat = 1, kU8 = 2, kI8 = 3, kU16 = 4, kI16 = 5, kI32 = 6, kI64 = 7, kHalf = 10, kDouble = 11, kU32 = 12, kU64 = 13, kBf16 = 16
};

__device__ inline bool is_float_type(i32 type) { return type == kFloat || type == kHalf || type == kDouble || type == kBf16; }

// Whether float holds every value of the type.
__device__ inline bool fits_float(i32 type) { return type <= kI16 || type == kHalf || type == kBf16; }

template <class To>
__device__ inline To load_as(const void* values, i64 at, i32 type) {
  switch (type) {
    case kFloat: return cast<To>(static_cast<const float*>(values)[at]);
    case kU8: return cast<To>(static_cast<const u8*>(values)[at]);
    case kI8: return cast<To>(static_cast<const i8*>(values)[at]);
    case kU16: return cast<To>(static_cast<const u16*>(values)[at]);
    case kI16: return cast<To>(static_cast<const i16*>(values)[at]);
    case kI32: return cast<To>(static_cast<const i32*>(values)[at]);
    case kI64: return cast<To>(static_cast<const i64*>(values)[at]);
    case kHalf: return cast<To>(static_cast<const half*>(values)[at]);
    case kDouble: return cast<To>(static_cast<const double*>(values)[at]);
    case kU32: return cast<To>(static_cast<const u32*>(values)[at]);
    case kU64: return cast<To>(static_cast<const u64*>(values)[at]);
    default: return cast<To>(static_cast<const bf16*>(values)[at]);
  }
}

// Squares and cubes are products: faster, and a square is exact to the last bit.
template <class F>
__device__ inline F float_power(F base, F exponent) {
  if (exponent == F(2)) return base * base;
  if (exponent == F(3)) return base * base * base;
  return math::pow(base, exponent);
}

// The power, whole where it is that but for what pow may be off, two units in the last place.
__device__ inline double whole_power(double base, double exponent) {
  const double power = float_power(base, exponent), whole = rint(power);
  return fabs(power - whole) <= 4 * 2.220446049250313e-16 * fabs(whole) ? whole : power;
}

// Repeated squaring modulo 2^width. A negative exponent leaves only 1 and -1 other than 0.
template <class T>
__device__ inline T integer_power(T base, u64 exponent, bool is_negative) {
  if (is_negative) {
    if (base == T(1)) return base;
    return kIsSigned<T> && base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(0);
  }
  T result = T(1);
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = wrapping_mul(result, base);
    base = wrapping_mul(base, base);
  }
  return result;
}

// Exponents come from a pointer, or from a type with a `load_as` method.
template <class T, class Exponents>
__device__ inline T power_of(T base, const Exponents& exponents, i64 at, i32 type) {
  if constexpr (kIsFloat<T>) {
    if (kIsSame<T, double> || !fits_float(type)) {
      return cast<T>(float_power(cast<double>(base), load_as<double>(exponents, at, type)));
    }
    return cast<T>(float_power(cast<float>(base), load_as<float>(exponents, at, type)));
  } else if (is_float_type(type)) {
    return cast<T>(whole_power(cast<double>(base), load_as<double>(exponents, at, type)));
  } else {
    const u64 bits = load_as<u64>(exponents, at, type);
    const bool is_signed = type == kI8 || type == kI16 || type == kI32 || type == kI64;
    return integer_power(base, bits, is_signed && i64(bits) < 0);
  }
}

// Computes: y = base ^ exponent, both broadcast.
// Shapes: any strides; y as both broadcast.
// Grid: one thread per element, 256 per block, along x.
// Needs: nothing. y may be base itself.
// Numerics: float where base and exponent are half, bf16, float or integers of 16 bits; integer by integer wraps; else double.
template <class T>
__global__ void __launch_bounds__(256)
    power(const T* base, const void* exponent, T* y, Strided<kMaxRank, 3> walk, i64 size, i32 is_vector, i32 exponent_type) {
  const Unit<1, 3> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  y[unit.at[2]] = power_of(base[unit.at[0]], exponent, unit.at[1], exponent_type);
}
