// MatMul and Gemm of half and bf16 with weights of int8 on tensor cores (sm_80 and up).
//
// Weights lie along the inner extent. They are read as they lie, wait in registers while a slab is multiplied, and go into
// shared memory widened to the type of the other operand.
#include "dependent_launch.cuh"
#include "mma_product.cuh"
#include "narrow_vector.cuh"

// The right operand as a block sees it.
template <class T, class Tile, int Lines, int Shift>
struct NarrowLoader;
template <class T>
struct NarrowOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = NarrowLoader<T, Tile, Lines, Shift>;

  const i8* matrix;
  Scales<T> scales;
  i64 line_stride, scale_step;
  int lines, inner, end, first_line, first_k;  // end: of the block's slabs, or of the inner extent
  u8* ring;
};

// Widens slabs one after the other from the block's first one on: what is stored was fetched a slab before.
//
// A thread has vectors of 16 weights of one line, which become two chunks each of a slab's row. Eight threads that store at a
// time have two vectors each of four rows, whose chunks stand in different banks (SlabOrder).
template <class T, class Tile, int Lines, int Shift>
struct NarrowLoader {
  typedef typename SlabPart<T, Tile, Lines, Lie::kAlongK, Shift>::Order Order;
  static constexpr int kSlabElements = Tile::kSlabBytes / int(sizeof(T)), kWeights = 16, kChunks = 2;
  static constexpr int kPairs = kSlabElements / (2 * kWeights);
  static_assert(Shift == 3 && Tile::kThreads == 2 * Lines && Lines == 64, "two threads have a line");
  const NarrowOperand<T>& operand;
  SharedAddress stages;
  int row, k;  // of the first vector that is fetched
  const i8* source;
  LineScale<i8> scale;
  NarrowVector<i8, kWeights> vectors[kPairs];

  __device__ explicit NarrowLoader(const NarrowOperand<T>& operand)
      : operand(operand), stages(find_shared_address(operand.ring)) {
    const int thread = threadIdx.x, warp = thread / 32;
    row = (thread >> 1 & 1) | (thread >> 2 & 1) << 4 | (thread >> 3 & 3) << 1 | (warp & 1) << 3 | (warp >> 1) << 5;
    k = operand.first_k + thread % 2 * kWeights;
    const int wanted = operand.first_line + row, line = wanted < operand.lines ? wanted : operand.lines - 1;
    source = operand.matrix + line * operand.line_stride + k;
    const i64 place = line * operand.scale_step;
    scale = {8388736.0f + (operand.scales.zero ? float(operand.scales.zero[place]) : 0.0f),
             widen(operand.scales.scale[place])};
    fetch();
  }

  // Beyond the end, where the left operand is 0 or nothing is multiplied, any weights will do.
  __device__ void fetch() {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      vectors[pair] = {};
      if (k + pair * 2 * kWeights < operand.end) vectors[pair].load(source + pair * 2 * kWeights);
    }
    source += kSlabElements;
  }

  __device__ void load_whole(SharedAddress slab) {
    u8* const bytes = operand.ring + (slab - stages);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int chunk = (threadIdx.x % 2 + pair * 2) * kChunks;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        Vec<u32, 4> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = j * kEight + 2 * i;
          words.lanes[i] = pack_pair<T>(scale.widen_weight(vectors[pair], first), scale.widen_weight(vectors[pair], first + 1));
        }
        store_vec(reinterpret_cast<u32*>(bytes + Order::place(row, chunk + j)), words);
      }
    }
    k += kSlabElements;
    fetch();
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }
};

// Computes  y = alpha * a @ w + beta * c, where w is (b - zero) * scale, rounded to T
// Shapes    a [rows, inner], b [columns, inner], c [rows, columns], y [rows, columns], all by strides; scale and zero by
//           columns, scale_step apart; scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      as mma_gemm
// Needs     sm_80. a and b dense along inner, they and their rows aligned to 16 bytes. kWideY as mma_gemm. c and zero may be
//           null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  as mma_gemm of the widened weights, to the bit
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_narrow(const T* __restrict__ a, const i8* __restrict__ b, const T* __restrict__ c, T* __restrict__ y,
               const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters, const T* __restrict__ scale,
               const i8* __restrict__ zero, i64 scale_step) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  launch_dependents();
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth, last_k = first_k + slabs.count * slabs.depth;
  const WideOperand<T> left(a, gemm.a_row, gemm.rows, gemm.inner, place.first_row, first_k);
  const NarrowOperand<T> right = {b, {scale, zero}, gemm.b_column, scale_step, gemm.columns, gemm.inner,
                                  last_k < gemm.inner ? last_k : gemm.inner, place.first_column, first_k, ring};
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> warp;
  sum_slabs(warp, left, right, slabs, ring);
  store_product<T>(warp, gemm, c, y, scratch, counters, ring);
}
