// Quantised elementwise operators: 8-bit values dequantised, computed in float, and requantised.
#include "elementwise.cuh"
#include "rational.cuh"
#include "requantize.cuh"

constexpr int kLanes = 8;  // kWidth of bytes

// Quantisation of a tensor: pointers to the scale and the zero point of all of it.
struct ByteScale {
  float scale;
  i32 zero, offset;

  __device__ ByteScale(const float* scale, const u8* zero, i32 offset)
      : scale(*scale), zero(centre(*zero, offset)), offset(offset) {}
  __device__ float widen_byte(u8 byte) const { return float(centre(byte, offset) - zero) * scale; }
  __device__ u8 round(float value) const { return round_to_byte(value / scale, zero, offset); }
};

// Computes  y = the byte nearest to f(x), f by `kind`: 0 x itself, 1 x or alpha * x where x < 0, 2 1 / (1 + exp(-x))
// Shapes    x by strides, y of the same shape by strides; scales and zero points one element each
// Grid      one thread per unit, 256 per block, along x
// Needs     with is_vector, vectors of x and y aligned to 8 elements. y may be x itself
// Numerics  in float, each operation rounded; kind 2 as a rational function; halves to even; saturates
__global__ void __launch_bounds__(256)
    quantized_unary(const u8* x, const float* x_scale, const u8* x_zero, const float* y_scale, const u8* y_zero, u8* y,
                    Strided<kMaxRank, 2> walk, i64 size, i32 is_vector, i32 kind, float alpha, i32 offset) {
  const Unit<kLanes, 2> unit(walk, size, is_vector);
  if (unit.count == 0) return;
  const ByteScale from(x_scale, x_zero, offset), to(y_scale, y_zero, offset);
  Vec<u8, kLanes> lanes = unit.load(x, 0, walk);
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    float value = from.widen_byte(lanes.lanes[i]);
    if (kind == 1 && value < 0.0f) value *= alpha;
    if (kind == 2) value = rational_sigmoid(value);
    lanes.lanes[i] = to.round(value);
  }
  unit.store(y, lanes);
}

// Computes  y = the byte nearest to a + b (kind 0) or a * b (kind 1)
// Shapes    a and b broadcast to y by strides of 0; scales and zero points one element each
// Grid      one thread per unit, 256 per block, along x
// Needs     with is_vector, vectors of every operand aligned to 8 elements. y may be a or b itself
// Numerics  in float, each operation rounded; halves to even; saturates
__global__ void __launch_bounds__(256)
    quantized_binary(const u8* a, const u8* b, const float* a_scale, const u8* a_zero, const float* b_scale,
                     const u8* b_zero, const float* y_scale, const u8* y_zero, u8* y, Strided<kMaxRank, 3> walk,
                     i64 size, i32 is_vector, i32 kind, i32 offset) {
  const Unit<kLanes, 3> unit(walk, size, is_vector);
  if (unit.count == 0) return;
  const ByteScale left(a_scale, a_zero, offset), right(b_scale, b_zero, offset), to(y_scale, y_zero, offset);
  const Vec<u8, kLanes> lefts = unit.load(a, 0, walk), rights = unit.load(b, 1, walk);
  Vec<u8, kLanes> out;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    const float one = left.widen_byte(lefts.lanes[i]), other = right.widen_byte(rights.lanes[i]);
    out.lanes[i] = to.round(kind ? one * other : one + other);
  }
  unit.store(y, out);
}

// Computes  y = the byte nearest to condition ? a : b
// Shapes    condition, a and b broadcast to y by strides of 0; scales and zero points one element each
// Grid      one thread per unit, 256 per block, along x
// Needs     with is_vector, vectors of every operand aligned to 8 elements. y may be a or b itself
// Numerics  in float, each operation rounded; halves to even; saturates
__global__ void __launch_bounds__(256)
    quantized_where(const bool* condition, const u8* a, const u8* b, const float* a_scale, const u8* a_zero,
                    const float* b_scale, const u8* b_zero, const float* y_scale, const u8* y_zero, u8* y,
                    Strided<kMaxRank, 4> walk, i64 size, i32 is_vector, i32 offset) {
  const Unit<kLanes, 4> unit(walk, size, is_vector);
  if (unit.count == 0) return;
  const ByteScale left(a_scale, a_zero, offset), right(b_scale, b_zero, offset), to(y_scale, y_zero, offset);
  const Vec<bool, kLanes> conditions = unit.load(condition, 0, walk);
  const Vec<u8, kLanes> lefts = unit.load(a, 1, walk), rights = unit.load(b, 2, walk);
  Vec<u8, kLanes> out;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    const float value = conditions.lanes[i] ? left.widen_byte(lefts.lanes[i]) : right.widen_byte(rights.lanes[i]);
    out.lanes[i] = to.round(value);
  }
  unit.store(y, out);
}
