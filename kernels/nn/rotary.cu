// Rotary position embedding: pairs of elements of a row, rotated by an angle of the row's position.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Packed by gpuexec/ops/nn/rotary.py. Strides in elements.
struct Rotation {
  FastDiv64 width;                                // work items of a row: its pairs, then elements that are not turned
  i64 count;                                      // work items of all rows
  i64 pairs;
  i64 x_stride, cos_stride, sin_stride;           // from an element of a row to the next
  i64 cos_row_stride, sin_row_stride, positions;  // rows of the tables that positions pick
  i64 is_interleaved;                             // a pair is elements 2j and 2j + 1, else j and j + pairs
};

// Computes y1 = x1 * cos - x2 * sin and y2 = x1 * sin + x2 * cos for each pair of a row; elements beyond are copied.
// Shapes   x, y [batch, heads, rows, size], y dense along rows; cos, sin [batch, rows, pairs], or [n, pairs] picked by
//          positions [batch, rows]; all walked as `walk` says: x, cos, sin, positions, y.
// Grid     one thread per pair or element.
// Needs    x may be y: a thread reads what it writes.
// Numerics in float, each product and sum rounded, one rounding to T. A position out of range reads zeros.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate(
    const T* x, const T* __restrict__ cosines, const T* __restrict__ sines, const i64* __restrict__ positions, T* y,
    Strided<kMaxRank, 5> walk, Rotation rotation) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 item;
  i64 offsets[5];
  walk.locate(rotation.width.divide(index, item), offsets);
  wait_for_predecessors();
  launch_dependents();
  if (index >= rotation.count) return;
  x += offsets[0];
  y += offsets[4];
  const i64 at = i64(item);
  if (at >= rotation.pairs) {
    y[at + rotation.pairs] = x[(at + rotation.pairs) * rotation.x_stride];
    return;
  }
  bool is_within = true;
  if (positions != nullptr) {
    i64 position = positions[offsets[3]];
    if (position < 0) position += rotation.positions;
    is_within = position >= 0 && position < rotation.positions;
    if (is_within) {
      cosines += position * rotation.cos_row_stride;
      sines += position * rotation.sin_row_stride;
    }
  }
  const float c = is_within ? widen(cosines[offsets[1] + at * rotation.cos_stride]) : 0.0f;
  const float s = is_within ? widen(sines[offsets[2] + at * rotation.sin_stride]) : 0.0f;
  const i64 first = rotation.is_interleaved ? 2 * at : at;
  const i64 second = rotation.is_interleaved ? first + 1 : at + rotation.pairs;
  const float x1 = widen(x[first * rotation.x_stride]), x2 = widen(x[second * rotation.x_stride]);
  y[first] = cast<T>(c * x1 - s * x2);
  y[second] = cast<T>(s * x1 + c * x2);
}
