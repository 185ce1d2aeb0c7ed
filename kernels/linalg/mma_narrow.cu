// MatMul and Gemm of half and bf16 with weights of int8 on tensor cores (sm_80 and up).
//
// Weights lie along the inner extent. They are read as they lie, wait in registers while a slab is multiplied, and go into
// shared memory: where results are of the other operand's type, widened to it; where they are floats, as integers less their
// zero points, and sums are scaled.
#include "code_pairs.cuh"
#include "dependent_launch.cuh"
#include "mma_product.cuh"
#include "narrow_vector.cuh"

// The right operand as a block sees it.
template <class T, class R, class Tile, int Lines, int Shift>
struct NarrowLoader;
template <class T, class R>
struct NarrowOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = NarrowLoader<T, R, Tile, Lines, Shift>;

  const i8* matrix;
  Scales<R> scales;
  i64 line_stride, scale_step;
  int lines, inner, end, first_line, first_k;  // end: of the block's slabs, or of the inner extent
  u8* ring;

  __device__ int find_line(int line) const { return first_line + line < lines ? first_line + line : lines - 1; }
};

// Makes a chunk of eight weights of a line: widened and rounded, or integers less their zero point.
template <class T, class R>
struct WeightPairs {
  LineScale<i8> line;

  __device__ WeightPairs() {}
  __device__ WeightPairs(const Scales<R>& scales, i64 place)
      : line(8388736.0f + (scales.zero ? float(scales.zero[place]) : 0.0f), widen(scales.scale[place])) {}

  template <int Width>
  __device__ Vec<u32, 4> widen_eight(const NarrowVector<i8, Width>& vector, int chunk) const {
    Vec<u32, 4> eight;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = chunk * kEight + 2 * i;
      eight.lanes[i] = pack_pair<T>(line.widen_weight(vector, first), line.widen_weight(vector, first + 1));
    }
    return eight;
  }
};
template <class T>
struct WeightPairs<T, float> {
  CodePairs<T, 8> pairs;

  __device__ WeightPairs() : pairs(128) {}
  __device__ WeightPairs(const Scales<float>& scales, i64 place)
      : pairs(u32(128 + (scales.zero ? int(scales.zero[place]) : 0))) {}

  template <int Width>
  __device__ Vec<u32, 4> widen_eight(const NarrowVector<i8, Width>& vector, int chunk) const {
    const Vec<u32, 2> codes = {{vector.words[2 * chunk] ^ 0x80808080u, vector.words[2 * chunk + 1] ^ 0x80808080u}};
    return pairs.widen_eight(codes, 0);
  }
};

// Widens slabs one after the other from the block's first one on: what is stored was fetched a slab before.
//
// A thread has vectors of 16 weights of one line, which become two chunks each of a slab's row. Eight threads that store at a
// time have two vectors each of four rows, whose chunks stand in different banks (SlabOrder).
template <class T, class R, class Tile, int Lines, int Shift>
struct NarrowLoader {
  typedef typename SlabPart<T, Tile, Lines, Lie::kAlongK, Shift>::Order Order;
  static constexpr int kSlabElements = Tile::kSlabBytes / int(sizeof(T)), kWeights = 16, kChunks = 2;
  static constexpr int kPairs = kSlabElements / (2 * kWeights);
  static_assert(Shift == 3 && Tile::kThreads == 2 * Lines && Lines == 64, "two threads have a line");
  const NarrowOperand<T, R>& operand;
  SharedAddress stages;
  int row, k;  // of the first vector that is fetched
  const i8* source;
  WeightPairs<T, R> weights;
  NarrowVector<i8, kWeights> vectors[kPairs];

  __device__ explicit NarrowLoader(const NarrowOperand<T, R>& operand)
      : operand(operand), stages(find_shared_address(operand.ring)) {
    const int thread = threadIdx.x, warp = thread / 32;
    row = (thread >> 1 & 1) | (thread >> 2 & 1) << 4 | (thread >> 3 & 3) << 1 | (warp & 1) << 3 | (warp >> 1) << 5;
    k = operand.first_k + thread % 2 * kWeights;
    const int line = operand.find_line(row);
    source = operand.matrix + line * operand.line_stride + k;
    weights = WeightPairs<T, R>(operand.scales, line * operand.scale_step);
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
        store_vec(reinterpret_cast<u32*>(bytes + Order::place(row, chunk + j)), weights.widen_eight(vectors[pair], j));
      }
    }
    k += kSlabElements;
    fetch();
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }
};

// Multiplies the sums of a warp by the scales of their columns.
template <class Tile, class Warp, class Operand>
__device__ inline void scale_columns(Warp& warp, const Operand& operand) {
  const int thread = int(forget(threadIdx.x));
#pragma unroll
  for (int j = 0; j < Tile::kAcross * 2; ++j) {
    const int column = warp.find_column(thread) + thread % 4 * kEight + j / kEight * 32 + j % kEight;
    const float scale = __ldg(operand.scales.scale + operand.find_line(column) * operand.scale_step);
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int down = 0; down < 2; ++down) warp.sums[i][j / 2][down * 2 + j % 2] *= scale;
    }
  }
}

// Computes  y = alpha * a @ w + beta * c, where w is (b - zero) * scale, rounded to T where R is T
// Shapes    a [rows, inner], b [columns, inner], c [rows, columns], y [rows, columns], all by strides; scale and zero by
//           columns, scale_step apart; scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      as mma_gemm
// Needs     sm_80. a and b dense along inner, they and their rows aligned to 16 bytes. R is T or float. kWideY as mma_gemm.
//           c and zero may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  where R is T as mma_gemm of the widened weights, to the bit. Else weights are not rounded: products of a and
//           b - zero exact, summed in float in the order of the hardware, times scale; slices in order; then alpha,
//           beta * c, rounded once, and the epilogue
template <class T, class R, class Tile, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_narrow(const T* __restrict__ a, const i8* __restrict__ b, const R* __restrict__ c,
               Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
               unsigned* counters, const R* __restrict__ scale, const i8* __restrict__ zero, i64 scale_step,
               Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth, last_k = first_k + slabs.count * slabs.depth;
  const WideOperand<T> left(a, gemm.a_row, gemm.rows, gemm.inner, place.first_row, first_k);
  const NarrowOperand<T, R> right = {b, {scale, zero}, gemm.b_column, scale_step, gemm.columns, gemm.inner,
                                     last_k < gemm.inner ? last_k : gemm.inner, place.first_column, first_k, ring};
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> warp;
  sum_slabs(warp, left, right, slabs, ring);
  if constexpr (!kIsSame<T, R>) scale_columns<Tile>(warp, right);
  launch_dependents();
  store_product<R>(warp, gemm, c, y, scratch, counters, ring, epilogue...);
}
