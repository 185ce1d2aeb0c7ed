// Feature operators of ai.onnx.ml: scaling, imputing, thresholds, concatenation, one-hot categories.
#include "index.cuh"
#include "reduce.cuh"

constexpr int kThreads = 256;

// Computes: y = (x - offset) * scale, rounded to float; both by column, or one for all.
// Shapes: x, y [count / columns, columns] dense; offsets, scales [columns], or of one element if their stride is 0.
// Grid: one thread per element.
// Needs: nothing of alignment.
// Numerics: in T, one rounding.
template <class T>
__global__ void __launch_bounds__(kThreads) scale_features(
    const T* __restrict__ x, const T* __restrict__ offsets, const T* __restrict__ scales, float* __restrict__ y, i64 count,
    const FastDiv64 columns, int offset_stride, int scale_stride) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 column;
  columns.divide(u64(i), column);
  y[i] = cast<float>((x[i] - offsets[column * offset_stride]) * scales[column * scale_stride]);
}

// Computes: y = x, but the column's value where x is `replaced` (any NaN, if that is one).
// Shapes: x, y [count / columns, columns] dense; values [columns], or of one element if their stride is 0.
// Grid: one thread per element.
// Needs: nothing of alignment.
// Numerics: none.
template <class T>
__global__ void __launch_bounds__(kThreads) impute_features(
    const T* __restrict__ x, const T* __restrict__ values, T* __restrict__ y, i64 count, const FastDiv64 columns, T replaced,
    int stride) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 column;
  columns.divide(u64(i), column);
  const T value = x[i];
  const bool is_replaced = value == replaced || (value != value && replaced != replaced);
  y[i] = is_replaced ? values[column * stride] : value;
}

// Computes: y = 1 where x > threshold, else 0.
// Shapes: x, y [count] dense.
// Grid: one thread per element.
// Needs: nothing of alignment.
// Numerics: none.
template <class T>
__global__ void __launch_bounds__(kThreads) binarize(const T* __restrict__ x, T* __restrict__ y, i64 count, T threshold) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = x[i] > threshold ? T(1) : T(0);
}

enum Norm { kLargest, kSum, kLength };

// Computes: y = x / norm of its row: the largest element, the sum of magnitudes, or the root of the sum of squares; x where
//   the norm is 0.
// Shapes: x, y [rows, columns] dense.
// Grid: 256 / lanes rows per block.
// Needs: nothing of alignment.
// Numerics: in float.
__global__ void __launch_bounds__(kBlockThreads) normalize_features(
    const float* __restrict__ x, float* __restrict__ y, i64 rows, i64 columns, int lanes, int lane_stride, int norm) {
  __shared__ float shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const i64 end = team.row < rows ? columns : 0, start = end > 0 ? team.row * columns : 0;
  float total = norm == kLargest ? limits<float>::negative_inf() : 0.0f;
  for (i64 column = team.lane; column < end; column += lanes) {
    const float value = x[start + column];
    if (norm == kLargest) total = greater_of(total, value);
    else total += norm == kSum ? magnitude_of(value) : value * value;
  }
  total = norm == kLargest ? team.fold(total, shared, greater_of<float>) : team.fold(total, shared, add<float>);
  const float divisor = norm == kLength ? root_of(total) : total;
  for (i64 column = team.lane; column < end; column += lanes) {
    const float value = x[start + column];
    y[start + column] = divisor == 0.0f ? value : value / divisor;
  }
}

// Computes: y[r, first + c] = x[r, c], and 0 where x has no such column.
// Shapes: x [rows, given], y [rows, columns], dense; `taken` columns of y are written.
// Grid: one thread per element written.
// Needs: nothing of alignment.
// Numerics: none.
__global__ void __launch_bounds__(kThreads) place_features(
    const float* __restrict__ x, float* y, i64 count, const FastDiv64 taken, i64 given, i64 columns, i64 first) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 column;
  const u64 row = taken.divide(u64(i), column);
  y[row * columns + first + column] = i64(column) < given ? x[row * given + column] : 0.0f;
}

// Computes: y[i, c] = 1 where x[i] is category c, the last of its name, else 0.
// Shapes: x [count / categories], names, is_last [categories], y [count], dense.
// Grid: one thread per element of y.
// Needs: nothing of alignment.
// Numerics: none.
__global__ void __launch_bounds__(kThreads) mark_category(
    const i64* __restrict__ x, const i64* __restrict__ names, const bool* __restrict__ is_last, float* __restrict__ y,
    i64 count, const FastDiv64 categories) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 category;
  const u64 element = categories.divide(u64(i), category);
  y[i] = x[element] == names[category] && is_last[category] ? 1.0f : 0.0f;
}
