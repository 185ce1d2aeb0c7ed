// Convolution of bytes over one to three spatial axes, with groups: sums of (x - x_zero) * (w - w_zero), kept or
// quantised again. Padding counts as x_zero, so it adds nothing.
#include "integer_tile.cuh"
#include "windows.cuh"

// What does not belong to the windows. Packed by gpuexec/ops/integer_conv.py.
struct IntegerConv {
  FastDiv64 by_outputs;       // outputs of one channel
  FastDiv64 by_out_channels;  // all groups
  FastDiv32 by_group_outs;    // output channels of a group
  i32 group_ins;
  i64 batch;
  i64 y_batch, y_channel, y_position;
  i32 x_offset, w_offset;     // 128 for unsigned bytes
  i32 quant_step;             // 1 where each output channel has a scale and zero point, 0 where all share one
  i32 unused;
};

// Loads patches of the input as the columns of a matrix [channel and tap, window]; its zero point in the padding.
struct PatchLoader {
  WordPart part;
  const Windows& windows;
  const WindowStrides& strides;
  const u8* image;  // this thread's image, at the first channel of the group
  i32 starts[3];    // where tap 0 of this thread's window lies
  i64 inner;        // 0 where this thread has no window
  u32 flip, zero;

  __device__ PatchLoader(const u8* x, i64 window, bool is_window, i64 inner, i32 x_zero, const IntegerConv& conv,
                         const Windows& windows, const WindowStrides& strides, int thread)
      : part(WordPart::along_x(thread)), windows(windows), strides(strides), inner(is_window ? inner : 0) {
    u64 rest;
    u64 n = conv.by_outputs.divide(u64(window), rest);
    int coordinates[3];
    split_index(u32(rest), windows.by_counts, coordinates);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(coordinates[axis], axis);
    image = x + i64(n) * strides.batch;
    flip = u32(conv.x_offset);
    zero = u32(u8(x_zero));
  }

  __device__ void load(i64 k, u32 (&words)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) words[i] = load_patch(k + (part.word + i * part.dw) * kWordBytes);
  }

  __device__ u32 load_patch(i64 k) const {
    u32 word = 0;
    if (k >= inner) return word;
    u32 t0, t1, t2;
    u32 channel = windows.by_kernel[2].divide(u32(k), t2);
    channel = windows.by_kernel[1].divide(channel, t1);
    channel = windows.by_kernel[0].divide(channel, t0);
#pragma unroll
    for (int i = 0; i < kWordBytes; ++i) {
      if (k + i >= inner) break;
      int p0 = starts[0] + int(t0) * windows.dilations[0];
      int p1 = starts[1] + int(t1) * windows.dilations[1];
      int p2 = starts[2] + int(t2) * windows.dilations[2];
      bool is_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1) && windows.is_inside(p2, 2);
      u32 byte = is_inside ? image[channel * strides.channel + strides.offset(p0, p1, p2)] ^ flip : zero;
      word |= byte << 8 * i;
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
    return word;
  }
};

// What is done with the sum of an output; pointers may be null as the kernels say.
template <class Y>
struct ConvResults {
  const u8 *x_scale, *w_scale, *y_scale, *y_zero;
  const i32* bias;
  Finish finish;

  __device__ float scale_of(const IntegerConv& conv, i64 channel) const {
    return load_scale(x_scale, 0, finish.scale_kind) * load_scale(w_scale, channel * conv.quant_step, finish.scale_kind);
  }

  __device__ Y make(i64 channel, i32 sum, float scale) const {
    if (bias) sum = wrapping_add(sum, bias[channel]);
    return finish_sum<Y>(sum, scale, load_scale(y_scale, 0, finish.scale_kind), load_zero(y_zero, 0, finish.y_offset),
                         0.0f, finish.y_offset);
  }
};

