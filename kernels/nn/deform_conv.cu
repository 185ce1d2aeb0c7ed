// Deformable convolution, whose taps are displaced by offsets and sampled between elements.
#include "convolution.cuh"
#include "gemm_simt.cuh"

// Packed by gpuexec/ops/nn/deform_conv.py.
struct DeformSizes {
  ConvSizes conv;
  FastDiv32 by_offset_channels;  // input channels that share their offsets
  i32 axes;                      // spatial axes, of which the windows have up to two more in front
  i64 offset_groups;
};

// The multilinear blend around a place, axes from `Axis` on; elements beyond the input are 0.
template <int Axis, class T>
__device__ inline Acc<T> blend(const T* x, i64 offset, const Windows& windows, const WindowStrides& strides,
                               const int (&base)[3], const Acc<T> (&fraction)[3]) {
  if constexpr (Axis == 3) {
    return widen(x[offset]);
  } else {
    Acc<T> sum = Acc<T>(0);
    for (int corner = 0; corner < 2; ++corner) {
      const Acc<T> weight = corner ? fraction[Axis] : Acc<T>(1) - fraction[Axis];
      const int at = base[Axis] + corner;
      if (weight == Acc<T>(0) || !windows.is_inside(at, Axis)) continue;
      sum = sum + weight * blend<Axis + 1, T>(x, offset + at * strides.axis[Axis], windows, strides, base, fraction);
    }
    return sum;
  }
}

// Loads samples of the input as the columns of a matrix [channel and tap, window].
template <class T>
struct SampleLoader {
  SlabPart part;
  const Windows& windows;
  const WindowStrides& strides;
  const DeformSizes& sizes;
  const T* image;   // this thread's image
  const T* offset;  // of this thread's image, at its window
  const T* mask;    // likewise; may be null
  i64 first_channel;
  int starts[3];    // where tap 0 of this thread's window lies
  i64 inner;        // 0 where this thread has no window

  __device__ SampleLoader(const T* x, const T* offsets, const T* masks, const ConvTile& tile, const DeformSizes& sizes,
                          const Windows& windows, const WindowStrides& strides)
      : part(SlabPart::along_x(threadIdx.x)), windows(windows), strides(strides), sizes(sizes),
        first_channel(tile.group * sizes.conv.group_ins) {
    const i64 window = tile.first_column + part.x;
    inner = window < tile.columns ? tile.inner : 0;
    u64 position;
    const i64 n = i64(sizes.conv.by_outputs.divide(u64(window), position));
    split_index(u32(position), windows.by_counts, starts);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(starts[axis], axis);
    const i64 taps = n * sizes.offset_groups * windows.taps(), outputs = i64(sizes.conv.by_outputs.divisor);
    image = x + n * strides.batch;
    offset = offsets + taps * sizes.axes * outputs + i64(position);
    mask = masks ? masks + taps * outputs + i64(position) : masks;
  }

  __device__ Acc<T> sample(u32 k) const {
    u32 t[3];
    u32 tap, unused;
    u32 channel = windows.by_kernel[2].divide(k, t[2]);
    channel = windows.by_kernel[1].divide(channel, t[1]);
    channel = windows.by_kernel[0].divide(channel, t[0]);
    tap = k - channel * u32(windows.taps());
    const i64 c = first_channel + channel, outputs = i64(sizes.conv.by_outputs.divisor);
    const i64 moved = i64(sizes.by_offset_channels.divide(u32(c), unused)) * windows.taps() + tap;
    const Acc<T> weight = mask ? widen(mask[moved * outputs]) : Acc<T>(1);
    int base[3];
    Acc<T> fraction[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int plain = starts[axis] + int(t[axis]) * windows.dilations[axis], own = axis - (3 - sizes.axes);
      const Acc<T> at = Acc<T>(plain) + (own < 0 ? Acc<T>(0) : widen(offset[(moved * sizes.axes + own) * outputs]));
      // An element or more outside of the input, or NaN: the sample is 0.
      if (!(at > Acc<T>(-1) && at < Acc<T>(windows.extents[axis]))) return weight * Acc<T>(0);
      const Acc<T> before = floor(at);
      base[axis] = int(before);
      fraction[axis] = at - before;
    }
    return weight * blend<0, T>(image, c * strides.channel, windows, strides, base, fraction);
  }

  __device__ void load(i64 k, Acc<T> (&values)[4]) const {
    for (int i = 0; i < 4; ++i) {
      const i64 at = k + part.k + i;
      const Acc<T> value = at < inner ? sample(u32(at)) : Acc<T>(0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // registers can't be indexed
        if (j == i) values[j] = value;
      }
    }
  }
};

// Computes  y[n, o, window] = bias[o] + sum over channels c of o's group and taps t of w[o, c, t] * mask[n, c, t, window]
//           * (x[n, c] around window + t + offset[n, c, t, window])
// Shapes    x [batch, channels, spatial] by strides, w [out channels, group_ins, taps], offset [batch, offset groups,
//           taps, axes, outputs], mask [batch, offset groups, taps, outputs], bias [out channels], y dense
// Grid      one block of 256 per 64 output channels of a group x 64 windows (of all images in one row):
//           x = (group * row tiles + row tile) * column tiles + column tile
// Needs     all but x dense; group_ins * taps < 2^31; mask and bias may be null
// Numerics  in Acc<T>: samples rounded after each step, an element whose weight is 0 left out; order channel, then tap,
//           one fma each; then the bias; rounded to T once
template <class T>
__global__ void __launch_bounds__(256, 2)
    deform_conv(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ offset,
                const T* __restrict__ mask, const T* __restrict__ bias, T* __restrict__ y,
                const __grid_constant__ Windows windows, const __grid_constant__ WindowStrides strides,
                const __grid_constant__ DeformSizes sizes) {
  const ConvTile tile(sizes.conv, windows);
  const i64 rows = tile.rows, inner = tile.inner;
  const StridedLoader<T> left(w + tile.group * rows * inner, tile.first_row, rows, inner, inner, 1, threadIdx.x);
  const SampleLoader<T> right(x, offset, mask, tile, sizes, windows, strides);
  Acc<T> sums[kSums][kSums];
  multiply_tile(left, right, inner, tile.is_needed(), sums);
  tile.visit_outputs([&](int i, int j, i64 n, i64 channel, i64 position) {
    const Acc<T> sum = bias ? sums[i][j] + widen(bias[channel]) : sums[i][j];
    const i64 place = n * i64(sizes.conv.by_out_channels.divisor) + channel;
    y[place * i64(sizes.conv.by_outputs.divisor) + position] = cast<T>(sum);
  });
}
