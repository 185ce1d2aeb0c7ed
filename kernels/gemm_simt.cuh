// One 64 x 64 tile of a matrix product, on the ordinary arithmetic units: 256 threads, 4 x 4 sums each.
//
// Operands come through loaders, so that a matrix with strides and the columns of a convolution share one loop. The
// sums run over k = 0, 1, 2, ... with one fused multiply-add each, whatever the device: the bits are the same
//           everywhere.
#pragma once
#include "safe.cuh"

constexpr int kTile = 64;       // rows and columns of a block's tile
constexpr int kSlab = 16;       // inner extent that is in shared memory at a time
constexpr int kSums = 4;        // rows and columns of a thread's sums
constexpr int kSide = kTile / kSums;
constexpr int kPitch = kTile + 4;  // keeps 16-byte alignment, spreads the rows of a slab over the banks

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
template <class T>
__device__ inline T multiply_add(T a, T b, T c) {
  static_assert(kIsInteger<T>, "floats have their own form");
  return wrapping_add(c, wrapping_mul(a, b));
}

// Which four elements (x, k) of a 64 x 16 slab a thread carries: x + i * dx, k + i * dk for i = 0..3. Neighbouring
// threads are neighbours along k, where a row lies dense in k, else along x.
struct SlabPart {
  int x, k, dx, dk;

  static __device__ SlabPart along_k(int thread) { return {thread / kSlab, thread % kSlab, kTile / 4, 0}; }
  static __device__ SlabPart along_x(int thread) { return {thread % kTile, thread / kTile * 4, 0, 1}; }

  template <class A>
  __device__ void store(A (&slab)[kSlab][kPitch], const A (&part)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) slab[k + i * dk][x + i * dx] = part[i];
  }
};

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

// Where a thread's sums stand in the tile.
__device__ inline int sums_row(int thread) { return thread / kSide * kSums; }
__device__ inline int sums_column(int thread) { return thread % kSide * kSums; }

// Sums left(row, k) * right(k, column) over k in [0, inner). All threads of the block come here together; `is_needed`
// is false for a thread whose sums nobody stores. Needs 4 * 16 * 68 * sizeof(A) bytes of shared memory.
template <class A, class Left, class Right>
__device__ inline void multiply_tile(const Left& left, const Right& right, i64 inner, bool is_needed,
                                     A (&sums)[kSums][kSums]) {
  __shared__ alignas(16) A left_slabs[2][kSlab][kPitch];
  __shared__ alignas(16) A right_slabs[2][kSlab][kPitch];
  int row = sums_row(threadIdx.x);
  int column = sums_column(threadIdx.x);
  A left_part[4];
  A right_part[4];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[i][j] = A(0);
  }
  left.load(0, left_part);
  right.load(0, right_part);
  left.part.store(left_slabs[0], left_part);
  right.part.store(right_slabs[0], right_part);
  __syncthreads();
  int stage = 0;
  for (i64 k = 0; k < inner; k += kSlab) {
    bool has_next = k + kSlab < inner;
    if (has_next) {
      left.load(k + kSlab, left_part);
      right.load(k + kSlab, right_part);
    }
    if (is_needed) {
#pragma unroll
      for (int step = 0; step < kSlab; ++step) {
        A a[kSums];
        A b[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) a[i] = left_slabs[stage][step][row + i];
#pragma unroll
        for (int j = 0; j < kSums; ++j) b[j] = right_slabs[stage][step][column + j];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) sums[i][j] = multiply_add(a[i], b[j], sums[i][j]);
        }
      }
    }
    stage ^= 1;
    if (has_next) {  // nobody reads this stage any more: all came past the barrier that ended its turn
      left.part.store(left_slabs[stage], left_part);
      right.part.store(right_slabs[stage], right_part);
    }
    __syncthreads();
  }
}
