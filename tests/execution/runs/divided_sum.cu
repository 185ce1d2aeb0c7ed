#include "types.cuh"

// Computes: y[row] = the sum of a row's parts, each part summed first; kTag tells two instances apart.
// Shapes: x [rows, columns] dense; y [rows].
// Grid: one thread per row.
// Needs: nothing.
// Numerics: in float, in the order of columns within a part, then in the order of parts.
template <int kTag>
__global__ void __launch_bounds__(32) divided_sum(
    const float* __restrict__ x, float* __restrict__ y, i64 rows, i64 columns, i64 parts) {
  const i64 row = i64(blockIdx.x) * 32 + threadIdx.x;
  if (row >= rows) return;
  const i64 length = (columns + parts - 1) / parts;
  float sum = 0;
  for (i64 part = 0; part < parts; ++part) {
    float partial = 0;
    const i64 end = (part + 1) * length < columns ? (part + 1) * length : columns;
    for (i64 column = part * length; column < end; ++column) partial += x[row * columns + column];
    sum += partial;
  }
  y[row] = sum;
}
