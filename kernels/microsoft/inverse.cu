// Inverses of square matrices and solutions of linear systems, by Gaussian elimination with partial pivoting.
#include "types.cuh"

constexpr int kThreads = 256;

template <class A>
__device__ inline A magnitude(A x) { return x < A(0) ? -x : x; }

// Solves in place: work [n, width] has a matrix in its first n columns, and right-hand sides in the columns behind them,
// which become the solutions. One block per matrix; it must synchronise between writing work and the call, and may read
// work after it.
template <class A>
__device__ inline void eliminate(A* work, i64 n, i64 width) {
  __shared__ A sizes[kThreads];
  __shared__ i64 rows[kThreads];
  for (i64 step = 0; step < n; ++step) {
    A largest = A(-1);
    i64 pivot = step;
    for (i64 row = step + threadIdx.x; row < n; row += kThreads) {
      const A size = magnitude(work[row * width + step]);
      if (size > largest) {
        largest = size;
        pivot = row;
      }
    }
    sizes[threadIdx.x] = largest;
    rows[threadIdx.x] = pivot;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) {
        const A other = sizes[threadIdx.x + half];
        const i64 row = rows[threadIdx.x + half];
        if (other > sizes[threadIdx.x] || (other == sizes[threadIdx.x] && row < rows[threadIdx.x])) {
          sizes[threadIdx.x] = other;
          rows[threadIdx.x] = row;
        }
      }
      __syncthreads();
    }
    pivot = rows[0];
    const A divisor = work[pivot * width + step];
    __syncthreads();
    for (i64 column = step + threadIdx.x; column < width; column += kThreads) {
      const A moved = work[step * width + column];
      work[step * width + column] = work[pivot * width + column] / divisor;
      if (pivot != step) work[pivot * width + column] = moved;
    }
    __syncthreads();
    // Column `step` is not looked at again.
    const i64 left = width - step - 1;
    for (i64 i = threadIdx.x; i < n * left; i += kThreads) {
      const i64 row = i / left, column = step + 1 + i % left;
      if (row == step) continue;
      work[row * width + column] -= work[row * width + step] * work[step * width + column];
    }
    __syncthreads();
  }
}

// Computes y = the inverse of each x.
// Shapes   x, y [batch, n, n] dense; work [batch, n, 2 n].
// Grid     one block per matrix.
// Needs    nothing of alignment.
// Numerics in Acc<T>, each product and difference rounded, one rounding to T; of equal pivots the first row's is taken.
//          A matrix without inverse gives infinities and NaN.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) invert(
    const T* __restrict__ x, Acc<T>* __restrict__ work, T* __restrict__ y, i64 n) {
  typedef Acc<T> A;
  const i64 matrix = blockIdx.x, width = 2 * n;
  x += matrix * n * n;
  y += matrix * n * n;
  work += matrix * n * width;
  for (i64 i = threadIdx.x; i < n * width; i += kThreads) {
    const i64 row = i / width, column = i % width;
    work[i] = column < n ? widen(x[row * n + column]) : column - n == row ? A(1) : A(0);
  }
  __syncthreads();
  eliminate(work, n, width);
  for (i64 i = threadIdx.x; i < n * n; i += kThreads) y[i] = cast<T>(work[i / n * width + n + i % n]);
}

// Computes y of a y = b for each a and b.
// Shapes   a [batch, n, n], b, y [batch, n, columns] dense; work [batch, n, n + columns].
// Grid     one block per matrix.
// Needs    nothing of alignment.
// Numerics as invert, in T.
template <class T>
__global__ void __launch_bounds__(kThreads, 1) solve(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ work, T* __restrict__ y, i64 n, i64 columns) {
  const i64 matrix = blockIdx.x, width = n + columns;
  a += matrix * n * n;
  b += matrix * n * columns;
  y += matrix * n * columns;
  work += matrix * n * width;
  for (i64 i = threadIdx.x; i < n * width; i += kThreads) {
    const i64 row = i / width, column = i % width;
    work[i] = column < n ? a[row * n + column] : b[row * columns + column - n];
  }
  __syncthreads();
  eliminate(work, n, width);
  for (i64 i = threadIdx.x; i < n * columns; i += kThreads) y[i] = work[i / columns * width + n + i % columns];
}
