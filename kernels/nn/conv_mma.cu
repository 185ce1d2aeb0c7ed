// Convolution of half, bf16 and tf32 images, channels last, on tensor cores (sm_80 and up), as a product by tiles.
//
// Results are of the operands' type or float.
#include "conv_patches.cuh"
#include "dependent_launch.cuh"

// Computes  y[n, window, o] = bias[o] + sum over taps t and channels c of the group of o of w[o, t, c] * x[n, window + t, c]
// Shapes    x [batch, spatial, channels] by strides, channels dense; w [out channels, taps * channels of a group]; bias
//           [out channels]; y [batch * windows, out channels] by its pitch; scratch [tiles, slices, tile rows * tile columns];
//           counters [tiles]
// Grid      as mma_gemm, over output positions and output channels of a group; batches are groups
// Needs     sm_80. Channels of a group a multiple of 16 bytes, as are strides of x; x and w aligned to 16 bytes; floats of
//           w rounded to tf32. kWideY: y aligned to 8 elements, out channels of a group a multiple of 8. bias may be null;
//           scratch and counters too with one slice; counters are 0 and are left 0. Offsets in x fit in 31 bits
// Numerics  floats of x rounded to tf32, ties away from zero; then as mma_gemm: products exact, summed in float in the
//           order of the hardware, zeros in the padding; slices in order; then bias, rounded once, and the epilogue
template <class T, class R, class Tile, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    conv_mma(const T* __restrict__ x, const T* __restrict__ w, const R* __restrict__ bias,
             Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ MmaConv conv, float* scratch,
             unsigned* counters, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  ConvTileOf<T, Tile> warp;
  convolve_block(warp, x, w, conv, ring, blockIdx.x, blockIdx.y, gridDim.y);
  launch_dependents();
  store_product<R, true>(warp, conv.gemm, bias, y, scratch, counters, ring, epilogue...);
}
