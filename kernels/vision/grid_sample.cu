// GridSample: interpolation of a tensor at given positions.
#include "index.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;
constexpr int kAxes = 6;      // spatial axes at most
constexpr int kChannels = 8;  // that a thread goes through, so that a position is read once for all of them

enum SampleMode : i32 { kNearest, kLinear, kCubic };
enum SamplePadding : i32 { kZeros, kBorder, kReflection };
enum GridType : i32 { kHalfGrid, kBf16Grid, kFloatGrid, kDoubleGrid };

// Axis 0 is the outermost. Packed by grid_sample.py.
struct SampleWalk {
  i64 count;  // threads: batch, blocks of channels, positions
  FastDiv64 by_positions, by_blocks;
  i64 channels, batch_stride, channel_stride;
  i32 axes, mode, padding, align_corners, grid_type, unused;
  i32 extents[kAxes];
  i64 strides[kAxes];
};

// Where a position lies along an axis: between elements `base` and `base + 1`.
template <class C>
struct AxisPlace {
  i32 base;
  C fraction;
};

template <class C>
__device__ inline C read_coordinate(const void* grid, i64 index, int type) {
  if (type == kHalfGrid) return cast<C>(static_cast<const half*>(grid)[index]);
  if (type == kBf16Grid) return cast<C>(static_cast<const bf16*>(grid)[index]);
  if (type == kFloatGrid) return cast<C>(static_cast<const float*>(grid)[index]);
  return cast<C>(static_cast<const double*>(grid)[index]);
}

// Maps [-1, 1] to element coordinates, moved into the tensor as the padding says. NaN becomes 0 then; with zero padding,
// coordinates are clamped to a few elements outside of the tensor.
template <class C>
__device__ inline C find_coordinate(C x, i32 extent, const SampleWalk& walk) {
  const C low = walk.align_corners ? C(0) : C(-0.5), high = walk.align_corners ? C(extent - 1) : C(extent) - C(0.5);
  x = walk.align_corners ? (x + C(1)) / C(2) * C(extent - 1) : ((x + C(1)) * C(extent) - C(1)) / C(2);
  if (walk.mode == kNearest) x = rint(x);
  if (walk.padding == kZeros) return x > C(-4) ? (x < C(extent + 4) ? x : C(extent + 4)) : C(-4);
  if (walk.padding == kBorder) {
    if (x < low) return C(0);
    if (x > high) return C(extent - 1);
  } else if (x < low || x > high) {
    const C range = high - low, beyond = x < low ? low - x : x - high;
    const C times = floor(beyond / range), rest = beyond - times * range;
    const bool is_even = times == C(2) * floor(times / C(2));
    x = is_even == (x < low) ? low + rest : high - rest;
  }
  return x >= low && x <= high ? x : C(0);
}

// The element a tap reads, -1 for none.
__device__ inline i32 find_element(i32 at, i32 extent, const SampleWalk& walk) {
  if (at >= 0 && at < extent) return at;
  if (walk.padding == kZeros) return -1;
  if (walk.padding == kBorder) return at < 0 ? 0 : extent - 1;
  const i32 period = walk.align_corners ? 2 * (extent - 1) : 2 * extent;
  if (period == 0) return 0;
  at = remainder_flooring(at, period);
  if (at < extent) return at;
  return walk.align_corners ? period - at : period - 1 - at;
}

// Weight of tap `tap` of 2 or 4 (Keys' cubic with -0.75), at a fraction behind the element before.
template <class W>
__device__ inline W tap_weight(W fraction, int tap, int mode) {
  if (mode == kLinear) return tap == 0 ? W(1) - fraction : fraction;
  const W a = W(-0.75);
  const W x = tap == 0 ? fraction + W(1) : tap == 1 ? fraction : tap == 2 ? W(1) - fraction : W(2) - fraction;
  if (tap == 1 || tap == 2) return ((a + W(2)) * x - (a + W(3))) * x * x + W(1);
  return ((a * x - W(5) * a) * x + W(8) * a) * x - W(4) * a;
}

// Reads the position of a thread. The grid's last axis names the innermost axis first.
template <class C, int Axes>
__device__ inline void find_places(const void* grid, i64 position, const SampleWalk& walk, AxisPlace<C> (&places)[Axes]) {
#pragma unroll
  for (int axis = 0; axis < Axes; ++axis) {
    if (axis >= walk.axes) break;
    const C given = read_coordinate<C>(grid, position * walk.axes + (walk.axes - 1 - axis), walk.grid_type);
    const C x = find_coordinate(given, walk.extents[axis], walk);
    const C before = floor(x);
    places[axis].base = i32(before);
    places[axis].fraction = x - before;
  }
}

