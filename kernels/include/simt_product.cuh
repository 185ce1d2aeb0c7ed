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

  // Moves both operands to a batch of them.
  template <class A, class B>
  __device__ void advance(u32 batch, const A*& a, const B*& b) const {
#pragma unroll 1
    for (int axis = batch_axes - 1; axis >= 0; --axis) {
      const u32 extent = batch_extents[axis], at = batch % extent;
      a += at * a_batch[axis];
      b += at * b_batch[axis];
      batch /= extent;
    }
  }
};

// Stores four sums of a row, of neighbouring columns: those that are inside. `start` is the offset of the batch in y, and in c
// where that HasBatches, too.
template <bool HasBatches = false, class R, class Y, class Finish>
__device__ inline void store_four(const SimtGemm& gemm, const R* c, Y* y, i64 start, int row, int column,
                                  const float (&sums)[4], const Finish& finish) {
  const int inside = row < gemm.rows ? gemm.columns - column : 0;
  const i64 places[1] = {start + row * gemm.y_row + column * gemm.y_column};
  const i64 addend = (HasBatches ? start : 0) + row * gemm.c_row + column * gemm.c_column;
  const bool has_addend = Finish::kHasAddend && c;
  float values[1][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[0][i] = sums[i] * gemm.alpha;
    if (has_addend && i < inside) values[0][i] += widen(c[addend + i * gemm.c_column]) * gemm.beta;
  }
  finish.many(values, places, {inside < 4 ? inside : 4}, gemm.y_column);
  Y* const target = y + places[0];
  if ((gemm.wide & kWideY) && inside >= 4) {
    store_vec(target, Vec<Y, 4>{{cast<Y>(values[0][0]), cast<Y>(values[0][1]), cast<Y>(values[0][2]), cast<Y>(values[0][3])}});
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < inside) target[i * gemm.y_column] = cast<Y>(values[0][i]);
  }
}
