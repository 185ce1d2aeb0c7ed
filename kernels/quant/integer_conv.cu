// Integer convolution over one to three spatial axes, with groups: int32 sums, kept or requantised.
//
// The sums are of (x - x_zero) * (w - w_zero). Padding counts as x_zero, so it adds nothing. A convolution is a product of
// words of four bytes (integer_product.cuh) whose left rows are windows: the input is packed first, channels last and with
// its padding written out, so that what a window sees are whole vectors, and nothing is asked about borders.
#include "dependent_launch.cuh"
#include "integer_tile.cuh"
#include "integer_windows.cuh"

// The left operand of windows, a loader of simt_tile.cuh as LeftVectors: two copies of 16 bytes, of rows a quarter of the
// threads apart. Slabs are loaded one after another; the table is read one slab ahead.
template <class Tile>
struct LeftWindows {
  static constexpr int kApart = Tile::kThreads / 4;
  const u32* x;
  const i32* table;
  int starts[2];  // of windows; -1: there is none
  int destination, k, first;
  mutable int offset;

  __device__ LeftWindows(const WindowRows& rows, int first_row, int first_k)
      : x(rows.x), table(rows.table), first(first_k) {
    const int thread = threadIdx.x, row = (thread & 7) + thread / 32 * 8;
    k = (thread >> 3 & 3) * 4;
    destination = row * kLeftPitch + k;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = first_row + row + i * kApart;
      starts[i] = rows.has(own) ? rows.find_start(own) : -1;
    }
    offset = find_offset(0);
  }
  __device__ void load_first(u32* slab, int from, int depth) const {
    copy(slab, k < depth);
    offset = find_offset(from + depth);
  }
  __device__ void load(u32* slab, int from) const {
    copy(slab, true);
    offset = find_offset(from + kSlabDepth);
  }
  __device__ void finish() const {}

 private:
  __device__ int find_offset(int from) const { return __ldg(table + ((first + from + k) >> 2)); }
  __device__ void copy(u32* slab, bool is_k_inside) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy_async<16>(slab + destination + i * kApart * kLeftPitch, x + (starts[i] + offset),
                     starts[i] >= 0 && is_k_inside);
    }
  }
};

// Sums the block's slabs, less w_zero * the sums of windows.
template <class Tile, bool IsSigned, class Y>
__device__ inline void convolve_block(const u32* x, const u32* w, const i32* table, const IntegerConv& conv,
                                      const ConvResults<Y>& results, u32* ring, u32 (&sums)[Tile::kRowSums][kColumnSums]) {
  typedef MultiplyBytes<IsSigned> Multiply;
  {
    const TileOfBatch<Tile> place(conv.rows, conv.columns, blockIdx.x);
    const SlabRange range(conv.inner, blockIdx.y, gridDim.y);
    const LeftWindows<Tile> left({x, table, conv, int(place.batch)}, place.first_row, range.first_k);
    const i64 w_group = i64(conv.inner + 1) * conv.padded_columns;
    const RightVectors<Tile, u32> right(w + place.batch * w_group, place.first_column, conv.padded_columns, 1,
                                        conv.padded_columns, range.first_k);
    multiply_slabs<Tile, Multiply>(left, right, range, ring, sums);
  }
  if (!results.w_zero && !conv.w_offset) return;
  const TileOfBatch<Tile> place(conv.rows, conv.columns, opaque(blockIdx.x));
  const SlabRange range(conv.inner, opaque(blockIdx.y), gridDim.y);
  const WindowRows rows = {x, table, conv, int(place.batch)};
  subtract_rows<Tile, Multiply>(rows, place.first_row, range, ring, sums, [&](int column) {
    const int inside = place.first_column + column;
    if (inside >= conv.columns) return 0;
    return load_zero(results.w_zero, (i64(place.batch) * conv.columns + inside) * conv.quant_step, conv.w_offset);
  });
}

