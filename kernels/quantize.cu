// QuantizeLinear and DequantizeLinear: per tensor, per axis, or in blocks along an axis.
#include "index.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;

// Where the scale of an element stands. Packed by gpuexec/ops/quantize.py: elements [outer, axis, inner], scales by strides.
struct ScaleWalk {
  i64 count;
  FastDiv64 inner;
  FastDiv64 axis;
  FastDiv64 block;  // elements of the axis that share a scale
  i64 outer_stride, axis_stride, inner_stride;
  i32 scale_kind;    // 0 float, 1 half, 2 bf16, 3 i32
  i32 divisor_kind;  // the same, of the type x / scale is rounded to

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

template <class Y>
__device__ inline Y round_quotient(float x, float scale, Y zero, int divisor_kind) {
  float quotient = rintf(round_to(round_to(x, divisor_kind) / scale, divisor_kind));
  if (!(quotient == quotient)) quotient = 0.0f;
  // What is beyond 2^24 saturates whatever is added; so the sum below is exact.
  quotient = fminf(fmaxf(quotient, -16777216.0f), 16777216.0f);
  const i32 sum = i32(quotient) + i32(zero);
  const i32 lowest = i32(limits<Y>::lowest()), highest = i32(limits<Y>::max());
  return Y(sum < lowest ? lowest : sum > highest ? highest : sum);
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
  if (i >= walk.count) return;
  i64 place = walk.find_scale(i);
  y[i] = scale_difference<Y>(x[i], zero ? zero[place] : X(0), load_float(scale, place, walk.scale_kind));
}

// Computes  y = saturate(round(x / scale) + zero), halves to even
// Shapes    as dequantize
// Grid      one thread per element: x = element / 256
// Needs     all dense
// Numerics  the quotient in float, rounded to the type that `divisor_kind` says; NaN gives zero
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    quantize(const X* __restrict__ x, const u8* __restrict__ scale, const Y* __restrict__ zero, Y* __restrict__ y,
             const __grid_constant__ ScaleWalk walk) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.count) return;
  i64 place = walk.find_scale(i);
  float divisor = load_float(scale, place, walk.scale_kind);
  y[i] = round_quotient(cast<float>(x[i]), divisor, zero ? zero[place] : Y(0), walk.divisor_kind);
}
