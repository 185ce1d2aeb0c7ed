// Gather, GatherND and GatherElements, texel by texel.
#include "../tensor/gather.cu"
#include "texture.cuh"

// Draws slices in elements of T, of which a unit has `parts`.
template <class T, class Index>
__device__ inline void draw_units(
    const Texture<T>& data, const Texture<Index>& indices, const Surface<T>& output, const SliceWalk& walk, int parts) {
  draw<T>(output, walk.count * parts, [&](i64 element) {
    u64 within, slice_index;
    const u64 batch = walk.slices.divide(walk.slice.divide(u64(element / parts), within), slice_index);
    const i64 tuple = i64(batch) * walk.index_batch_stride + i64(slice_index) * walk.length;
    i64 offset = i64(batch) * walk.data_batch_stride + i64(within);
    bool is_within = true;
    for (int k = 0; k < walk.length; ++k) {
      i64 index = indices[tuple + k];
      is_within = resolve_index(index, walk.extents[k]) && is_within;
      offset += index * walk.strides[k];
    }
    return is_within ? data[offset * parts + element % parts] : T(0);
  });
}

// Computes: output[b, s, :] = data[b, indices[b, s, 0], ..., indices[b, s, length - 1], :].
// Shapes: see SliceWalk; Gather has tuples of one entry and indices that all batches share.
// Grid: one thread per texel of the output.
// Needs: all three dense; data, output and slices aligned to a unit (1, 2, 4, 8 or 16 bytes).
// Numerics: none, bits are kept; a negative index counts from the back, one out of range reads as zero.
template <class Index>
__global__ void __launch_bounds__(kThreads, 1) draw_gather_slices(
    const Texture<u8> data, const Texture<Index> indices, const Surface<u8> output,
    const __grid_constant__ SliceWalk walk) {
  if (walk.unit == 1) draw_units<u8>(data, indices, output, walk, 1);
  else if (walk.unit == 2) draw_units<u16>(data.as<u16>(), indices, output.as<u16>(), walk, 1);
  else if (walk.unit == 4) draw_units<u32>(data.as<u32>(), indices, output.as<u32>(), walk, 1);
  else draw_units<u64>(data.as<u64>(), indices, output.as<u64>(), walk, walk.unit / 8);
}

template <class T, class Index>
__device__ inline void draw_picked(
    const Texture<T>& data, const Texture<Index>& indices, const Surface<T>& output,
    const Strided<kMaxRank, 3>& walk, i64 extent, i64 stride) {
  draw<T>(output, walk.count, [&](i64 element) {
    i64 offsets[3];
    walk.locate(element, offsets);
    i64 index = indices[offsets[1]];
    return resolve_index(index, extent) ? data[offsets[0] + index * stride] : T(0);
  });
}

// Computes: output[..., i, ...] = data[..., indices[..., i, ...], ...], picking along one axis.
// Shapes: indices and output equal, output dense; data at least as large beside the axis; data and indices by strides.
// Grid: one thread per texel of the output.
// Needs: elements of 1, 2, 4 or 8 bytes.
// Numerics: none, bits are kept; a negative index counts from the back, one out of range reads as zero.
template <class Index>
__global__ void __launch_bounds__(kThreads) draw_gather_elements(
    const Texture<u8> data, const Texture<Index> indices, const Surface<u8> output,
    const __grid_constant__ Strided<kMaxRank, 3> walk, i64 extent, i64 stride, i32 element_bytes) {
  if (element_bytes == 1) draw_picked<u8>(data, indices, output, walk, extent, stride);
  else if (element_bytes == 2) draw_picked<u16>(data.as<u16>(), indices, output.as<u16>(), walk, extent, stride);
  else if (element_bytes == 4) draw_picked<u32>(data.as<u32>(), indices, output.as<u32>(), walk, extent, stride);
  else draw_picked<u64>(data.as<u64>(), indices, output.as<u64>(), walk, extent, stride);
}
