// CropAndResize: boxes cropped from images and resized to one size, corners on corners.
#include "index.cuh"

constexpr int kThreads = 256;

// Packed by gpuexec/ops/microsoft/crop_and_resize.py.
struct Crops {
  i64 count, images, channels, height, width;
  FastDiv64 columns, rows, by_channel;  // of y
  i64 is_nearest;
  double outside;  // the value outside of an image
};

// The coordinate in an image along an axis of step `at` of `extent` between two relative coordinates.
template <class A>
__device__ inline A place_on(A first, A last, i64 at, i64 extent, i64 size) {
  if (extent <= 1) return A(0.5) * (first + last) * A(size - 1);
  return first * A(size - 1) + A(at) * ((last - first) * A(size - 1) / A(extent - 1));
}

// Computes y[b, c, i, j] = x[image[b], c] at the place of (i, j) in box b, blended of four pixels or the nearest one.
// Shapes   x [images, channels, height, width], boxes [n, 4] of y and x of two corners from 0 to 1, image [n],
//          y [n, channels, rows, columns]; dense.
// Grid     one thread per element of y.
// Needs    nothing of alignment.
// Numerics in Acc<T>, each product and sum rounded, one rounding. An image out of range reads as what is outside.
template <class T>
__global__ void __launch_bounds__(kThreads) crop_and_resize(
    const T* __restrict__ x, const T* __restrict__ boxes, const i32* __restrict__ images, T* __restrict__ y,
    Crops crops) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= crops.count) return;
  u64 row, column, channel;
  const i64 box = i64(crops.by_channel.divide(
      crops.rows.divide(crops.columns.divide(u64(index), column), row), channel));
  const i64 image = images[box];
  boxes += 4 * box;
  const A top = widen(boxes[0]), left = widen(boxes[1]), bottom = widen(boxes[2]), right = widen(boxes[3]);
  const A at_y = place_on(top, bottom, i64(row), i64(crops.rows.divisor), crops.height);
  const A at_x = place_on(left, right, i64(column), i64(crops.columns.divisor), crops.width);
  const bool is_inside = at_y >= A(0) && at_y <= A(crops.height - 1) && at_x >= A(0) && at_x <= A(crops.width - 1);
  if (!is_inside || image < 0 || image >= crops.images) {
    y[index] = cast<T>(A(crops.outside));
    return;
  }
  x += (image * crops.channels + i64(channel)) * crops.height * crops.width;
  if (crops.is_nearest) {
    y[index] = x[i64(floor(at_y + A(0.5))) * crops.width + i64(floor(at_x + A(0.5)))];
    return;
  }
  const A low_y = floor(at_y), low_x = floor(at_x), part_y = at_y - low_y, part_x = at_x - low_x;
  const i64 first = i64(low_y) * crops.width, last = i64(ceil(at_y)) * crops.width;
  const i64 near = i64(low_x), far = i64(ceil(at_x));
  const A upper_near = widen(x[first + near]), lower_near = widen(x[last + near]);
  const A upper = upper_near + (widen(x[first + far]) - upper_near) * part_x;
  const A lower = lower_near + (widen(x[last + far]) - lower_near) * part_x;
  y[index] = cast<T>(upper + (lower - upper) * part_y);
}
