// Matrix products of half and bf16 with weights of 2, 4 or 8 bits in blocks, on tensor cores (sm_80 and up).
//
// Codes are read as they lie, wait in registers while a slab is multiplied, and go into shared memory as integers less their
// zero points, which both types hold. The sums of a block of the inner extent are scaled as a whole: so weights are not
// rounded, and a scale is multiplied once for a block.
#include "code_pairs.cuh"
#include "dependent_launch.cuh"
#include "mma_product.cuh"
#include "packed_weights.cuh"

// The right operand as a block sees it: codes dense along the inner extent. R: the type of scales.
template <class T, class R, int Bits, class Tile, int Lines, int Shift>
struct CodeLoader;
template <class T, class R, int Bits>
struct CodedOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = CodeLoader<T, R, Bits, Tile, Lines, Shift>;

  PackedPointers<R> source;
  const PackedShape& shape;
  int columns, inner, end, first_column, first_k;  // end: of the block's slabs, or of the inner extent
  u8* ring;

  __device__ int find_column(int line) const {
    return first_column + line < columns ? first_column + line : columns - 1;
  }
};

// Widens slabs one after the other from the block's first one on: what is stored was fetched a slab before.
//
// A thread has vectors of 32 codes of a line, of 8 bits 16, which become four chunks of a slab's row, or two. Eight threads
// that store at a time have two vectors each of four rows, whose chunks stand in different banks (SlabOrder).
template <class T, class R, int Bits, class Tile, int Lines, int Shift>
struct CodeLoader {
  typedef typename SlabPart<T, Tile, Lines, Lie::kAlongK, Shift>::Order Order;
  static constexpr int kSlabElements = Tile::kSlabBytes / int(sizeof(T)), kCodes = Bits == 8 ? 16 : 32;
  static constexpr int kChunks = kCodes / kEight, kWords = kCodes * Bits / 32;
  static constexpr int kRowVectors = kSlabElements / kCodes, kPairs = kRowVectors / 2;  // of vectors side by side
  static constexpr int kPassRows = Tile::kThreads / 2, kPasses = Lines / kPassRows;
  static constexpr int kByteShift = Bits == 8 ? 0 : Bits == 4 ? 1 : 2;  // log2 of the codes of a byte
  static_assert(Shift == 3 && kRowVectors % 2 == 0 && Lines % kPassRows == 0, "passes are whole");
  static_assert(Tile::kThreads == 128, "rows are numbered by four warps");
  const CodedOperand<T, R, Bits>& operand;
  SharedAddress stages;
  int row, k;  // of the first vector that is fetched
  const u8* sources[kPasses];
  const u8* zero_rows[kPasses];
  Vec<u32, kWords> codes[kPasses][kPairs];
  u8 zeros[kPasses][kPairs];  // the byte that has the zero point

  __device__ explicit CodeLoader(const CodedOperand<T, R, Bits>& operand)
      : operand(operand), stages(find_shared_address(operand.ring)) {
    const int thread = threadIdx.x, warp = thread / 32, far = thread >> 2 & 1;
    row = (thread >> 1 & 1) | (thread >> 3 & 3) << 1;
    // Rows that are stored at a time differ in bit 0, and in that bit of the phase which chunks side by side don't reach.
    row |= kChunks == 4 ? far << 3 | warp << 4 : (warp & 1) << 3 | far << 4 | (warp >> 1) << 5;
    k = operand.first_k + thread % 2 * kCodes;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const i64 column = operand.find_column(row + i * kPassRows);
      sources[i] = operand.source.weights + (column * operand.shape.row + k) * Bits / 8;
      zero_rows[i] = operand.source.zeros + column * operand.shape.zero_row;
    }
    fetch();
  }

  __device__ int find_block(int pair) const { return (k + pair * 2 * kCodes) >> operand.shape.block_shift; }

  // Beyond the end, where the left operand is 0 or nothing is multiplied, any codes will do.
  __device__ void fetch() {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        codes[i][pair] = {};
        zeros[i][pair] = 0;
        if (k + pair * 2 * kCodes >= operand.end) continue;
        codes[i][pair] = load_vec<kWords>(reinterpret_cast<const u32*>(sources[i]) + pair * 2 * kWords);
        if (operand.shape.zero_kind == 1) zeros[i][pair] = __ldg(zero_rows[i] + (find_block(pair) >> kByteShift));
      }
      sources[i] += kSlabElements * Bits / 8;
    }
  }

  __device__ void load_whole(SharedAddress slab) {
    u8* const bytes = operand.ring + (slab - stages);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int shift = (find_block(pair) & ((1 << kByteShift) - 1)) * Bits;
      const int chunk = (threadIdx.x % 2 + pair * 2) * kChunks;
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const u32 given = u32(zeros[i][pair]) >> shift & ((1u << Bits) - 1);
        const CodePairs<T, Bits> pairs(operand.shape.zero_kind == 1 ? given : 1u << (Bits - 1));
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
          const int place = Order::place(row + i * kPassRows, chunk + j);
          store_vec(reinterpret_cast<u32*>(bytes + place), pairs.widen_eight(codes[i][pair], j));
        }
      }
    }
    k += kSlabElements;
    fetch();
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }
};

