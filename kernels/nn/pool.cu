// Pooling over one to three spatial axes: the largest, the mean, the p-norm of each window.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "safe.cuh"
#include "windows.cuh"

struct PoolSizes {
  FastDiv64 by_windows;  // of one channel
  FastDiv64 by_channels;
  i64 batch;
  i64 is_channels_last;  // of outputs
};

// The window a thread works on: its image and channel, and where its tap 0 lies. False where there is none.
struct Place {
  i64 plane;  // batch * channels + channel
  i64 source;
  int start[3];

  __device__ bool find(const Windows& windows, const WindowStrides& strides, const PoolSizes& sizes, i64 index) {
    u64 position;
    u64 channel;
    i64 n;
    if (sizes.is_channels_last) {
      n = i64(sizes.by_windows.divide(sizes.by_channels.divide(u64(index), channel), position));
      plane = n * i64(sizes.by_channels.divisor) + i64(channel);
    } else {
      plane = i64(sizes.by_windows.divide(u64(index), position));
      n = i64(sizes.by_channels.divide(u64(plane), channel));
    }
    if (n >= sizes.batch) return false;
    split_index(u32(position), windows.by_counts, start);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) start[axis] = windows.start(start[axis], axis);
    source = n * strides.batch + i64(channel) * strides.channel;
    return true;
  }

  // Visits the taps that lie inside the input, in row-major order, by their positions along the three axes.
  template <class Visit>
  __device__ void visit_taps(const Windows& windows, Visit visit) const {
    for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
      int p0 = start[0] + t0 * windows.dilations[0];
      if (!windows.is_inside(p0, 0)) continue;
      for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
        int p1 = start[1] + t1 * windows.dilations[1];
        if (!windows.is_inside(p1, 1)) continue;
        for (int t2 = 0; t2 < windows.kernel[2]; ++t2) {
          int p2 = start[2] + t2 * windows.dilations[2];
          if (windows.is_inside(p2, 2)) visit(p0, p1, p2);
        }
      }
    }
  }
};

// Computes  y = the largest x of each window, indices = where it lies in the whole input (row-major, or with a
//           column-major spatial part); lowest and -1 for a window of padding alone
// Shapes    x [batch, channels, spatial] by strides, y and indices [batch, channels, windows] dense, channels last where
//           sizes say so
// Grid      one thread per window: x = window / 256
// Needs     nothing; indices may be null
// Numerics  exact; the first of equal values stays, a NaN wins and the first NaN stays; then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    max_pool(const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, i64* __restrict__ indices, Windows windows,
             WindowStrides strides, PoolSizes sizes, int is_column_major, Epilogue... epilogue) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Place place;
  const bool is_window = place.find(windows, strides, sizes, index);
  wait_for_predecessors();
  launch_dependents();
  if (!is_window) return;
  T best = limits<T>::lowest();
  Acc<T> best_wide = widen(best);
  int where = -1;
  place.visit_taps(windows, [&](int p0, int p1, int p2) {
    T value = x[place.source + strides.offset(p0, p1, p2)];
    Acc<T> wide = widen(value);
    if (where >= 0 && !(wide > best_wide) && !(wide != wide && best_wide == best_wide)) return;
    best = value;
    best_wide = wide;
    int e1 = windows.extents[1];
    where = is_column_major ? p0 + windows.extents[0] * (p1 + e1 * p2) : (p0 * e1 + p1) * windows.extents[2] + p2;
  });
  store_made(finish_by<T>(epilogue...), y, index, best);
  if (indices) {
    i64 positions = i64(windows.extents[0]) * windows.extents[1] * windows.extents[2];
    indices[index] = where < 0 ? -1 : place.plane * positions + where;
  }
}

// Computes  y = the mean of each window over its taps inside x, or inside x and its padding if counts_padding
// Shapes    x [batch, channels, spatial] by strides, y [batch, channels, windows] dense, channels last where sizes say so
// Grid      one thread per window: x = window / 256
// Needs     nothing
// Numerics  taps in row-major order, half and bf16 in float, one division, rounded once; NaN for a window without a
//           tap; then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    average_pool(const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, Windows windows, WindowStrides strides,
                 PoolSizes sizes, int counts_padding, Epilogue... epilogue) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Place place;
  const bool is_window = place.find(windows, strides, sizes, index);
  wait_for_predecessors();
  launch_dependents();
  if (!is_window) return;
  int divisor = 1;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    int low = counts_padding ? -windows.begins[axis] : 0;
    int high = windows.extents[axis] + (counts_padding ? windows.ends[axis] : 0);
    int taps = 0;
    for (int t = 0; t < windows.kernel[axis]; ++t) {
      int p = place.start[axis] + t * windows.dilations[axis];
      taps += p >= low && p < high;
    }
    divisor *= taps;
  }
  Acc<T> sum = Acc<T>(0);
  place.visit_taps(windows, [&](int p0, int p1, int p2) {
    sum += widen(x[place.source + strides.offset(p0, p1, p2)]);
  });
  store_made(finish_by<T>(epilogue...), y, index, cast<T>(sum / Acc<T>(divisor)));
}

__device__ inline float raise_to(float x, float exponent) { return powf(x, exponent); }
__device__ inline double raise_to(double x, double exponent) { return pow(x, exponent); }
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

// Computes  y = (sum of |x| ** p over the taps inside x) ** (1 / p) of each window
// Shapes    x [batch, channels, spatial] by strides, y [batch, channels, windows] dense, channels last where sizes say so
// Grid      one thread per window: x = window / 256
// Needs     p of at least 1
// Numerics  taps in row-major order, half and bf16 in float, rounded once; exact powers and roots for p = 1 and 2;
//           then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    lp_pool(const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, Windows windows, WindowStrides strides,
            PoolSizes sizes, int p, Epilogue... epilogue) {
  typedef Acc<T> A;
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Place place;
  const bool is_window = place.find(windows, strides, sizes, index);
  wait_for_predecessors();
  launch_dependents();
  if (!is_window) return;
  A sum = A(0);
  place.visit_taps(windows, [&](int p0, int p1, int p2) {
    A value = widen(x[place.source + strides.offset(p0, p1, p2)]);
    value = value < A(0) ? -value : value;
    sum += p == 1 ? value : p == 2 ? value * value : raise_to(value, A(p));
  });
  const A root = p == 1 ? sum : p == 2 ? square_root(sum) : raise_to(sum, A(1.0 / p));
  store_made(finish_by<T>(epilogue...), y, index, cast<T>(root));
}
