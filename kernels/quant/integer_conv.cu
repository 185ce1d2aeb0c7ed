// Integer convolution over one to three spatial axes, with groups: int32 sums, kept or requantised.
// The sums are of (x - x_zero) * (w - w_zero). Padding counts as x_zero, so it adds nothing.
#include "convolution.cuh"
#include "dependent_launch.cuh"
#include "integer_tile.cuh"

// Packed by gpuexec/ops/quant/integer_conv.py.
struct IntegerConv {
  ConvSizes sizes;
  i64 y_batch, y_channel, y_position;
  i32 x_offset, w_offset;  // 128 for unsigned bytes
  i32 quant_step;          // 1 where each output channel has a scale and zero point, 0 where all share one
  i32 unused;
};

// Loads patches of the input as the columns of a matrix [channel and tap, window]; its zero point in the padding.
struct PatchLoader {
  WordPart part;
  Patch<u8> patch;
  u32 flip, zero;

  __device__ PatchLoader(const u8* x, i32 x_zero, i32 x_offset, const ConvTile& tile, const Windows& windows,
                         const WindowStrides& strides)
      : part(WordPart::along_x(threadIdx.x)), patch(x, tile.first_column + part.x, tile, windows, strides),
        flip(u32(x_offset)), zero(u32(u8(x_zero))) {}

  __device__ void load(i64 word, u32 (&words)[WordPart::kCount]) const {
#pragma unroll
    for (int i = 0; i < WordPart::kCount; ++i) words[i] = 0;
    patch.visit<WordPart::kCount * kWordBytes>((word + part.k) * kWordBytes, [&](int i, const u8* source) {
      words[i / kWordBytes] |= (source ? *source ^ flip : zero) << 8 * (i % kWordBytes);
    });
  }
};

// Conversion of the sum of an output to the result; pointers may be null as the kernels say.
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
  const ConvTile tile(conv.sizes, windows);
  wait_for_predecessors();
  launch_dependents();
  i64 rows = tile.rows, inner = tile.inner;
  i32 right_zero = load_zero(x_zero, 0, conv.x_offset);
  const u8* group_w = w + tile.group * rows * inner;
  const MatrixLoader left(group_w, tile.first_row, rows, inner, inner, 1, conv.w_offset, threadIdx.x);
  const PatchLoader right(x, right_zero, conv.x_offset, tile, windows, strides);
  ByteSums sums;
  multiply_bytes(left, right, inner, tile.is_needed(), right_zero != 0, w_zero || conv.w_offset, sums);
  if (!tile.is_needed()) return;

  const ConvResults<Y> results = {x_scale, w_scale, y_scale, y_zero, bias, finish};
  i32 left_zeros[kSums];
  float scales[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    // Rows beyond the last channel of the group read the parameters of the last one, and are not stored.
    i64 channel = tile.group * rows + (tile.row + i < rows ? tile.row + i : rows - 1);
    left_zeros[i] = load_zero(w_zero, channel * conv.quant_step, conv.w_offset);
    scales[i] = results.scale_of(conv, channel);
  }
  const i32 right_zeros[kSums] = {right_zero, right_zero, right_zero, right_zero};
  sums.take_off(left_zeros, right_zeros, inner);
  tile.visit_outputs([&](int i, int j, i64 n, i64 channel, i64 position) {
    y[n * conv.y_batch + channel * conv.y_channel + position * conv.y_position] =
        results.make(channel, i32(sums.products[i][j]), scales[i]);
  });
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
  Output output;
  const bool is_output = output.find(conv.sizes, i64(blockIdx.x) * 256 + threadIdx.x);
  wait_for_predecessors();
  launch_dependents();
  if (!is_output) return;
  const i64 channel = i64(output.channel);
  i32 left_zero = load_zero(w_zero, channel * conv.quant_step, conv.w_offset);
  i32 right_zero = load_zero(x_zero, 0, conv.x_offset);
  i32 sum = 0;
  PlainWalk::visit(x, output, windows, strides, conv.sizes, [&](i64 place, const u8* source) {
    i32 value = centre(*source, conv.x_offset) - right_zero;
    sum = wrapping_add(sum, (centre(w[place], conv.w_offset) - left_zero) * value);
  });
  const ConvResults<Y> results = {x_scale, w_scale, y_scale, y_zero, bias, finish};
  y[output.n * conv.y_batch + channel * conv.y_channel + i64(output.position) * conv.y_position] =
      results.make(channel, sum, results.scale_of(conv, channel));
}
