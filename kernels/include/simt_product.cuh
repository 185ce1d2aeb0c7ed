// The struct of products of float on the FP32 units, and how their sums are scaled, finished and stored.
#pragma once
#include "epilogue.cuh"
#include "vec.cuh"

constexpr int kMaxBatchAxes = 8;

// Operands that are read, and results that are stored, four elements at a time; and of simt_gemm_narrow, whether b is
// dense along the inner extent then, not along columns.
enum Wide : i32 { kWideA = 1, kWideB = 2, kWideY = 4, kLinesB = 8 };

// Packed by pack_simt of gpuexec/ops/linalg/product.py. Strides are in elements.
struct SimtGemm {
  i32 rows, columns, inner, batch_axes;
  i64 a_row, a_inner, b_inner, b_column, c_row, c_column, y_row, y_column;
  float alpha, beta;
  i32 wide;  // of Wide
  i32 lanes;  // of gemv_along_columns: those that are neighbours along the columns; of gemv_along_k: warps of a column
  i32 batch_extents[kMaxBatchAxes];
  i64 a_batch[kMaxBatchAxes];
  i64 b_batch[kMaxBatchAxes];
  i64 y_batch[kMaxBatchAxes];

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
};

// Stores four sums of a row, of neighbouring columns: those that are inside. `start` is the offset of the batch in y.
template <class Y, class Finish>
__device__ inline void store_four(const SimtGemm& gemm, const float* c, Y* y, i64 start, int row, int column,
                                  const float (&sums)[4], const Finish& finish) {
  const i64 places[1] = {start + row * gemm.y_row + column * gemm.y_column};
  float values[1][4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    values[0][j] = sums[j] * gemm.alpha;
    if (c && column + j < gemm.columns) values[0][j] += c[row * gemm.c_row + (column + j) * gemm.c_column] * gemm.beta;
  }
  const int inside = gemm.columns - column;
  finish.many(values, places, {inside < 4 ? inside : 4}, gemm.y_column);
  Y* const target = y + places[0];
  if (gemm.wide & kWideY) {
    if (column < gemm.columns) {
      store_vec(target, Vec<Y, 4>{{cast<Y>(values[0][0]), cast<Y>(values[0][1]), cast<Y>(values[0][2]), cast<Y>(values[0][3])}});
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (column + j < gemm.columns) target[j * gemm.y_column] = cast<Y>(values[0][j]);
  }
}
