// Resize by tables: each output element reads the input positions that its row of every axis names.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "vec.cuh"

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

constexpr int kUnit = 8;         // elements of a thread
constexpr int kImageLevels = 3;  // axes that change, outermost first

// Axes that change in front of neighbours that don't. Packed by Resize.lower of gpuexec/ops/vision/resize.py.
struct ResizedUnits {
  i32 units, levels;
  i32 span;            // threads, a power of two, that share as many units by vectors side by side
  i32 outer_stride;    // of the input, along what is in front of the axes that change
  FastDiv32 by_units;  // of a place along these axes
  FastDiv32 extents[kImageLevels];
  i32 strides[kImageLevels], taps[kImageLevels];
  i32 tables[kImageLevels];  // where a level's table begins
};

// Blends the elements of a unit as `blend` does each of them, by the rows of tables; false where it is outside of the input.
// Taps: of every level; 0: as the launch says. A: float, or T where there is one tap, which is taken as it is.
template <int Levels, int Taps, class T, class A>
struct UnitBlend {
  const T* x;
  const i32* positions;
  const float* weights;
  const ResizedUnits& sizes;
  int rows[Levels];

  __device__ UnitBlend(const T* x, const i32* positions, const float* weights, const ResizedUnits& sizes)
      : x(x), positions(positions), weights(weights), sizes(sizes) {}

  // From element `first` of the unit on at a place of y.
  __device__ bool run(A (&sums)[kUnit], u32 place, int first) {
#pragma unroll
    for (int level = Levels - 1; level >= 0; --level) {
      u32 coordinate;
      place = sizes.extents[level].divide(place, coordinate);
      rows[level] = sizes.tables[level] + int(coordinate) * (Taps > 0 ? Taps : sizes.taps[level]);
    }
    bool is_outside = false;
#pragma unroll
    for (int level = 0; level < Levels; ++level) is_outside |= positions[rows[level]] < 0;
    if (!is_outside) visit<0>(sums, int(place) * sizes.outer_stride + first);
    return !is_outside;
  }

 private:
  template <int Level>
  __device__ void visit(A (&sums)[kUnit], int offset) const {
    if constexpr (Level == Levels) {
      read(sums, offset);
    } else if constexpr (Taps == 1) {
      visit<Level + 1>(sums, offset + positions[rows[Level]] * sizes.strides[Level]);
    } else if constexpr (Taps > 0) {
#pragma unroll
      for (int tap = 0; tap < Taps; ++tap) take<Level>(sums, offset, tap);
    } else {
#pragma unroll 1
      for (int tap = 0; tap < sizes.taps[Level]; ++tap) take<Level>(sums, offset, tap);
    }
  }

  template <int Level>
  __device__ void take(A (&sums)[kUnit], int offset, int tap) const {
    const int row = rows[Level] + tap;
    const float weight = weights[row];
    A parts[kUnit];
    visit<Level + 1>(parts, offset + positions[row] * sizes.strides[Level]);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float part = parts[i] * weight;
      sums[i] = tap == 0 ? part : sums[i] + part;
    }
  }

  __device__ void read(A (&values)[kUnit], int offset) const {
    constexpr int kVector = 16 / int(sizeof(T));
#pragma unroll
    for (int begin = 0; begin < kUnit; begin += kVector) {
      const Vec<T, kVector> vector = load_vec<kVector>(x + u32(offset + begin * sizes.span));
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[begin + i] = cast<A>(vector.lanes[i]);
    }
  }
};

// Computes  y = the weighted sum of x at the positions along each axis, or x at one of them, or fill, as the kernels above
// Shapes    x [outer, ..., inner] by strides that are 1 along inner, y dense in that order; between them up to three axes
//           that change. positions, weights: as above; no weights where not IsBlended
// Grid      one thread per unit of eight elements of y, one or two vectors: x = unit / 256
// Needs     inner and the strides multiples of 8; x and y aligned to 16 bytes; less than 2^31 elements
// Numerics  as the kernels above, bit for bit; then the epilogue
template <class T, bool IsBlended, class... Epilogue>
__global__ void __launch_bounds__(256, 3)
    resize_units(const T* __restrict__ x, const i32* __restrict__ positions, const float* __restrict__ weights,
                 Stored<T, Epilogue...>* __restrict__ y, ResizedUnits sizes, double fill, Epilogue... epilogue) {
  typedef Stored<T, Epilogue...> Y;
  const i32 index = i32(blockIdx.x) * 256 + i32(threadIdx.x);
  wait_for_predecessors();
  launch_dependents();
  if (index >= sizes.units) return;
  constexpr int kVector = 16 / int(sizeof(T));
  u32 unit;
  const u32 place = sizes.by_units.divide(u32(index), unit);
  const int in_span = int(unit) & (sizes.span - 1), own = in_span * (kVector - kUnit);
  const int in_place = int(unit) * kUnit + own;  // the first element
  typedef typename Select<IsBlended, float, T>::type A;
  A sums[kUnit];
  const auto run = [&](auto blend) { return blend.run(sums, place, in_place); };
  bool is_inside;
  if constexpr (!IsBlended) {
    is_inside = sizes.levels == 1   ? run(UnitBlend<1, 1, T, A>(x, positions, weights, sizes))
                : sizes.levels == 2 ? run(UnitBlend<2, 1, T, A>(x, positions, weights, sizes))
                                    : run(UnitBlend<3, 1, T, A>(x, positions, weights, sizes));
  } else {
    const bool is_linear = sizes.levels == 2 && sizes.taps[0] == 2 && sizes.taps[1] == 2;
    is_inside = is_linear           ? run(UnitBlend<2, 2, T, A>(x, positions, weights, sizes))
                : sizes.levels == 1 ? run(UnitBlend<1, 0, T, A>(x, positions, weights, sizes))
                : sizes.levels == 2 ? run(UnitBlend<2, 0, T, A>(x, positions, weights, sizes))
                                    : run(UnitBlend<3, 0, T, A>(x, positions, weights, sizes));
  }
  T made[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) made[i] = is_inside ? cast<T>(sums[i]) : cast<T>(fill);
  const auto finish = finish_by<T>(epilogue...);
  const i64 first = i64(index) * kUnit + own;
  Y stored[kUnit];
  if constexpr (sizeof...(Epilogue) == 0) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) stored[i] = made[i];
  } else {
    float values[kUnit / 4][4];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) values[i / 4][i % 4] = widen(made[i]);
    finish.many(values, {first, first + 4 * (kVector == 4 ? sizes.span : 1)}, {4, 4});
#pragma unroll
    for (int i = 0; i < kUnit; ++i) stored[i] = cast<Y>(values[i / 4][i % 4]);
  }
#pragma unroll
  for (int begin = 0; begin < kUnit; begin += kVector) {
    Vec<Y, kVector> vector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) vector.lanes[i] = stored[begin + i];
    store_vec(y + finish.where(first + begin * sizes.span), vector);
  }
}
