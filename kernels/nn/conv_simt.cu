// Convolution of float tensors and its transpose as products by tiles.
//
// The left operand are weights, which may be narrow, the right one patches of the input that are gathered while they are
// copied.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "narrow_tile.cuh"

constexpr int kMaxTaps = 128;   // of all phases together; 11 x 11, in fours, takes 124
constexpr int kMaxPhases = 16;  // strides 4 x 4

// One tap of a kernel: where it lies behind tap 0, in elements of the input, and its bit for each axis.
struct Tap {
  i32 offset;
  u32 bits;
};

// Windows that see the input through the same taps: all of a convolution; of its transpose, the outputs that have the
// same remainders by the strides. Window u sees through tap t what lies at starts + u * steps + t * dilations.
struct ConvPhase {
  i32 first_tile, first_tap, taps, inner;  // taps in the table with those that only pad; inner of the packed weights
  i32 starts[3], kernel[3];
  FastDiv32 by_windows, by_counts[3];
  i64 first_weight, first_output;
};

// Extents are of three spatial axes (fewer: 1 in front). Tap t of axis i has bit first_bits[i] + t; the kernel's
// extents together are at most 31. A tap that only pads the table has bit 31, which is outside of every window. Packed
// by ConvSum of gpuexec/ops/nn/conv_simt.py.
struct SimtConv {
  i32 batch, groups, channels, rows;  // channels and rows (output channels) of a group
  i32 extents[3], steps[3], dilations[3], first_bits[3];
  i64 x_batch, x_channel;
  i64 y_channel, y_axis[3];  // an output channel, and from a window of a phase to the next
  i32 phase_count, channel_step;  // step: bytes from a channel of x to the next
  i32 has_positions, unused;      // of Block 1: windows are the positions of an image, copied four at a time
  ConvPhase phases[kMaxPhases];
  Tap table[kMaxTaps];
  i64 x_axis[3];
};

// The right operand [k, window] of a convolution, gathered: k runs over blocks of Block channels, in a block over taps,
// in a tap over its channels. A slab is one tap of 16 channels, or four taps of 4. A thread copies eight k of one
// window: it keeps where its tap 0 lies and which rows and columns of taps lie outside of the input, so that a tap
// costs one sum and one test, and a channel one sum. Slabs are loaded one after another.
template <class Tile, int Block, bool HasPhases>
struct Patches {
  static constexpr int kTaps = kSlabDepth / Block;  // of a slab
  static constexpr int kOwnTaps = kTaps == 1 ? 1 : kTaps / 2;
  static constexpr int kOwnChannels = 8 / kOwnTaps;
  const SimtConv& conv;
  mutable const float* source;  // at tap 0 of the window, in the thread's first channel of the block at hand
  mutable u32 outside;          // bits of the taps in the padding
  mutable int channels_left, tap;
  int phase, own_tap, destination, one;

  __device__ Patches(const float* x, const SimtConv& conv, int number, int group, int first_column, int first_k)
      : conv(conv), phase(number) {
    const ConvPhase& phase = own_phase();
    const int thread = threadIdx.x;
    const int part = thread / Tile::kColumns;  // which eight k
    destination = 8 * part * Tile::kRightPitch + thread % Tile::kColumns;
    const int own_channel = kTaps == 1 ? part * kOwnChannels : 0;
    const int slabs_of_block = phase.taps / kTaps;
    const int block = first_k / kSlabDepth / slabs_of_block;
    own_tap = kTaps == 1 ? 0 : part * kOwnTaps;
    tap = (first_k / kSlabDepth - block * slabs_of_block) * kTaps;
    one = opaque(1);
    channels_left = conv.channels - block * Block - own_channel;
    u32 rest;
    const u32 n = phase.by_windows.divide(u32(first_column + thread % Tile::kColumns), rest);
    outside = n < u32(conv.batch) && (kTaps > 1 || channels_left > 0) ? 0x80000000u : 0xffffffffu;
    source = x + n * conv.x_batch + (i64(group) * conv.channels + block * Block + own_channel) * conv.x_channel;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      u32 window;
      rest = phase.by_counts[axis].divide(rest, window);
      const int start = phase.starts[axis] + int(window) * conv.steps[axis];
      source += start * conv.x_axis[axis];
      for (int t = 0; t < phase.kernel[axis]; ++t) {
        const bool is_outside = u32(start + t * conv.dilations[axis]) >= u32(conv.extents[axis]);
        outside |= u32(is_outside) << (conv.first_bits[axis] + t);
      }
    }
  }
  __device__ void load_first(float* slab, int from, int) const { load(slab, from); }
  __device__ void load(float* slab, int) const {
#pragma unroll
    for (int t = 0; t < kOwnTaps; ++t) {
      const Tap& at = conv.table[own_phase().first_tap + tap + own_tap + t];
      const bool is_inside = (outside & at.bits) == 0;
      const float* from = source + at.offset;
#pragma unroll
      for (int c = 0; c < kOwnChannels; ++c) {
        if (c > 0) from = behind(from, one, conv.channel_step);
        copy_async<4>(slab + destination + (t * kOwnChannels + c) * Tile::kRightPitch, from,
                      is_inside && (kTaps == 1 || c < channels_left));
      }
    }
    tap += kTaps;
    if (tap == own_phase().taps) {
      tap = 0;
      source = behind(source, Block, conv.channel_step);
      channels_left -= Block;
      if (kTaps == 1 && channels_left <= 0) outside = 0xffffffffu;
    }
  }
  __device__ void finish() const {}

 private:
  __device__ const ConvPhase& own_phase() const { return conv.phases[HasPhases ? phase : 0]; }
};

