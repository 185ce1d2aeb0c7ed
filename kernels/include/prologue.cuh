// Prologues: the left operand of a product of few rows, made by each of its blocks before it multiplies.
//
// Its rows are those of a region of rows, whose text gpuexec/ops/elementwise/row_kernel.py generates, with the teams, the
// order of folds and the arithmetic of rows.cu, by blocks of as many threads. Elements are rounded to their type and stay in
// shared memory: what is multiplied is, to the bit, what a launch of its own would have stored.
#pragma once
#include "row_walk.cuh"

constexpr int kPrologueOperands = 4;  // pointers of a prologue; those that it lacks are null

// Rows one after the other, so many elements apart.
struct RowByRow {
  static __device__ i64 find_place(i64 row, int column, int pitch) { return row * pitch + column; }
};

// Made rows in shared memory: the columns from `first` to in front of `end`, of which an order of memory has `pitch` a row.
template <class T, class Order = RowByRow>
struct MadeRows {
  T* rows;
  int first, end, pitch;

  // Keeps an element of a column that the block needs: text of rows passes over others. Teams beyond the last row have none.
  __device__ void put(i64 row, i64 column, T value) const {
    rows[Order::find_place(row, int(column - first), pitch)] = value;
  }
};

// Makes all rows of a walk. All kBlockThreads threads of the block come here; others see what they made behind the barrier
// at the end.
template <class Made, class T, class Order, class... Operands>
__device__ inline void make_rows(const typename Made::Walk& walk, const typename Made::Numbers& numbers,
                                 const MadeRows<T, Order>& made, const Operands*... operands) {
  const int teams = kBlockThreads / walk.lanes;
#pragma unroll 1
  for (i64 block = 0; block * teams < walk.rows; ++block) {
    const Team team(walk.lanes, 1, int(threadIdx.x), block);
    const typename Made::Place place(walk, team);
    Made::make(walk, numbers, team, place, made, operands...);
  }
  __syncthreads();
}