// Computes  sum over channels c of o's group and taps t of (w[o, c, t] - w_zero[o]) * (x[n, c, window + t] - x_zero), plus
//           bias[o]; y is that, or round(sum * (x_scale * w_scale[o] / y_scale)) + y_zero, as Y is i32 or u8
// Shapes    x [batch, channels, spatial] and y by strides, w [out channels, group_ins, taps]; w_zero, w_scale and bias
//           [out channels], of the former two maybe one
// Grid      one block of 256 per 64 output channels of a group x 64 windows (of all images in one row):
//           x = (group * row tiles + row tile) * column tiles + column tile
// Needs     w dense; group_ins * taps < 2^31; any of zero points, scales and bias may be null
// Numerics  sums modulo 2^32; scaling in float, each operation rounded; halves to even; saturates
template <class Y>
__global__ void __launch_bounds__(256, 2)
    integer_conv(const u8* __restrict__ x, const u8* __restrict__ w, const u8* __restrict__ x_zero,
                 const u8* __restrict__ w_zero, Y* __restrict__ y, const __grid_constant__ Windows windows,
                 const __grid_constant__ WindowStrides strides, const __grid_constant__ IntegerConv conv,
                 const u8* __restrict__ x_scale, const u8* __restrict__ w_scale, const u8* __restrict__ y_scale,
                 const u8* __restrict__ y_zero, const i32* __restrict__ bias, const Finish finish) {
  i64 outputs = i64(conv.by_outputs.divisor);
  i64 columns = conv.batch * outputs;
  i64 rows = conv.by_group_outs.divisor;
  i64 inner = i64(conv.group_ins) * windows.taps();
  i64 column_tiles = (columns + kTile - 1) / kTile;
  i64 row_tiles = (rows + kTile - 1) / kTile;
  i64 tile = blockIdx.x;
  i64 first_column = tile % column_tiles * kTile;
  tile /= column_tiles;
  i64 first_row = tile % row_tiles * kTile;
  i64 group = tile / row_tiles;
  i32 right_zero = load_zero(x_zero, 0, conv.x_offset);

  MatrixLoader left(w + group * rows * inner, first_row, rows, inner, inner, 1, conv.w_offset, threadIdx.x);
  i64 window = first_column + WordPart::along_x(threadIdx.x).x;
  const u8* group_x = x + group * conv.group_ins * strides.channel;
  PatchLoader right(group_x, window, window < columns, inner, right_zero, conv, windows, strides, threadIdx.x);
  i64 row = first_row + sums_row(threadIdx.x);
  i64 column = first_column + sums_column(threadIdx.x);
  bool is_needed = row < rows && column < columns;
  ByteSums sums;
  multiply_bytes(left, right, inner, is_needed, right_zero != 0, w_zero || conv.w_offset, sums);
  if (!is_needed) return;

  const ConvResults<Y> results = {x_scale, w_scale, y_scale, y_zero, bias, finish};
  i32 left_zeros[kSums];
  float scales[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    // Beyond the last channel of the group nothing is stored, and the last one's are read.
    i64 channel = group * rows + (row + i < rows ? row + i : rows - 1);
    left_zeros[i] = load_zero(w_zero, channel * conv.quant_step, conv.w_offset);
    scales[i] = results.scale_of(conv, channel);
  }
  const i32 right_zeros[kSums] = {right_zero, right_zero, right_zero, right_zero};
  sums.take_off(left_zeros, right_zeros, inner);
  u64 position;
  u64 n = conv.by_outputs.divide(u64(column), position);
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
    if (column + j >= columns) break;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (row + i >= rows) continue;
      i64 channel = group * rows + row + i;
      y[i64(n) * conv.y_batch + channel * conv.y_channel + i64(position) * conv.y_position] =
          results.make(channel, i32(sums.products[i][j]), scales[i]);
    }
    if (++position == u64(outputs)) {
      position = 0;
      ++n;
    }
  }
}

// Computes  what integer_conv computes, for groups of one input or one output channel
// Shapes    as integer_conv
// Grid      one thread per output: x = output / 256
// Needs     as integer_conv
// Numerics  as integer_conv, to the bit; taps in the padding are left out
template <class Y>
__global__ void __launch_bounds__(256, 1)
    integer_conv_direct(const u8* __restrict__ x, const u8* __restrict__ w, const u8* __restrict__ x_zero,
                        const u8* __restrict__ w_zero, Y* __restrict__ y, const __grid_constant__ Windows windows,
                        const __grid_constant__ WindowStrides strides, const __grid_constant__ IntegerConv conv,
                        const u8* __restrict__ x_scale, const u8* __restrict__ w_scale, const u8* __restrict__ y_scale,
                        const u8* __restrict__ y_zero, const i32* __restrict__ bias, const Finish finish) {
  u64 position, channel;
  u64 plane = conv.by_outputs.divide(u64(blockIdx.x) * 256 + threadIdx.x, position);
  i64 n = i64(conv.by_out_channels.divide(plane, channel));
  if (n >= conv.batch) return;
  i64 group = conv.by_group_outs.divide(u32(channel));
  int coordinates[3];
  split_index(u32(position), windows.by_counts, coordinates);
  int start0 = windows.start(coordinates[0], 0);
  int start1 = windows.start(coordinates[1], 1);
  int start2 = windows.start(coordinates[2], 2);
  i32 left_zero = load_zero(w_zero, i64(channel) * conv.quant_step, conv.w_offset);
  i32 right_zero = load_zero(x_zero, 0, conv.x_offset);
  const u8* image = x + n * strides.batch + group * conv.group_ins * strides.channel;
  i64 place = i64(channel) * conv.group_ins * windows.taps();
  i32 sum = 0;
  for (int c = 0; c < conv.group_ins; ++c) {
    for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
      int p0 = start0 + t0 * windows.dilations[0];
      for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
        int p1 = start1 + t1 * windows.dilations[1];
        bool is_row_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1);
        const u8* line = image + strides.offset(p0, p1, 0);
        for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++place) {
          int p2 = start2 + t2 * windows.dilations[2];
          if (!is_row_inside || !windows.is_inside(p2, 2)) continue;
          i32 value = centre(line[p2 * strides.axis[2]], conv.x_offset) - right_zero;
          sum = wrapping_add(sum, (centre(w[place], conv.w_offset) - left_zero) * value);
        }
      }
    }
    image += strides.channel;
  }
  const ConvResults<Y> results = {x_scale, w_scale, y_scale, y_zero, bias, finish};
  y[n * conv.y_batch + i64(channel) * conv.y_channel + i64(position) * conv.y_position] =
      results.make(i64(channel), sum, results.scale_of(conv, i64(channel)));
}
