// MatMul and Gemm, texel by texel: each thread multiplies the rows and columns of its elements.
#include "../linalg/matmul.cu"
#include "narrow.cuh"

// The work of a thread of a product, for any form of the right operand; `steps` are those of its scales.
template <class T, class Right>
__device__ inline void multiply_texel(const Texture<T>& a, const Right& b, const Texture<T>& c, const Surface<T>& y,
                                      const Gemm& gemm, const ScaleSteps& steps) {
  typedef Acc<T> A;
  i64 count = gemm.rows * gemm.columns;
  for (int axis = 0; axis < int(gemm.batch_axes); ++axis) count *= gemm.batch_extents[axis];
  draw<T>(y, count, [&](i64 index) {
    // y is dense, its axes in any order: a stride is what lies within.
    const auto place = [&](i64 extent, i64 stride) { return extent == 1 ? 0 : index / stride % extent; };
    const i64 row = place(gemm.rows, gemm.y_row), column = place(gemm.columns, gemm.y_column);
    i64 left = row * gemm.a_row, right = column * gemm.b_column;
    for (int axis = 0; axis < int(gemm.batch_axes); ++axis) {
      const i64 at = place(gemm.batch_extents[axis], gemm.y_batch[axis]);
      left += at * gemm.a_batch[axis];
      right += at * gemm.b_batch[axis];
    }
    A sum = A(0);
    for (i64 k = 0; k < gemm.inner; ++k) {
      const A value = b.at(right + k * gemm.b_inner, column * steps.column + k * steps.inner);
      sum = multiply_add(widen(a[left + k * gemm.a_inner]), value, sum);
    }
    A addend = A(0);
    if (c) addend = widen(c[row * gemm.c_row + column * gemm.c_column]);
    return cast<T>(scale_and_add(gemm, sum, addend, bool(c)));
  });
}

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns] by strides; y dense, its axes in any
//           order
// Grid      one thread per texel of y
// Needs     c may be absent
// Numerics  half in float, rounded once; integers wrap; k in order, one fma each
template <class T>
__global__ void __launch_bounds__(256) draw_gemm(
    const Texture<T> a, const Texture<T> b, const Texture<T> c, const Surface<T> y, const __grid_constant__ Gemm gemm) {
  multiply_texel<T>(a, PlainTexels<T>{b}, c, y, gemm, {0, 0});
}

// Computes  what gemm_narrow computes
// Shapes    as draw_gemm; scale and zero by the strides of `steps`
// Grid      one thread per texel of y
// Needs     c, scale (of half weights) and zero may be absent
// Numerics  as draw_gemm of the widened b, bit for bit
template <class T, class W>
__global__ void __launch_bounds__(256) draw_gemm_narrow(
    const Texture<T> a, const Texture<W> b, const Texture<T> c, const Surface<T> y, const __grid_constant__ Gemm gemm,
    const Texture<T> scale, const Texture<i8> zero, const ScaleSteps steps) {
  multiply_texel<T>(a, NarrowTexels<T, W>{b, scale, zero}, c, y, gemm, steps);
}