// A warp's part of a tile whose sums are scaled by blocks of the inner extent: those of the block at hand, and those scaled.
template <class T, class R, int Bits, class Tile>
struct BlockTile {
  typedef T Element;
  typedef Tile Shape;
  static constexpr Lie kLeftLie = Lie::kAlongK, kRightLie = Lie::kAlongK;
  static constexpr int kStepElements = 32 / int(sizeof(T)), kOwnColumns = Tile::kAcross * 2;
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> part;
  float sums[Tile::kDown][Tile::kAcross][4];
  const CodedOperand<T, R, Bits>& operand;
  const R* sources[kOwnColumns];  // of the scales of the block at hand
  R scales[kOwnColumns];
  int block, pairs_left, block_pairs;  // pairs of steps: no block is shorter

  __device__ explicit BlockTile(const CodedOperand<T, R, Bits>& operand) : operand(operand) {
    const PackedShape& shape = operand.shape;
    const int thread = threadIdx.x;
    block_pairs = (1 << shape.block_shift) / (2 * kStepElements);
    block = operand.first_k >> shape.block_shift;
    pairs_left = block_pairs - operand.first_k / (2 * kStepElements) % block_pairs;
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int column = part.find_column(thread) + thread % 4 * kEight + j / kEight * 32 + j % kEight;
      sources[j] = operand.source.scales + (operand.find_column(column) * shape.blocks + block);
    }
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
      }
    }
    fetch();
  }

  // Fetches the scales of a block; there are none beyond the last one, whose sums are 0.
  __device__ void fetch() {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      scales[j] = block < operand.shape.blocks ? __ldg(sources[j]) : cast<R>(0.0f);
      ++sources[j];
    }
  }

  __device__ void begin(SharedAddress stage) { part.begin(stage); }

  __device__ void multiply(int step, SharedAddress stage, int next) {
    part.multiply(step, stage, next);
    if (step % 2 == 1 && --pairs_left == 0) scale();
  }

  // Adds the sums of the block at hand, scaled, and begins the next one.
  __device__ void scale() {
#pragma unroll
    for (int j = 0; j < Tile::kAcross; ++j) {
#pragma unroll
      for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[i][j][e] = fmaf(part.sums[i][j][e], widen(scales[2 * j + e % 2]), sums[i][j][e]);
          part.sums[i][j][e] = 0.0f;
        }
      }
    }
    ++block;
    pairs_left = block_pairs;
    fetch();
  }

  // Scales what is left of a block, and gives the warp's sums back. All that is behind the last slab is 0.
  __device__ void finish() {
    scale();
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) part.sums[i][j][e] = sums[i][j][e];
      }
    }
  }
};

// Computes  y = a @ w + c, where w[k, n] is (q - zero) * scale, of the code q at n * shape.row + k and its block along k
// Shapes    a [rows, inner], weights, scales and zero points as PackedShape says, c [columns], y [rows, columns];
//           scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      as mma_gemm
// Needs     sm_80. a dense along inner; a and its rows aligned to 16 bytes; codes of Bits bits, the first in the low bits of
//           its byte, weights aligned to 16 bytes; zero_kind 0 or 1; blocks of 32 elements or more. R is T or float. kWideY
//           as mma_gemm. c and zeros may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  products of a and q - zero exact, summed in float in the order of the hardware; the sums of blocks times their
//           scales in float in their order, each by a fused multiply-add; slices in order; then c, rounded once, and
//           the epilogue
template <class T, class R, int Bits, class Tile, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_nbits(const T* __restrict__ a, const u8* __restrict__ weights, const R* __restrict__ c,
              Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
              unsigned* counters, const R* __restrict__ scales, const u8* __restrict__ zeros,
              const __grid_constant__ PackedShape shape, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth, last_k = first_k + slabs.count * slabs.depth;
  const WideOperand<T> left(a, gemm.a_row, gemm.rows, gemm.inner, place.first_row, first_k);
  const CodedOperand<T, R, Bits> right = {{weights, scales, zeros, nullptr, nullptr}, shape, gemm.columns, gemm.inner,
                                          last_k < gemm.inner ? last_k : gemm.inner, place.first_column, first_k, ring};
  BlockTile<T, R, Bits, Tile> warp(right);
  sum_slabs(warp, left, right, slabs, ring);
  warp.finish();
  launch_dependents();
  store_product<R>(warp.part, gemm, c, y, scratch, counters, ring, epilogue...);
}