// The right operand [channel, window] of a kernel of one tap, whose weights are [out channel, channel]. A thread copies
// eight channels of one window.
template <class Tile>
struct Points {
  const float* source;
  int destination, step, own_k, one;
  bool is_inside;

  __device__ Points(const float* x, const SimtConv& conv, const ConvPhase& phase, int group, int first_column,
                    int first_k) {
    const int thread = threadIdx.x;
    own_k = thread / Tile::kColumns * 8;
    destination = own_k * Tile::kRightPitch + thread % Tile::kColumns;
    step = conv.channel_step;
    one = opaque(1);
    u32 rest;
    const u32 n = phase.by_windows.divide(u32(first_column + thread % Tile::kColumns), rest);
    is_inside = n < u32(conv.batch);
    source = x + n * conv.x_batch + (i64(group) * conv.channels + first_k + own_k) * conv.x_channel;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      u32 window;
      rest = phase.by_counts[axis].divide(rest, window);
      const int at = phase.starts[axis] + int(window) * conv.steps[axis];
      source += at * conv.x_axis[axis];
      is_inside = is_inside && u32(at) < u32(conv.extents[axis]);
    }
  }
  __device__ void load_first(float* slab, int from, int depth) const { copy(slab, from, depth - own_k); }
  __device__ void load(float* slab, int from) const { copy(slab, from, kSlabDepth); }
  __device__ void finish() const {}

 private:
  __device__ void copy(float* slab, int from, int k_left) const {
    const float* at = behind(source, from, step);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c > 0) at = behind(at, one, step);
      copy_async<4>(slab + destination + c * Tile::kRightPitch, at, is_inside && c < k_left);
    }
  }
};

// The same where windows are the positions of an image one after another, four of which are never of two images.
template <class Tile>
__device__ inline RightVectors<Tile> load_positions(const float* x, const SimtConv& conv, const ConvPhase& phase,
                                                    int group, int first_column, int first_k) {
  const u32 column = u32(first_column) + threadIdx.x % (Tile::kColumns / 4) * 4;
  u32 position;
  const u32 n = phase.by_windows.divide(column, position);
  const float* image = x + n * conv.x_batch + i64(group) * conv.channels * conv.x_channel;
  return {image + (i64(position) - i64(column)), first_column, int(conv.batch * phase.by_windows.divisor), 1,
          conv.x_channel, first_k};
}

// The tile of a block.
template <class Tile>
struct SimtConvTile {
  int phase, group, first_row, first_column;

  __device__ SimtConvTile(const SimtConv& conv, int tile, bool has_phases) {
    phase = 0;
    if (has_phases) {
      while (phase + 1 < conv.phase_count && tile >= conv.phases[phase + 1].first_tile) ++phase;
      tile -= conv.phases[phase].first_tile;
    }
    const u32 windows = conv.batch * conv.phases[phase].by_windows.divisor;
    const int column_tiles = int((windows + Tile::kColumns - 1) / Tile::kColumns);
    const int row_tiles = (conv.rows + Tile::kRows - 1) / Tile::kRows;
    const int row_tile = tile / column_tiles;
    first_column = (tile - row_tile * column_tiles) * Tile::kColumns;
    group = row_tile / row_tiles;
    first_row = (row_tile - group * row_tiles) * Tile::kRows;
  }
};

