// Row regions, texel by texel: each thread walks the rows that it has elements of, or reads what another blit made of them.
#include "row_walk.cuh"
#include "texture.cuh"

// The texel of this thread: which elements of y it has, and where it lies.
template <class T>
struct OwnTexel {
  static constexpr int kLanes = kTexelBytes / sizeof(T);
  i64 begin;     // the element of its lane 0; from the count on where it is none of y's
  int from, to;  // lanes
  u32 column, row;
  Texel texel;

  __device__ OwnTexel(const Surface<T>& y, i64 count) {
    const i64 thread = i64(blockIdx.x) * kDrawThreads + threadIdx.x;
    begin = thread * kLanes - i64(y.first % kTexelBytes / sizeof(T));
    const u64 place = y.first / kTexelBytes + u64(thread);
    column = u32(place % kTexelsPerRow);
    row = u32(place / kTexelsPerRow);
    from = begin < 0 ? int(-begin) : 0;
    to = count - begin < kLanes ? int(count - begin) : kLanes;
  }
};

// The row that a thread works on.
template <class Offset>
struct DrawnRow {
  Offset row;

  template <class Walk>
  __device__ DrawnRow(const Walk&, i64 row) : row(Offset(row)) {}
};

// Elements of one row that a texel has, by their place among these.
template <class T>
struct DrawnElements {
  Texel& texel;
  int first;

  __device__ void put(int place, T value) const { texel.put(first + place, value); }
};

// Computes: a result of Region with an element for each of a row. gpuexec/ops/elementwise/row_blits.py generates it.
// Shapes: operands [rows, columns] by strides that are 0 or come with the walk; y [rows, columns] dense.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: those of the blits of the operators: a row's folds from its first column on.
template <class Region, class Y, class... Inputs>
__global__ void __launch_bounds__(256, 1) draw_rows(
    const Surface<Y> y, const __grid_constant__ typename Region::Walk walk,
    const __grid_constant__ typename Region::Numbers numbers, Texture<Inputs>... inputs) {
  const i64 count = i64(walk.rows) * walk.columns;
  OwnTexel<Y> own(y, count);
  if (own.begin >= count) return;
  for (int lane = own.from; lane < own.to;) {
    const i64 element = own.begin + lane, row = element / walk.columns, first = element - row * walk.columns;
    const i64 left = own.to - lane, end = first + left < walk.columns ? first + left : i64(walk.columns);
    Region::draw(walk, numbers, row, first, end, DrawnElements<Y>{own.texel, lane}, inputs...);
    lane += int(end - first);
  }
  write<Y>(y.object(), own.column, own.row, own.texel, own.from, own.to);
}

// Computes: a result of Region with an element for each row.
// Shapes: as draw_rows; y [rows] dense.
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: as draw_rows.
template <class Region, class Y, class... Inputs>
__global__ void __launch_bounds__(256, 1) draw_row_values(
    const Surface<Y> y, const __grid_constant__ typename Region::Walk walk,
    const __grid_constant__ typename Region::Numbers numbers, Texture<Inputs>... inputs) {
  draw<Y>(y, walk.rows, [&](i64 row) { return Region::find(walk, numbers, row, inputs...); });
}

// Computes: what other blits of Region read of each row: its values, side by side in one texel.
// Shapes: as draw_rows; kept [rows, 4].
// Grid: one thread per row.
// Needs: kept begins with a texel.
// Numerics: as draw_rows; values are kept as they are computed with.
template <class Region, class... Inputs>
__global__ void __launch_bounds__(256, 1) draw_kept_values(
    const Surface<u32> kept, const __grid_constant__ typename Region::Walk walk,
    const __grid_constant__ typename Region::Numbers numbers, Texture<Inputs>... inputs) {
  OwnTexel<u32> own(kept, 4 * i64(walk.rows));
  if (own.begin >= 4 * i64(walk.rows)) return;
  Region::keep(walk, numbers, own.begin / 4, own.texel, inputs...);
  write<u32>(kept.object(), own.column, own.row, own.texel, 0, 4);
}
