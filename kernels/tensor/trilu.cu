// Trilu: the upper or lower triangle of each matrix of a batch.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Computes: y[..., i, j] = x[..., i, j] where j - i >= *k (is_upper) or j - i <= *k, else 0.
// Shapes: x, y [..., rows, columns]; x of any strides, y dense; k one element, or null for 0.
// Grid: one thread per element of y.
// Needs: elements of sizeof(T) bytes; y may be x.
// Numerics: none, bits are kept; zero is all bits 0.
template <class T>
__global__ void __launch_bounds__(kThreads) trilu(
    const T* x, const i64* __restrict__ k, T* y, const __grid_constant__ Strided<kMaxRank, 2> walk,
    const FastDiv64 rows, const FastDiv64 columns, i32 is_upper) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 column, row;
  rows.divide(columns.divide(i, column), row);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  const i64 distance = i64(column) - i64(row), diagonal = k ? *k : 0;
  i64 offsets[2];
  walk.locate(i, offsets);
  y[i] = (is_upper ? distance >= diagonal : distance <= diagonal) ? x[offsets[0]] : T(0);
}