// Where a sum stands in shared memory, by row and by column among half of the tile's: those 32 of each 64 that belong
// to it. Groups of four stay together; rows one apart stand in other banks.
template <class Tile>
__device__ inline float* staged_sum(float* ring, int row, int column) {
  return ring + row * (Tile::kColumns / 2) + (column ^ (row & 1) * 16);
}

// The place of a window in the output, in output channel 0 of the group; negative where there is none.
template <bool HasPhases>
__device__ inline i64 find_output(const SimtConv& conv, const ConvPhase& phase, int group, int window) {
  u32 position;
  const u32 n = phase.by_windows.divide(u32(window), position);
  i64 place = (i64(n) * conv.groups + group) * conv.rows * conv.y_channel;
  if constexpr (HasPhases) {
    place += phase.first_output;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      u32 along;
      position = phase.by_counts[axis].divide(position, along);
      place += along * conv.y_axis[axis];
    }
  } else {
    place += position;
  }
  return n < u32(conv.batch) ? place : -1;
}

// Finishes and stores the sums of half of the tile's columns, of Width windows at a time.
template <class Tile, bool HasPhases, int Width, class Finish>
__device__ inline void store_half(int half, const SimtConvTile<Tile>& at, const SimtConv& conv, float* y, float* ring,
                                  int thread, const Finish& finish) {
  constexpr int kUnits = Tile::kColumns / 2 / Width, kRowsAtOnce = Tile::kThreads / kUnits;
  constexpr int kGroups = Tile::kRowSums == 8 ? 1 : 4;  // a large tile has few registers beside its other half
  const int column = thread % kUnits * Width;
  const int window = at.first_column + column / 32 * 64 + 32 * half + column % 32;
  const i64 place = find_output<HasPhases>(conv, conv.phases[HasPhases ? at.phase : 0], at.group, window);
  if (place < 0) return;
  const int rows = conv.rows - at.first_row;
#pragma unroll 1
  for (int first = thread / kUnits; first < Tile::kRows; first += kGroups * kRowsAtOnce) {
    if (first >= rows) break;
    float values[kGroups][Width];
    i64 indices[kGroups];
    int counts[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = first + group * kRowsAtOnce;
      read_fragment(values[group], staged_sum<Tile>(ring, row, column));
      indices[group] = place + (at.first_row + row) * conv.y_channel;
      counts[group] = row < rows ? Width : 0;
    }
    finish.many(values, indices, counts);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (first + group * kRowsAtOnce >= rows) break;
      Vec<float, Width> finished;
#pragma unroll
      for (int j = 0; j < Width; ++j) finished.lanes[j] = values[group][j];
      store_vec(y + indices[group], finished);
    }
  }
}

// Finishes and stores the sums of a tile: through shared memory, half of the columns at a time, so that a warp writes
// neighbours and few sums are in registers. All threads of the block come here.
template <class Tile, bool HasPhases, class Finish>
__device__ inline void store_sums(const float (&sums)[Tile::kRowSums][kColumnSums], const SimtConvTile<Tile>& at,
                                  const SimtConv& conv, const float* bias, float* y, float* ring, int thread,
                                  const Finish& finish) {
  static_assert(Tile::kRows * Tile::kColumns / 2 <= Tile::kRingFloats, "half of the sums fit in the ring");
  const SumsPlace<Tile> own(thread);
  const bool has_vectors = !HasPhases && conv.phases[0].by_windows.divisor % 4 == 0;
  float addends[Tile::kRowSums];
#pragma unroll
  for (int i = 0; i < Tile::kRowSums; ++i) {
    const int row = at.first_row + own.row + 4 * i;
    addends[i] = bias && row < conv.rows ? bias[at.group * conv.rows + row] : 0.0f;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tile::kRowSums; ++i) {
      Vec<float, 4> four;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i][4 * half + j];
        four.lanes[j] = bias ? sum + addends[i] : sum;
      }
      store_vec(staged_sum<Tile>(ring, own.row + 4 * i, own.column / 64 * 32 + own.column % 64), four);
    }
    __syncthreads();
    if (has_vectors) {
      store_half<Tile, HasPhases, 4>(half, at, conv, y, ring, thread, finish);
    } else {
      store_half<Tile, HasPhases, 1>(half, at, conv, y, ring, thread, finish);
    }
  }
}

