// One 64 x 64 tile of a product of matrices: 256 threads, 4 x 4 sums each, for any kind of sum.
//
// Loaders read the operands, a slab of the inner extent at a time, and the caller multiplies and adds: so numbers and words
// of bytes, strided matrices and the patches of a convolution share one loop.
#pragma once
#include "types.cuh"

constexpr int kTile = 64;  // rows and columns of a block's tile
constexpr int kSums = 4;   // rows and columns of a thread's sums
constexpr int kSide = kTile / kSums;
constexpr int kPitch = kTile + 4;  // keeps 16-byte alignment, spreads the rows of a slab over the banks

// The elements (x, k) of a slab 64 x Depth that a thread loads: x + i * dx, k + i * dk for i < kCount. Neighbouring
// threads are neighbours along k, where a row lies dense in k, else along x.
template <int Depth>
struct TilePart {
  static constexpr int kCount = kTile * Depth / (kSide * kSide);
  int x, k, dx, dk;

  static __device__ TilePart along_k(int thread) { return {thread / Depth, thread % Depth, kTile / kCount, 0}; }
  static __device__ TilePart along_x(int thread) { return {thread % kTile, thread / kTile * kCount, 0, 1}; }

  template <class E>
  __device__ void store(E (&slab)[Depth][kPitch], const E (&part)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) slab[k + i * dk][x + i * dx] = part[i];
  }
};

// The tile of a block, `width` columns of it: blockIdx.x = (outer * row tiles + row tile) * column tiles + column tile.
struct TilePlace {
  i64 outer, first_row, first_column;

  __device__ TilePlace(i64 rows, i64 columns, i64 width) {
    i64 column_tiles = (columns + width - 1) / width;
    i64 row_tiles = (rows + kTile - 1) / kTile;
    i64 tile = blockIdx.x;
    first_column = tile % column_tiles * width;
    tile /= column_tiles;
    first_row = tile % row_tiles * kTile;
    outer = tile / row_tiles;
  }
};

// The positions of a thread's sums in the tile.
__device__ inline int sums_row(int thread) { return thread / kSide * kSums; }
__device__ inline int sums_column(int thread) { return thread % kSide * kSums; }

// Calls add(a, b) with the elements of a thread's four rows and four columns, for each k in [0, inner) and on to the end of
// the slab, where loaders return zeros. All threads of the block must call it; `is_needed` is false for a thread whose
// sums are not stored. A loader's `part` says what its load(k, values) loaded. `Unrolled` of the Depth steps of a
// slab are laid out one after the other. Needs 4 * Depth * 68 * sizeof(E) bytes of shared memory.
template <class E, int Depth, int Unrolled, class Left, class Right, class Add>
__device__ inline void walk_tile(const Left& left, const Right& right, i64 inner, bool is_needed, Add add) {
  __shared__ alignas(16) E left_slabs[2][Depth][kPitch];
  __shared__ alignas(16) E right_slabs[2][Depth][kPitch];
  int row = sums_row(threadIdx.x);
  int column = sums_column(threadIdx.x);
  E left_part[TilePart<Depth>::kCount];
  E right_part[TilePart<Depth>::kCount];
  left.load(0, left_part);
  right.load(0, right_part);
  left.part.store(left_slabs[0], left_part);
  right.part.store(right_slabs[0], right_part);
  __syncthreads();
  int stage = 0;
  for (i64 k = 0; k < inner; k += Depth) {
    bool has_next = k + Depth < inner;
    if (has_next) {
      left.load(k + Depth, left_part);
      right.load(k + Depth, right_part);
    }
    if (is_needed) {
#pragma unroll Unrolled
      for (int step = 0; step < Depth; ++step) {
        E a[kSums];
        E b[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) a[i] = left_slabs[stage][step][row + i];
#pragma unroll
        for (int j = 0; j < kSums; ++j) b[j] = right_slabs[stage][step][column + j];
        add(a, b);
      }
    }
    stage ^= 1;
    if (has_next) {  // free to overwrite: all threads have passed the barrier after its last use
      left.part.store(left_slabs[stage], left_part);
      right.part.store(right_slabs[stage], right_part);
    }
    __syncthreads();
  }
}
