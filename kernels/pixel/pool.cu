// Pooling, texel by texel.
#include "../nn/pool.cu"
#include "texture.cuh"

__device__ inline i64 count_windows(const PoolSizes& sizes) {
  return sizes.batch * i64(sizes.by_channels.divisor) * i64(sizes.by_windows.divisor);
}

// The largest element of a window and its place within the channel, -1 in a window of padding alone.
template <class T>
struct Largest {
  T value;
  int where;

  __device__ Largest(const Texture<T>& x, const Place& place, const Windows& windows, const WindowStrides& strides,
                     bool is_column_major)
      : value(limits<T>::lowest()), where(-1) {
    place.visit_taps(windows, [&](int p0, int p1, int p2) {
      const T next = x[place.source + strides.offset(p0, p1, p2)];
      const Acc<T> wide = widen(next), held = widen(value);
      if (where >= 0 && !(wide > held) && !(wide != wide && held == held)) return;
      value = next;
      const int e1 = windows.extents[1];
      where = is_column_major ? p0 + windows.extents[0] * (p1 + e1 * p2) : (p0 * e1 + p1) * windows.extents[2] + p2;
    });
  }
};

// Computes  y = the largest x of each window; lowest for a window of padding alone
// Shapes    x [batch, channels, spatial] by strides, y [batch, channels, windows] dense
// Grid      one thread per texel of y
// Needs     nothing; indices are absent
// Numerics  as max_pool, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_max_pool(
    const Texture<T> x, const Surface<T> y, const Surface<i64>, const __grid_constant__ Windows windows,
    const WindowStrides strides, const PoolSizes sizes, int) {
  draw<T>(y, count_windows(sizes), [&](i64 index) {
    Place place;
    place.find(windows, strides, sizes, index);
    return Largest<T>(x, place, windows, strides, false).value;
  });
}

// Computes  indices = where the largest x of each window lies in the whole input; -1 for a window of padding alone
// Shapes    x [batch, channels, spatial] by strides, indices [batch, channels, windows] dense
// Grid      one thread per texel of indices
// Needs     nothing; y is absent
// Numerics  as max_pool
template <class T>
__global__ void __launch_bounds__(256, 1) draw_max_pool_places(
    const Texture<T> x, const Surface<T>, const Surface<i64> indices, const __grid_constant__ Windows windows,
    const WindowStrides strides, const PoolSizes sizes, int is_column_major) {
  draw<i64>(indices, count_windows(sizes), [&](i64 index) {
    Place place;
    place.find(windows, strides, sizes, index);
    const i64 where = Largest<T>(x, place, windows, strides, is_column_major).where;
    const i64 positions = i64(windows.extents[0]) * windows.extents[1] * windows.extents[2];
    return where < 0 ? -1 : place.plane * positions + where;
  });
}

// Computes  y = the mean of each window over its taps inside x, or inside x and its padding if counts_padding
// Shapes    x [batch, channels, spatial] by strides, y [batch, channels, windows] dense
// Grid      one thread per texel of y
// Needs     nothing
// Numerics  as average_pool, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_average_pool(
    const Texture<T> x, const Surface<T> y, const __grid_constant__ Windows windows, const WindowStrides strides,
    const PoolSizes sizes, int counts_padding) {
  draw<T>(y, count_windows(sizes), [&](i64 index) {
    Place place;
    place.find(windows, strides, sizes, index);
    int divisor = 1;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int low = counts_padding ? -windows.begins[axis] : 0;
      const int high = windows.extents[axis] + (counts_padding ? windows.ends[axis] : 0);
      int taps = 0;
      for (int t = 0; t < windows.kernel[axis]; ++t) {
        const int p = place.start[axis] + t * windows.dilations[axis];
        taps += p >= low && p < high;
      }
      divisor *= taps;
    }
    Acc<T> sum = Acc<T>(0);
    place.visit_taps(windows, [&](int p0, int p1, int p2) {
      sum += widen(x[place.source + strides.offset(p0, p1, p2)]);
    });
    return cast<T>(sum / Acc<T>(divisor));
  });
}

// Computes  y = (sum of |x| ** p over the taps inside x) ** (1 / p) of each window
// Shapes    x [batch, channels, spatial] by strides, y [batch, channels, windows] dense
// Grid      one thread per texel of y
// Needs     p of at least 1
// Numerics  as lp_pool, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_lp_pool(
    const Texture<T> x, const Surface<T> y, const __grid_constant__ Windows windows, const WindowStrides strides,
    const PoolSizes sizes, int p) {
  typedef Acc<T> A;
  draw<T>(y, count_windows(sizes), [&](i64 index) {
    Place place;
    place.find(windows, strides, sizes, index);
    A sum = A(0);
    place.visit_taps(windows, [&](int p0, int p1, int p2) {
      A value = widen(x[place.source + strides.offset(p0, p1, p2)]);
      value = value < A(0) ? -value : value;
      sum += p == 1 ? value : p == 2 ? value * value : raise_to(value, A(p));
    });
    return cast<T>(p == 1 ? sum : p == 2 ? square_root(sum) : raise_to(sum, A(1.0 / p)));
  });
}
