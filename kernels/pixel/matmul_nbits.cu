// MatMulNBits and MatMulBnb4, texel by texel: each thread widens the weights of its elements.
#include "../microsoft/matmul_nbits.cu"
#include "texture.cuh"

// PackedPointers, in textures.
template <class T>
struct PackedTexels {
  Texture<u8> weights;
  Texture<T> scales;
  Texture<u8> zeros;
  Texture<i32> groups;
  Texture<float> table;

  __device__ T zero(i64 place) const { return zeros.template as<T>()[place]; }
};

// Computes  what matmul_nbits computes
// Shapes    as matmul_nbits
// Grid      one thread per texel of y
// Needs     c, zeros, groups and table may be absent
// Numerics  as matmul_nbits, but k in order, one fma each
template <class T>
__global__ void __launch_bounds__(256)
    draw_matmul_nbits(const Texture<T> a, const Texture<u8> weights, const Texture<T> c, const Surface<T> y,
                      const __grid_constant__ Gemm gemm, const Texture<T> scales, const Texture<u8> zeros,
                      const Texture<i32> groups, const Texture<float> table, const PackedShape shape,
                      const i32 is_turned) {
  const PackedWeights<T, PackedTexels<T>> right = {{weights, scales, zeros, groups, table}, shape};
  draw<T>(y, gemm.rows * gemm.columns, [&](i64 index) {
    const i64 row = index / gemm.columns, column = index % gemm.columns;
    float sum = 0.0f;
    for (i64 k = 0; k < gemm.inner; ++k) {
      const float weight = is_turned ? right.at(column, k) : right.at(k, column);
      sum = multiply_add(widen(a[row * gemm.a_row + k * gemm.a_inner]), weight, sum);
    }
    float addend = 0.0f;
    if (c) addend = widen(c[row * gemm.c_row + column * gemm.c_column]);
    return cast<T>(scale_and_add(gemm, sum, addend, bool(c)));
  });
}
