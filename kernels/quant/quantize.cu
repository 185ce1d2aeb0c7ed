// QuantizeLinear and DequantizeLinear: per tensor, per axis, or in blocks along an axis.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "narrow_types.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;

// Index of the scale of an element. Packed by gpuexec/ops/quant/quantize.py: elements [outer, axis, inner], scales by strides.
struct ScaleWalk {
  i64 count;
  FastDiv64 inner;
  FastDiv64 axis;
  FastDiv64 block;  // elements of the axis that share a scale
  i64 outer_stride, axis_stride, inner_stride;
  i32 scale_kind;    // 0 float, 1 half, 2 bf16, 3 i32, 4 e8m0
  i32 divisor_kind;  // the same, of the type of the division x / scale

  __device__ i64 find_scale(i64 i) const {
    u64 within, place, rest;
    u64 outer = axis.divide(inner.divide(u64(i), within), place);
    return i64(outer) * outer_stride + i64(block.divide(place, rest)) * axis_stride + i64(within) * inner_stride;
  }
};

__device__ inline float load_float(const u8* values, i64 place, int kind) {
  if (kind == 0) return reinterpret_cast<const float*>(values)[place];
  if (kind == 1) return widen(reinterpret_cast<const half*>(values)[place]);
  if (kind == 3) return float(reinterpret_cast<const i32*>(values)[place]);
  if (kind == 4) return widen_narrow(values[place], kE8M0Code);
  return widen(reinterpret_cast<const bf16*>(values)[place]);
}

__device__ inline float round_to(float value, int kind) {
  if (kind == 1) return widen(cast<half>(value));
  return kind == 2 ? widen(cast<bf16>(value)) : value;
}

template <class Y, class X>
__device__ inline Y scale_difference(X x, X zero, float scale) {
  return cast<Y>(float(wrapping_sub(i32(x), i32(zero))) * scale);
}

__device__ inline float divide(float x, float scale, int divisor_kind) {
  return round_to(round_to(x, divisor_kind) / round_to(scale, divisor_kind), divisor_kind);
}

__device__ inline i32 round_and_add(float quotient, i32 zero, i32 lowest, i32 highest) {
  quotient = rintf(quotient);
  if (!(quotient == quotient)) quotient = 0.0f;
  // A quotient beyond 2^24 saturates whatever zero point is added, so it may be clamped to keep the sum below exact.
  quotient = fminf(fmaxf(quotient, -16777216.0f), 16777216.0f);
  const i32 sum = i32(quotient) + zero;
  return sum < lowest ? lowest : sum > highest ? highest : sum;
}

template <class Y>
__device__ inline Y round_quotient(float x, float scale, Y zero, int divisor_kind) {
  const i32 lowest = i32(limits<Y>::lowest()), highest = i32(limits<Y>::max());
  return Y(round_and_add(divide(x, scale, divisor_kind), i32(zero), lowest, highest));
}

// Conversions to and from the narrow type of a code.
__device__ inline u8 quantize_narrow_element(float quotient, u8 zero, int divisor_kind, int code, i32 mode) {
  const int bits = narrow_integer_bits(code);
  if (bits == 0) {
    const float sum = round_to(quotient + widen_narrow(zero, code), divisor_kind);
    return narrow_float(sum, code, mode);
  }
  const i32 values = 1 << bits, lowest = code == kInt4Code || code == kInt2Code ? -(values >> 1) : 0;
  const i32 sum = round_and_add(quotient, widen_narrow_integer(zero, code), lowest, lowest + values - 1);
  return u8(sum & (values - 1));
}

template <class Y>
__device__ inline Y dequantize_narrow_element(u8 x, u8 zero, float scale, int code) {
  return cast<Y>((widen_narrow(x, code) - widen_narrow(zero, code)) * scale);
}

// Computes  y = (x - zero) * scale
// Shapes    x and y [outer, axis, inner]; scale and zero as ScaleWalk says, zero may be null
// Grid      one thread per element: x = element / 256
// Needs     all dense
// Numerics  in float (an int32 difference wraps, and is rounded to float), rounded once
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    dequantize(const X* __restrict__ x, const u8* __restrict__ scale, const X* __restrict__ zero, Y* __restrict__ y,
               const __grid_constant__ ScaleWalk walk) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 place = walk.find_scale(i);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  y[i] = scale_difference<Y>(x[i], zero ? zero[place] : X(0), load_float(scale, place, walk.scale_kind));
}

// Computes  y = saturate(round(x / scale) + zero), halves to even
// Shapes    as dequantize
// Grid      one thread per element: x = element / 256
// Needs     all dense
// Numerics  in float; x, scale and quotient are rounded to the type that `divisor_kind` says; NaN gives zero
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    quantize(const X* __restrict__ x, const u8* __restrict__ scale, const Y* __restrict__ zero, Y* __restrict__ y,
             const __grid_constant__ ScaleWalk walk) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 place = walk.find_scale(i);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  float divisor = load_float(scale, place, walk.scale_kind);
  y[i] = round_quotient(cast<float>(x[i]), divisor, zero ? zero[place] : Y(0), walk.divisor_kind);
}

// Computes  y = (x - zero) * scale
// Shapes    as dequantize
// Grid      one thread per element: x = element / 256
// Needs     all dense; x and zero of the narrow type of `code`
// Numerics  in float, rounded once
template <class Y>
__global__ void __launch_bounds__(kThreads)
    dequantize_narrow(const u8* __restrict__ x, const u8* __restrict__ scale, const u8* __restrict__ zero, Y* __restrict__ y,
                      const __grid_constant__ ScaleWalk walk, i32 code) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 place = walk.find_scale(i);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  y[i] = dequantize_narrow_element<Y>(x[i], zero ? zero[place] : u8(0), load_float(scale, place, walk.scale_kind), code);
}

// Computes  y = saturate(round(x / scale) + zero) for integers, halves to even; round(x / scale + zero) for floats
// Shapes    as dequantize
// Grid      one thread per element: x = element / 256
// Needs     all dense; zero and y of the narrow type of `code`
// Numerics  the quotient as quantize has it; to narrow floats as `mode` says
template <class X>
__global__ void __launch_bounds__(kThreads)
    quantize_narrow(const X* __restrict__ x, const u8* __restrict__ scale, const u8* __restrict__ zero, u8* __restrict__ y,
                    const __grid_constant__ ScaleWalk walk, i32 code, i32 mode) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 place = walk.find_scale(i);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  float quotient = divide(cast<float>(x[i]), load_float(scale, place, walk.scale_kind), walk.divisor_kind);
  y[i] = quantize_narrow_element(quotient, zero ? zero[place] : u8(0), walk.divisor_kind, code, mode);
}
