// Sliding windows over three spatial axes (fewer are padded in front with extent 1). Packed by gpuexec/ops/lib/windows.py.
#pragma once
#include "index.cuh"

// Tap t of window o lies at o * strides + t * dilations - begins; inside the input if 0 <= that < extents.
struct Windows {
  i32 extents[3], counts[3], kernel[3], strides[3], dilations[3], begins[3], ends[3];
  FastDiv32 by_extents[3], by_counts[3], by_kernel[3];

  __device__ int taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Where tap 0 of a window lies along an axis.
  __device__ int start(int window, int axis) const { return window * strides[axis] - begins[axis]; }
  __device__ bool is_inside(int position, int axis) const { return u32(position) < u32(extents[axis]); }
};

// A tensor [batch, channel, three spatial axes] by strides in elements.
struct WindowStrides {
  i64 batch, channel, axis[3];

  __device__ i64 offset(int p0, int p1, int p2) const { return p0 * axis[0] + p1 * axis[1] + p2 * axis[2]; }
};

// Divides a row-major index below 2^31 into three coordinates.
__device__ inline void split_index(u32 index, const FastDiv32 (&extents)[3], int (&coordinates)[3]) {
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    u32 rest;
    index = extents[axis].divide(index, rest);
    coordinates[axis] = int(rest);
  }
}