// Computes  sum over channels c of o's group and taps t of (w[o, c, t] - w_zero[o]) * (x[n, c, window + t] - x_zero), plus
//           bias[o]; y is that, or round(sum * (x_scale * w_scale[o] / y_scale)) + y_zero, as Y is i32 or u8
// Shapes    x [groups, batch, three axes, words], w [groups, inner + 1, out channels of a group] words, of which the last row
//           is the sums of columns; y by strides; w_zero, w_scale and bias [out channels], of the former two maybe one;
//           table [inner / 4 + 4]; scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      one block per tile of windows (of all images in one row) x output channels of a group and slice:
//           x = (group * row tiles + row tile) * column tiles + column tile, y = slice
// Needs     x and w dense, x below 2^31 words; any of zero points, scales and bias may be null; scratch and counters too with
//           one slice; counters are 0 and are left 0
// Numerics  sums modulo 2^32; scaling in float, each operation rounded; halves to even; saturates
template <class Tile, class Y>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    integer_conv(const u32* __restrict__ x, const u32* __restrict__ w, const i32* __restrict__ bias, Y* __restrict__ y,
                 const __grid_constant__ IntegerConv conv, u32* scratch, unsigned* counters,
                 const u8* __restrict__ x_zero, const u8* __restrict__ w_zero, const u8* __restrict__ x_scale,
                 const u8* __restrict__ w_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                 const i32* __restrict__ table) {
  __shared__ alignas(16) u32 ring[Tile::kRingFloats];
  u32 sums[Tile::kRowSums][kColumnSums];
  const ConvResults<Y> results = {x_zero, w_zero, x_scale, w_scale, y_scale, y_zero, bias, conv.finish};
  wait_for_predecessors();
  launch_dependents();
  if (conv.x_offset) convolve_block<Tile, false>(x, w, table, conv, results, ring, sums);
  else convolve_block<Tile, true>(x, w, table, conv, results, ring, sums);
  const u32 tile = opaque(blockIdx.x);
  const int thread = opaque(threadIdx.x);
  if (!join_slices<Tile>(sums, scratch, counters, tile, thread, blockIdx.y, gridDim.y)) return;

  // Through shared memory, half of the columns at a time, so that a warp writes windows that are neighbours.
  constexpr int kPitch = Tile::kRows + 1;  // 4 q * pitch + row: four rows of eight groups of columns touch each bank once
  constexpr int kPlaces = Tile::kRows / 32;
  static_assert(Tile::kColumns / 2 * kPitch <= Tile::kRingFloats, "half of the sums fit in the ring");
  const TileOfBatch<Tile> at(conv.rows, conv.columns, tile);
  const SumsPlace<Tile> own(thread);
  const int lane = thread % 32;
  const u32* const column_sums = w + (i64(at.batch) * (conv.inner + 1) + conv.inner) * conv.padded_columns;
  const u32 zero = u32(load_zero(x_zero, 0, conv.x_offset) + conv.x_offset);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tile::kRowSums; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ring[(own.column / 64 * 32 + own.column % 64 + j) * kPitch + own.row + 4 * i] = sums[i][j];
        sums[i][j] = sums[i][4 + j];
      }
    }
    __syncthreads();
    i64 places[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      u32 position;
      const u32 n = conv.by_outputs.divide(u32(at.first_row + lane + 32 * i), position);
      places[i] = n * conv.y_batch + position * conv.y_position;
    }
#pragma unroll 1
    for (int column = thread / 32; column < Tile::kColumns / 2; column += Tile::kThreads / 32) {
      const int member = at.first_column + column / 32 * 64 + 32 * half + column % 32;
      if (member >= conv.columns) continue;
      const i64 channel = i64(at.batch) * conv.columns + member;
      u32 term = 0;
      if (x_zero) {
        const i32 w_zero_here = load_zero(w_zero, channel * conv.quant_step, conv.w_offset);
        term = zero * (column_sums[member] - u32(conv.depth) * u32(w_zero_here));
      }
      const float factor = results.find_channel_factor(channel, conv.quant_step);
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        if (at.first_row + lane + 32 * i >= conv.rows) break;
        const i32 sum = i32(ring[column * kPitch + lane + 32 * i] - term);
        y[places[i] + channel * conv.y_channel] = results.make(channel, sum, factor);
      }
    }
  }
}

// Packed by gpuexec/ops/quant/integer_conv.py.
struct DirectConv {
  ConvSizes sizes;
  i64 y_batch, y_channel, y_position;
  i32 x_offset, w_offset;  // 128 for unsigned bytes
  i32 quant_step;          // as of IntegerConv
  i32 unused;
};

// Computes  what integer_conv computes, an output a thread: for groups of one input or one output channel
// Shapes    x [batch, channels, spatial] and y by strides, w [out channels, group_ins, taps]; w_zero, w_scale and bias as
//           integer_conv
// Grid      one thread per output: x = output / 256
// Needs     w dense; group_ins * taps < 2^31; any of zero points, scales and bias may be null
// Numerics  as integer_conv, to the bit; taps in the padding are left out
template <class Y>
__global__ void __launch_bounds__(256, 1)
    integer_conv_direct(const u8* __restrict__ x, const u8* __restrict__ w, const u8* __restrict__ x_zero,
                        const u8* __restrict__ w_zero, Y* __restrict__ y, const __grid_constant__ Windows windows,
                        const __grid_constant__ WindowStrides strides, const __grid_constant__ DirectConv conv,
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
  const ConvResults<Y> results = {x_zero, w_zero, x_scale, w_scale, y_scale, y_zero, bias, finish};
  y[output.n * conv.y_batch + channel * conv.y_channel + i64(output.position) * conv.y_position] =
      results.make(channel, sum, results.find_channel_factor(channel, conv.quant_step));
}

