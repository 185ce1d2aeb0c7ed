// Products of bytes on tensor cores (sm_80 and up): lines of operands, zero points of columns, and sums on their way to memory.
//
// An mma takes signed bytes. The right operand is packed as lines along the inner extent, centred (requantize.cuh), with the
// sums of all lines behind them; the left one is centred in registers. So
// sum of (a - a_zero) * (b - b_zero) = sum of a * b, less b_zero * the sum of a's row, less a_zero * (the sum of b's column -
// depth * b_zero), all of them centred.
#pragma once
#include "integer_product.cuh"
#include "mma_tile.cuh"

template <class Tile>
using ByteTile = WarpTile<i8, Tile, Lie::kAlongK, Lie::kAlongK>;

constexpr int kSectorBytes = 32;  // lines, and matrices of them, begin at whole sectors

// The bytes of a matrix of lines, with their sums.
__device__ inline i64 count_line_bytes(int columns, int pitch) {
  return i64(columns) * pitch + (i64(columns) * 4 + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
}

// What centres the four bytes of a word.
__device__ inline u32 find_flip(i32 offset) { return u32(offset) * kOnes; }

// Subtracts the zero points of columns * the sums of the left rows from a tile's sums, over the block's slabs, where any is
// not 0. find_zero(column) is the centred one of a column of the tile. `depth` is the inner extent without what only pads.
// All threads of the block come here, and read the ring no more.
template <class Tile, class Rows, class FindZero>
__device__ inline void subtract_rows(ByteTile<Tile>& warp, const Rows& rows, int first_row, const MmaSlabs& slabs,
                                     int inner, int depth, i32 offset, u8* ring, FindZero find_zero) {
  static_assert(Tile::kColumns <= Tile::kThreads, "a thread reads one zero point at most");
  u32* const zeros = reinterpret_cast<u32*>(ring);
  u32* const totals = zeros + Tile::kColumns;
  const int thread = threadIdx.x;
  const u32 own_zero = thread < Tile::kColumns ? u32(find_zero(thread)) : 0u;
  if (!__syncthreads_or(own_zero != 0)) return;
  if (thread < Tile::kColumns) zeros[thread] = own_zero;
  const int first = slabs.first * slabs.depth, last = first + slabs.count * slabs.depth;
  const int end = last < inner ? last : inner;
  if (offset) sum_rows<Tile, MultiplyBytes<false>>(rows, first_row, first / 4, end / 4, totals);
  else sum_rows<Tile, MultiplyBytes<true>>(rows, first_row, first / 4, end / 4, totals);
  __syncthreads();
  // Centring takes as much off a row as the inner extent is long: once, in the slice that has the first slab.
  const u32 centre = slabs.first == 0 && slabs.count > 0 ? u32(depth) * u32(offset) : 0u;
  const int row = warp.find_row(thread) + thread % 32 / 4, column = warp.find_column(thread) + thread % 4 * kEight;
#pragma unroll
  for (int j = 0; j < Tile::kAcross; j += 4) {
    const Vec<u32, 4> eight[2] = {load_vec<4>(zeros + column + j * 8), load_vec<4>(zeros + column + j * 8 + 4)};
#pragma unroll
    for (int i = 0; i < Tile::kDown * 2; ++i) {
      const u32 total = totals[row + 8 * i] - centre;
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        i32& sum = warp.sums[i / 2][j + e / 2][i % 2 * 2 + e % 2];
        sum = i32(u32(sum) - eight[e / 4].lanes[e % 4] * total);
      }
    }
  }
}

constexpr int kParkedColumns = 32;  // of a warp, that are in shared memory together

// The sums of a warp's 32 columns in shared memory, 16 bytes at a time. Where a vector stands depends on its row, so that
// eight lanes that write two rows, or read one, do so in one wavefront.
template <class Tile>
struct ParkedSums {
  static constexpr int kWarpWords = Tile::kWarpRows * kParkedColumns;
  static_assert(Tile::kThreads / 32 * kWarpWords * 4 <= Tile::kRingBytes, "32 columns of each warp fit in the ring");
  u32* words;

  __device__ ParkedSums(u8* ring, int thread) : words(reinterpret_cast<u32*>(ring) + thread / 32 * kWarpWords) {}
  __device__ u32* find(int row, int vector) const { return words + row * kParkedColumns + (vector ^ (row & 1)) * 4; }

  // Writes a warp's first 32 columns, and moves the others to their place.
  __device__ void take(ByteTile<Tile>& warp, int thread) const {
    const int own = thread % 32 / 4, vector = thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kDown * 2; ++i) {
      u32 eight[kEight];
#pragma unroll
      for (int e = 0; e < kEight; ++e) eight[e] = u32(warp.sums[i / 2][e / 2][i % 2 * 2 + e % 2]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_vec(find(own + 8 * i, vector + half),
                  Vec<u32, 4>{{eight[4 * half], eight[4 * half + 1], eight[4 * half + 2], eight[4 * half + 3]}});
      }
    }
    warp.drop_columns();
  }
};

constexpr int kLineColumns = 32, kLineThreads = 256;  // of a block that packs

// How bytes are packed into lines. Packed by gpuexec/ops/quant/integer_words.py.
struct LinePacking {
  i32 depth, pitch;  // bytes of the inner extent that are there, and of a line
  i32 columns;
  i32 flip;  // 128 where unsigned bytes are centred
};

// Packs right operands [batch, columns, pitch], each with its [columns] sums behind it, in a block of 32 columns:
// x = batch * column blocks + column block. find(batch, k, column) is the byte of an element, or null where there is none.
template <class Find>
__device__ inline void pack_lines(u8* packed, const LinePacking& packing, Find find) {
  constexpr int kParts = kLineThreads / kLineColumns, kPitch = 4 * kParts + 4;
  __shared__ alignas(16) u32 turned[kLineColumns][kPitch];
  __shared__ u32 totals[kParts][kLineColumns];
  const int columns = packing.columns, pitch = packing.pitch;
  const u32 column_blocks = (u32(columns) + kLineColumns - 1) / kLineColumns, batch = blockIdx.x / column_blocks;
  const int first_column = int(blockIdx.x - batch * column_blocks) * kLineColumns;
  const int lane = threadIdx.x % kLineColumns, part = threadIdx.x / kLineColumns;
  const int line = threadIdx.x / kParts, chunk = threadIdx.x % kParts, column = first_column + lane;
  packed += i64(batch) * count_line_bytes(columns, pitch);
  u8* const own_line = packed + i64(first_column + line) * pitch;
  u32 total = 0;
#pragma unroll 1
  for (int first = 0; first < pitch; first += kParts * kChunkBytes) {
    Vec<u32, 4> words = {};
    const int k = first + part * kChunkBytes, own_k = first + chunk * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kChunkBytes; ++i) {
      const u8* source = k < pitch && column < columns ? find(batch, k + i, column) : nullptr;
      if (source) words.lanes[i / 4] |= u32(u8(*source ^ u8(packing.flip))) << 8 * (i % 4);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total = MultiplyBytes<true>::add(words.lanes[i], kOnes, total);
    store_vec(&turned[lane][4 * part], words);
    __syncthreads();
    if (own_k < pitch && first_column + line < columns) {
      store_vec(reinterpret_cast<u32*>(own_line + own_k), load_vec<4>(&turned[line][4 * chunk]));
    }
    __syncthreads();
  }
  totals[part][lane] = total;
  __syncthreads();
  if (part > 0 || column >= columns) return;
  for (int i = 1; i < kParts; ++i) total += totals[i][lane];
  reinterpret_cast<u32*>(packed + i64(columns) * pitch)[column] = total;
}
