// Shared parts of the convolution kernels, whatever they multiply.
// A block's tile, the patches that are its columns, and the walks of kernels that make an output per thread.
#pragma once
#include "tile.cuh"
#include "windows.cuh"

// Sizes of a convolution, beside its windows. Packed by ConvSizes of gpuexec/ops/nn/convolution.py.
struct ConvSizes {
  FastDiv64 by_outputs;       // outputs of one channel
  FastDiv64 by_out_channels;  // all groups
  FastDiv32 by_group_outs;    // output channels of a group
  i32 group_ins;
  i64 batch;
};

// A block's tile, of 64 output channels of a group x 64 windows (of all images in one row), and a thread's sums in it.
struct ConvTile {
  const ConvSizes& sizes;
  i64 columns, rows, inner;  // windows, output channels of a group, channels and taps
  i64 group, first_row, first_column, row, column;

  __device__ ConvTile(const ConvSizes& sizes, const Windows& windows) : sizes(sizes) {
    columns = sizes.batch * i64(sizes.by_outputs.divisor);
    rows = sizes.by_group_outs.divisor;
    inner = i64(sizes.group_ins) * windows.taps();
    const TilePlace place(rows, columns, kTile);
    group = place.outer;
    first_row = place.first_row;
    first_column = place.first_column;
    row = first_row + sums_row(threadIdx.x);
    column = first_column + sums_column(threadIdx.x);
  }

  __device__ bool is_needed() const { return row < rows && column < columns; }

  // Calls visit(j, n, channel, count, position) for each column j of sums that are outputs: sums [i][j] of `count` channels from
  // `channel` on, position within the channel.
  template <class Visit>
  __device__ void visit_columns(Visit visit) const {
    u64 position;
    i64 n = i64(sizes.by_outputs.divide(u64(column), position));
    const int count = int(rows - row < kSums ? rows - row : kSums);
    if (count <= 0) return;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (column + j >= columns) break;
      visit(j, n, group * rows + row, count, i64(position));
      if (++position == sizes.by_outputs.divisor) {
        position = 0;
        ++n;
      }
    }
  }

  // Calls visit(i, j, n, channel, position) for each sum [i][j] that is an output, position within the channel.
  template <class Visit>
  __device__ void visit_outputs(Visit visit) const {
    visit_columns([&](int j, i64 n, i64 channel, int count, i64 position) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i < count) visit(i, j, n, channel + i, position);
      }
    });
  }
};

// The patch of an image under a window, as a column of the im2col matrix [channel and tap, window].
template <class T>
struct Patch {
  const Windows& windows;
  const WindowStrides& strides;
  const T* image;  // at the first channel of the group
  i32 starts[3];   // where tap 0 lies
  i64 inner;       // 0 where there is no window

  __device__ Patch(const T* x, i64 window, const ConvTile& tile, const Windows& windows, const WindowStrides& strides)
      : windows(windows), strides(strides), inner(window < tile.columns ? tile.inner : 0) {
    u64 position;
    i64 n = i64(tile.sizes.by_outputs.divide(u64(window), position));
    split_index(u32(position), windows.by_counts, starts);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(starts[axis], axis);
    image = x + n * strides.batch + tile.group * tile.sizes.group_ins * strides.channel;
  }

  // Calls take(i, source) for the elements k + i, i < Count, that lie below `inner`; source is null in the padding.
  template <int Count, class Take>
  __device__ void visit(i64 k, Take take) const {
    u32 t0, t1, t2;
    u32 channel = windows.by_kernel[2].divide(u32(k), t2);
    channel = windows.by_kernel[1].divide(channel, t1);
    channel = windows.by_kernel[0].divide(channel, t0);
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      int p0 = starts[0] + int(t0) * windows.dilations[0];
      int p1 = starts[1] + int(t1) * windows.dilations[1];
      int p2 = starts[2] + int(t2) * windows.dilations[2];
      bool is_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1) && windows.is_inside(p2, 2);
      if (k + i < inner) {
        take(i, is_inside ? image + (channel * strides.channel + strides.offset(p0, p1, p2)) : nullptr);
      }
      if (++t2 == windows.by_kernel[2].divisor) {
        t2 = 0;
        if (++t1 == windows.by_kernel[1].divisor) {
          t1 = 0;
          if (++t0 == windows.by_kernel[0].divisor) {
            t0 = 0;
            ++channel;
          }
        }
      }
    }
  }
};

