// Products on tensor cores (sm_80 and up) of few rows, which every block makes itself, with weights of 2, 4 or 8 bits in blocks.
#include "dependent_launch.cuh"
#include "mma_codes.cuh"
#include "prologue.cuh"

// Computes  y = made @ w + c, with rows of Made, which gpuexec/ops/elementwise/row_kernel.py generates, and w as mma_few_nbits
// Shapes    made [rows, inner] of operands by the walk, at most 4 rows; else as mma_few_nbits
// Grid      as mma_few_nbits, with the rows of a slice's steps in dynamic shared memory: room for two where there is one, and
//           for four where there are more
// Needs     what mma_few_nbits needs of weights. Operands that Made lacks are null; c may be; scratch and counters too with
//           one slice; counters are 0 and are left 0
// Numerics  those of rows, rounded to T, and of mma_few_nbits
template <class T, class R, int Bits, class Made, class... Epilogue>
__global__ void __launch_bounds__(kFewThreads, 1)
    mma_of_rows_nbits(const typename Made::In0* __restrict__ in0, const u8* __restrict__ weights, const R* __restrict__ c,
                      Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                      unsigned* counters, const typename Made::In1* __restrict__ in1,
                      const typename Made::In2* __restrict__ in2, const typename Made::In3* __restrict__ in3,
                      const __grid_constant__ typename Made::Walk walk,
                      const __grid_constant__ typename Made::Numbers numbers, const R* __restrict__ scales,
                      const u8* __restrict__ zeros, const __grid_constant__ PackedShape shape, Epilogue... epilogue) {
  typedef CodedProduct<T, R, Bits> Product;
  extern __shared__ __align__(16) u8 rows[];
  __shared__ alignas(16) typename Product::Partials partials;
  static_assert(kFewThreads == kBlockThreads, "teams are those of a launch of rows");
  Product product(gemm);
  const FewRowsPlace place(gemm, product.block_columns, kFewRows);
  wait_for_predecessors();
  const int first = product.slice_first, kept = product.slice_end - first;
  const MadeRows<T, FragmentOrder<Bits>> made = {reinterpret_cast<T*>(rows), first, product.slice_end, kept};
  product.multiply({weights, scales, zeros, nullptr, nullptr}, shape, gemm, place, [&] {
    // Rows that are not there, and what is behind the last k, are zeros.
    const int bytes = (gemm.rows < 2 ? gemm.rows : 2) * 2 * kept * int(sizeof(T));
#pragma unroll 1
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * kFewThreads) {
      store_vec(reinterpret_cast<u32*>(rows + at), Vec<u32, 4>{});
    }
    __syncthreads();
    make_rows<Made>(walk, numbers, made, in0, in1, in2, in3);
    return RowsInMemory<T, true>{made.rows - 2 * first, 2 * kept};
  });
  launch_dependents();
  product.finish(partials, place, gemm, c, y, scratch, counters, finish_by<R>(epilogue...));
}
