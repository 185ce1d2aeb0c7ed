// Det: determinants of batches of matrices.
#include "index.cuh"
#include "reduce.cuh"

constexpr int kSharedSide = 64;  // matrices up to this lie in shared memory
constexpr int kSide = 16;        // threads of a block as a square

// Computes  y[matrix] = det(x[matrix])
// Shapes    x [..., n, n] by strides, matrices walked by `matrices`; y dense; scratch [blocks, n, n]
// Grid      a block takes a matrix at a time, until there are none
// Needs     scratch where n is above 64
// Numerics  elimination with partial pivoting in double (of equals the first row, a NaN before any number), one rounding; 0
//           where a pivot is 0, 1 for n = 0
template <class T>
__global__ void __launch_bounds__(kBlockThreads) det(
    const T* __restrict__ x, T* __restrict__ y, double* scratch, Strided<kMaxRank, 1> matrices, i64 n, i64 row_stride,
    i64 column_stride) {
  typedef Placed<double> Candidate;
  __shared__ double in_block[kSharedSide * kSharedSide];
  __shared__ Candidate shared[kBlockThreads / kWarpThreads];
  const auto merge = [](Candidate a, Candidate b) { return wins(b, a, false, false) ? b : a; };
  const Team team(kBlockThreads, 1);
  const i64 first_row = threadIdx.x / kSide, first_column = threadIdx.x % kSide;
  double* const a = scratch ? scratch + i64(blockIdx.x) * n * n : in_block;
  for (i64 matrix = blockIdx.x; matrix < matrices.count; matrix += gridDim.x) {
    i64 start[1];
    matrices.locate(matrix, start);
    for (i64 row = first_row; row < n; row += kSide) {
      for (i64 column = first_column; column < n; column += kSide) {
        a[row * n + column] = cast<double>(x[start[0] + row * row_stride + column * column_stride]);
      }
    }
    __syncthreads();
    double product = 1;
    for (i64 k = 0; k < n; ++k) {
      Candidate best = {0, -1};
      for (i64 row = k + threadIdx.x; row < n; row += kBlockThreads) {
        best = merge(best, Candidate{magnitude_of(a[row * n + k]), row});
      }
      const i64 pivot_row = team.fold(best, shared, merge).place;
      const double pivot = a[pivot_row * n + k];
      product *= pivot_row == k ? pivot : -pivot;
      if (pivot == 0) {
        product = 0;
        break;
      }
      if (pivot_row != k) {
        __syncthreads();
        for (i64 column = k + threadIdx.x; column < n; column += kBlockThreads) {
          const double upper = a[k * n + column];
          a[k * n + column] = a[pivot_row * n + column];
          a[pivot_row * n + column] = upper;
        }
      }
      __syncthreads();
      for (i64 row = k + 1 + first_row; row < n; row += kSide) {
        const double factor = a[row * n + k] / pivot;
        for (i64 column = k + 1 + first_column; column < n; column += kSide) {
          a[row * n + column] -= factor * a[k * n + column];
        }
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) y[matrix] = cast<T>(product);
    __syncthreads();  // after a pivot of 0, other threads may still be reading
  }
}
