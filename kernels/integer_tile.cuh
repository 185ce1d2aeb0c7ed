// One 64 x 64 tile of a product of matrices of bytes: 256 threads, 4 x 4 sums each, four products an instruction.
//
// Operands come through loaders as words of four centred bytes that are neighbours along the inner extent, with 0 beyond
// its end. Sums are modulo 2^32, so their order does not matter; what zero points add is taken off afterwards, by the
// sums of rows and columns.
#pragma once
#include "requantize.cuh"

constexpr int kTile = 64;      // rows and columns of a block's tile
constexpr int kWords = 8;      // words of the inner extent that are in shared memory at a time
constexpr int kWordBytes = 4;
constexpr int kSums = 4;       // rows and columns of a thread's sums
constexpr int kSide = kTile / kSums;
constexpr int kPitch = kTile + 4;  // keeps 16-byte alignment, spreads the rows of a slab over the banks
constexpr u32 kOnes = 0x01010101u;

__device__ inline u32 multiply_add_bytes(u32 a, u32 b, u32 c) { return u32(__dp4a(int(a), int(b), int(c))); }

__device__ inline u32 flip_of(i32 offset) { return offset ? 0x80808080u : 0u; }

// Four bytes `stride` apart, of which `left` are there.
__device__ inline u32 load_word(const u8* source, i64 stride, i64 left, u32 flip, bool is_aligned) {
  if (is_aligned && left >= kWordBytes) return *reinterpret_cast<const u32*>(source) ^ flip;
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < kWordBytes; ++i) {
    if (i < left) word |= u32(u8(source[i * stride] ^ u8(flip))) << 8 * i;
  }
  return word;
}

// Whether rows `stride` apart, dense along the inner extent, can be read by words.
__device__ inline bool is_word_aligned(const u8* matrix, i64 stride, i64 inner_stride) {
  return inner_stride == 1 && ((reinterpret_cast<u64>(matrix) | u64(stride)) & 3) == 0;
}

// Which two words (x, word) of a 64 x 8 slab a thread carries: x + i * dx, word + i * dw for i = 0, 1. Neighbouring
// threads are neighbours along the inner extent, where a row lies dense in it, else along x.
struct WordPart {
  int x, word, dx, dw;

  static __device__ WordPart along_inner(int thread) { return {thread / kWords, thread % kWords, kTile / 2, 0}; }
  static __device__ WordPart along_x(int thread) { return {thread % kTile, thread / kTile, 0, kWords / 2}; }

  __device__ void store(u32 (&slab)[kWords][kPitch], const u32 (&part)[2]) const {
    slab[word][x] = part[0];
    slab[word + dw][x + dx] = part[1];
  }
};

// Loads from a matrix by strides. `part` is public: the loop stores what the loader loaded.
struct MatrixLoader {
  WordPart part;
  const u8* first;  // where the thread's words begin
  i64 step, stride, inner;
  int extent;
  u32 flip;
  bool is_aligned;

  __device__ MatrixLoader(const u8* matrix, i64 origin, i64 x_extent, i64 inner_extent, i64 x_stride, i64 inner_stride,
                          i32 offset, int thread) {
    part = inner_stride == 1 ? WordPart::along_inner(thread) : WordPart::along_x(thread);
    i64 below = x_extent - origin - part.x;
    extent = int(below < kTile ? below : kTile);
    inner = inner_extent - part.word * kWordBytes;
    stride = inner_stride;
    step = part.dx * x_stride + part.dw * kWordBytes * inner_stride;
    first = matrix + (origin + part.x) * x_stride + part.word * kWordBytes * inner_stride;
    flip = flip_of(offset);
    is_aligned = is_word_aligned(matrix, x_stride, inner_stride);
  }

  __device__ void load(i64 k, u32 (&words)[2]) const {
    const u8* source = first + k * stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      i64 left = i * part.dx < extent ? inner - k - i * part.dw * kWordBytes : 0;
      words[i] = left > 0 ? load_word(source + i * step, stride, left, flip, is_aligned) : 0u;
    }
  }
};

// Where a thread's sums stand in the tile.
__device__ inline int sums_row(int thread) { return thread / kSide * kSums; }
__device__ inline int sums_column(int thread) { return thread % kSide * kSums; }

// Sums of a thread: of products, and of the rows and columns it multiplied.
struct ByteSums {
  u32 products[kSums][kSums], rows[kSums], columns[kSums];

  // Makes the products sums of (left - left_zero) * (right - right_zero); zero points are centred.
  __device__ void take_off(const i32 (&left_zeros)[kSums], const i32 (&right_zeros)[kSums], i64 inner) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const u32 zero = u32(left_zeros[i]), rest = rows[i] - u32(inner) * zero;
#pragma unroll
      for (int j = 0; j < kSums; ++j) products[i][j] -= zero * columns[j] + u32(right_zeros[j]) * rest;
    }
  }
};

// Sums left(row, k) * right(column, k) over k in [0, inner). All threads of the block come here together; `is_needed` is
// false for a thread whose sums nobody stores. Sums of rows and columns are made where they are asked for.
template <class Left, class Right>
__device__ inline void multiply_bytes(const Left& left, const Right& right, i64 inner, bool is_needed, bool sums_rows,
                                      bool sums_columns, ByteSums& sums) {
  __shared__ alignas(16) u32 left_slabs[2][kWords][kPitch];
  __shared__ alignas(16) u32 right_slabs[2][kWords][kPitch];
  int row = sums_row(threadIdx.x);
  int column = sums_column(threadIdx.x);
  u32 left_part[2];
  u32 right_part[2];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums.rows[i] = sums.columns[i] = 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums.products[i][j] = 0;
  }
  left.load(0, left_part);
  right.load(0, right_part);
  left.part.store(left_slabs[0], left_part);
  right.part.store(right_slabs[0], right_part);
  __syncthreads();
  int stage = 0;
  for (i64 k = 0; k < inner; k += kWords * kWordBytes) {
    bool has_next = k + kWords * kWordBytes < inner;
    if (has_next) {
      left.load(k + kWords * kWordBytes, left_part);
      right.load(k + kWords * kWordBytes, right_part);
    }
    if (is_needed) {
#pragma unroll 2
      for (int word = 0; word < kWords; ++word) {
        u32 a[kSums];
        u32 b[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) a[i] = left_slabs[stage][word][row + i];
#pragma unroll
        for (int j = 0; j < kSums; ++j) b[j] = right_slabs[stage][word][column + j];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) sums.products[i][j] = multiply_add_bytes(a[i], b[j], sums.products[i][j]);
        }
        if (sums_rows) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) sums.rows[i] = multiply_add_bytes(a[i], kOnes, sums.rows[i]);
        }
        if (sums_columns) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) sums.columns[j] = multiply_add_bytes(b[j], kOnes, sums.columns[j]);
        }
      }
    }
    stage ^= 1;
    if (has_next) {  // nobody reads this stage any more: all came past the barrier that ended its turn
      left.part.store(left_slabs[stage], left_part);
      right.part.store(right_slabs[stage], right_part);
    }
    __syncthreads();
  }
}
