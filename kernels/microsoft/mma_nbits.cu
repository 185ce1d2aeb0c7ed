// Matrix products of half and bf16 with weights of four bits in blocks, on tensor cores (sm_80 and up).
//
// Codes are read as they lie, wait in registers while a slab is multiplied, and go into shared memory as integers less their
// zero points, which both types hold. The sums of a block of the inner extent are scaled as a whole: so weights are not
// rounded, and a scale is multiplied once for a block.
#include "dependent_launch.cuh"
#include "mma_product.cuh"
#include "packed_weights.cuh"

// The right operand as a block sees it: codes of four bits, dense along the inner extent.
template <class T, class Tile, int Lines, int Shift>
struct CodeLoader;
template <class T>
struct CodedOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = CodeLoader<T, Tile, Lines, Shift>;

  PackedPointers<T> source;
  const PackedShape& shape;
  int columns, inner, end, first_column, first_k;  // end: of the block's slabs, or of the inner extent
  u8* ring;

  __device__ int find_column(int line) const {
    return first_column + line < columns ? first_column + line : columns - 1;
  }
};

// Widens slabs one after the other from the block's first one on: what is stored was fetched a slab before.
//
// A thread has 32 codes at a time, 16 bytes of a line, which become four chunks of a slab's row. Eight threads that store at a
// time have two vectors each of four rows, whose chunks stand in different banks (SlabOrder).
template <class T, class Tile, int Lines, int Shift>
struct CodeLoader {
  typedef typename SlabPart<T, Tile, Lines, Lie::kAlongK, Shift>::Order Order;
  static constexpr int kSlabElements = Tile::kSlabBytes / int(sizeof(T)), kCodes = 32, kChunks = 4;
  static constexpr int kRowVectors = kSlabElements / kCodes, kPairs = kRowVectors / 2;  // of vectors side by side
  static constexpr int kPassRows = Tile::kThreads / 2, kPasses = Lines / kPassRows;
  static_assert(Shift == 3 && kRowVectors % 2 == 0 && Lines % kPassRows == 0, "passes are whole");
  const CodedOperand<T>& operand;
  SharedAddress stages;
  int row, k;  // of the first vector that is fetched
  const u8* sources[kPasses];
  const u8* zero_rows[kPasses];
  Vec<u32, 4> codes[kPasses][kPairs];
  u8 zeros[kPasses][kPairs];  // the byte that has the zero point

  __device__ explicit CodeLoader(const CodedOperand<T>& operand)
      : operand(operand), stages(find_shared_address(operand.ring)) {
    const int thread = threadIdx.x;
    row = thread / 32 * 16 | (thread >> 1 & 1) | (thread >> 2 & 1) << 3 | (thread >> 3 & 3) << 1;
    k = operand.first_k + thread % 2 * kCodes;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const i64 column = operand.find_column(row + i * kPassRows);
      sources[i] = operand.source.weights + (column * operand.shape.row + k) / 2;
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
        codes[i][pair] = load_vec<4>(reinterpret_cast<const u32*>(sources[i] + pair * kCodes));
        if (operand.shape.zero_kind == 1) zeros[i][pair] = __ldg(zero_rows[i] + find_block(pair) / 2);
      }
      sources[i] += kSlabElements / 2;
    }
  }

  __device__ void load_whole(SharedAddress slab) {
    u8* const bytes = operand.ring + (slab - stages);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int shift = find_block(pair) % 2 * 4, chunk = threadIdx.x % 2 * kChunks + pair * 2 * kChunks;
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        // A float of 2^23 and more has an integer in its low bits.
        const u32 zero = operand.shape.zero_kind == 1 ? zeros[i][pair] >> shift & 15 : 8;
        const float offset = reinterpret<float>(0x4b000000u | zero);
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
          const u32 eight = codes[i][pair].lanes[j];
          Vec<u32, 4> words;
#pragma unroll
          for (int pick = 0; pick < 4; ++pick) {
            const float low = reinterpret<float>(0x4b000000u | (eight >> 8 * pick & 15)) - offset;
            const float high = reinterpret<float>(0x4b000000u | (eight >> (8 * pick + 4) & 15)) - offset;
            words.lanes[pick] = pack_pair<T>(low, high);
          }
          store_vec(reinterpret_cast<u32*>(bytes + Order::place(row + i * kPassRows, chunk + j)), words);
        }
      }
    }
    k += kSlabElements;
    fetch();
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }
};

// A warp's part of a tile whose sums are scaled by blocks of the inner extent: those of the block at hand, and those scaled.
template <class T, class Tile>
struct BlockTile {
  typedef T Element;
  typedef Tile Shape;
  static constexpr Lie kLeftLie = Lie::kAlongK, kRightLie = Lie::kAlongK;
  static constexpr int kStepElements = 32 / int(sizeof(T)), kOwnColumns = Tile::kAcross * 2;
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> part;
  float sums[Tile::kDown][Tile::kAcross][4];
  const CodedOperand<T>& operand;
  const T* sources[kOwnColumns];  // of the scales of the block at hand
  T scales[kOwnColumns];
  int block, pairs_left, block_pairs;  // pairs of steps: no block is shorter

  __device__ explicit BlockTile(const CodedOperand<T>& operand) : operand(operand) {
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
      scales[j] = block < operand.shape.blocks ? __ldg(sources[j]) : cast<T>(0.0f);
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
          sums[i][j][e] += part.sums[i][j][e] * widen(scales[2 * j + e % 2]);
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
// Needs     sm_80. a dense along inner; a and its rows aligned to 16 bytes; codes of four bits, the first in the low bits of
//           its byte, weights aligned to 16 bytes; zero_kind 0 or 1; blocks of 32 elements or more. kWideY as mma_gemm. c and
//           zeros may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  products of a and q - zero exact, summed in float in the order of the hardware; the sum of a block times its
//           scale, and these in float in their order; slices in order; then c, rounded once
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    mma_nbits(const T* __restrict__ a, const u8* __restrict__ weights, const T* __restrict__ c, T* __restrict__ y,
              const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters, const T* __restrict__ scales,
              const u8* __restrict__ zeros, const __grid_constant__ PackedShape shape) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  launch_dependents();
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth, last_k = first_k + slabs.count * slabs.depth;
  const WideOperand<T> left(a, gemm.a_row, gemm.rows, gemm.inner, place.first_row, first_k);
  const CodedOperand<T> right = {{weights, scales, zeros, nullptr, nullptr}, shape, gemm.columns, gemm.inner,
                                 last_k < gemm.inner ? last_k : gemm.inner, place.first_column, first_k, ring};
  BlockTile<T, Tile> warp(right);
  sum_slabs(warp, left, right, slabs, ring);
  warp.finish();
  store_product<T>(warp.part, gemm, c, y, scratch, counters, ring);
}
