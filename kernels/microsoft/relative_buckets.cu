// Relative position buckets of T5, which index a table of biases.
#include "types.cuh"

constexpr int kThreads = 256;

// Computes y[i, j] = table[distance j - i, held within what the table covers].
// Shapes   table [2 * farthest + 1] from -farthest on, y [rows, columns] dense.
// Grid     one thread per element.
// Needs    nothing of alignment.
// Numerics exact.
__global__ void __launch_bounds__(kThreads) relative_buckets(
    const i32* __restrict__ table, i32* __restrict__ y, i64 rows, i64 columns, i64 farthest) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= rows * columns) return;
  i64 distance = index % columns - index / columns;
  if (distance > farthest) distance = farthest;
  if (distance < -farthest) distance = -farthest;
  y[index] = table[distance + farthest];
}
