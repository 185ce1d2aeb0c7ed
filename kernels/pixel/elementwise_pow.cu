// Pow, texel by texel, by the functions of ../elementwise/elementwise_pow.cu.
#include "../elementwise/elementwise_pow.cu"
#include "elementwise.cuh"

template <class To>
__device__ inline To load_as(const Texture<u8>& values, i64 at, i32 type) {
  switch (type) {
    case kFloat: return cast<To>(values.as<float>()[at]);
    case kU8: return cast<To>(values[at]);
    case kI8: return cast<To>(values.as<i8>()[at]);
    case kU16: return cast<To>(values.as<u16>()[at]);
    case kI16: return cast<To>(values.as<i16>()[at]);
    case kI32: return cast<To>(values.as<i32>()[at]);
    case kI64: return cast<To>(values.as<i64>()[at]);
    case kHalf: return cast<To>(values.as<half>()[at]);
    case kDouble: return cast<To>(values.as<double>()[at]);
    case kU32: return cast<To>(values.as<u32>()[at]);
    case kU64: return cast<To>(values.as<u64>()[at]);
    default: return cast<To>(values.as<bf16>()[at]);
  }
}

// Computes: y = base ^ exponent, both broadcast.
// Shapes: any strides; y as both broadcast.
// Grid: one thread per texel of y.
// Needs: the walk of `power`.
// Numerics: as `power`, bit for bit.
template <class T>
__global__ void __launch_bounds__(256) draw_power(
    const Texture<T> base, const Texture<u8> exponent, const Surface<T> y,
    const __grid_constant__ Strided<kMaxRank, 3> walk, i64 size, i32 is_vector, i32 exponent_type) {
  draw<T>(y, size, [&](i64 index) {
    const Place<1, 3> place(walk, index, is_vector);
    return power_of(base[place.at[0]], exponent, place.at[1], exponent_type);
  });
}
