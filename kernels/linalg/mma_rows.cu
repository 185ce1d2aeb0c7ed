// Products of half and bf16 on tensor cores (sm_80 and up) whose left operand has few rows, which every block makes itself.
#include "dependent_launch.cuh"
#include "mma_few.cuh"
#include "prologue.cuh"

// Computes  y = alpha * made @ b + beta * c, with rows of Made, which gpuexec/ops/elementwise/row_kernel.py generates
// Shapes    made [rows, inner] of operands by the walk, at most 8 rows; b [inner, columns], c [rows, columns], y [rows, columns]
//           by strides; scratch [blocks, slices, rows * columns of a block]; counters [blocks]
// Grid      as mma_few, with the rows of a slice's steps in dynamic shared memory
// Needs     sm_80. b as in mma_few, and no batches. kWideY as there. Operands that Made lacks are null; c may be; scratch
//           and counters too with one slice; counters are 0 and are left 0
// Numerics  those of rows, rounded to T, and of mma_few
template <class T, class R, Lie kRight, int Width, class Made, class... Epilogue>
__global__ void __launch_bounds__(kFewThreads, 1)
    mma_of_rows(const typename Made::In0* __restrict__ in0, const T* __restrict__ b, const R* __restrict__ c,
                Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                unsigned* counters, const typename Made::In1* __restrict__ in1, const typename Made::In2* __restrict__ in2,
                const typename Made::In3* __restrict__ in3, const __grid_constant__ typename Made::Walk walk,
                const __grid_constant__ typename Made::Numbers numbers, Epilogue... epilogue) {
  typedef FewProduct<T, kRight, Width> Product;
  extern __shared__ __align__(16) u8 rows[];
  __shared__ alignas(16) typename Product::Partials partials;
  static_assert(kFewThreads == kBlockThreads, "teams are those of a launch of rows");
  Product product(gemm);
  const FewRowsPlace place(gemm, product.block_columns, kFewRows);
  wait_for_predecessors();
  const int first = product.slice_first, kept = product.slice_end - first;
  const MadeRows<T> made = {reinterpret_cast<T*>(rows), first, product.slice_end, kept};
  product.multiply(b, gemm, place, [&](int row) {
    make_rows<Made>(walk, numbers, made, in0, in1, in2, in3);
    return made.rows + ((row < gemm.rows ? row : gemm.rows - 1) * kept - first);
  });
  launch_dependents();
  product.finish(partials, place, gemm, c, y, scratch, counters, finish_by<R>(epilogue...));
}
