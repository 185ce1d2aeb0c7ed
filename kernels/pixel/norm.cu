// Normalisation of rows, texel by texel: each thread walks the row of its elements.
#include "../nn/norm.cu"
#include "texture.cuh"

// Computes y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each row; mean is 0 unless is_centered.
// Shapes   x, y [rows, columns] dense; scale, bias as `affine` says.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics in float, a row's sums from its first column on, mean before variance, one rounding.
template <class T, class V>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_normalize_rows(
    const Texture<T> x, const Texture<V> scale, const Texture<V> bias, const Surface<V> y, i64 rows, i64 columns, int,
    const __grid_constant__ Affine affine, double epsilon, int is_centered) {
  i64 known = -1;  // the row whose mean and inverse deviation these are
  float center = 0.0f, inverse = 0.0f;
  draw<V>(y, rows * columns, [&](i64 index) {
    const i64 row = index / columns, column = index - row * columns, first = row * columns;
    if (row != known) {
      known = row;
      center = 0.0f;
      for (i64 i = 0; is_centered && i < columns; ++i) center += cast<float>(x[first + i]);
      center /= float(columns);
      float squares = 0.0f;
      for (i64 i = 0; i < columns; ++i) {
        const float distance = cast<float>(x[first + i]) - center;
        squares += distance * distance;
      }
      inverse = 1.0f / root_of(squares / float(columns) + float(epsilon));
    }
    u64 parameters_row;
    affine.row_period.divide(u64(row), parameters_row);
    const i64 place = i64(affine.column_group.divide(u64(column)));
    float result = (cast<float>(x[index]) - center) * inverse;
    result *= cast<float>(scale[i64(parameters_row) * affine.scale_stride + place]);
    if (affine.has_bias) result += cast<float>(bias[i64(parameters_row) * affine.bias_stride + place]);
    return cast<V>(result);
  });
}
