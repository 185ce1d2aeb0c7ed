// Integer matrix products: batches of sums of (a - a_zero) * (b - b_zero), kept, scaled, or requantised.
#include "dependent_launch.cuh"
#include "integer_tile.cuh"

constexpr int kMaxBatchAxes = 8;
constexpr int kFewRows = 4;     // up to here a block makes 8 columns instead of a tile
constexpr int kFewColumns = 8;
constexpr int kFolds = 32;      // partial sums of one element: of words w, w + 32, w + 64, ...

// Packed by launch_integer_gemm of gpuexec/ops/quant/integer_matmul.py. Strides are in elements; `quant` ones are those of scale
// and zero point, 0 along what they don't vary over.
struct IntegerGemm {
  i64 rows, columns, inner;
  i64 a_row, a_inner, b_inner, b_column, y_row;
  i64 a_quant_row, b_quant_column, y_quant_row;
  i64 addend_row, addend_column, bias_column;
  i32 a_offset, b_offset;  // 128 for unsigned bytes
  i64 batch_axes;
  i64 batch_extents[kMaxBatchAxes];
  i64 a_batch[kMaxBatchAxes];
  i64 b_batch[kMaxBatchAxes];
  i64 y_batch[kMaxBatchAxes];
  i64 a_quant_batch[kMaxBatchAxes];
  i64 b_quant_batch[kMaxBatchAxes];
  i64 y_quant_batch[kMaxBatchAxes];
};

// Where the matrices of a block begin: operands, result, and their scales and zero points.
struct Batch {
  i64 a, b, y, a_quant, b_quant, y_quant;

  __device__ Batch(const IntegerGemm& gemm, i64 batch) : a(0), b(0), y(0), a_quant(0), b_quant(0), y_quant(0) {
    for (int axis = int(gemm.batch_axes) - 1; axis >= 0; --axis) {
      i64 index = batch % gemm.batch_extents[axis];
      batch /= gemm.batch_extents[axis];
      a += index * gemm.a_batch[axis];
      b += index * gemm.b_batch[axis];
      y += index * gemm.y_batch[axis];
      a_quant += index * gemm.a_quant_batch[axis];
      b_quant += index * gemm.b_quant_batch[axis];
      y_quant += index * gemm.y_quant_batch[axis];
    }
  }
};

// Conversion of the sum of an element to the result; pointers may be null as the kernel says.
template <class Y>
struct Results {
  const u8 *a_scale, *b_scale, *y_scale, *y_zero;
  const i32* addend;
  const Y* bias;
  Y* y;
  Finish finish;

  // Scales and zero points of a row or a column.
  __device__ float row_scale(const IntegerGemm& gemm, const Batch& at, i64 row) const {
    return finish.alpha * load_scale(a_scale, at.a_quant + row * gemm.a_quant_row, finish.scale_kind);
  }
  __device__ float column_scale(const IntegerGemm& gemm, const Batch& at, i64 column) const {
    return load_scale(b_scale, at.b_quant + column * gemm.b_quant_column, finish.scale_kind);
  }
  __device__ float result_scale(const IntegerGemm& gemm, const Batch& at, i64 row) const {
    return load_scale(y_scale, at.y_quant + row * gemm.y_quant_row, finish.scale_kind);
  }
  __device__ i32 result_zero(const IntegerGemm& gemm, const Batch& at, i64 row) const {
    return load_zero(y_zero, at.y_quant + row * gemm.y_quant_row, finish.y_offset);
  }

  __device__ void store(const IntegerGemm& gemm, const Batch& at, i64 row, i64 column, i32 sum, float scale,
                        float result_scale, i32 result_zero) const {
    if (addend) sum = wrapping_add(sum, addend[row * gemm.addend_row + column * gemm.addend_column]);
    float added = -0.0f;  // the identity of addition, also for -0
    if constexpr (kIsFloat<Y>) added = bias ? widen(bias[column * gemm.bias_column]) : -0.0f;
    y[at.y + row * gemm.y_row + column] = finish_sum<Y>(sum, scale, result_scale, result_zero, added, finish.y_offset);
  }
};

