// Tiles of products of words of four bytes: their places, sums of rows for zero points, and packing of right operands.
#pragma once
#include "integer_product.cuh"
#include "simt_tile.cuh"

// The place of a tile: (batch * row tiles + row tile) * column tiles + column tile.
template <class Tile>
struct TileOfBatch {
  int first_row, first_column;
  u32 batch;

  __device__ TileOfBatch(int rows, int columns, u32 tile) {
    const u32 column_tiles = (u32(columns) + Tile::kColumns - 1) / Tile::kColumns;
    const u32 row_tiles = (u32(rows) + Tile::kRows - 1) / Tile::kRows;
    const u32 row_tile = tile / column_tiles;
    first_column = int(tile - row_tile * column_tiles) * Tile::kColumns;
    batch = row_tile / row_tiles;
    first_row = int(row_tile - batch * row_tiles) * Tile::kRows;
  }
};

// Subtracts the zero points of columns * the sums of the left rows from a tile's sums, over the slabs of a range. Eight
// threads share a row. find_zero(column) is that of a column of the tile. All threads of the block come here.
template <class Tile, class Multiply, class Rows, class FindZero>
__device__ inline void subtract_rows(const Rows& rows, int first_row, const SlabRange& range, u32* ring,
                                     u32 (&sums)[Tile::kRowSums][kColumnSums], FindZero find_zero) {
  const int end = range.count ? range.first_k + range.head + (range.count - 1) * kSlabDepth : range.first_k;
  sum_rows<Tile, Multiply>(rows, first_row, range.first_k, end, ring);
  u32* const zeros = ring + Tile::kRows;
  static_assert(Tile::kColumns <= Tile::kThreads, "a thread reads one zero point at most");
  const int thread = threadIdx.x;
  if (thread < Tile::kColumns) zeros[thread] = u32(find_zero(thread));
  __syncthreads();
  const SumsPlace<Tile> own(thread);
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    u32 own_zeros[4];
    read_fragment(own_zeros, zeros + own.column + 32 * g);
#pragma unroll
    for (int i = 0; i < Tile::kRowSums; ++i) {
      const u32 total = ring[own.row + 4 * i];
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][4 * g + j] -= own_zeros[j] * total;
    }
  }
}

constexpr int kPackColumns = 32, kPackThreads = 256;  // of a block that packs

// Packs a right operand [batch, words + 1, padded] in a block of 32 columns: x = batch * column blocks + column block.
// find(batch, k, column) is the byte of an element, or null where there is none; a byte is centred by `flip`.
template <class Find>
__device__ inline void pack_columns(u32* packed, int words, int columns, int padded, i32 flip, Find find) {
  constexpr int kParts = kPackThreads / kPackColumns;
  __shared__ u32 totals[kParts][kPackColumns];
  const u32 column_blocks = (u32(padded) + kPackColumns - 1) / kPackColumns, batch = blockIdx.x / column_blocks;
  const int lane = threadIdx.x % kPackColumns, part = threadIdx.x / kPackColumns;
  const int column = int(blockIdx.x - batch * column_blocks) * kPackColumns + lane;
  packed += i64(batch) * (words + 1) * padded;
  u32 total = 0;
  for (int k = part; k < words && column < padded; k += kParts) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u8* source = column < columns ? find(batch, 4 * k + i, column) : nullptr;
      if (source) word |= u32(u8(*source ^ u8(flip))) << 8 * i;
    }
    packed[i64(k) * padded + column] = word;
    total = MultiplyBytes<true>::add(word, kOnes, total);
  }
  totals[part][lane] = total;
  __syncthreads();
  if (part > 0 || column >= padded) return;
  for (int i = 1; i < kParts; ++i) total += totals[i][lane];
  packed[i64(words) * padded + column] = total;
}
