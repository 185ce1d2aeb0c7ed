// QuantizeLinear and DequantizeLinear, texel by texel.
#include "../quant/quantize.cu"
#include "texture.cuh"

__device__ inline float load_float(const Texture<u8>& values, i64 place, int kind) {
  if (kind == 0) return values.as<float>()[place];
  if (kind == 1) return widen(values.as<half>()[place]);
  if (kind == 3) return float(values.as<i32>()[place]);
  if (kind == 4) return widen_narrow(values[place], kE8M0Code);
  return widen(values.as<bf16>()[place]);
}

// Computes  y = (x - zero) * scale
// Shapes    x and y [outer, axis, inner]; scale and zero as ScaleWalk says, zero may be absent
// Grid      one thread per texel of y
// Needs     all dense
// Numerics  as dequantize, bit for bit
template <class X, class Y>
__global__ void __launch_bounds__(kDrawThreads) draw_dequantize(
    const Texture<X> x, const Texture<u8> scale, const Texture<X> zero, const Surface<Y> y,
    const __grid_constant__ ScaleWalk walk) {
  draw<Y>(y, walk.count, [&](i64 index) {
    const i64 place = walk.find_scale(index);
    const float factor = load_float(scale, place, walk.scale_kind);
    return scale_difference<Y>(x[index], zero ? zero[place] : X(0), factor);
  });
}

// Computes  y = saturate(round(x / scale) + zero), halves to even
// Shapes    as draw_dequantize
// Grid      one thread per texel of y
// Needs     all dense
// Numerics  as quantize, bit for bit
template <class X, class Y>
__global__ void __launch_bounds__(kDrawThreads, 1) draw_quantize(
    const Texture<X> x, const Texture<u8> scale, const Texture<Y> zero, const Surface<Y> y,
    const __grid_constant__ ScaleWalk walk) {
  draw<Y>(y, walk.count, [&](i64 index) {
    const i64 place = walk.find_scale(index);
    const float divisor = load_float(scale, place, walk.scale_kind);
    return round_quotient<Y>(cast<float>(x[index]), divisor, zero ? zero[place] : Y(0), walk.divisor_kind);
  });
}

// Computes  y = (x - zero) * scale
// Shapes    as draw_dequantize
// Grid      one thread per texel of y
// Needs     all dense; x and zero of the narrow type of `code`
// Numerics  as dequantize_narrow, bit for bit
template <class Y>
__global__ void __launch_bounds__(kDrawThreads) draw_dequantize_narrow(
    const Texture<u8> x, const Texture<u8> scale, const Texture<u8> zero, const Surface<Y> y,
    const __grid_constant__ ScaleWalk walk, i32 code) {
  draw<Y>(y, walk.count, [&](i64 index) {
    const i64 place = walk.find_scale(index);
    const float factor = load_float(scale, place, walk.scale_kind);
    return dequantize_narrow_element<Y>(x[index], zero ? zero[place] : u8(0), factor, code);
  });
}

// Computes  y = saturate(round(x / scale) + zero) for integers, halves to even; round(x / scale + zero) for floats
// Shapes    as draw_dequantize
// Grid      one thread per texel of y
// Needs     all dense; zero and y of the narrow type of `code`
// Numerics  as quantize_narrow, bit for bit
template <class X>
__global__ void __launch_bounds__(kDrawThreads) draw_quantize_narrow(
    const Texture<X> x, const Texture<u8> scale, const Texture<u8> zero, const Surface<u8> y,
    const __grid_constant__ ScaleWalk walk, i32 code, i32 mode) {
  draw<u8>(y, walk.count, [&](i64 index) {
    const i64 place = walk.find_scale(index);
    const float divisor = load_float(scale, place, walk.scale_kind);
    const float quotient = divide(cast<float>(x[index]), divisor, walk.divisor_kind);
    return quantize_narrow_element(quotient, zero ? zero[place] : u8(0), walk.divisor_kind, code, mode);
  });
}