// The output that a thread makes. False where there is none.
struct Output {
  i64 n, group;
  u64 channel, position;  // position within the channel
  u32 member;             // channel within the group

  __device__ bool find(const ConvSizes& sizes, i64 index) {
    u64 plane = sizes.by_outputs.divide(u64(index), position);
    n = i64(sizes.by_out_channels.divide(plane, channel));
    if (n >= sizes.batch) return false;
    group = sizes.by_group_outs.divide(u32(channel), member);
    return true;
  }
};

// The walks over the terms of an output's sum: visit calls take(place, source) for each, with the index of its weight and
// the place of its input, which is a pointer or an index as `x` is.

// For a convolution: channel by channel, then tap by tap; taps in the padding are left out.
struct PlainWalk {
  // Index of the weight scale of an output.
  static __device__ i64 scale_of(const Output& output) { return i64(output.channel); }

  template <class At, class Take>
  static __device__ void visit(At x, const Output& output, const Windows& windows, const WindowStrides& strides,
                               const ConvSizes& sizes, Take take) {
    int starts[3];
    split_index(u32(output.position), windows.by_counts, starts);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(starts[axis], axis);
    At image = x + (output.n * strides.batch + output.group * sizes.group_ins * strides.channel);
    i64 place = i64(output.channel) * sizes.group_ins * windows.taps();
    for (int c = 0; c < sizes.group_ins; ++c) {
      for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
        int p0 = starts[0] + t0 * windows.dilations[0];
        for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
          int p1 = starts[1] + t1 * windows.dilations[1];
          bool is_row_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1);
          At line = image + strides.offset(p0, p1, 0);
          for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++place) {
            int p2 = starts[2] + t2 * windows.dilations[2];
            if (is_row_inside && windows.is_inside(p2, 2)) take(place, line + p2 * strides.axis[2]);
          }
        }
      }
      image += strides.channel;
    }
  }
};

// Whether output position `at` (padding included) is tap `tap` of an input position along an axis, and of which.
__device__ inline bool find_source(const Windows& windows, int axis, int at, int tap, int& source) {
  int distance = at - tap * windows.dilations[axis];
  source = distance / windows.strides[axis];
  return distance >= 0 && source * windows.strides[axis] == distance && source < windows.counts[axis];
}

// For a transposed convolution: tap by tap, then channel by channel.
struct TransposedWalk {
  static __device__ i64 scale_of(const Output& output) { return output.member; }

  template <class At, class Take>
  static __device__ void visit(At x, const Output& output, const Windows& windows, const WindowStrides& strides,
                               const ConvSizes& sizes, Take take) {
    int at[3];
    split_index(u32(output.position), windows.by_extents, at);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at[axis] += windows.begins[axis];
    i64 first_in = output.group * sizes.group_ins;
    i64 taps = windows.taps();
    i64 channel_step = i64(sizes.by_group_outs.divisor) * taps;
    At image = x + (output.n * strides.batch + first_in * strides.channel);
    i64 place = first_in * channel_step + output.member * taps;
    int q0 = 0;
    int q1 = 0;
    int q2 = 0;
    for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
      bool is_hit0 = find_source(windows, 0, at[0], t0, q0);
      for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
        bool is_hit1 = is_hit0 && find_source(windows, 1, at[1], t1, q1);
        for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++place) {
          if (!is_hit1 || !find_source(windows, 2, at[2], t2, q2)) continue;
          At source = image + strides.offset(q0, q1, q2);
          for (int c = 0; c < sizes.group_ins; ++c) take(place + c * channel_step, source + c * strides.channel);
        }
      }
    }
  }
};