// The blend along the axes from `Axis` inwards: the innermost axis is summed first.
template <int Axis, int Axes, class T>
__device__ inline Acc<T> blend(const T* x, i64 offset, const SampleWalk& walk, const AxisPlace<Acc<T>> (&places)[Axes]) {
  if constexpr (Axis == Axes) {
    return widen(x[offset]);
  } else {
    if (Axis >= walk.axes) return widen(x[offset]);
    const int taps = walk.mode == kCubic ? 4 : 2;
    Acc<T> sum = Acc<T>(0);
    for (int tap = 0; tap < taps; ++tap) {
      const i32 at = find_element(places[Axis].base + tap - (taps - 2) / 2, walk.extents[Axis], walk);
      Acc<T> part = Acc<T>(0);
      if (at >= 0) part = blend<Axis + 1, Axes, T>(x, offset + at * walk.strides[Axis], walk, places);
      part = part * tap_weight(places[Axis].fraction, tap, walk.mode);
      sum = tap == 0 ? part : sum + part;
    }
    return sum;
  }
}

// What a thread works on: image n, position p of its grid, channels from `channel` to before `end`.
struct SamplePlace {
  i64 n, position, channel, end;

  __device__ SamplePlace(const SampleWalk& walk, i64 index) {
    u64 p, block;
    n = i64(walk.by_blocks.divide(walk.by_positions.divide(u64(index), p), block));
    position = i64(p);
    channel = i64(block) * kChannels;
    end = channel + kChannels < walk.channels ? channel + kChannels : walk.channels;
  }

  __device__ i64 output(const SampleWalk& walk, i64 c) const {
    return (n * walk.channels + c) * i64(walk.by_positions.divisor) + position;
  }
};

// Computes  y[n, c, p] = the linear or cubic blend of x[n, c] around position grid[n, p]
// Shapes    x [batch, channels, spatial] by strides, grid [batch, positions, axes], y [batch, channels, positions]
// Grid      one thread per position and 8 channels: x = thread / 256
// Needs     grid, y dense; extents of 1 or more; no more spatial axes than `Axes`
// Numerics  in Acc<T>, the position too; the innermost axis first, each product and sum rounded; rounded to T once
template <class T, int Axes>
__global__ void __launch_bounds__(kThreads, 1)
    sample_blend(const T* __restrict__ x, const void* __restrict__ grid, T* __restrict__ y,
                 const __grid_constant__ SampleWalk walk) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= walk.count) return;
  const SamplePlace place(walk, index);
  AxisPlace<Acc<T>> places[Axes];
  find_places(grid, place.n * i64(walk.by_positions.divisor) + place.position, walk, places);
  for (i64 c = place.channel; c < place.end; ++c) {
    const i64 offset = place.n * walk.batch_stride + c * walk.channel_stride;
    y[place.output(walk, c)] = cast<T>(blend<0, Axes, T>(x, offset, walk, places));
  }
}

// Finds the offset of the nearest element; tells whether there is one.
template <class C>
__device__ inline bool find_nearest(const void* grid, i64 position, const SampleWalk& walk, i64& offset) {
  AxisPlace<C> places[kAxes];
  find_places(grid, position, walk, places);
  offset = 0;
  bool is_inside = true;
#pragma unroll
  for (int axis = 0; axis < kAxes; ++axis) {
    if (axis >= walk.axes) break;
    const i32 at = find_element(places[axis].base, walk.extents[axis], walk);
    is_inside = is_inside && at >= 0;
    offset += at * walk.strides[axis];
  }
  return is_inside;
}

// Computes  y[n, c, p] = the element of x[n, c] nearest to position grid[n, p], zero beyond x where padding is zeros
// Shapes    as sample_blend
// Grid      as sample_blend
// Needs     grid, y dense; extents of 1 or more; elements move as bits of their width
// Numerics  exact; positions in float (double for a double grid), half way goes to the even element
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    sample_nearest(const T* __restrict__ x, const void* __restrict__ grid, T* __restrict__ y,
                   const __grid_constant__ SampleWalk walk) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= walk.count) return;
  const SamplePlace place(walk, index);
  const i64 position = place.n * i64(walk.by_positions.divisor) + place.position;
  i64 offset;
  const bool is_inside = walk.grid_type == kDoubleGrid ? find_nearest<double>(grid, position, walk, offset)
                                                       : find_nearest<float>(grid, position, walk, offset);
  for (i64 c = place.channel; c < place.end; ++c) {
    const i64 plane = place.n * walk.batch_stride + c * walk.channel_stride;
    y[place.output(walk, c)] = is_inside ? x[plane + offset] : T(0);
  }
}
