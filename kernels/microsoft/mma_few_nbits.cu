// Matrix products of up to four rows of half and bf16 with weights of 2, 4 or 8 bits in blocks (sm_80 and up).
#include "dependent_launch.cuh"
#include "mma_codes.cuh"

// Computes  y = a @ w + c, where w[k, n] is (q - zero) * scale, of the code q at n * shape.row + k and its block along k
// Shapes    as mma_nbits, a of at most 4 rows; scratch [blocks, slices, rows * columns of a block]; counters [blocks]
// Grid      one block of 256 per 8 / gemm.lanes times 32 columns, and slice: x = column block, y = slice; gemm.lanes (2, 4 or
//           8) warps share columns, each with a part of the inner extent
// Needs     what mma_nbits needs; no codes of 8 bits with bf16. scratch and counters may be null with one slice
// Numerics  products of a and q - zero exact, summed in float in the order of the hardware for 32 k; these sums times their
//           scale in float, each by a fused multiply-add; lanes, warps and slices in order; then c, rounded once, and the
//           epilogue
template <class T, class R, int Bits, class... Epilogue>
__global__ void __launch_bounds__(kFewThreads, 1)
    mma_few_nbits(const T* __restrict__ a, const u8* __restrict__ weights, const R* __restrict__ c,
                  Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                  unsigned* counters, const R* __restrict__ scales, const u8* __restrict__ zeros,
                  const __grid_constant__ PackedShape shape, Epilogue... epilogue) {
  typedef CodedProduct<T, R, Bits> Product;
  __shared__ alignas(16) typename Product::Partials partials;
  Product product(gemm);
  const FewRowsPlace place(gemm, product.block_columns, kFewRows);
  wait_for_predecessors();
  launch_dependents();
  product.multiply({weights, scales, zeros, nullptr, nullptr}, shape, gemm, place,
                   [&] { return RowsInMemory<T, false>{a, gemm.a_row}; });
  product.finish(partials, place, gemm, c, y, scratch, counters, finish_by<R>(epilogue...));
}