// Sums the block's slabs: weights by patches of the input. Waits before it copies either.
template <class Tile, int Block, bool HasPhases, class Left, class Wait>
__device__ inline void multiply_patches(const Left& left, const float* x, const SimtConv& conv,
                                        const SimtConvTile<Tile>& at, const SlabRange& range, float* ring,
                                        float (&sums)[Tile::kRowSums][kColumnSums], const Wait& wait) {
  const ConvPhase& phase = conv.phases[HasPhases ? at.phase : 0];
  if constexpr (Block == 1) {
    if (conv.has_positions) {
      const auto right = load_positions<Tile>(x, conv, phase, at.group, at.first_column, range.first_k);
      wait();
      multiply_slabs<Tile>(left, right, range, ring, sums);
    } else {
      const Points<Tile> right(x, conv, phase, at.group, at.first_column, range.first_k);
      wait();
      multiply_slabs<Tile>(left, right, range, ring, sums);
    }
  } else {
    const Patches<Tile, Block, HasPhases> right(x, conv, at.phase, at.group, at.first_column, range.first_k);
    wait();
    multiply_slabs<Tile>(left, right, range, ring, sums);
  }
}

// The work of a block of the kernels here, for weights of float or narrow ones. Waits before it reads any operand.
template <class Tile, int Block, bool HasPhases, class W, class Wait, class Finish>
__device__ inline void convolve_tile(const float* x, const W* w, Scales<float> scales, i64 scale_step,
                                     const float* bias, float* y, const SimtConv& conv, float* scratch,
                                     unsigned* counters, const Wait& wait, const Finish& finish) {
  __shared__ alignas(16) float ring[Tile::kRingFloats];
  float sums[Tile::kRowSums][kColumnSums];
  {
    const SimtConvTile<Tile> at(conv, blockIdx.x, HasPhases);
    const ConvPhase& phase = conv.phases[HasPhases ? at.phase : 0];
    const SlabRange range(phase.inner, blockIdx.y, gridDim.y);
    const W* weights = w + phase.first_weight + i64(at.group) * conv.rows * phase.inner;
    if constexpr (kIsSame<W, float>) {
      const LeftVectors<Tile> left(weights, at.first_row, conv.rows, phase.inner, 1, range.first_k);
      multiply_patches<Tile, Block, HasPhases>(left, x, conv, at, range, ring, sums, wait);
    } else {
      __shared__ alignas(16) float table[ScaleTable<Tile, W>::kFloats];
      // A transposed convolution has a scale for each output channel of a group, which all groups share.
      const i64 first_scale = HasPhases ? 0 : at.group * conv.rows * scale_step;
      if (scales.zero) scales.zero += first_scale;
      scales.scale += first_scale;
      wait();
      ScaleTable<Tile, W>::fill(table, scales, at.first_row, conv.rows, scale_step);
      const NarrowLines<Tile, W, true> left(weights, table, at.first_row, conv.rows, phase.inner, range.first_k);
      multiply_patches<Tile, Block, HasPhases>(left, x, conv, at, range, ring, sums, [] {});
    }
  }
  const int tile = opaque(blockIdx.x);
  const int thread = opaque(threadIdx.x);
  if (!join_slices<Tile>(sums, scratch, counters, tile, thread, blockIdx.y, gridDim.y)) return;
  const SimtConvTile<Tile> at(conv, tile, HasPhases);
  store_sums<Tile, HasPhases>(sums, at, conv, bias, y, ring, thread, finish);
}

// Computes  y[n, o, window] = bias[o] + sum over channels c of o's group and taps t of w[o, c, t] * x[n, c, window + t]
// Shapes    x [batch, channels, spatial] by strides; w [out channels, inner], its k as Patches runs, zero where
//           channels or taps only pad (Block 1: [out channels, channels]); bias [out channels]; y dense; scratch [tiles
//           * slices, sums of a tile], counters [tiles]
// Grid      one block per tile and slice: x = (group * row tiles + row tile) * column tiles + column tile, y = slice
// Needs     w and y aligned to 16 bytes; bias may be null, with one slice scratch and counters. Block 16: channels a
//           multiple of 8. Block 1: one tap, channels a multiple of 4; where has_positions, stride 1 without padding, x
//           aligned to 16 bytes, each channel dense, positions and strides multiples of 4. Steps through x in bytes
//           below 2^31; counters 0, and left 0
// Numerics  order of k, one fma each: blocks of channels, then taps, then channels, zeros in the padding; slices summed
//           in their order; then the bias; then the epilogue
template <class Tile, int Block, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_conv(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
              float* __restrict__ y, const __grid_constant__ SimtConv conv, float* scratch, unsigned* counters,
              Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  convolve_tile<Tile, Block, false>(x, w, {}, 0, bias, y, conv, scratch, counters, wait, finish_by<float>(epilogue...));
}

