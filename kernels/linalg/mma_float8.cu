// Products of float8e4m3fn with scales on tensor cores (sm_80 and up), by tiles of 16 x 64 to 128 x 256.
//
// Operands are bytes in global and shared memory. sm_89 and sm_120 multiply them by one instruction; others widen fragments to
// half in registers, so that slabs are as small and copied past registers all the same, and multiply twice.
#include "dependent_launch.cuh"
#include "mma_product.cuh"

// Multiplies a tile's sums by the scales of their row and their column, which pass through the ring: nobody reads slabs of it
// any more. A slice has only a part of each sum by then, and parts are added afterwards. All threads of the block come here.
template <class T, class Tile, Lie kLeft, Lie kRight>
__device__ inline void scale_sums(WarpTile<T, Tile, kLeft, kRight>& warp, const SimtGemm& gemm, const float* row_scale,
                                  const float* column_scale, i32 row_step, i32 column_step, u8* ring) {
  static_assert(kRight == Lie::kAlongK, "a thread's columns of four mma are eight side by side");
  float* const rows = reinterpret_cast<float*>(ring);
  float* const columns = rows + Tile::kRows;
  const MmaPlace<Tile> place(gemm, forget(blockIdx.x));
  const int thread = int(forget(threadIdx.x)), last_row = gemm.rows - 1, last_column = gemm.columns - 1;
  __syncthreads();
  for (int i = thread; i < Tile::kRows; i += Tile::kThreads) {
    const int row = place.first_row + i;
    rows[i] = row_scale[(row < last_row ? row : last_row) * row_step];
  }
  for (int i = thread; i < Tile::kColumns; i += Tile::kThreads) {
    const int column = place.first_column + i;
    columns[i] = column_scale[(column < last_column ? column : last_column) * column_step];
  }
  __syncthreads();
  const float* const own_rows = rows + warp.find_eight_row(thread, 0);
  const float* const own_columns = columns + warp.find_eight_column(thread, 0);
#pragma unroll
  for (int j = 0; j < Tile::kAcross; j += 4) {
    const Vec<float, 4> scales[2] = {load_vec<4>(own_columns + j * 8), load_vec<4>(own_columns + j * 8 + 4)};
#pragma unroll
    for (int i = 0; i < Tile::kDown * 2; ++i) {
      const float scale = own_rows[8 * i];
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        // Of both scales first: one may be as large as the other is small.
        warp.sums[i / 2][j + e / 2][i % 2 * 2 + e % 2] *= scale * scales[e / 4].lanes[e % 4];
      }
    }
  }
}

// Computes  y[batch] = alpha * (a[batch] @ b[batch]) * row_scale * column_scale + beta * c, with 0 for an empty inner extent
// Shapes    as mma_gemm; row_scale by rows, column_scale by columns, row_step and column_step apart: 0 where one is for all
// Grid      as mma_gemm
// Needs     sm_80; E4m3: sm_89 or sm_120. kWideA: a_inner 1; a, a_row and a_batch multiples of 16. kWideB: the same of b. kWideY
//           as mma_gemm. c may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  products exact, summed in float in the order and with the bits of the hardware; scaled in float; slices in order;
//           then alpha, beta * c, and the epilogue
template <class T, class Tile, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_float8(const T* __restrict__ a, const T* __restrict__ b, const float* __restrict__ c,
               Stored<float, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
               unsigned* counters, const float* __restrict__ row_scale, const float* __restrict__ column_scale,
               i32 row_step, i32 column_step, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> warp;
  multiply_operands(warp, a, b, gemm, ring);
  scale_sums(warp, gemm, row_scale, column_scale, row_step, column_step, ring);
  launch_dependents();
  store_product<float>(warp, gemm, c, y, scratch, counters, ring, epilogue...);
}
