// CDist: pairwise distances between the rows of two matrices.
#include "gemm_simt.cuh"
#include "reduce.cuh"

__device__ inline float power_of(float x, float p) { return powf(x, p); }
__device__ inline double power_of(double x, double p) { return pow(x, p); }

// A metric accumulates pairs of coordinates in its sums, which (0, 0) does not change, and computes a distance from them.
template <class A>
struct OneSum {
  A total;
};

struct SquaredEuclidean {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A) {
    sums.total = multiply_add(a - b, a - b, sums.total);
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64) {
    return sums.total;
  }
};

struct Euclidean : SquaredEuclidean {
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64) {
    return root_of(sums.total);
  }
};

struct CityBlock {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A) {
    sums.total += magnitude_of(a - b);
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64) {
    return sums.total;
  }
};

struct Chebyshev {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A) {
    sums.total = greater_of(sums.total, magnitude_of(a - b));
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64) {
    return sums.total;
  }
};

struct Minkowski {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A p) {
    sums.total += power_of(magnitude_of(a - b), p);
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A p, i64) {
    return power_of(sums.total, A(1) / p);
  }
};

struct Canberra {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A) {
    const A size = magnitude_of(a) + magnitude_of(b);
    sums.total += size == A(0) ? A(0) : magnitude_of(a - b) / size;
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64) {
    return sums.total;
  }
};

struct Hamming {
  template <class A>
  using Sums = OneSum<A>;
  template <class A>
  static __device__ void add(OneSum<A>& sums, A a, A b, A) {
    sums.total += a != b ? A(1) : A(0);
  }
  template <class A>
  static __device__ A finish(const OneSum<A>& sums, A, i64 inner) {
    return sums.total / A(inner);
  }
};

struct BrayCurtis {
  template <class A>
  struct Sums {
    A differences, sizes;
  };
  template <class A>
  static __device__ void add(Sums<A>& sums, A a, A b, A) {
    sums.differences += magnitude_of(a - b);
    sums.sizes += magnitude_of(a + b);
  }
  template <class A>
  static __device__ A finish(const Sums<A>& sums, A, i64) {
    return sums.differences / sums.sizes;
  }
};

struct Cosine {
  template <class A>
  struct Sums {
    A product, left, right;
  };
  template <class A>
  static __device__ void add(Sums<A>& sums, A a, A b, A) {
    sums.product = multiply_add(a, b, sums.product);
    sums.left = multiply_add(a, a, sums.left);
    sums.right = multiply_add(b, b, sums.right);
  }
  template <class A>
  static __device__ A finish(const Sums<A>& sums, A, i64) {
    return A(1) - sums.product / (root_of(sums.left) * root_of(sums.right));
  }
};

// Strides are in elements. Packed by CDist of gpuexec/ops/microsoft/cdist.py.
struct Pairs {
  i64 rows, columns, inner;  // of a, of b, coordinates of each
  i64 a_row, a_inner, b_row, b_inner;
};

// Computes  y[i, j] = the metric's distance between row i of a and row j of b
// Shapes    a [rows, inner], b [columns, inner] by strides; y [rows, columns] dense
// Grid      one block of 256 per 64 x 64 tile of y: x = row tile * column tiles + column tile
// Needs     nothing of alignment
// Numerics  sums of differences in T, coordinates in order; of no coordinates 0, or NaN where a metric divides
template <class Metric, class T>
__global__ void __launch_bounds__(256, sizeof(T) == 4 ? 2 : 1) distances(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, Pairs pairs, double p) {
  typedef typename Metric::template Sums<T> Sums;
  const TilePlace place(pairs.rows, pairs.columns, kTile);
  const StridedLoader<T> left(a, place.first_row, pairs.rows, pairs.inner, pairs.a_row, pairs.a_inner, threadIdx.x);
  const StridedLoader<T> right(
      b, place.first_column, pairs.columns, pairs.inner, pairs.b_row, pairs.b_inner, threadIdx.x);
  const i64 row = place.first_row + sums_row(threadIdx.x), column = place.first_column + sums_column(threadIdx.x);
  Sums sums[kSums][kSums] = {};
  walk_tile<T, kSlab, 1>(
      left, right, pairs.inner, row < pairs.rows && column < pairs.columns,
      [&](const T (&x)[kSums], const T (&z)[kSums]) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) Metric::add(sums[i][j], x[i], z[j], T(p));
        }
      });
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (row + i >= pairs.rows || column + j >= pairs.columns) continue;
      y[(row + i) * pairs.columns + column + j] = Metric::finish(sums[i][j], T(p), pairs.inner);
    }
  }
}
