// AffineGrid: a grid of sampling positions from an affine matrix.
#include "index.cuh"

constexpr int kThreads = 256;

// Axis 0 is the innermost. Packed by affine_grid.py.
struct GridShape {
  i64 count;           // elements of the grid
  FastDiv64 by_axes;   // 2 or 3
  FastDiv64 extents[3];
  i32 axes, align_corners;
};

// Where an element lies between -1 and 1; the only one of an axis lies in the middle.
template <class A>
__device__ inline A element_position(i64 at, i64 extent, int align_corners) {
  const i64 last = align_corners ? extent - 1 : extent;
  return last == 0 ? A(0) : A(2 * at - (extent - 1)) / A(last);
}

// Computes  y[n, p, k] = sum over axes j of theta[n, k, j] * (position of p along j) + theta[n, k, axes]; axes are
//           named from the innermost
// Shapes    theta [batch, axes, axes + 1], y [batch, extents, axes] dense
// Grid      one thread per element of y: x = element / 256
// Needs     theta dense
// Numerics  in Acc<T>: positions rounded once, products and sums rounded apart, j ascending; rounded to T once
template <class T>
__global__ void __launch_bounds__(kThreads)
    affine_grid(const T* __restrict__ theta, T* __restrict__ y, const __grid_constant__ GridShape shape) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= shape.count) return;
  u64 row, at;
  u64 rest = shape.by_axes.divide(u64(index), row);
  A positions[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    rest = shape.extents[axis].divide(rest, at);
    positions[axis] = element_position<A>(i64(at), i64(shape.extents[axis].divisor), shape.align_corners);
  }
  const T* matrix = theta + (i64(rest) * shape.axes + i64(row)) * (shape.axes + 1);
  A sum = widen(matrix[0]) * positions[0] + widen(matrix[1]) * positions[1];
  if (shape.axes == 3) sum = sum + widen(matrix[2]) * positions[2];
  y[index] = cast<T>(sum + widen(matrix[shape.axes]));
}
