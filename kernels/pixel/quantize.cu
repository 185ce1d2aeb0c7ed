// QuantizeLinear and DequantizeLinear, texel by texel.
#include "../quantize.cu"
#include "texture.cuh"

__device__ inline float load_float(const Texture<u8>& values, i64 place, int kind) {
  if (kind == 0) return values.as<float>()[place];
  if (kind == 1) return widen(values.as<half>()[place]);
  if (kind == 3) return float(values.as<i32>()[place]);
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
__global__ void __launch_bounds__(kDrawThreads) draw_quantize(
    const Texture<X> x, const Texture<u8> scale, const Texture<Y> zero, const Surface<Y> y,
    const __grid_constant__ ScaleWalk walk) {
  draw<Y>(y, walk.count, [&](i64 index) {
    const i64 place = walk.find_scale(index);
    const float divisor = load_float(scale, place, walk.scale_kind);
    return round_quotient<Y>(cast<float>(x[index]), divisor, zero ? zero[place] : Y(0), walk.divisor_kind);
  });
}
