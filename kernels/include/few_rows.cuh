// Blocks of products of few rows: which columns and rows they make, and how slices are added up and results stored.
#pragma once
#include "grid.cuh"
#include "simt_product.cuh"

// The batch, columns and rows of a block: x = batch * column blocks + column block, z = row block. Without slices,
// `number` tells blocks apart.
struct FewRowsPlace {
  u32 batch, number;
  int first_column, first_row;

  __device__ FewRowsPlace(const SimtGemm& gemm, int block_columns, int block_rows, u32 block = blockIdx.x) {
    const u32 column_blocks = (u32(gemm.columns) + block_columns - 1) / block_columns;
    batch = block / column_blocks;
    number = blockIdx.z * gridDim.x + block;
    first_column = int(block - batch * column_blocks) * block_columns;
    first_row = int(blockIdx.z) * block_rows;
  }

  // A row of the left operand; beyond the last one, the last.
  template <class A>
  __device__ const A* find_row(const A* a, int row, const SimtGemm& gemm) const {
    const int inside = first_row + row < gemm.rows ? first_row + row : gemm.rows - 1;
    return a + inside * gemm.a_row;
  }
};

// Adds the slices up and stores; `value` holds the sums of four neighbouring columns of a row of the block, which leaves
// `floats` sums in `scratch`: four of each of its first threads. All threads come here, those that have none too.
template <class R, class Y, class Finish>
__device__ inline void finish_few_rows(float (&value)[4], bool has_value, int row, int column, int floats,
                                       const FewRowsPlace& place, const SimtGemm& gemm, const R* c, Y* y,
                                       float* scratch, unsigned* counters, const Finish& finish) {
  const int thread = threadIdx.x, slices = gridDim.y;
  if (slices > 1) {
    float* const own = scratch + i64(place.number) * slices * floats + 4 * thread;
    if (has_value) {
      Vec<float, 4> four;
#pragma unroll
      for (int j = 0; j < 4; ++j) four.lanes[j] = value[j];
      store_vec(own + blockIdx.y * floats, four);
    }
    if (!last_block(counters + place.number, unsigned(slices))) return;
    if (has_value) {
#pragma unroll 4
      for (int slice = 0; slice < slices; ++slice) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(own + slice * floats));
        const float parts[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) value[j] = slice == 0 ? parts[j] : value[j] + parts[j];
      }
    }
  }
  if (!has_value) return;
  store_four(gemm, c, y, gemm.find_offset(place.batch, gemm.y_batch), place.first_row + row, column, value, finish);
}
