// MatMul and Gemm of float on the FP32 units, by tiles of 128 x 128 or 64 x 64; the right operand may be narrow weights.
//
// The inner extent is cut into slices where tiles are few.
#include "dependent_launch.cuh"
#include "narrow_tile.cuh"
#include "simt_product.cuh"
#include "simt_tile.cuh"

// The place of a tile: (batch * row tiles + row tile) * column tiles + column tile.
template <class Tile>
struct GemmPlace {
  int first_row, first_column;
  u32 batch;

  __device__ GemmPlace(const SimtGemm& gemm, u32 tile) {
    const u32 column_tiles = (u32(gemm.columns) + Tile::kColumns - 1) / Tile::kColumns;
    const u32 row_tiles = (u32(gemm.rows) + Tile::kRows - 1) / Tile::kRows;
    const u32 row_tile = tile / column_tiles;
    first_column = int(tile - row_tile * column_tiles) * Tile::kColumns;
    batch = row_tile / row_tiles;
    first_row = int(row_tile - batch * row_tiles) * Tile::kRows;
  }
};

// What copies operands: vectors of 16 bytes alone, or whatever fits each of them. A kernel for vectors has one loop of the
// three that it would be otherwise, each of which takes as long to compile.
enum class Copies { kVectors, kAny };

// Sums the block's slabs. Waits before it copies any of them.
template <class Tile, Copies kCopies, class Wait>
__device__ inline void multiply_block(const float* a, const float* b, const SimtGemm& gemm, float* ring,
                                      float (&sums)[Tile::kRowSums][kColumnSums], const Wait& wait) {
  const GemmPlace<Tile> place(gemm, blockIdx.x);
  gemm.advance(place.batch, a, b);
  const SlabRange range(gemm.inner, blockIdx.y, gridDim.y);
  if constexpr (kCopies == Copies::kVectors) {
    const LeftVectors<Tile> left(a, place.first_row, gemm.rows, gemm.a_row, gemm.a_inner, range.first_k);
    const RightVectors<Tile> right(b, place.first_column, gemm.columns, gemm.b_column, gemm.b_inner, range.first_k);
    wait();
    multiply_slabs<Tile>(left, right, range, ring, sums);
  } else {
    // What copies by registers would make a loop long that holds copies of both kinds.
    const bool is_left_wide = (gemm.wide & kWideA) && kCopiesAsync, is_right_wide = (gemm.wide & kWideB) && kCopiesAsync;
    const LeftAny<Tile> left(a, place.first_row, gemm.rows, gemm.a_row, gemm.a_inner, range.first_k, is_left_wide);
    const RightAny<Tile> right(b, place.first_column, gemm.columns, gemm.b_column, gemm.b_inner, range.first_k,
                               is_right_wide);
    wait();
    multiply_slabs<Tile>(left, right, range, ring, sums);
  }
}

// The same with a narrow right operand.
template <class Tile, class W, class Wait>
__device__ inline void multiply_narrow_block(const float* a, const W* b, const Scales<float>& scales,
                                             i64 scale_step, const SimtGemm& gemm, float* ring, float* table,
                                             float (&sums)[Tile::kRowSums][kColumnSums], const Wait& wait) {
  const GemmPlace<Tile> place(gemm, blockIdx.x);
  gemm.advance(place.batch, a, b);
  const SlabRange range(gemm.inner, blockIdx.y, gridDim.y);
  wait();
  ScaleTable<Tile, W>::fill(table, scales, place.first_column, gemm.columns, scale_step);
  if ((gemm.wide & kWideA) && (gemm.wide & kWideB)) {
    const LeftVectors<Tile> left(a, place.first_row, gemm.rows, gemm.a_row, gemm.a_inner, range.first_k);
    if (gemm.wide & kLinesB) {
      const NarrowLines<Tile, W, false> right(b, table, place.first_column, gemm.columns, gemm.b_column, range.first_k);
      multiply_slabs<Tile>(left, right, range, ring, sums);
    } else {
      const NarrowRightRows<Tile, W> right(b, table, place.first_column, gemm.columns, gemm.b_inner, range.first_k);
      multiply_slabs<Tile>(left, right, range, ring, sums);
    }
  } else {
    const LeftAny<Tile> left(a, place.first_row, gemm.rows, gemm.a_row, gemm.a_inner, range.first_k, false);
    const NarrowRightElements<Tile, W> right(b, table, place.first_column, gemm.columns, gemm.b_column,
                                             gemm.b_inner, range.first_k);
    multiply_slabs<Tile>(left, right, range, ring, sums);
  }
}

