// One 64 x 64 tile of an 8-bit integer matrix product, four products an instruction (dp4a).
//
// Operands come through loaders as words of four centred bytes that are neighbours along the inner extent, with 0 beyond
// its end. Sums are modulo 2^32, so their order does not matter; the share of zero points is subtracted afterwards,
// by the sums of rows and columns.
#pragma once
#include "requantize.cuh"
#include "tile.cuh"

constexpr int kWords = 8;      // words of the inner extent that are in shared memory at a time
constexpr int kWordBytes = 4;
constexpr u32 kOnes = 0x01010101u;
typedef TilePart<kWords> WordPart;

__device__ inline u32 multiply_add_bytes(u32 a, u32 b, u32 c) { return u32(__dp4a(int(a), int(b), int(c))); }

__device__ inline u32 flip_of(i32 offset) { return offset ? 0x80808080u : 0u; }

// Four bytes `stride` apart, of which the first `left` exist.
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

// Loads words from a matrix by strides.
struct MatrixLoader {
  WordPart part;
  const u8* first;  // where the thread's words begin
  i64 step, stride, inner;
  int extent;
  u32 flip;
  bool is_aligned;

  __device__ MatrixLoader(const u8* matrix, i64 origin, i64 x_extent, i64 inner_extent, i64 x_stride, i64 inner_stride,
                          i32 offset, int thread) {
    part = inner_stride == 1 ? WordPart::along_k(thread) : WordPart::along_x(thread);
    i64 below = x_extent - origin - part.x;
    extent = int(below < kTile ? below : kTile);
    inner = inner_extent - part.k * kWordBytes;
    stride = inner_stride;
    step = part.dx * x_stride + part.dk * kWordBytes * inner_stride;
    first = matrix + (origin + part.x) * x_stride + part.k * kWordBytes * inner_stride;
    flip = flip_of(offset);
    is_aligned = is_word_aligned(matrix, x_stride, inner_stride);
  }

  __device__ void load(i64 word, u32 (&words)[WordPart::kCount]) const {
    const i64 k = word * kWordBytes;
    const u8* source = first + k * stride;
#pragma unroll
    for (int i = 0; i < WordPart::kCount; ++i) {
      i64 left = i * part.dx < extent ? inner - k - i * part.dk * kWordBytes : 0;
      words[i] = left > 0 ? load_word(source + i * step, stride, left, flip, is_aligned) : 0u;
    }
  }
};

// Sums of a thread: of products, and of the rows and columns it multiplied.
struct ByteSums {
  u32 products[kSums][kSums], rows[kSums], columns[kSums];

  // Turns the products into sums of (left - left_zero) * (right - right_zero); zero points are centred.
  __device__ void take_off(const i32 (&left_zeros)[kSums], const i32 (&right_zeros)[kSums], i64 inner) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const u32 zero = u32(left_zeros[i]), rest = rows[i] - u32(inner) * zero;
#pragma unroll
      for (int j = 0; j < kSums; ++j) products[i][j] -= zero * columns[j] + u32(right_zeros[j]) * rest;
    }
  }
};

// Sums left(row, k) * right(column, k) over k in [0, inner), as walk_tile runs. Sums of rows and columns are computed
// where sums_rows and sums_columns ask for them.
template <class Left, class Right>
__device__ inline void multiply_bytes(const Left& left, const Right& right, i64 inner, bool is_needed, bool sums_rows,
                                      bool sums_columns, ByteSums& sums) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums.rows[i] = sums.columns[i] = 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums.products[i][j] = 0;
  }
  const i64 words = (inner + kWordBytes - 1) / kWordBytes;
  walk_tile<u32, kWords, 2>(left, right, words, is_needed, [&](const u32 (&a)[kSums], const u32 (&b)[kSums]) {
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
  });
}
