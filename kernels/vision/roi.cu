// RoiAlign, which averages samples between elements, and MaxRoiPool, which takes maxima, in bins of image regions.
#include "index.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;

// Packed by roi.py.
struct RoiSizes {
  i64 count;  // elements of the output
  FastDiv64 by_width, by_height, by_channels;  // of the output: bins of a row, rows, channels
  i64 batch, height, width;                    // of the input
  i64 strides[4];
};

// The bin a thread makes.
struct Bin {
  i64 roi, channel, row, column;

  __device__ Bin(const RoiSizes& sizes, i64 index) {
    u64 c, y, x;
    u64 rest = sizes.by_width.divide(u64(index), x);
    rest = sizes.by_height.divide(rest, y);
    roi = i64(sizes.by_channels.divide(rest, c));
    channel = i64(c);
    row = i64(y);
    column = i64(x);
  }
};

// The samples of a bin along one axis: `count` of them, of which only those from `first` to before `end` are visited. Only
// samples outside of the image are left out, and two of these stay, so that a maximum sees their 0.
template <class A>
struct Samples {
  A start, bin_size;  // of the bin: where it begins, and its extent
  i64 count, first, end;

  __device__ Samples(A from, A to, i64 bin, i64 bins, i64 extent, int ratio, int is_half_pixel) {
    A size = to - from;
    if (!is_half_pixel) size = size > A(1) ? size : A(1);
    bin_size = size / A(bins);
    start = from + A(bin) * bin_size;
    count = ratio > 0 ? ratio : truncate_to_i64(ceil(size / A(bins)));
    count = count > 0 ? count : 0;
    const A pitch = bin_size / A(count > 0 ? count : 1);
    const A below = (A(-1) - start) / pitch - A(2), above = (A(extent) - start) / pitch + A(2);
    const i64 lower = truncate_to_i64(pitch > A(0) ? below : A(0)), upper = truncate_to_i64(above);
    first = lower > 0 ? (lower < count ? lower : count) : 0;
    end = pitch > A(0) && upper < count ? (upper > first ? upper : first) : count;
    if (pitch != pitch || start != start) end = first;
  }

  __device__ A at(i64 i) const { return start + (A(i) + A(0.5)) * bin_size / A(count); }
};

// Two neighbours along an axis, and their weights. False outside of the image.
template <class A>
struct Neighbours {
  int low, high;
  A low_weight, high_weight;

  __device__ bool find(A x, int extent) {
    if (!(x >= A(-1) && x <= A(extent))) return false;
    x = x > A(0) ? x : A(0);
    low = int(x);
    high = low + 1;
    if (low >= extent - 1) {
      low = high = extent - 1;
      x = A(low);
    }
    high_weight = x - A(low);
    low_weight = A(1) - high_weight;
    return true;
  }
};

// Computes  y[r, c, i, j] = the mean, or the maximum, over samples in bin (i, j) of region r: of the four weighed
//           neighbours their sum (mean), or the greatest (maximum); 0 for a sample beyond the image
// Shapes    x [batch, channels, height, width] by strides, rois [regions, 4] = (x, y, x end, y end),
//           batch_indices [regions], y [regions, channels, rows, columns]
// Grid      one thread per bin and channel: x = bin / 256
// Needs     rois, batch_indices, y dense; an image that is not there reads as 0
// Numerics  in Acc<T>, samples row by row, each product and sum rounded; rounded to T once; a NaN wins a maximum
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    roi_align(const T* __restrict__ x, const T* __restrict__ rois, const i64* __restrict__ batch_indices,
              T* __restrict__ y, const __grid_constant__ RoiSizes sizes, double scale, int ratio, int is_half_pixel,
              int takes_max) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= sizes.count) return;
  const Bin bin(sizes, index);
  const i64 image = batch_indices[bin.roi];
  if (image < 0 || image >= sizes.batch || sizes.height == 0 || sizes.width == 0) {
    y[index] = cast<T>(A(0));
    return;
  }
  const A offset = is_half_pixel ? A(0.5) : A(0);
  A sides[4];
