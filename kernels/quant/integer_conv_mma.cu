// Integer convolution on tensor cores (sm_80 and up), over one to three spatial axes, with groups: sums kept or requantised.
//
// What integer_conv.cu computes, to the bit, from the same packed input: rows are windows, whose vectors of 16 bytes a table
// finds. Weights are packed as lines. One instance makes results of both types.
#include "dependent_launch.cuh"
#include "integer_mma.cuh"
#include "integer_windows.cuh"

// Copies slabs of the left operand of windows, one after the other from the block's first one on. The table is read one slab
// ahead. Lines beyond the last window repeat it.
template <class Tile, int Lines, int Shift>
struct WindowLoader {
  typedef SlabPart<i8, Tile, Lines, Lie::kAlongK, Shift> Part;
  static constexpr int kSlabVectors = Tile::kSlabBytes / kChunkBytes;
  Part part;
  const i32* entry;  // of the vector that the thread copies of the slab behind the next one
  int offset;        // in words, of the next one
  const u32* sources[Part::kPasses];

  template <class Windows>
  __device__ explicit WindowLoader(const Windows& windows) : part(threadIdx.x) {
    entry = windows.rows.table + (windows.first_k / kChunkBytes + part.chunk);
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      const int line = windows.first_line + part.row + i * Part::kPassRows;
      sources[i] = windows.rows.find(windows.rows.has(line) ? line : windows.rows.conv.rows - 1);
    }
    read_entry();
  }

  __device__ void read_entry() {
    offset = __ldg(entry);
    entry += kSlabVectors;
  }

  __device__ void load_whole(SharedAddress slab) {
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) copy_async_vector(slab + part.place(i), sources[i] + offset);
    read_entry();
  }

  __device__ void load(SharedAddress slab, int depth) {
    const int nbytes = count_chunk_bytes<i8>(depth - part.chunk * kChunkBytes);
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) copy_async_vector(slab + part.place(i), sources[i] + offset, nbytes);
    read_entry();
  }
};

// The left operand of a convolution as a block sees it.
struct ByteWindows {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = WindowLoader<Tile, Lines, Shift>;
  static constexpr bool kIsAlwaysWide = true;

  const WindowRows& rows;
  int inner, first_line, first_k;
};

// Sums the block's slabs, less w_zero * the sums of windows.
template <class Tile>
__device__ inline void convolve_block(ByteTile<Tile>& warp, const u32* x, const u8* w, const i32* table,
                                      const IntegerConv& conv, const u8* w_zero, u8* ring) {
  const int inner = 4 * conv.inner;
  {
    const MmaPlace<Tile> place(conv, blockIdx.x);
    const MmaSlabs slabs(inner, Tile::kSlabBytes, blockIdx.y, gridDim.y);
    const int first_k = slabs.first * slabs.depth;
    const WindowRows rows = {x, table, conv, int(place.batch)};
    const ByteWindows left = {rows, inner, place.first_row, first_k};
    const u8* const lines = w + place.batch * count_line_bytes(conv.columns, conv.line_bytes);
    const WideOperand<i8> right(reinterpret_cast<const i8*>(lines), conv.line_bytes, conv.columns, inner,
                                place.first_column, first_k);
    warp.flip = find_flip(conv.x_offset);
    sum_slabs(warp, left, right, slabs, ring);
  }
  if (!w_zero && !conv.w_offset) return;
  const MmaPlace<Tile> place(conv, forget(blockIdx.x));
  const MmaSlabs slabs(inner, Tile::kSlabBytes, int(forget(blockIdx.y)), gridDim.y);
  const WindowRows rows = {x, table, conv, int(place.batch)};
  subtract_rows<Tile>(warp, rows, place.first_row, slabs, inner, conv.depth, conv.x_offset, ring, [&](int column) {
    const int inside = place.first_column + column;
    if (inside >= conv.columns) return 0;
    return load_zero(w_zero, (i64(place.batch) * conv.columns + inside) * conv.quant_step, conv.w_offset);
  });
}

// The sums of 32 columns of each warp in shared memory, columns after columns, so that a warp stores windows that are
// neighbours.
template <class Tile>
struct StagedSums {
  static constexpr int kColumns = Tile::kWarpsAcross * kParkedColumns;
  static constexpr int kPitch = Tile::kRows + 1;  // 8 q * pitch + row: eight rows of four columns touch each bank once
  static constexpr int kSpan = Tile::kRows < 32 ? Tile::kRows : 32;  // rows that are neighbours in a warp
  static_assert(kColumns * kPitch * 4 <= Tile::kRingBytes, "32 columns of each warp fit in the ring");
  static_assert(kSpan == 32 || kSpan == 16, "a warp has rows of one column, or of two that are 16 apart");
  u32* sums;

  // Writes a warp's first 32 columns, and moves the others to their place.
  __device__ void take(ByteTile<Tile>& warp, int thread) const {
    const int column = warp.find_column(thread) / Tile::kWarpColumns * kParkedColumns + thread % 4 * kEight;
    u32* const own = sums + column * kPitch + warp.find_row(thread) + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < Tile::kDown * 2; ++i) {
#pragma unroll
      for (int e = 0; e < kEight; ++e) own[e * kPitch + 8 * i] = u32(warp.sums[i / 2][e / 2][i % 2 * 2 + e % 2]);
    }
    warp.drop_columns();
  }
};

