// MatMul and Gemm: batches of y = alpha * a @ b + beta * c, operands by strides.
#include "gemm_simt.cuh"

constexpr int kMaxBatchAxes = 8;

// Packed by launch_gemm of gpuexec/ops/matmul.py. Strides are in elements; y is dense along its columns.
struct Gemm {
  i64 rows, columns, inner;
  i64 a_row, a_inner, b_inner, b_column, c_row, c_column, y_row;
  double alpha, beta;
  i32 has_c, batch_axes;
  i64 batch_extents[kMaxBatchAxes];
  i64 a_batch[kMaxBatchAxes];
  i64 b_batch[kMaxBatchAxes];
  i64 y_batch[kMaxBatchAxes];
};

// alpha * sum + beta * c as the operator has it: integers go through double only where a factor is not 1.
template <class A>
__device__ inline A scale_and_add(A sum, A c, const Gemm& gemm) {
  bool is_scaled = gemm.alpha != 1.0;
  bool is_c_scaled = gemm.has_c && gemm.beta != 1.0;
  if constexpr (kIsInteger<A>) {
    if (is_scaled || is_c_scaled) {
      double scaled = double(sum) * gemm.alpha;
      return cast<A>(gemm.has_c ? scaled + double(c) * gemm.beta : scaled);
    }
  } else {
    if (is_scaled) sum = sum * A(gemm.alpha);
    if (is_c_scaled) c = c * A(gemm.beta);
  }
  return gemm.has_c ? wrapping_add(sum, c) : sum;
}

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent.
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns] by strides (0 where broadcast), y [..., rows, columns]
// Grid      one block of 256 per 64 x 64 tile: x = (batch * row tiles + row tile) * column tiles + column tile
// Needs     nothing; y dense along columns; c is not read unless has_c
// Numerics  half and bf16 in float, rounded once; k in order, one fma each; integers wrap
template <class T>
__global__ void __launch_bounds__(256, kResidentBlocks<T>) gemm(const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ c,
                                            T* __restrict__ y, Gemm gemm) {
  typedef Acc<T> A;
  i64 column_tiles = (gemm.columns + kTile - 1) / kTile;
  i64 row_tiles = (gemm.rows + kTile - 1) / kTile;
  i64 tile = blockIdx.x;
  i64 first_column = tile % column_tiles * kTile;
  tile /= column_tiles;
  i64 first_row = tile % row_tiles * kTile;
  i64 batch = tile / row_tiles;
  for (int axis = gemm.batch_axes - 1; axis >= 0; --axis) {
    i64 index = batch % gemm.batch_extents[axis];
    batch /= gemm.batch_extents[axis];
    a += index * gemm.a_batch[axis];
    b += index * gemm.b_batch[axis];
    y += index * gemm.y_batch[axis];
  }
  i64 row = first_row + sums_row(threadIdx.x);
  i64 column = first_column + sums_column(threadIdx.x);
  StridedLoader<T> left(a, first_row, gemm.rows, gemm.inner, gemm.a_row, gemm.a_inner, threadIdx.x);
  StridedLoader<T> right(b, first_column, gemm.columns, gemm.inner, gemm.b_column, gemm.b_inner, threadIdx.x);
  A sums[kSums][kSums];
  multiply_tile(left, right, gemm.inner, row < gemm.rows && column < gemm.columns, sums);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (row + i >= gemm.rows || column + j >= gemm.columns) continue;
      A addend = gemm.has_c ? widen(c[(row + i) * gemm.c_row + (column + j) * gemm.c_column]) : A(0);
      y[(row + i) * gemm.y_row + column + j] = cast<T>(scale_and_add(sums[i][j], addend, gemm));
    }
  }
}