// Computes  what simt_conv computes, w narrow: value (w - zero) * scale, rounded to float
// Shapes    as simt_conv; scale and zero [out channels], or one element where scale_step is 0
// Grid      as simt_conv
// Needs     as simt_conv; scale (of half weights) and zero may be null
// Numerics  as simt_conv of the widened weights, to the bit; but what only pads is (0 - zero) * scale there, times zeros
template <class Tile, int Block, class W, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_conv_narrow(const float* __restrict__ x, const W* __restrict__ w, const float* __restrict__ bias,
                     float* __restrict__ y, const __grid_constant__ SimtConv conv, float* scratch, unsigned* counters,
                     const float* __restrict__ scale, const i8* __restrict__ zero, i64 scale_step,
                     Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  convolve_tile<Tile, Block, false>(x, w, {scale, zero}, scale_step, bias, y, conv, scratch, counters, wait,
                                    finish_by<float>(epilogue...));
}

// Computes  y[n, o, p] = bias[o] + sum over taps t and channels c of o's group of w[c, o, t] * x[n, c, q],
//           q * stride + t * dilation - begin = p
// Shapes    as simt_conv, w [phase][out channels, inner of the phase]
// Grid      as simt_conv, the tiles of each phase behind those of the one before
// Needs     as simt_conv
// Numerics  as simt_conv, over the taps of the phase
template <class Tile, int Block, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_conv_transpose(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                        float* __restrict__ y, const __grid_constant__ SimtConv conv, float* scratch,
                        unsigned* counters, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  convolve_tile<Tile, Block, true>(x, w, {}, 0, bias, y, conv, scratch, counters, wait, finish_by<float>(epilogue...));
}

// Computes  what simt_conv_transpose computes, w narrow: value (w - zero) * scale, rounded to float
// Shapes    as simt_conv_transpose; scale and zero [group outs], or one element where scale_step is 0
// Grid      as simt_conv_transpose
// Needs     as simt_conv_narrow
// Numerics  as simt_conv_narrow, over the taps of the phase
template <class Tile, int Block, class W, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_conv_transpose_narrow(const float* __restrict__ x, const W* __restrict__ w, const float* __restrict__ bias,
                               float* __restrict__ y, const __grid_constant__ SimtConv conv, float* scratch,
                               unsigned* counters, const float* __restrict__ scale, const i8* __restrict__ zero,
                               i64 scale_step, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  convolve_tile<Tile, Block, true>(x, w, {scale, zero}, scale_step, bias, y, conv, scratch, counters, wait,
                                   finish_by<float>(epilogue...));
}

// Where the packed weights of a phase come from: packed [out, block of channels, tap, channel of the block].
struct PackedWeights {
  i32 outs, channels, taps, block;  // outs of all groups; taps with padding
  i32 group_outs, unused;
  i64 out_stride, group_stride, channel_stride;  // of w: an output channel of a group, a group, a channel
  i64 first;                                     // of the phase in packed
  i32 sources[kMaxTaps];                                // a tap of w, or -1
};

// Computes  packed weights for the kernels here of weights that are computed themselves
// Shapes    w [..., taps] by strides, packed [out channels, inner] from element `first` on
// Grid      one thread per packed element: x = element / 256
// Needs     nothing
// Numerics  copies; zero where channels or taps only pad
template <class W>
__global__ void __launch_bounds__(256)
    pack_conv_weights(const W* __restrict__ w, W* __restrict__ packed,
                      const __grid_constant__ PackedWeights form) {
  const int blocks = (form.channels + form.block - 1) / form.block;
  const i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  i64 rest = index;
  const int member = int(rest % form.block);
  rest /= form.block;
  const int tap = int(rest % form.taps);
  rest /= form.taps;
  const int channel = int(rest % blocks) * form.block + member;
  const i64 out = rest / blocks;
  wait_for_predecessors();
  launch_dependents();
  if (out >= form.outs) return;
  const bool is_there = channel < form.channels && form.sources[tap] >= 0;
  const i64 group = out / form.group_outs;
  const i64 place = group * form.group_stride + (out - group * form.group_outs) * form.out_stride +
                    channel * form.channel_stride;
  packed[form.first + index] = is_there ? w[place + form.sources[tap]] : cast<W>(0);
}