// Computes  the packed input of integer_conv: channels last, with the padding of the windows written out as x_zero; and the
//           table of its vectors
// Shapes    x [batch, channels, spatial] by strides; packed [groups, batch, extents, vectors] of 16 bytes;
//           table [entries]
// Grid      one thread per vector: x = vector / 256, of [groups, batch, extents 0 and 1, vectors, extents 2]; no fewer threads
//           than the table has entries
// Needs     fewer than 2^31 vectors; x_zero may be null
// Numerics  exact; 0 beyond the last channel
__global__ void __launch_bounds__(256)
    pack_byte_windows(const u8* __restrict__ x, const u8* __restrict__ x_zero, u32* __restrict__ packed,
                      i32* __restrict__ table, const __grid_constant__ Windows windows, const __grid_constant__ WindowStrides strides,
                      const __grid_constant__ ConvPacking packing, i64 count) {
  const i64 number = i64(blockIdx.x) * 256 + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (number < packing.entries) {
    const int tap = int(number) / packing.vectors, tap_1 = tap / packing.tap_counts[2], tap_0 = tap_1 / packing.tap_counts[1];
    const int start = tap_0 * packing.tap_steps[0] + (tap_1 - tap_0 * packing.tap_counts[1]) * packing.tap_steps[1] +
                      (tap - tap_1 * packing.tap_counts[2]) * packing.tap_steps[2];
    table[number] = start + 4 * (int(number) - tap * packing.vectors);
  }
  if (number >= count) return;
  const u32 zero = x_zero ? *x_zero : 0u;
  u32 rest = u32(number);
  const int e2 = int(rest % packing.extents[2]);
  rest /= packing.extents[2];
  const int vector = int(rest % packing.vectors);
  rest /= packing.vectors;
  const u32 place = rest;  // of a line along the last axis
  const int p1 = int(rest % packing.extents[1]) - windows.begins[1];
  rest /= packing.extents[1];
  const int p0 = int(rest % packing.extents[0]) - windows.begins[0];
  rest /= packing.extents[0];
  const int n = int(rest % packing.batch), group = int(rest / packing.batch);
  const bool is_line_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1);
  const u8* image = x + n * strides.batch + i64(group) * packing.channels * strides.channel;
  const bool is_folded = packing.folded > 1;
  int tap = is_folded ? 16 * vector / packing.channels : 0;
  int channel = 16 * vector - tap * packing.channels;
  const int p2 = (packing.folded ? e2 * windows.strides[2] : e2) - windows.begins[2];
  Vec<u32, 4> words = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int at = p2 + tap * windows.dilations[2];
    u32 byte = 0;
    if (channel < packing.channels && (tap == 0 || tap < packing.folded)) {
      byte = zero;
      if (is_line_inside && windows.is_inside(at, 2)) {
        byte = image[channel * strides.channel + strides.offset(p0, p1, at)];
      }
    }
    words.lanes[i / 4] |= byte << 8 * (i % 4);
    ++channel;
    if (is_folded && channel == packing.channels) {
      channel = 0;
      ++tap;
    }
  }
  store_vec(packed + ((i64(place) * packing.extents[2] + e2) * packing.vectors + vector) * 4, words);
}

// Computes  the packed weights of integer_conv: words of four channels, centred, and below them the sums of their columns
// Shapes    w [out channels, channels, taps] bytes, packed [groups, words + 1, padded], words of taps * vectors of 16 bytes
// Grid      one block of 256 per 32 columns: x = group * column blocks + column block
// Needs     both dense
// Numerics  exact; 0 beyond the last channel and column
__global__ void __launch_bounds__(kPackThreads)
    pack_conv_bytes(const u8* __restrict__ w, u32* __restrict__ packed, const __grid_constant__ ConvPacking packing) {
  wait_for_predecessors();
  launch_dependents();
  pack_columns(packed, packing.taps * packing.vectors * 4, packing.columns, packing.padded, packing.flip,
               [&](u32 group, int k, int column) { return packing.find_weight(w, group, k, column); });
}
