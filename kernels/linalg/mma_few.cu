// MatMul and Gemm of up to eight rows of half and bf16 on tensor cores (sm_80 and up).
#include "dependent_launch.cuh"
#include "mma_few.cuh"

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner] with at most 8 rows, b [..., inner, columns], c [rows, columns], y [..., rows, columns], all by
//           strides; scratch [blocks, slices, rows * columns of a block]; counters [blocks]
// Grid      one block of 256 per 8 / gemm.lanes times 8 * Width columns, and slice: x = batch * column blocks + column block,
//           y = slice; Width is 4 (kAlongK) or 8 or 4 (kAcross); gemm.lanes warps share columns, each with a part of the
//           inner extent: 8, or fewer, as long as a block has 128 columns at most
// Needs     sm_80. a_inner 1, b_inner 1 (kAlongK) or b_column 1 (kAcross); inner, a, b, their other strides and batches, and
//           for kAcross columns multiples of 8 elements (16 bytes). kWideY as simt_gemm. c may be null; scratch and
//           counters too with one slice; counters are 0 and are left 0
// Numerics  products exact, summed in float in the order of the hardware; warps and slices in order; then alpha, beta * c,
//           rounded once, and the epilogue
template <class T, class R, Lie kRight, int Width, class... Epilogue>
__global__ void __launch_bounds__(kFewThreads, 1)
    mma_few(const T* __restrict__ a, const T* __restrict__ b, const R* __restrict__ c,
            Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
            unsigned* counters, Epilogue... epilogue) {
  typedef FewProduct<T, kRight, Width> Product;
  __shared__ alignas(16) typename Product::Partials partials;
  Product product(gemm);
  const FewRowsPlace place(gemm, product.block_columns, kFewRows);
  a += gemm.find_offset(place.batch, gemm.a_batch);
  b += gemm.find_offset(place.batch, gemm.b_batch);
  wait_for_predecessors();
  launch_dependents();
  product.multiply(b, gemm, place, [&](int row) { return place.find_row(a, row, gemm); });
  product.finish(partials, place, gemm, c, y, scratch, counters, finish_by<R>(epilogue...));
}
