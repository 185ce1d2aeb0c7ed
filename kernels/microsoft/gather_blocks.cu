// GatherBlockQuantized: rows of a block-quantised table, dequantised by the scales of their blocks.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Packed by gpuexec/ops/microsoft/gather_blocks.py. The table is [outer, extent, inner] around the axis that is gathered,
// and [.., axis, quant_inner] around the one that has blocks.
struct GatherBlocks {
  i64 count, extent, blocks, quant_inner;
  FastDiv64 by_inner, by_picked, by_quant_inner, by_axis, by_block;
  FastDiv64 by_zero_extent;  // the last extent of the zero points
  i64 zero_row;              // bytes of zero points along it
  i64 in_byte;               // log2 of the codes of a byte
  float zero;                // where there are no zero points
  i32 is_wide;               // whether indices have 64 bits
};

// The code at a place of rows that lie in whole bytes; low bits first.
__device__ inline u8 pick_code(const u8* bytes, u64 place, i64 in_byte) {
  const int bits = 8 >> in_byte, at = int(place & ((u64(1) << in_byte) - 1));
  return u8(bytes[place >> in_byte] >> at * bits & ((1 << bits) - 1));
}

// Computes  y[outer, i, inner] = (table[data[outer, indices[i], inner]] - zero) * scale, of the element's block; 0 where
//           the index lies outside
// Shapes    data [outer, extent, inner] in codes, indices [picked], scales and zeros with `blocks` in place of an axis,
//           table [256], y [outer, picked, inner]
// Grid      one thread per element of y: x = element / 256
// Needs     all dense; zeros may be null
// Numerics  in float, rounded once
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_blocks(const u8* __restrict__ data, const u8* __restrict__ indices, const T* __restrict__ scales,
                  const u8* __restrict__ zeros, const float* __restrict__ table, T* __restrict__ y,
                  const __grid_constant__ GatherBlocks shape) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 within, which, quant_within, place;
  const u64 outer = shape.by_picked.divide(shape.by_inner.divide(u64(i), within), which);
  wait_for_predecessors();
  launch_dependents();
  if (i >= shape.count) return;
  i64 index = shape.is_wide ? reinterpret_cast<const i64*>(indices)[which] : reinterpret_cast<const i32*>(indices)[which];
  if (index < 0) index += shape.extent;
  if (index < 0 || index >= shape.extent) {
    y[i] = cast<T>(0.0f);
    return;
  }
  const u64 source = (outer * u64(shape.extent) + u64(index)) * shape.by_inner.divisor + within;
  const u64 before = shape.by_axis.divide(shape.by_quant_inner.divide(source, quant_within), place);
  const u64 block = (before * u64(shape.blocks) + shape.by_block.divide(place)) * u64(shape.quant_inner) + quant_within;
  float zero = shape.zero;
  if (zeros) {
    u64 column;
    const u64 row = shape.by_zero_extent.divide(block, column);
    zero = table[pick_code(zeros + row * u64(shape.zero_row), column, shape.in_byte)];
  }
  y[i] = cast<T>((table[pick_code(data, source, shape.in_byte)] - zero) * widen(scales[block]));
}