#pragma unroll
  for (int side = 0; side < 4; ++side) sides[side] = widen(rois[4 * bin.roi + side]) * A(scale) - offset;
  const i64 bin_rows = i64(sizes.by_height.divisor), bin_columns = i64(sizes.by_width.divisor);
  const Samples<A> rows(sides[1], sides[3], bin.row, bin_rows, sizes.height, ratio, is_half_pixel);
  const Samples<A> columns(sides[0], sides[2], bin.column, bin_columns, sizes.width, ratio, is_half_pixel);
  const T* const plane = x + image * sizes.strides[0] + bin.channel * sizes.strides[1];
  A result = A(0);
  bool is_first = true;
  for (i64 i = rows.first; i < rows.end; ++i) {
    Neighbours<A> v;
    const bool is_row_inside = v.find(rows.at(i), int(sizes.height));
    for (i64 j = columns.first; j < columns.end; ++j) {
      Neighbours<A> h;
      A sample = A(0);
      if (is_row_inside && h.find(columns.at(j), int(sizes.width))) {
        const T* const low = plane + v.low * sizes.strides[2];
        const T* const high = plane + v.high * sizes.strides[2];
        const i64 left = h.low * sizes.strides[3], right = h.high * sizes.strides[3];
        const A a = v.low_weight * h.low_weight * widen(low[left]), b = v.low_weight * h.high_weight * widen(low[right]);
        const A c = v.high_weight * h.low_weight * widen(high[left]), d = v.high_weight * h.high_weight * widen(high[right]);
        sample = takes_max ? max_keeping_nan(max_keeping_nan(a, b), max_keeping_nan(c, d)) : a + b + c + d;
      }
      if (!takes_max) result = result + sample;
      else result = is_first ? sample : max_keeping_nan(sample, result);
      is_first = false;
    }
  }
  const A count = A(rows.count) * A(columns.count);
  if (!takes_max && count > A(0)) result = result / count;
  y[index] = cast<T>(result);
}

// To the nearest integer, half way from zero, within 2^30 either way; NaN gives 0.
template <class A>
__device__ inline i64 round_coordinate(A x) {
  const A limit = A(1 << 30);
  x = x < limit ? (x > -limit ? x : -limit) : x == x ? limit : A(0);
  const A whole = trunc(x);
  return i64(whole) + (x - whole >= A(0.5) ? 1 : 0) - (whole - x >= A(0.5) ? 1 : 0);
}

// Computes  y[r, c, i, j] = the largest x of bin (i, j) of region r, 0 where the bin has no element
// Shapes    x [batch, channels, height, width] by strides, rois [regions, 5] = (image, x, y, x end, y end),
//           y [regions, channels, rows, columns]
// Grid      one thread per bin and channel: x = bin / 256
// Needs     rois, y dense; an image that is not there reads as 0
// Numerics  bounds in Acc<T>; the maximum is exact, a NaN wins
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    max_roi_pool(const T* __restrict__ x, const T* __restrict__ rois, T* __restrict__ y,
                 const __grid_constant__ RoiSizes sizes, double scale) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= sizes.count) return;
  const Bin bin(sizes, index);
  const T* const roi = rois + 5 * bin.roi;
  const i64 image = truncate_to_i64(widen(roi[0]));
  i64 first[2], end[2];
#pragma unroll
  for (int axis = 0; axis < 2; ++axis) {  // rows, then columns
    const i64 from = round_coordinate(widen(roi[2 - axis]) * A(scale)), to = round_coordinate(widen(roi[4 - axis]) * A(scale));
    const i64 size = to - from + 1 > 1 ? to - from + 1 : 1, at = axis == 0 ? bin.row : bin.column;
    const i64 bins = i64(axis == 0 ? sizes.by_height.divisor : sizes.by_width.divisor);
    const i64 extent = axis == 0 ? sizes.height : sizes.width;
    const A pitch = A(size) / A(bins);
    const i64 low = i64(floor(A(at) * pitch)) + from, high = i64(ceil(A(at + 1) * pitch)) + from;
    first[axis] = low < 0 ? 0 : low < extent ? low : extent;
    end[axis] = high < 0 ? 0 : high < extent ? high : extent;
  }
  const bool is_empty = image < 0 || image >= sizes.batch || end[0] <= first[0] || end[1] <= first[1];
  A best = is_empty ? A(0) : limits<A>::negative_inf();
  if (!is_empty) {
    const T* const plane = x + image * sizes.strides[0] + bin.channel * sizes.strides[1];
    for (i64 i = first[0]; i < end[0]; ++i) {
      for (i64 j = first[1]; j < end[1]; ++j) {
        best = max_keeping_nan(widen(plane[i * sizes.strides[2] + j * sizes.strides[3]]), best);
      }
    }
  }
  y[index] = cast<T>(best);
}