// Stores the staged columns, of which the tile's warps have those from `first` on.
template <class Y, class Tile>
__device__ inline void store_staged(const StagedSums<Tile>& staged, const IntegerConv& conv, const ConvResults<Y>& results,
                                    const u32* column_sums, Y* y, const MmaPlace<Tile>& at, int first, int thread) {
  typedef StagedSums<Tile> Staged;
  constexpr int kPlaces = Tile::kRows / Staged::kSpan, kTogether = 32 / Staged::kSpan;
  const int row = thread % Staged::kSpan, beside = thread % 32 / Staged::kSpan * 16;
  const i32 zero = load_zero(results.x_zero, 0, conv.x_offset);
  i64 places[kPlaces];
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) {
    u32 position;
    const u32 n = conv.by_outputs.divide(u32(at.first_row + row + Staged::kSpan * i), position);
    places[i] = n * conv.y_batch + position * conv.y_position;
  }
#pragma unroll 1
  for (int number = thread / 32; number < Staged::kColumns / kTogether; number += Tile::kThreads / 32) {
    const int column = kTogether == 1 ? number : number / 16 * 32 + number % 16 + beside;
    const int member = at.first_column + column / 32 * Tile::kWarpColumns + first + column % 32;
    if (member >= conv.columns) continue;
    const i64 channel = i64(at.batch) * conv.columns + member;
    u32 term = 0;
    if (zero) {
      const i32 w_zero = load_zero(results.w_zero, channel * conv.quant_step, conv.w_offset);
      term = u32(zero) * (column_sums[member] - u32(conv.depth) * u32(w_zero));
    }
    const float factor = results.find_channel_factor(channel, conv.quant_step);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if (at.first_row + row + Staged::kSpan * i >= conv.rows) break;
      const i32 sum = i32(staged.sums[column * Staged::kPitch + row + Staged::kSpan * i] - term);
      y[places[i] + channel * conv.y_channel] = results.make(channel, sum, factor);
    }
  }
}

// Computes  what integer_conv computes
// Shapes    x and table as integer_conv; w, of each group [out channels of a group] lines of line_bytes, of 4 * inner bytes,
//           centred, and behind them their sums; all else as integer_conv
// Grid      one block per tile of windows (of all images in one row) x output channels of a group and slice, with
//           Tile::kRingBytes of dynamic shared memory: x = group * tiles of a group + tile (MmaPlace), y = slice
// Needs     sm_80. As integer_conv; w and line_bytes aligned to 32 bytes; the table goes on for a slab of entries; y of the
//           type that conv.y_kind says
// Numerics  as integer_conv, to the bit
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    integer_conv_mma(const u32* __restrict__ x, const u8* __restrict__ w, const i32* __restrict__ bias, u8* __restrict__ y,
                     const __grid_constant__ IntegerConv conv, i32* scratch, unsigned* counters,
                     const u8* __restrict__ x_zero, const u8* __restrict__ w_zero, const u8* __restrict__ x_scale,
                     const u8* __restrict__ w_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                     const i32* __restrict__ table) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  ByteTile<Tile> warp;
  convolve_block(warp, x, w, table, conv, w_zero, ring);
  launch_dependents();
  const u32 tile = forget(blockIdx.x);
  if (!join_slices(warp, scratch, counters, tile, blockIdx.y, gridDim.y)) return;

  const MmaPlace<Tile> at(conv, tile);
  const int thread = int(forget(threadIdx.x));
  const StagedSums<Tile> staged = {reinterpret_cast<u32*>(ring)};
  const u8* const lines = w + at.batch * count_line_bytes(conv.columns, conv.line_bytes);
  const u32* const column_sums = reinterpret_cast<const u32*>(lines + i64(conv.columns) * conv.line_bytes);
#pragma unroll 1
  for (int first = 0; first < Tile::kWarpColumns; first += kParkedColumns) {
    __syncthreads();
    staged.take(warp, thread);
    __syncthreads();
    if (conv.y_kind == 0) {
      const ConvResults<i32> results = {x_zero, w_zero, x_scale, w_scale, y_scale, y_zero, bias, conv.finish};
      store_staged(staged, conv, results, column_sums, reinterpret_cast<i32*>(y), at, first, thread);
    } else {
      const ConvResults<u8> results = {x_zero, w_zero, x_scale, w_scale, y_scale, y_zero, bias, conv.finish};
      store_staged(staged, conv, results, column_sums, y, at, first, thread);
    }
  }
}

// Computes  the packed weights of integer_conv_mma: lines of taps * vectors of 16 bytes, centred, and behind those of a group
//           the sums of their bytes
// Shapes    w [out channels, channels, taps] bytes; packed, of each group [out channels of a group, pitch] bytes and as many
//           sums, filled up to 32 bytes
// Grid      one block of 256 per 32 columns: x = group * column blocks + column block
// Needs     w dense; packed aligned to 32 bytes, as pitch is
// Numerics  exact; 0 beyond the last channel
__global__ void __launch_bounds__(kLineThreads)
    pack_conv_lines(const u8* __restrict__ w, u8* __restrict__ packed, const __grid_constant__ ConvPacking packing,
                    const __grid_constant__ LinePacking lines) {
  wait_for_predecessors();
  launch_dependents();
  pack_lines(packed, lines, [&](u32 group, int k, int column) { return packing.find_weight(w, group, k, column); });
}
