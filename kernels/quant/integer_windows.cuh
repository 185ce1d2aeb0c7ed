// Windows of integer convolutions as rows of words, how they are packed, and what their sums become.
#pragma once
#include "convolution.cuh"
#include "integer_product.cuh"

// A product of windows of the packed input [groups, batch, three axes, words]. A table says where each vector of four words
// that a window sees lies behind the window's start, in words, as all steps of x are. Packed by WindowProduct of
// gpuexec/ops/quant/integer_conv.py.
struct IntegerConv {
  i32 rows, columns, inner, depth;  // windows of all images, output channels of a group, words and bytes of a window
  i32 quant_step;          // 1 where each output channel has a scale and zero point, 0 where all share one
  i32 x_offset, w_offset;  // 128 for unsigned bytes
  i32 padded_columns;
  i32 x_group, x_batch, x_axis[3];  // x_axis: from a window to the next
  i32 y_kind, line_bytes, unused;   // of integer_conv_mma: i32 or bytes; from an output channel to the next in w
  i64 y_batch, y_channel, y_position;
  FastDiv32 by_outputs, by_counts[3];
  Finish finish;
};

// The windows of a group, as rows of words.
struct WindowRows {
  const u32* x;
  const i32* table;
  const IntegerConv& conv;
  int group;

  __device__ bool has(int row) const { return row < conv.rows; }

  // Where a window begins.
  __device__ int find_start(int row) const {
    u32 rest;
    int start = group * conv.x_group + int(conv.by_outputs.divide(u32(row), rest)) * conv.x_batch;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      u32 window;
      rest = conv.by_counts[axis].divide(rest, window);
      start += int(window) * conv.x_axis[axis];
    }
    return start;
  }
  __device__ const u32* find(int row) const { return x + find_start(row); }

  // Calls visit(offset) for every eighth vector of a window from vector `lane` on, for k in [first, end).
  template <class Visit>
  __device__ void visit_vectors(int first, int end, int lane, Visit visit) const {
#pragma unroll 1
    for (int k = first + 4 * lane; k < end; k += 32) visit(table[k / 4]);
  }
};

// Conversion of the sum of an output to the result; pointers may be null as the kernels say.
template <class Y>
struct ConvResults {
  const u8 *x_zero, *w_zero, *x_scale, *w_scale, *y_scale, *y_zero;
  const i32* bias;
  Finish finish;

  __device__ float find_channel_factor(i64 channel, i32 quant_step) const {
    const float scale =
        load_scale(x_scale, 0, finish.scale_kind) * load_scale(w_scale, channel * quant_step, finish.scale_kind);
    return find_factor<Y>(scale, load_scale(y_scale, 0, finish.scale_kind));
  }

  __device__ Y make(i64 channel, i32 sum, float factor) const {
    if (bias) sum = wrapping_add(sum, bias[channel]);
    return finish_sum<Y>(sum, factor, load_zero(y_zero, 0, finish.y_offset), 0.0f, finish.y_offset);
  }
};

// How input and weights are packed. Packed by gpuexec/ops/quant/integer_conv.py.
struct ConvPacking {
  i32 extents[3];  // of the packed input
  i32 vectors;     // of 16 bytes, for the channels of a place, or those of all its taps of the last axis
  i32 batch, groups, channels, folded;  // channels of a group; folded: those taps, 1 where each has a place of its own
  i32 taps;                             // others
  i32 columns, padded;                  // output channels of a group, without and with those that fill rows up to 16 bytes
  i32 flip;                             // 128 where unsigned weights are centred
  i32 tap_counts[3], tap_steps[3];      // of those taps; steps in words of the packed input
  i32 entries;                          // of the table: vectors of all taps, and what a slab may reach beyond them

  // Returns where byte `k` of an output channel of a group lies, null where it only pads.
  __device__ const u8* find_weight(const u8* w, u32 group, int k, int column) const {
    const int depth = 16 * vectors, taps_together = folded > 1 ? folded : 1;
    const int tap = k / depth, byte = k - tap * depth;
    const int inner_tap = byte / channels, channel = byte - inner_tap * channels;
    if (tap >= taps || inner_tap >= taps_together) return nullptr;
    const i64 out = i64(group) * columns + column;
    return w + (((out * channels + channel) * taps + tap) * taps_together + inner_tap);
  }
};
