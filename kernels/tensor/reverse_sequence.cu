// ReverseSequence: the beginning of each sequence back to front.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Computes: y[.. t ..] = x[.. lengths[b] - 1 - t ..] where t < lengths[b], else x[.. t ..]; b along the batch axis.
// Shapes: x, y [rows, columns, inner] dense, of `count` elements; time and batch are rows and columns, or the reverse.
// Grid: one thread per element.
// Needs: elements of sizeof(T) bytes.
// Numerics: none, bits are kept; a length beyond the extents counts as the nearest within them.
template <class T>
__global__ void __launch_bounds__(kThreads) reverse_sequence(
    const T* __restrict__ x, const i64* __restrict__ lengths, T* __restrict__ y, i64 count, i64 rows,
    const FastDiv64 columns, const FastDiv64 inner, int is_time_first) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 within, column;
  const u64 row = columns.divide(inner.divide(i, within), column);
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  const i64 time = is_time_first ? row : column, most = is_time_first ? rows : i64(columns.divisor);
  const i64 given = lengths[is_time_first ? column : row], length = given < most ? given : most;
  const i64 step = is_time_first ? i64(columns.divisor * inner.divisor) : i64(inner.divisor);
  y[i] = x[time < length ? i + (length - 1 - 2 * time) * step : i];
}
