// Places of regions with index maps: slices that indices pick, and loads that are made within a window alone.
#pragma once
#include "vec.cuh"

// Where a slice begins that an index picks along an axis.
template <class Offset>
struct PickedSlice {
  Offset at;
  bool is_within;  // the axis has such a place
};

// A negative index counts from the back; one out of range reads as zero. The index is behind a pointer, or in a texture.
template <class Offset, class Source>
__device__ inline PickedSlice<Offset> pick_slice(bool is_inside, Source index, Offset extent, Offset stride) {
  i64 place = is_inside ? i64(*index) : i64(0);
  if (place < 0) place += extent;
  bool is_within = is_inside && place >= 0 && place < extent;
  return PickedSlice<Offset>{is_within ? Offset(place) * stride : Offset(0), is_within};
}

template <class T>
__device__ inline T load_within(bool is_within, const T* source) {
  return is_within ? *source : cast<T>(0);
}

template <int Width, class T>
__device__ inline Vec<T, Width> load_vec_within(bool is_within, const T* source) {
  if (is_within) return load_vec<Width>(source);
  Vec<T, Width> zeros;
#pragma unroll
  for (int i = 0; i < Width; ++i) zeros.lanes[i] = cast<T>(0);
  return zeros;
}