// Up to kFewRows rows and kFewColumns columns: 32 threads share a column. Neighbouring threads are neighbours along the
// inner extent where a column lies dense in it, else along the columns.
template <class Y>
__device__ inline void multiply_few_rows(const u8* a, const u8* b, const u8* a_zero, const u8* b_zero,
                                         const Results<Y>& results, const IntegerGemm& gemm, const Batch& at,
                                         i64 first_column) {
  __shared__ u32 partial[kFolds][kFewRows * kFewColumns + 1];
  int thread = threadIdx.x;
  int column = gemm.b_inner == 1 ? thread / kFolds : thread % kFewColumns;
  int fold = gemm.b_inner == 1 ? thread % kFolds : thread / kFewColumns;
  bool is_a_aligned = is_word_aligned(a, gemm.a_row, gemm.a_inner);
  bool is_b_aligned = is_word_aligned(b, gemm.b_column, gemm.b_inner);
  u32 sums[kFewRows], row_sums[kFewRows], column_sum = 0;
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) sums[row] = row_sums[row] = 0;
  const bool is_column = first_column + column < gemm.columns;
  if (is_column) {
    const u8* b_column = b + (first_column + column) * gemm.b_column;
    for (i64 k = fold * kWordBytes; k < gemm.inner; k += kFolds * kWordBytes) {
      u32 value = load_word(b_column + k * gemm.b_inner, gemm.b_inner, gemm.inner - k, flip_of(gemm.b_offset), is_b_aligned);
      column_sum = multiply_add_bytes(value, kOnes, column_sum);
#pragma unroll
      for (int row = 0; row < kFewRows; ++row) {
        if (row >= gemm.rows) continue;
        u32 word = load_word(a + row * gemm.a_row + k * gemm.a_inner, gemm.a_inner, gemm.inner - k,
                             flip_of(gemm.a_offset), is_a_aligned);
        sums[row] = multiply_add_bytes(word, value, sums[row]);
        row_sums[row] = multiply_add_bytes(word, kOnes, row_sums[row]);
      }
    }
  }
  u32 right = is_column ? u32(load_zero(b_zero, at.b_quant + (first_column + column) * gemm.b_quant_column, gemm.b_offset)) : 0;
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) {
    u32 left = row < gemm.rows ? u32(load_zero(a_zero, at.a_quant + row * gemm.a_quant_row, gemm.a_offset)) : 0;
    u32 whole = fold == 0 ? u32(gemm.inner) * left * right : 0;
    partial[fold][row * kFewColumns + column] = sums[row] - left * column_sum - right * row_sums[row] + whole;
  }
  __syncthreads();
  if (thread >= kFewRows * kFewColumns) return;
  u32 sum = partial[0][thread];
  for (int i = 1; i < kFolds; ++i) sum += partial[i][thread];
  i64 row = thread / kFewColumns, own = first_column + thread % kFewColumns;
  if (row >= gemm.rows || own >= gemm.columns) return;
  float scale = results.row_scale(gemm, at, row) * results.column_scale(gemm, at, own);
  results.store(gemm, at, row, own, i32(sum), scale, results.result_scale(gemm, at, row), results.result_zero(gemm, at, row));
}

// Computes  sums of (a - a_zero) * (b - b_zero), plus addend; then y = sum, y = alpha * a_scale * b_scale * sum + bias, or
//           y = round(alpha * a_scale * b_scale / y_scale * sum) + y_zero, as Y is i32, a float or u8
// Shapes    a [..., rows, inner], b [..., inner, columns], y [..., rows, columns], addend [rows, columns], bias [columns],
//           scales and zero points of a and y by rows, of b by columns, all by strides; y dense along its columns
// Grid      one block of 256 per 64 x 64 tile, or per 8 columns where there are at most 4 rows:
//           x = (batch * row tiles + row tile) * column tiles + column tile
// Needs     any of zero points, scales, addend and bias may be null
// Numerics  sums modulo 2^32; scaling in float, each operation rounded; halves to even; saturates; half rounded once
template <class Y>
__global__ void __launch_bounds__(256, 2)
    integer_gemm(const u8* __restrict__ a, const u8* __restrict__ b, const u8* __restrict__ a_zero,
                 const u8* __restrict__ b_zero, Y* __restrict__ y, const __grid_constant__ IntegerGemm gemm,
                 const u8* __restrict__ a_scale, const u8* __restrict__ b_scale, const u8* __restrict__ y_scale,
                 const u8* __restrict__ y_zero, const i32* __restrict__ addend, const Y* __restrict__ bias,
                 const Finish finish) {
  bool has_few_rows = gemm.rows <= kFewRows;
  const TilePlace place(gemm.rows, gemm.columns, has_few_rows ? kFewColumns : kTile);
  i64 first_row = place.first_row, first_column = place.first_column;
  const Batch at(gemm, place.outer);
  const Results<Y> results = {a_scale, b_scale, y_scale, y_zero, addend, bias, y, finish};
  wait_for_predecessors();
  launch_dependents();
  if (has_few_rows) {
    multiply_few_rows(a + at.a, b + at.b, a_zero, b_zero, results, gemm, at, first_column);
    return;
  }
  MatrixLoader left(a + at.a, first_row, gemm.rows, gemm.inner, gemm.a_row, gemm.a_inner, gemm.a_offset, threadIdx.x);
  MatrixLoader right(b + at.b, first_column, gemm.columns, gemm.inner, gemm.b_column, gemm.b_inner, gemm.b_offset,
                     threadIdx.x);
  i64 row = first_row + sums_row(threadIdx.x);
  i64 column = first_column + sums_column(threadIdx.x);
  bool is_needed = row < gemm.rows && column < gemm.columns;
  ByteSums sums;
  multiply_bytes(left, right, gemm.inner, is_needed, b_zero || gemm.b_offset, a_zero || gemm.a_offset, sums);
  if (!is_needed) return;
  i32 left_zeros[kSums], right_zeros[kSums];
  float column_scales[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    // Rows and columns beyond the last read the parameters of the last one, and are not stored.
    i64 near_row = row + i < gemm.rows ? row + i : gemm.rows - 1;
    i64 near_column = column + i < gemm.columns ? column + i : gemm.columns - 1;
    left_zeros[i] = load_zero(a_zero, at.a_quant + near_row * gemm.a_quant_row, gemm.a_offset);
    right_zeros[i] = load_zero(b_zero, at.b_quant + near_column * gemm.b_quant_column, gemm.b_offset);
    column_scales[i] = results.column_scale(gemm, at, near_column);
  }
  sums.take_off(left_zeros, right_zeros, gemm.inner);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (row + i >= gemm.rows) break;
    float row_scale = results.row_scale(gemm, at, row + i), result_scale = results.result_scale(gemm, at, row + i);
    i32 result_zero = results.result_zero(gemm, at, row + i);
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (column + j >= gemm.columns) break;
      results.store(gemm, at, row + i, column + j, i32(sums.products[i][j]), row_scale * column_scales[j], result_scale,
                    result_zero);
    }
  }
}
