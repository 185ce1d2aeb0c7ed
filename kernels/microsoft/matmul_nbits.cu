// Matrix products with weights of a few bits, dequantised while they are read.
#include "dependent_launch.cuh"
#include "matmul.cu"
#include "packed_weights.cuh"

// Loads packed weights as the right operand of a tile; zero beyond its extents. With `is_turned`, k and columns are
// swapped.
template <class T>
struct PackedLoader {
  SlabPart part;
  const PackedWeights<T>& weights;
  i64 first_column, columns, inner;
  bool is_turned;

  __device__ PackedLoader(const PackedWeights<T>& weights, i64 first_column, i64 columns, i64 inner, bool is_turned)
      : part(is_turned ? SlabPart::along_x(threadIdx.x) : SlabPart::along_k(threadIdx.x)), weights(weights),
        first_column(first_column), columns(columns), inner(inner), is_turned(is_turned) {}

  __device__ void load(i64 k, float (&values)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const i64 column = first_column + part.x + i * part.dx, at = k + part.k + i * part.dk;
      values[i] = column >= columns || at >= inner ? 0.0f : is_turned ? weights.at(column, at) : weights.at(at, column);
    }
  }
};

template <class T>
struct PackedRight {
  PackedWeights<T> weights;
  bool is_turned;

  __device__ void advance(const Gemm&, int, i64) {}
  __device__ float at(const Gemm&, i64 k, i64 column) const {
    return is_turned ? weights.at(column, k) : weights.at(k, column);
  }
  __device__ PackedLoader<T> loader(const Gemm& gemm, i64 first_column) const {
    return {weights, first_column, gemm.columns, gemm.inner, is_turned};
  }
};

// Computes  y = a @ w + c, where w[k, n] is the weight at n * row + k (or at k * row + n, if turned)
// Shapes    a [rows, inner] by strides, w and what goes with it as PackedShape says, c [columns], y [rows, columns]
// Grid      as gemm
// Needs     weights, scales, zero points and groups dense; c, zero points, groups and table may be null
// Numerics  weights in float, not rounded; half and bf16 of a in float; y rounded once; the order of gemm
template <class T>
__global__ void __launch_bounds__(256, 2)
    matmul_nbits(const T* __restrict__ a, const u8* __restrict__ weights, const T* __restrict__ c, T* __restrict__ y,
                 const Gemm gemm, const T* __restrict__ scales, const u8* __restrict__ zeros,
                 const i32* __restrict__ groups, const float* __restrict__ table, const PackedShape shape,
                 const i32 is_turned) {
  const PackedRight<T> right = {{{weights, scales, zeros, groups, table}, shape}, is_turned != 0};
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_block(a, right, c, y, gemm, wait, finish_by<T>());
}
