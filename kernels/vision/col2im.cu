// Col2Im: columns of blocks summed where they overlap in an image.
#include "index.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;
constexpr int kAxes = 6;  // spatial axes at most

// Axis 0 is the outermost of those in use. Packed by col2im.py.
struct BlockWalk {
  i64 count;                  // elements of the image
  FastDiv64 by_channels;
  FastDiv64 by_extents[kAxes];  // of the image
  i64 taps, blocks;             // of a block, and how many
  i64 strides_of_columns[3];    // batch, channel and tap, block
  i32 axes, unused;
  i32 kernel[kAxes], strides[kAxes], dilations[kAxes], begins[kAxes], counts[kAxes];
};

// The sum over the taps that reach an element, axes from `Axis` on; `tap` and `block` so far, row-major.
template <int Axis, class T>
__device__ inline Acc<T> add_taps(const T* columns, const BlockWalk& walk, const i32 (&at)[kAxes], i64 tap, i64 block) {
  if constexpr (Axis == kAxes) {
    return widen(columns[tap * walk.strides_of_columns[1] + block * walk.strides_of_columns[2]]);
  } else {
    if (Axis >= walk.axes) return widen(columns[tap * walk.strides_of_columns[1] + block * walk.strides_of_columns[2]]);
    Acc<T> sum = Acc<T>(0);
    for (i32 t = 0; t < walk.kernel[Axis]; ++t) {
      const i32 behind = at[Axis] + walk.begins[Axis] - t * walk.dilations[Axis];
      if (behind < 0) break;
      const i32 own = behind / walk.strides[Axis];
      if (own * walk.strides[Axis] != behind || own >= walk.counts[Axis]) continue;
      const Acc<T> part =
          add_taps<Axis + 1, T>(columns, walk, at, tap * walk.kernel[Axis] + t, block * walk.counts[Axis] + own);
      sum = wrapping_add(sum, part);
    }
    return sum;
  }
}

// Computes  y[n, c, p] = sum over blocks b and taps t that lie at p of x[n, c * taps + t, b]
// Shapes    x [batch, channels * taps, blocks] by strides, y [batch, channels, spatial] dense
// Grid      one thread per element of y: x = element / 256
// Needs     nothing
// Numerics  in Acc<T>, by the axes from the outermost, taps ascending; rounded once; integers wrap, bool is or
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    columns_to_image(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ BlockWalk walk) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= walk.count) return;
  u64 rest = u64(index), coordinate, channel;
  i32 at[kAxes];
#pragma unroll
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    if (axis >= walk.axes) continue;
    rest = walk.by_extents[axis].divide(rest, coordinate);
    at[axis] = i32(coordinate);
  }
  const i64 n = i64(walk.by_channels.divide(rest, channel));
  const T* const columns = x + n * walk.strides_of_columns[0] + i64(channel) * walk.taps * walk.strides_of_columns[1];
  y[index] = cast<T>(add_taps<0, T>(columns, walk, at, 0, 0));
}
