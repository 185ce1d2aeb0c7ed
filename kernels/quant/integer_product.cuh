// Products of 8-bit integers as words of four bytes, whose products one instruction adds up (dp4a).
//
// Words hold bytes that are neighbours along the inner extent, with 0 beyond its end. Those of the left operand are as
// they lie, of the right one centred (requantize.cuh). Sums are modulo 2^32, so their order does not matter:
// sum of (a - a_zero) * (b - b_zero) = sum of a * b, less b_zero * the sum of a's row, less a_zero * (the sum of b's
// column - depth * b_zero).
#pragma once
#include "requantize.cuh"
#include "vec.cuh"

constexpr int kMaxBatchAxes = 8;
constexpr u32 kOnes = 0x01010101u;
constexpr unsigned kFullMask = 0xffffffffu;

// Adds the products of four unsigned and four signed bytes to a sum.
__device__ inline u32 multiply_unsigned_bytes(u32 a, u32 b, u32 sum) {
#ifdef GPUEXEC_SIM
  GPUEXEC_ISSUE(kDp4a, 4);
  for (int i = 0; i < 4; ++i) sum += (a >> 8 * i & 255) * u32(i32(i8(b >> 8 * i)));
  return sum;
#else
  u32 result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
#endif
}

// The products of the bytes of two words, added to a sum; those of the right word are signed.
template <bool IsSigned>
struct MultiplyBytes {
  typedef u32 Element;
  typedef u32 Sum;
  static __device__ Sum add(Element a, Element b, Sum sum) {
    if constexpr (IsSigned) return u32(__dp4a(i32(a), i32(b), i32(sum)));
    else return multiply_unsigned_bytes(a, b, sum);
  }
};

// Packed by launch_integer_gemm of gpuexec/ops/quant/integer_matmul.py. Strides are in words of a and b, and in elements of
// what else there is; `quant` ones are those of scale and zero point, 0 along what they don't vary over.
struct IntegerGemm {
  i32 rows, columns, inner, depth;  // inner in words, depth in bytes
  i32 batch_axes;
  i32 has_fours;  // y is stored four columns at a time
  i32 lanes;      // of integer_gemv: those that are neighbours along the columns
  i32 y_kind;     // of integer_mma: i32, float, half or bytes
  i64 a_row, b_inner, y_row;  // of integer_mma, b_inner is from a column to the next
  i64 a_quant_row, b_quant_column, y_quant_row;
  i64 addend_row, addend_column, bias_column;
  i32 a_offset, b_offset;  // 128 for unsigned bytes
  Finish finish;
  i32 batch_extents[kMaxBatchAxes];
  i64 a_batch[kMaxBatchAxes];
  i64 b_batch[kMaxBatchAxes];
  i64 y_batch[kMaxBatchAxes];
  i64 a_quant_batch[kMaxBatchAxes];
  i64 b_quant_batch[kMaxBatchAxes];
  i64 y_quant_batch[kMaxBatchAxes];

  // Returns the offset of a batch in an operand, by its strides along the batch axes.
  __device__ i64 find_offset(u32 batch, const i64 (&strides)[kMaxBatchAxes]) const {
    i64 offset = 0;
#pragma unroll 1
    for (int axis = batch_axes - 1; axis >= 0; --axis) {
      const u32 extent = batch_extents[axis];
      offset += batch % extent * strides[axis];
      batch /= extent;
    }
    return offset;
  }

  // Columns of b with those that fill its rows up to 16 bytes.
  __device__ int padded_columns() const { return (columns + 3) & ~3; }
};

// What sums become results by; pointers may be null as the kernels say.
template <class Y>
struct Results {
  const u8 *a_zero, *b_zero, *a_scale, *b_scale, *y_scale, *y_zero;
  const i32* addend;
  const Y* bias;
  Y* y;

  // Whether sums need those of the rows of a.
  __device__ bool need_rows(const IntegerGemm& gemm) const { return b_zero || gemm.b_offset; }
};

// The zero points of four neighbouring columns, centred; beyond the last column the last one's.
template <class Y>
__device__ inline void load_column_zeros(i32 (&zeros)[4], const Results<Y>& results, const IntegerGemm& gemm, i64 start,
                                         int column) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int near = column + j < gemm.columns ? column + j : gemm.columns - 1;
    zeros[j] = load_zero(results.b_zero, start + near * gemm.b_quant_column, gemm.b_offset);
  }
}

// The rows of a matrix of words, dense along the inner extent.
struct MatrixRows {
  const u32* matrix;
  int rows;
  i64 row_stride;

  __device__ bool has(int row) const { return row < rows; }
  __device__ const u32* find(int row) const { return matrix + row * row_stride; }

  // Calls visit(offset) for every eighth vector of a row from vector `lane` on, for k in [first, end).
  template <class Visit>
  __device__ void visit_vectors(int first, int end, int lane, Visit visit) const {
#pragma unroll 1
    for (int k = first + 4 * lane; k < end; k += 32) visit(k);
  }
};

