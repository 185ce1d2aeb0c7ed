// MatMul and Gemm, texel by texel: each thread multiplies the rows and columns of its elements.
#include "../matmul.cu"
#include "texture.cuh"

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns] by strides; y [..., rows, columns] dense, or
//           its transpose
// Grid      one thread per texel of y
// Needs     c may be absent
// Numerics  half in float, rounded once; integers wrap; k in order, one fma each
template <class T>
__global__ void __launch_bounds__(256) draw_gemm(
    const Texture<T> a, const Texture<T> b, const Texture<T> c, const Surface<T> y, const __grid_constant__ Gemm gemm) {
  typedef Acc<T> A;
  i64 count = gemm.rows * gemm.columns;
  for (int axis = 0; axis < int(gemm.batch_axes); ++axis) count *= gemm.batch_extents[axis];
  draw<T>(y, count, [&](i64 index) {
    const bool is_row_dense = gemm.y_column == 1;
    const i64 inner_extent = is_row_dense ? gemm.columns : gemm.rows;
    const i64 outer_extent = is_row_dense ? gemm.rows : gemm.columns;
    const i64 inner = index % inner_extent;
    i64 batch = index / inner_extent;
    const i64 outer = batch % outer_extent;
    batch /= outer_extent;
    const i64 row = is_row_dense ? outer : inner, column = is_row_dense ? inner : outer;
    i64 left = row * gemm.a_row, right = column * gemm.b_column;
    for (int axis = int(gemm.batch_axes) - 1; axis >= 0; --axis) {
      const i64 at = batch % gemm.batch_extents[axis];
      batch /= gemm.batch_extents[axis];
      left += at * gemm.a_batch[axis];
      right += at * gemm.b_batch[axis];
    }
    A sum = A(0);
    for (i64 k = 0; k < gemm.inner; ++k) {
      sum = multiply_add(widen(a[left + k * gemm.a_inner]), widen(b[right + k * gemm.b_inner]), sum);
    }
    A addend = A(0);
    if (c) addend = widen(c[row * gemm.c_row + column * gemm.c_column]);
    return cast<T>(scale_and_add(gemm, sum, addend, bool(c)));
  });
}
