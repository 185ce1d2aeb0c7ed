// MatMul and Gemm of half, bf16 and tf32 on tensor cores (sm_80 and up), by tiles of 16 x 64 to 128 x 256.
//
// On sm_90 groups of warps multiply half and bf16 out of shared memory.
//
// Results are of the operands' type or float; floats are multiplied as tf32, where both operands lie along k. The inner
// extent is cut into slices where tiles are few.
#include "dependent_launch.cuh"
#include "mma_product.cuh"

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns], y [..., rows, columns], all by strides;
//           scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      one block per tile and slice, with Tile::kRingBytes of dynamic shared memory: x = batch * tiles of a batch + tile
//           (MmaPlace), y = slice
// Needs     sm_80. kWideA: a_inner 1 (kAlongK) or a_row 1 (kAcross); a, the other stride and a_batch multiples of 16
//           bytes. kWideB: the same of b, b_inner and b_column. kWideY: the same of y, y_column 1 and y_row, of 8 of
//           its elements. Tiles of groups: sm_90a, kWideA and kWideB, and lines across in whole chunks or with room behind
//           them. c may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  floats lose their last 13 bits; products exact, summed in float in the order of the hardware; slices in order;
//           then alpha, beta * c, rounded once, and the epilogue
template <class T, class R, class Tile, Lie kLeft, Lie kRight, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_gemm(const T* __restrict__ a, const T* __restrict__ b, const R* __restrict__ c,
             Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
             unsigned* counters, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  ProductTile<T, Tile, kLeft, kRight> warp;
  multiply_operands(warp, a, b, gemm, ring);
  launch_dependents();
  store_product<R>(warp, gemm, c, y, scratch, counters, ring, epilogue...);
}
