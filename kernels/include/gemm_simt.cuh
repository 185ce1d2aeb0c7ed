// One 64 x 64 tile of a matrix product, on the ordinary arithmetic units.
//
// The sums run over k = 0, 1, 2, ... with one fused multiply-add each, whatever the device: the bits are the same
// everywhere.
#pragma once
#include "safe.cuh"
#include "tile.cuh"

constexpr int kSlab = 16;  // inner extent that is in shared memory at a time
typedef TilePart<kSlab> SlabPart;

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
template <class T>
__device__ inline T multiply_add(T a, T b, T c) {
  static_assert(kIsInteger<T>, "floats have their own form");
  return wrapping_add(c, wrapping_mul(a, b));
}

// Loads from a matrix by strides; zero beyond its extents. `part` is public: the loop stores what the loader loaded.
template <class T>
struct StridedLoader {
  SlabPart part;
  int extent;        // elements i = 0..3 with i * part.dx below it lie inside
  i64 k_extent;
  i64 step, k_step;  // from an element of the part to the next, and from one k to the next
  const T* first;    // element 0 of the part at k = 0

  __device__ StridedLoader(const T* matrix, i64 origin, i64 x_extent, i64 inner, i64 x_stride, i64 k_stride,
                           int thread) {
    part = k_stride == 1 ? SlabPart::along_k(thread) : SlabPart::along_x(thread);
    i64 below = x_extent - origin - part.x;
    extent = int(below < kTile ? below : kTile);
    k_extent = inner - part.k;
    step = part.dx * x_stride + part.dk * k_stride;
    k_step = k_stride;
    first = matrix + (origin + part.x) * x_stride + part.k * k_stride;
  }

  __device__ void load(i64 k, Acc<T> (&values)[4]) const {
    const T* source = first + k * k_step;
    int k_left = int(k_extent - k < kSlab ? k_extent - k : kSlab);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bool is_inside = i * part.dx < extent && i * part.dk < k_left;
      values[i] = is_inside ? widen(source[i * step]) : Acc<T>(0);
    }
  }
};

// Sums left(row, k) * right(k, column) over k in [0, inner), as walk_tile runs.
template <class A, class Left, class Right>
__device__ inline void multiply_tile(const Left& left, const Right& right, i64 inner, bool is_needed,
                                     A (&sums)[kSums][kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[i][j] = A(0);
  }
  walk_tile<A, kSlab, kSlab>(left, right, inner, is_needed, [&](const A (&a)[kSums], const A (&b)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
    }
  });
}
