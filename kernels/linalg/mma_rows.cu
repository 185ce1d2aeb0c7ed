// Products of half and bf16 on tensor cores (sm_80 and up) whose left operand has few rows, which every block makes itself.
#include "dependent_launch.cuh"
#include "mma_product.cuh"
#include "prologue.cuh"

template <class T, class Tile, int Lines, int Shift>
struct MadeLoader;

// Rows that a block makes, as the left operand of its product; make() makes them.
template <class T, class Make>
struct MadeOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = MadeLoader<T, Tile, Lines, Shift>;
  static constexpr bool kIsAlwaysWide = true;

  const Make& make;
  MadeRows<T> made;
  int lines, inner;
  u8* ring;
};
template <class T, class Make>
constexpr bool kIsMade<MadeOperand<T, Make>> = true;

// Copies slabs of made rows into the ring, one after the other. Lines beyond the last one repeat it.
template <class T, class Tile, int Lines, int Shift>
struct MadeLoader {
  typedef SlabPart<T, Tile, Lines, Lie::kAlongK, Shift> Part;
  Part part;
  u8* ring;
  const T* source;  // of the thread's chunk of row 0
  int lines, pitch;

  template <class Make>
  __device__ explicit MadeLoader(const MadeOperand<T, Make>& operand)
      : part(threadIdx.x),
        ring(operand.ring),
        source(operand.made.rows + part.chunk * kChunkElements<T>),
        lines(operand.lines),
        pitch(operand.made.pitch) {}

  __device__ void load_whole(SharedAddress slab) {
    u8* const target = ring + (slab - find_shared_address(ring));
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      const int row = part.row + i * Part::kPassRows;
      const Vec<T, kChunkElements<T>> chunk = load_vec<kChunkElements<T>>(source + (row < lines ? row : lines - 1) * pitch);
      store_vec(reinterpret_cast<T*>(target + part.place(i)), chunk);
    }
    source += Tile::kSlabBytes / int(sizeof(T));
  }

  // Rows have zeros up to the end of the last slab.
  __device__ void load(SharedAddress slab, int) { load_whole(slab); }
};

// Computes  y = alpha * made @ b + beta * c, with rows of Made, which gpuexec/ops/elementwise/row_kernel.py generates
// Shapes    made [rows, inner] of operands by the walk; b [inner, columns], c [rows, columns], y [rows, columns] by strides;
//           scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      one block per tile and slice, with Tile::kRingBytes of dynamic shared memory and the rows of a slice's slabs: x =
//           tile, y = slice; rows fit in one tile
// Needs     sm_80. b as kWideB of mma_gemm, and no batches. kWideY as there. Operands that Made lacks are null; c may be;
//           scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  those of rows, rounded to T, and of mma_gemm
template <class T, class R, class Tile, Lie kRight, class Made, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_of_rows(const typename Made::In0* __restrict__ in0, const T* __restrict__ b, const R* __restrict__ c,
                Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                unsigned* counters, const typename Made::In1* __restrict__ in1, const typename Made::In2* __restrict__ in2,
                const typename Made::In3* __restrict__ in3, const __grid_constant__ typename Made::Walk walk,
                const __grid_constant__ typename Made::Numbers numbers, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first = slabs.first * slabs.depth, kept = slabs.count * slabs.depth;
  // What folds need lies where the first slab of the left operand will.
  static_assert(kFoldBytes <= Tile::kLeftBytes, "a slab holds it");
  const MadeRows<T> made = {reinterpret_cast<T*>(ring + Tile::kRingBytes), first, first + kept, kept, ring};
  const auto make = [&] {
    const int inside = gemm.inner - first;  // behind it, the last slab has zeros
    for (int row = 0; row < gemm.rows; ++row) {
      for (int k = inside + int(threadIdx.x); k < kept; k += Tile::kThreads) made.rows[row * kept + k] = cast<T>(0.0f);
    }
    make_rows<Made, Tile::kThreads>(walk, numbers, made, in0, in1, in2, in3);
  };
  const MadeOperand<T, decltype(make)> left = {make, made, gemm.rows, gemm.inner, ring};
  const MmaOperand<T> right = {b, gemm.b_column, gemm.b_inner, gemm.columns, gemm.inner, place.first_column, first, true};
  WarpTile<T, Tile, Lie::kAlongK, kRight> warp;
  sum_slabs(warp, left, right, slabs, ring);
  launch_dependents();
  store_product<R>(warp, gemm, c, y, scratch, counters, ring, epilogue...);
}
