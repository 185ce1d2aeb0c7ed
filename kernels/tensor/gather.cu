// Gather, GatherND and GatherElements. Data is moved as bits: kernels know the size of what they move, not its type.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "narrow.cuh"

constexpr int kThreads = 256;

struct alignas(16) Unit16 {
  u64 low;
  u64 high;
};

// Data [batch, extents[0], ..., extents[length - 1], slice], indices [batch, slices, length], output [batch, slices, slice].
// Packed by gather.py; strides and slices count units.
struct SliceWalk {
  i64 count;              // units of the output
  FastDiv64 slice;        // units per slice
  FastDiv64 slices;       // slices per batch
  i64 data_batch_stride;
  i64 index_batch_stride;  // entries; 0 where all batches share the indices
  i32 length;             // entries per index tuple
  i32 unit;               // bytes
  i64 extents[kMaxRank];
  i64 strides[kMaxRank];
};

// Counts a negative index from the back; tells whether it is within the extent.
__device__ inline bool resolve_index(i64& index, i64 extent) {
  if (index < 0) index += extent;
  return index >= 0 && index < extent;
}

template <class T>
__device__ T zero_unit() {
  return T(0);
}
template <>
__device__ inline Unit16 zero_unit<Unit16>() {
  return Unit16{0, 0};
}

// Moves element `from` of the data to element `to` of the output, or zero.
template <class T>
__device__ inline void move_unit(const u8* data, i64 from, u8* output, i64 to, bool is_within) {
  reinterpret_cast<T*>(output)[to] = is_within ? reinterpret_cast<const T*>(data)[from] : zero_unit<T>();
}

// Computes: output[b, s, :] = data[b, indices[b, s, 0], ..., indices[b, s, length - 1], :].
// Shapes: see SliceWalk; Gather has tuples of one entry and indices that all batches share.
// Grid: one thread per unit of the output.
// Needs: all three dense; data, output and slices aligned to a unit (1, 2, 4, 8 or 16 bytes).
// Numerics: none, bits are kept; a negative index counts from the back, one out of range reads as zero.
template <class Index>
__global__ void __launch_bounds__(kThreads) gather_slices(
    const u8* __restrict__ data, const Index* __restrict__ indices, u8* __restrict__ output,
    const __grid_constant__ SliceWalk walk) {
  wait_for_predecessors();
  launch_dependents();
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.count) return;
  u64 within, slice_index;
  const u64 batch = walk.slices.divide(walk.slice.divide(i, within), slice_index);
  const Index* tuple = indices + batch * walk.index_batch_stride + slice_index * walk.length;
  i64 from = batch * walk.data_batch_stride + within;
  bool is_within = true;
#pragma unroll 1
  for (int k = 0; k < walk.length; ++k) {
    i64 index = tuple[k];
    is_within = resolve_index(index, walk.extents[k]) && is_within;
    from += index * walk.strides[k];
  }
  if (walk.unit == 1) move_unit<u8>(data, from, output, i, is_within);
  else if (walk.unit == 2) move_unit<u16>(data, from, output, i, is_within);
  else if (walk.unit == 4) move_unit<u32>(data, from, output, i, is_within);
  else if (walk.unit == 8) move_unit<u64>(data, from, output, i, is_within);
  else move_unit<Unit16>(data, from, output, i, is_within);
}

// Computes: output[..., i, ...] = data[..., indices[..., i, ...], ...], picking along one axis.
// Shapes: indices and output equal; data at least as large beside the axis. Walk operands: data (stride 0 along the axis),
//   indices, output; any strides. `extent` and `stride` are those of data along the axis.
// Grid: one thread per element of the output.
// Needs: elements of 1, 2, 4 or 8 bytes.
// Numerics: none, bits are kept; a negative index counts from the back, one out of range reads as zero.
template <class Index>
__global__ void __launch_bounds__(kThreads) gather_elements(
    const u8* __restrict__ data, const Index* __restrict__ indices, u8* __restrict__ output,
    const __grid_constant__ Strided<kMaxRank, 3> walk, i64 extent, i64 stride, i32 element_bytes) {
  wait_for_predecessors();
  launch_dependents();
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.count) return;
  i64 offsets[3];
  walk.locate(i, offsets);
  i64 index = indices[offsets[1]];
  const bool is_within = resolve_index(index, extent);
  const i64 from = offsets[0] + index * stride;
  if (element_bytes == 1) move_unit<u8>(data, from, output, offsets[2], is_within);
  else if (element_bytes == 2) move_unit<u16>(data, from, output, offsets[2], is_within);
  else if (element_bytes == 4) move_unit<u32>(data, from, output, offsets[2], is_within);
  else move_unit<u64>(data, from, output, offsets[2], is_within);
}

// Data [outer, picked, inner], narrow; scales by strides along the three, 0 where they don't vary. Packed by gather.py.
struct NarrowPick {
  i64 count;
  FastDiv64 inner;
  FastDiv64 indices;
  i64 extent;  // of the picked axis
  i64 outer_stride, picked_stride, inner_stride;
  FastDiv64 outer_block, inner_block;  // what the place along outer and inner is divided by, and
  FastDiv64 outer_wrap, inner_wrap;    // then wrapped at, to be that along the scales' axis
};

// Computes: output[o, s, i] = (data[o, indices[s], i] - zero) * scale, rounded to T.
// Shapes: see NarrowPick; output [outer, indices, inner].
// Grid: one thread per element of the output.
// Needs: all dense; scale (of half data) and zero may be null.
// Numerics: in float, rounded once; a negative index counts from the back, one out of range reads as zero.
template <class T, class W, class Index>
__global__ void __launch_bounds__(kThreads) gather_narrow(
    const W* __restrict__ data, const Index* __restrict__ indices, T* __restrict__ output, const T* __restrict__ scale,
    const i8* __restrict__ zero, const __grid_constant__ NarrowPick pick) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 within, slot, outer_place, inner_place;
  u64 outer = pick.indices.divide(pick.inner.divide(u64(i), within), slot);
  wait_for_predecessors();
  launch_dependents();
  if (i >= pick.count) return;
  i64 index = indices[slot];
  if (!resolve_index(index, pick.extent)) {
    output[i] = cast<T>(0.0f);
    return;
  }
  pick.outer_wrap.divide(pick.outer_block.divide(outer), outer_place);
  pick.inner_wrap.divide(pick.inner_block.divide(within), inner_place);
  i64 place = i64(outer_place) * pick.outer_stride + index * pick.picked_stride + i64(inner_place) * pick.inner_stride;
  W q = data[(i64(outer) * pick.extent + index) * i64(pick.inner.divisor) + i64(within)];
  output[i] = cast<T>(widen_weight<T>(q, Scales<T>{scale, zero}, place));
}
