// Requantisation: 8-bit integers with zero points, and int32 sums scaled to what is stored.
//
// Kernels compute with centred bytes: `offset` is 128 for unsigned bytes and 0 for signed ones, and value - offset fits a signed
// byte in either case. So one instance serves both.
#pragma once
#include "safe.cuh"

__device__ inline i32 centre(u8 byte, i32 offset) { return i32(i8(byte ^ u8(offset))); }

// A zero point, centred as the bytes it belongs to; without one it is 0.
__device__ inline i32 load_zero(const u8* zeros, i64 place, i32 offset) {
  return zeros ? centre(zeros[place], offset) : -offset;
}

// The scale at a place: of float, half or bf16 as `kind` is 0, 1 or 2; without one it is 1.
__device__ inline float load_scale(const u8* scales, i64 place, i32 kind) {
  if (!scales) return 1.0f;
  if (kind == 0) return reinterpret_cast<const float*>(scales)[place];
  return kind == 1 ? widen(reinterpret_cast<const half*>(scales)[place]) : widen(reinterpret_cast<const bf16*>(scales)[place]);
}

// Returns round(x) + zero, halves to even, as a byte that saturates; NaN gives zero. `zero` is centred as the result is.
__device__ inline u8 round_to_byte(float x, i32 zero, i32 offset) {
  float whole = rintf(x);
  if (!(whole == whole)) whole = 0.0f;
  whole = fminf(fmaxf(whole, -1024.0f), 1024.0f);
  const i32 sum = i32(whole) + zero;
  return u8(sum < -128 ? -128 : sum > 127 ? 127 : sum) ^ u8(offset);
}

// Conversion of sums to results. Packed by pack_finish of gpuexec/ops/quant/integer.py.
struct Finish {
  float alpha;     // multiplies the scales
  i32 y_offset;    // of the bytes made
  i32 scale_kind;  // of all scales
  i32 unused;
};

// The factor of a sum, for finish_sum: `scale` is the product of alpha and the scales of both operands.
template <class Y>
__device__ inline float find_factor(float scale, float y_scale) {
  return kIsSame<Y, u8> ? scale / y_scale : scale;
}

// Converts a sum to a result: the sum itself, a float (sum * factor + bias) or a byte (round(sum * factor) + y_zero).
template <class Y>
__device__ inline Y finish_sum(i32 sum, float factor, i32 y_zero, float bias, i32 y_offset) {
  if constexpr (kIsSame<Y, i32>) {
    return sum;
  } else if constexpr (kIsSame<Y, u8>) {
    return round_to_byte(float(sum) * factor, y_zero, y_offset);
  } else {
    return cast<Y>(float(sum) * factor + bias);
  }
}
