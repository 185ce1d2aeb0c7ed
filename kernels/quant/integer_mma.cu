// Integer matrix products on tensor cores (sm_80 and up), by tiles of 16 x 64 to 128 x 256: sums kept, scaled, or requantised.
//
// What integer_matmul.cu computes, to the bit. A right operand is always packed, a weight once. One instance makes results
// of all types, since its loop over slabs is most of its code. The inner extent is cut into slices where tiles are few.
#include "dependent_launch.cuh"
#include "integer_mma.cuh"

// Sums the block's slabs, less b_zero * the sums of rows. Strides of `gemm` are in words.
template <class Tile>
__device__ inline void multiply_block(ByteTile<Tile>& warp, const u8* a, const u8* b, const IntegerGemm& gemm,
                                      const u8* b_zero, u8* ring) {
  const int inner = 4 * gemm.inner;
  {
    const MmaPlace<Tile> place(gemm, blockIdx.x);
    const MmaSlabs slabs(inner, Tile::kSlabBytes, blockIdx.y, gridDim.y);
    const int first_k = slabs.first * slabs.depth;
    const auto* const rows = reinterpret_cast<const i8*>(a) + 4 * gemm.find_offset(place.batch, gemm.a_batch);
    const auto* const lines = reinterpret_cast<const i8*>(b) + 4 * gemm.find_offset(place.batch, gemm.b_batch);
    const WideOperand<i8> left(rows, 4 * gemm.a_row, gemm.rows, inner, place.first_row, first_k);
    const WideOperand<i8> right(lines, 4 * gemm.b_inner, gemm.columns, inner, place.first_column, first_k);
    warp.flip = find_flip(gemm.a_offset);
    sum_slabs(warp, left, right, slabs, ring);
  }
  if (!b_zero && !gemm.b_offset) return;
  const MmaPlace<Tile> place(gemm, forget(blockIdx.x));
  const MmaSlabs slabs(inner, Tile::kSlabBytes, int(forget(blockIdx.y)), gridDim.y);
  const i64 start = gemm.find_offset(place.batch, gemm.b_quant_batch);
  const u32* const words = reinterpret_cast<const u32*>(a) + gemm.find_offset(place.batch, gemm.a_batch);
  const MatrixRows rows = {words, gemm.rows, gemm.a_row};
  subtract_rows<Tile>(warp, rows, place.first_row, slabs, inner, gemm.depth, gemm.a_offset, ring, [&](int column) {
    const int inside = place.first_column + column;
    return inside < gemm.columns ? load_zero(b_zero, start + inside * gemm.b_quant_column, gemm.b_offset) : 0;
  });
}

// What sums become results by, of any type; pointers may be null as the kernels say.
struct AnyResults {
  const u8 *a_zero, *b_zero, *a_scale, *b_scale, *y_scale, *y_zero;
  const i32* addend;
  const u8* bias;
  u8* y;

  template <class Y>
  __device__ Results<Y> as() const {
    return {a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, addend, reinterpret_cast<const Y*>(bias),
            reinterpret_cast<Y*>(y)};
  }
};

// Stores the parked columns of a warp, of which `column` is the thread's first: a warp takes four rows at a time.
template <class Y, class Tile>
__device__ inline void store_parked(const ParkedSums<Tile>& parked, const IntegerGemm& gemm, const AnyResults& any,
                                    const u32* column_sums, u32 batch, int first_row, int column, int lane) {
  const Results<Y> results = any.as<Y>();
  FourColumns<Y, true> columns(gemm, results, column_sums, batch, column);
#pragma unroll 1
  for (int row = lane / 8; row < Tile::kWarpRows && first_row + row < gemm.rows; row += 4) {
    const Vec<u32, 4> four = load_vec<4>(parked.find(row, lane % 8));
    columns.store(first_row + row, four.lanes);
  }
}

// Computes  what integer_gemm computes
// Shapes    a [..., rows, inner] words; b [...] of lines along the inner extent, centred, b_inner words apart, and behind them
//           their [columns] sums; y and all else as integer_gemm
// Grid      one block per tile and slice, with Tile::kRingBytes of dynamic shared memory: x = batch * tiles of a batch + tile
//           (MmaPlace), y = slice
// Needs     sm_80. a and b dense along inner, rows of both aligned to 16 bytes; inner a multiple of 4 words; y dense along
//           columns, of the type that gemm.y_kind says, has_fours as integer_gemm. Any of zero points, scales, addend and bias
//           may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  as integer_gemm, to the bit
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    integer_mma(const u8* __restrict__ a, const u8* __restrict__ b, const i32* __restrict__ addend, u8* __restrict__ y,
                const __grid_constant__ IntegerGemm gemm, i32* scratch, unsigned* counters,
                const u8* __restrict__ a_zero, const u8* __restrict__ b_zero, const u8* __restrict__ a_scale,
                const u8* __restrict__ b_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                const u8* __restrict__ bias) {
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  ByteTile<Tile> warp;
  multiply_block(warp, a, b, gemm, b_zero, ring);
  launch_dependents();
  const u32 tile = forget(blockIdx.x);
  if (!join_slices(warp, scratch, counters, tile, blockIdx.y, gridDim.y)) return;

  // Through shared memory, so that a row's neighbours are stored together; nobody reads it any more behind this barrier.
  const AnyResults results = {a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, addend, bias, y};
  const MmaPlace<Tile> place(gemm, tile);
  const int thread = int(forget(threadIdx.x)), lane = thread % 32;
  const ParkedSums<Tile> parked(ring, thread);
  const int first_row = place.first_row + warp.find_row(thread);
  int column = place.first_column + warp.find_column(thread) + lane % 8 * 4;
  const u32* const lines = reinterpret_cast<const u32*>(b) + gemm.find_offset(place.batch, gemm.b_batch);
  const u32* const column_sums = lines + gemm.columns * gemm.b_inner;
  __syncthreads();
#pragma unroll 1
  for (int first = 0; first < Tile::kWarpColumns; first += kParkedColumns, column += kParkedColumns) {
    parked.take(warp, thread);
    __syncwarp();
    switch (gemm.y_kind) {
      case 0: store_parked<i32>(parked, gemm, results, column_sums, place.batch, first_row, column, lane); break;
      case 1: store_parked<float>(parked, gemm, results, column_sums, place.batch, first_row, column, lane); break;
      case 2: store_parked<half>(parked, gemm, results, column_sums, place.batch, first_row, column, lane); break;
      default: store_parked<u8>(parked, gemm, results, column_sums, place.batch, first_row, column, lane);
    }
    __syncwarp();
  }
}

// Computes  lines of neighbours along the inner extent, centred, and behind those of a matrix the sums of their bytes
// Shapes    source [batch, depth, columns] bytes; packed, of each batch [columns, pitch] bytes and [columns] sums, filled up to
//           32 bytes
// Grid      one block of 256 per 32 columns: x = batch * column blocks + column block
// Needs     source dense; packed aligned to 32 bytes, as pitch is
// Numerics  exact; 0 beyond the last row
__global__ void __launch_bounds__(kLineThreads)
    pack_byte_lines(const u8* __restrict__ source, u8* __restrict__ packed, const __grid_constant__ LinePacking packing) {
  wait_for_predecessors();
  launch_dependents();
  pack_lines(packed, packing, [&](u32 batch, int k, int column) {
    const i64 row = i64(batch) * packing.depth + k;
    return k < packing.depth ? source + (row * packing.columns + column) : nullptr;
  });
}