// Joins the slices of a block's tile, and finishes and stores it. All threads of the block come here.
template <class Tile, class... Epilogue>
__device__ inline void finish_tile(float (&sums)[Tile::kRowSums][kColumnSums], float* ring, const float* c,
                                   Stored<float, Epilogue...>* y, const SimtGemm& gemm, float* scratch,
                                   unsigned* counters,
                                   const Epilogue&... epilogue) {
  const u32 tile = opaque(blockIdx.x);
  const int thread = opaque(threadIdx.x);
  if (!join_slices<Tile>(sums, scratch, counters, tile, thread, blockIdx.y, gridDim.y)) return;

  const GemmPlace<Tile> place(gemm, tile);
  const SumsPlace<Tile> own(thread);
  const i64 start = gemm.find_offset(place.batch, gemm.y_batch);
  const auto finish = finish_by<float>(epilogue...);
  const auto store = [&](int i, const float (&four)[4]) {  // sums i of the thread, in fours along the rows
    const int row = place.first_row + own.row + 4 * (i / 2), column = place.first_column + own.column + 32 * (i % 2);
    store_four(gemm, c, y, start, row, column, four, finish);
  };
  if constexpr (sizeof...(Epilogue) == 0) {
    if (!c && (gemm.wide & kWideY)) {
#pragma unroll
      for (int i = 0; i < 2 * Tile::kRowSums; ++i) {
        const int row = place.first_row + own.row + 4 * (i / 2), column = place.first_column + own.column + 32 * (i % 2);
        Vec<float, 4> four;
#pragma unroll
        for (int j = 0; j < 4; ++j) four.lanes[j] = sums[i / 2][i % 2 * 4 + j] * gemm.alpha;
        if (row < gemm.rows && column < gemm.columns) store_vec(y + (start + row * gemm.y_row + column), four);
      }
      return;
    }
  }
  // What is long stands there once, and calls: sums wait in shared memory, half of them at a time, which nobody reads any
  // more behind this barrier.
  constexpr int kHalf = Tile::kRowSums;  // fours
  static_assert(kHalf * 4 * Tile::kThreads <= Tile::kRingFloats, "half of the sums fit in the ring");
  float* const parked = ring + 4 * thread;
  __syncthreads();
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float(&row)[kColumnSums] = sums[i / 2];
      const int j = i % 2 * 4;
      store_vec(parked + i * 4 * Tile::kThreads, Vec<float, 4>{{row[j], row[j + 1], row[j + 2], row[j + 3]}});
#pragma unroll
      for (int k = j; k < j + 4; ++k) row[k] = sums[(kHalf + i) / 2][k];
    }
#pragma unroll 1
    for (int i = 0; i < kHalf; ++i) {
      float four[4];
      read_fragment(four, parked + i * 4 * Tile::kThreads);
      store(half * kHalf + i, four);
    }
  }
}

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns], y [..., rows, columns], all by strides;
//           scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      one block per tile and slice: x = (batch * row tiles + row tile) * column tiles + column tile, y = slice
// Needs     strides of a along rows and of b along columns below 2^23, those along the inner extent below 2^27. kWideA:
//           a_inner 1; a, a_row, inner and a_batch multiples of 4 elements (16 bytes). kWideB: the same of b_column, b,
//           b_inner, columns and b_batch. kWideY: the same of y_column, y, y_row, columns and y_batch. Copies::kVectors:
//           kWideA and kWideB. c may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  k in order within a slice, one fma each; slices in order; then alpha, beta * c, and the epilogue
template <class Tile, Copies kCopies, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_gemm(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
              Stored<float, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
              unsigned* counters, Epilogue... epilogue) {
  __shared__ alignas(16) float ring[Tile::kRingFloats];
  float sums[Tile::kRowSums][kColumnSums];
  multiply_block<Tile, kCopies>(a, b, gemm, ring, sums, [] {
    wait_for_predecessors();
    launch_dependents();
  });
  finish_tile<Tile>(sums, ring, c, y, gemm, scratch, counters, epilogue...);
}

// Computes  what simt_gemm computes, b narrow: value (b - zero) * scale, rounded to float
// Shapes    as simt_gemm; scale and zero [columns], or one element where scale_step is 0
// Grid      as simt_gemm
// Needs     as simt_gemm, but kWideB: b_column 1, or b_inner 1 where kLinesB; the other
//           stride of b, b itself, its extent along the first and b_batch multiples of 4 elements. kWideA matters where
//           kWideB is there alone. scale (of half weights) and zero may be null
// Numerics  as simt_gemm of the widened b, to the bit
template <class Tile, class W, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    simt_gemm_narrow(const float* __restrict__ a, const W* __restrict__ b, const float* __restrict__ c,
                     float* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                     const float* __restrict__ scale, const i8* __restrict__ zero, i64 scale_step,
                     Epilogue... epilogue) {
  __shared__ alignas(16) float ring[Tile::kRingFloats];
  __shared__ alignas(16) float table[ScaleTable<Tile, W>::kFloats];
  float sums[Tile::kRowSums][kColumnSums];
  multiply_narrow_block<Tile>(a, b, {scale, zero}, scale_step, gemm, ring, table, sums, [] {
    wait_for_predecessors();
    launch_dependents();
  });
  finish_tile<Tile>(sums, ring, c, y, gemm, scratch, counters, epilogue...);
}
