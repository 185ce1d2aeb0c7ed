// Prologues: the left operand of a product of few rows, made by each of its blocks before it multiplies.
//
// Its rows are those of a region of rows, whose text gpuexec/ops/elementwise/row_kernel.py generates, with the teams, the
// order of folds and the arithmetic of rows.cu. A block of a product has fewer threads than kBlockThreads, so that each
// stands in for several: thread t for t, t + Threads and so on. Elements are rounded to their type and stay in shared
// memory: what is multiplied is, to the bit, what a launch of its own would have stored.
#pragma once
#include "row_walk.cuh"

constexpr int kPrologueOperands = 4;  // pointers of a prologue; those that it lacks are null

// Made rows in shared memory: the columns from `first` to in front of `end`, `pitch` elements from a row to the next. Folds
// have kFoldBytes of `scratch` beside them.
constexpr int kFoldBytes = kBlockThreads / kWarpThreads * 16;
template <class T>
struct MadeRows {
  T* rows;
  int first, end, pitch;
  u8* scratch;

  // Keeps an element that a block needs. Teams beyond the last row have no columns.
  __device__ void put(i64 row, i64 column, T value) const {
    if (column >= first && column < end) rows[row * pitch + (column - first)] = value;
  }
};

// Folds what the lanes of all teams of a block of kBlockThreads have, in the order of Team::fold; `partials` are those of the
// threads that a thread stands in for. `scratch` is shared memory of kFoldBytes.
template <class Fold, int Threads, int Own>
__device__ inline void fold_teams(int lanes, u8* scratch, typename Fold::Partial (&partials)[Own]) {
  typedef typename Fold::Partial Partial;
  static_assert(Own * Threads == kBlockThreads && Threads % kWarpThreads == 0, "threads stand in for whole warps");
  static_assert(sizeof(Partial) * (kBlockThreads / kWarpThreads) <= kFoldBytes, "a partial for each warp");
  Partial* const shared = reinterpret_cast<Partial*>(scratch);
  const int width = lanes < kWarpThreads ? lanes : kWarpThreads;
  for (int half = width / 2; half > 0; half /= 2) {
#pragma unroll
    for (int own = 0; own < Own; ++own) {
      partials[own] = Fold::merge(partials[own], shuffle_down(partials[own], half, width));
    }
  }
  if (lanes <= kWarpThreads) {
#pragma unroll
    for (int own = 0; own < Own; ++own) partials[own] = shuffle_first(partials[own], width);
    return;
  }
  constexpr int kStep = Threads / kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads, warps = lanes / kWarpThreads;
  if (threadIdx.x % kWarpThreads == 0) {
#pragma unroll
    for (int own = 0; own < Own; ++own) shared[own * kStep + warp] = partials[own];
  }
  __syncthreads();
#pragma unroll
  for (int own = 0; own < Own; ++own) {
    const int first = (own * kStep + warp) & ~(warps - 1);
    Partial result = shared[first];
    for (int i = 1; i < warps; ++i) result = Fold::merge(result, shared[first + i]);
    partials[own] = result;
  }
  __syncthreads();
}

// Makes all rows of a walk. All Threads threads of the block come here; others see what they made behind the barrier at the
// end.
template <class Made, int Threads, class T, class... Operands>
__device__ inline void make_rows(const typename Made::Walk& walk, const typename Made::Numbers& numbers,
                                 const MadeRows<T>& made, const Operands*... operands) {
  const int teams = kBlockThreads / walk.lanes;
#pragma unroll 1
  for (i64 block = 0; block * teams < walk.rows; ++block) {
    Made::template make<Threads>(walk, numbers, block, made, operands...);
  }
  __syncthreads();
}
