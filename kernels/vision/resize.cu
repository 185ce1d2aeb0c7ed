// Resize by tables: each output element reads the input positions that its row of every axis names.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"

constexpr int kLevels = 4;  // axes that change, outermost first

// Packed by Resize.lower of gpuexec/ops/vision/resize.py. Axis 0 is the innermost.
struct ResizeWalk {
  i64 count;
  i32 rank, levels;
  FastDiv64 extents[kMaxRank];
  i64 strides[kMaxRank];   // of the input
  i32 level_of[kMaxRank];  // -1: the axis does not change
  i64 level_strides[kLevels];
  i32 taps[kLevels];
  i32 tables[kLevels];  // where a level's table begins
};

// Where an output element reads: a base offset and, by level, the row of its table.
struct ResizePlace {
  i64 base;
  int rows[kLevels];

  __device__ ResizePlace(const ResizeWalk& walk, i64 index) : base(0) {
#pragma unroll
    for (int level = 0; level < kLevels; ++level) rows[level] = 0;
    u64 rest = u64(index);
    for (int axis = 0; axis < walk.rank; ++axis) {
      u64 coordinate;
      rest = walk.extents[axis].divide(rest, coordinate);
      if (walk.level_of[axis] < 0) base += i64(coordinate) * walk.strides[axis];
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        if (walk.level_of[axis] == level) rows[level] = walk.tables[level] + int(coordinate) * walk.taps[level];
      }
    }
  }

  // Whether the coordinate lies outside the input along some axis.
  __device__ bool is_outside(const ResizeWalk& walk, const i32* positions) const {
    bool outside = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) outside |= level < walk.levels && positions[rows[level]] < 0;
    return outside;
  }
};

// Computes  y = x at one position along each axis, or fill where a position is -1
// Shapes    x by strides, y dense; positions: a table [extent of y, 1] per level, one after the other
// Grid      one thread per output: x = output / 256
// Needs     nothing; elements move as bits of their width
// Numerics  exact
template <class T>
__global__ void __launch_bounds__(256, 1)
    resize_nearest(const T* __restrict__ x, const i32* __restrict__ positions, T* __restrict__ y, ResizeWalk walk,
                   T fill) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (index >= walk.count) return;
  ResizePlace place(walk, index);
  i64 offset = place.base;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (level < walk.levels) offset += positions[place.rows[level]] * walk.level_strides[level];
  }
  y[index] = place.is_outside(walk, positions) ? fill : x[offset];
}

// The type that elements are blended in.
template <class T>
using Weight = typename Select<kIsInteger<T>, double, Acc<T>>::type;

// Blends along the axes from `Level` inwards: the innermost axis is summed first.
template <int Level, class T, class W>
__device__ inline W blend(const T* x, i64 offset, const i32* positions, const W* weights, const ResizeWalk& walk,
                          const ResizePlace& place) {
  if constexpr (Level == kLevels) {
    return cast<W>(x[offset]);
  } else {
    if (Level >= walk.levels) return cast<W>(x[offset]);
    W sum = W(0);
    for (int tap = 0; tap < walk.taps[Level]; ++tap) {
      int row = place.rows[Level] + tap;
      i64 shifted = offset + positions[row] * walk.level_strides[Level];
      W part = blend<Level + 1>(x, shifted, positions, weights, walk, place) * weights[row];
      sum = tap == 0 ? part : sum + part;
    }
    return sum;
  }
}

// Integers round to nearest even and saturate; NaN gives 0.
template <class T, class W>
__device__ inline T round_blend(W value) {
  if constexpr (!kIsInteger<T>) {
    return cast<T>(value);
  } else {
    W rounded = rint(value);
    if (rounded != rounded) return T(0);
    if (rounded <= W(limits<T>::lowest())) return limits<T>::lowest();
    return rounded >= W(limits<T>::max()) ? limits<T>::max() : cast<T>(rounded);
  }
}

// Computes  y = the weighted sum of x at the positions along each axis, or fill where a position is -1
// Shapes    x by strides, y dense; positions and weights: a table [extent of y, taps] per level, one after the other
// Grid      one thread per output: x = output / 256
// Needs     nothing
// Numerics  float for half, bf16 and float, double for double and integers; products and sums rounded apart, taps in
//           order, the innermost axis first; rounded once
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    resize_blend(const T* __restrict__ x, const i32* __restrict__ positions,
                 const Weight<T>* __restrict__ weights, Stored<T, Epilogue...>* __restrict__ y,
                 ResizeWalk walk, double fill, Epilogue... epilogue) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (index >= walk.count) return;
  ResizePlace place(walk, index);
  const T made = place.is_outside(walk, positions)
                     ? round_blend<T>(fill)
                     : round_blend<T>(blend<0, T, Weight<T>>(x, place.base, positions, weights, walk, place));
  store_made(finish_by<T>(epilogue...), y, index, made);
}