// Sums the words of a tile's rows over k in [first, end), eight threads a row, into totals[row] in shared memory, which nobody
// reads any more behind a barrier that stands here. All threads of the block come here.
template <class Tile, class Multiply, class Rows>
__device__ inline void sum_rows(const Rows& rows, int first_row, int first_k, int end, u32* totals) {
  constexpr int kApart = Tile::kThreads / 8, kOwnRows = Tile::kRows / kApart;
  const int thread = threadIdx.x, lane = thread % 8, first = thread / 8;
  u32 own[kOwnRows];
  const u32* sources[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    own[i] = 0;
    const int row = first_row + first + i * kApart;
    sources[i] = rows.has(row) ? rows.find(row) : nullptr;
  }
  rows.visit_vectors(first_k, end, lane, [&](int offset) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      Vec<u32, 4> words = {};
      if (sources[i]) words = load_vec<4>(sources[i] + offset);
#pragma unroll
      for (int j = 0; j < 4; ++j) own[i] = Multiply::add(words.lanes[j], kOnes, own[i]);
    }
  });
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) own[i] += __shfl_xor_sync(kFullMask, own[i], offset);
    if (lane == 0) totals[first + i * kApart] = own[i];
  }
}

// Four neighbouring columns of a batch: sums of its rows, less b_zero * the sums of those rows, are finished and stored.
// Columns beyond the last read the parameters of the last one, and are not stored. Sums are of bytes of the left operand
// as they lie, or centred.
template <class Y, bool kIsCentred = false>
struct FourColumns {
  const IntegerGemm& gemm;
  const Results<Y>& results;
  int column;
  i64 a_quant, y_quant;
  Y* y;
  u32 terms[4];  // what a_zero multiplies
  float scales[4], added[4];
  u32 left_zero;  // of the row at hand, as all below
  i32 y_zero;
  float factors[4];

  __device__ FourColumns(const IntegerGemm& gemm, const Results<Y>& results, const u32* column_sums, u32 batch, int column)
      : gemm(gemm), results(results), column(column) {
    const i64 b_quant = gemm.find_offset(batch, gemm.b_quant_batch);
    a_quant = gemm.find_offset(batch, gemm.a_quant_batch);
    y_quant = gemm.find_offset(batch, gemm.y_quant_batch);
    y = results.y + gemm.find_offset(batch, gemm.y_batch) + column;
    i32 zeros[4];
    load_column_zeros(zeros, results, gemm, b_quant, column);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int near = column + j < gemm.columns ? column + j : gemm.columns - 1;
      const bool has_left_zero = results.a_zero || (kIsCentred && gemm.a_offset);
      terms[j] = has_left_zero ? column_sums[near] - u32(gemm.depth) * u32(zeros[j]) : 0u;
      scales[j] = load_scale(results.b_scale, b_quant + near * gemm.b_quant_column, gemm.finish.scale_kind);
      added[j] = -0.0f;  // the identity of addition, also for -0
      if constexpr (kIsFloat<Y>) {
        if (results.bias) added[j] = widen(results.bias[near * gemm.bias_column]);
      }
    }
    load_row(0);
  }

  // Rows of one scale and zero point take those of row 0.
  __device__ void load_row(int row) {
    const i64 a_place = a_quant + row * gemm.a_quant_row, y_place = y_quant + row * gemm.y_quant_row;
    left_zero = u32(load_zero(results.a_zero, a_place, gemm.a_offset) + (kIsCentred ? 0 : gemm.a_offset));
    y_zero = load_zero(results.y_zero, y_place, gemm.finish.y_offset);
    const float scale = gemm.finish.alpha * load_scale(results.a_scale, a_place, gemm.finish.scale_kind);
    const float y_scale = load_scale(results.y_scale, y_place, gemm.finish.scale_kind);
#pragma unroll
    for (int j = 0; j < 4; ++j) factors[j] = find_factor<Y>(scale * scales[j], y_scale);
  }

  __device__ void store(int row, const u32 (&sums)[4]) {
    if (gemm.a_quant_row | gemm.y_quant_row) load_row(row);
    Vec<Y, 4> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i32 sum = i32(sums[j] - left_zero * terms[j]);
      if (results.addend && column + j < gemm.columns) {
        sum = wrapping_add(sum, results.addend[row * gemm.addend_row + (column + j) * gemm.addend_column]);
      }
      four.lanes[j] = finish_sum<Y>(sum, factors[j], y_zero, added[j], gemm.finish.y_offset);
    }
    Y* const target = y + row * gemm.y_row;
    if (gemm.has_fours) {
      if (column < gemm.columns) store_vec(target, four);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < gemm.columns) target[j] = four.lanes[j];
    }
  }
};
