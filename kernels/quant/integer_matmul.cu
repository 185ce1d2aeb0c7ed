// Integer matrix products: batches of sums of (a - a_zero) * (b - b_zero), kept, scaled, or requantised.
//
// Operands are words of four bytes along the inner extent (integer_product.cuh), so products are those of simt_tile.cuh
// with another multiplication. Left operands are read as they lie where rows are made of whole words, else packed first;
// right ones are always packed, a weight once. The inner extent is cut into slices where tiles are few. Products that are
// beyond 32 bits are summed by a kernel that counts in 64.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "integer_tile.cuh"
#include "reduce.cuh"

// Sums the block's slabs, less b_zero * the sums of rows.
template <class Tile, bool IsSigned, class Y>
__device__ inline void multiply_block(const u32* a, const u32* b, const IntegerGemm& gemm, const Results<Y>& results,
                                      u32* ring, u32 (&sums)[Tile::kRowSums][kColumnSums]) {
  typedef MultiplyBytes<IsSigned> Multiply;
  {
    const TileOfBatch<Tile> place(gemm.rows, gemm.columns, blockIdx.x);
    const SlabRange range(gemm.inner, blockIdx.y, gridDim.y);
    const LeftVectors<Tile, u32> left(a + gemm.find_offset(place.batch, gemm.a_batch), place.first_row, gemm.rows,
                                      gemm.a_row, 1, range.first_k);
    const RightVectors<Tile, u32> right(b + gemm.find_offset(place.batch, gemm.b_batch), place.first_column,
                                        gemm.padded_columns(), 1, gemm.b_inner, range.first_k);
    multiply_slabs<Tile, Multiply>(left, right, range, ring, sums);
  }
  if (!results.need_rows(gemm)) return;
  const TileOfBatch<Tile> place(gemm.rows, gemm.columns, opaque(blockIdx.x));
  const SlabRange range(gemm.inner, opaque(blockIdx.y), gridDim.y);
  const i64 start = gemm.find_offset(place.batch, gemm.b_quant_batch);
  const MatrixRows rows = {a + gemm.find_offset(place.batch, gemm.a_batch), gemm.rows, gemm.a_row};
  subtract_rows<Tile, Multiply>(rows, place.first_row, range, ring, sums, [&](int column) {
    const int inside = place.first_column + column;
    if (inside >= gemm.columns) return 0;
    return load_zero(results.b_zero, start + inside * gemm.b_quant_column, gemm.b_offset);
  });
}

// Computes  sums of (a - a_zero) * (b - b_zero), plus addend; then y = sum, y = alpha * a_scale * b_scale * sum + bias, or
//           y = round(alpha * a_scale * b_scale / y_scale * sum) + y_zero, as Y is i32, a float or u8
// Shapes    a [..., rows, inner] words; b [..., inner + 1, columns] words, of which the last row is the sums of columns;
//           y [..., rows, columns], addend [rows, columns], bias [columns], scales and zero points of a and y by rows, of b
//           by columns, all by strides; scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      one block per tile and slice: x = (batch * row tiles + row tile) * column tiles + column tile, y = slice
// Needs     a dense along inner, b and y along columns; a, b, rows of both and their strides multiples of 4 words (16 bytes)
//           below 2^29. has_fours: the same of y in elements, and columns a multiple of 4. Any of zero points, scales,
//           addend and bias may be null; scratch and counters too with one slice; counters are 0 and are left 0
// Numerics  sums modulo 2^32; scaling in float, each operation rounded; halves to even; saturates; half rounded once
template <class Tile, class Y>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    integer_gemm(const u32* __restrict__ a, const u32* __restrict__ b, const i32* __restrict__ addend, Y* __restrict__ y,
                 const __grid_constant__ IntegerGemm gemm, u32* scratch, unsigned* counters,
                 const u8* __restrict__ a_zero, const u8* __restrict__ b_zero, const u8* __restrict__ a_scale,
                 const u8* __restrict__ b_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                 const Y* __restrict__ bias) {
  __shared__ alignas(16) u32 ring[Tile::kRingFloats];
  u32 sums[Tile::kRowSums][kColumnSums];
  const Results<Y> results = {a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, addend, bias, y};
  wait_for_predecessors();
  launch_dependents();
  if (gemm.a_offset) multiply_block<Tile, false>(a, b, gemm, results, ring, sums);
  else multiply_block<Tile, true>(a, b, gemm, results, ring, sums);
  const u32 tile = opaque(blockIdx.x);
  const int thread = opaque(threadIdx.x);
  if (!join_slices<Tile>(sums, scratch, counters, tile, thread, blockIdx.y, gridDim.y)) return;

  // Sums wait in shared memory, half of the columns at a time, which nobody reads any more behind this barrier.
  const TileOfBatch<Tile> place(gemm.rows, gemm.columns, tile);
  const SumsPlace<Tile> own(thread);
  const u32* const column_sums = b + gemm.find_offset(place.batch, gemm.b_batch) + gemm.inner * gemm.b_inner;
  u32* const parked = ring + 4 * thread;
  static_assert(Tile::kRowSums * 4 * Tile::kThreads <= Tile::kRingFloats, "half of the sums fit in the ring");
  __syncthreads();
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < Tile::kRowSums; ++i) {
      store_vec(parked + i * 4 * Tile::kThreads, Vec<u32, 4>{{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}});
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = sums[i][4 + j];
    }
    FourColumns<Y> columns(gemm, results, column_sums, place.batch, place.first_column + own.column + 32 * half);
#pragma unroll 1
    for (int i = 0; i < Tile::kRowSums; ++i) {
      const int row = place.first_row + own.row + 4 * i;
      if (row >= gemm.rows) break;
      u32 four[4];
      read_fragment(four, parked + i * 4 * Tile::kThreads);
      columns.store(row, four);
    }
  }
}

constexpr int kRowThreads = 256;  // of a block of integer_gemv
constexpr int kRowWarps = kRowThreads / 32;

// Sums of four columns of up to Rows rows over k = first, first + step, ... below `end`, and of these rows. Rows beyond the
// last read the last.
template <int Rows, bool IsSigned>
struct RowSums {
  typedef MultiplyBytes<IsSigned> Multiply;
  u32 products[Rows][4], rows[Rows];

  // Adds `Loads` k at a time, and returns the first that is left.
  template <int Loads>
  __device__ int add_every(const u32* const (&a)[Rows], const u32* b, i64 b_inner, int k, int step, int end) {
#pragma unroll 1
    for (; k + (Loads - 1) * step < end; k += Loads * step) {
      uint4 words[Loads];
#pragma unroll
      for (int i = 0; i < Loads; ++i) words[i] = __ldcs(reinterpret_cast<const uint4*>(b + (k + i * step) * b_inner));
#pragma unroll
      for (int i = 0; i < Loads; ++i) {
#pragma unroll
        for (int row = 0; row < Rows; ++row) {
          const u32 own = a[row][k + i * step];
          products[row][0] = Multiply::add(own, words[i].x, products[row][0]);
          products[row][1] = Multiply::add(own, words[i].y, products[row][1]);
          products[row][2] = Multiply::add(own, words[i].z, products[row][2]);
          products[row][3] = Multiply::add(own, words[i].w, products[row][3]);
          rows[row] = Multiply::add(own, kOnes, rows[row]);
        }
      }
    }
    return k;
  }
};

// Sums a thread's part of the inner extent, less b_zero * the sums of rows.
template <int Rows, bool IsSigned, class Y>
__device__ inline void multiply_rows(const u32* const (&a)[Rows], const u32* b, const IntegerGemm& gemm,
                                     const Results<Y>& results, u32 batch, int column, u32 (&sums)[Rows][4]) {
  constexpr int kLoads = Rows == 1 ? 8 : 4;
  const int slices = gridDim.y, step = kRowThreads / gemm.lanes;
  const int first = int(i64(gemm.inner) * blockIdx.y / slices) + threadIdx.x / gemm.lanes;
  const int end = int(i64(gemm.inner) * (blockIdx.y + 1) / slices);
  RowSums<Rows, IsSigned> own = {};
  const int k = own.template add_every<kLoads>(a, b, gemm.b_inner, first, step, end);
  own.template add_every<1>(a, b, gemm.b_inner, k, step, end);
  i32 zeros[4] = {0, 0, 0, 0};
  if (results.need_rows(gemm)) {
    load_column_zeros(zeros, results, gemm, gemm.find_offset(batch, gemm.b_quant_batch), column);
  }
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[row][j] = own.products[row][j] - u32(zeros[j]) * own.rows[row];
  }
}

// Computes  what integer_gemm computes
// Shapes    as integer_gemm; scratch [blocks, slices, Rows * 4 * lanes]; counters [blocks]
// Grid      one block of 256 per 4 * gemm.lanes columns, slice and Rows rows: x = batch * column blocks + column block,
//           y = slice, z = row block; 256 / gemm.lanes (8, 16 or 32) threads share four columns, each with every so-many-th
//           word
// Needs     as integer_gemm
// Numerics  as integer_gemm, to the bit
template <int Rows, class Y>
__global__ void __launch_bounds__(kRowThreads, 2)
    integer_gemv(const u32* __restrict__ a, const u32* __restrict__ b, const i32* __restrict__ addend, Y* __restrict__ y,
                 const __grid_constant__ IntegerGemm gemm, u32* scratch, unsigned* counters,
                 const u8* __restrict__ a_zero, const u8* __restrict__ b_zero, const u8* __restrict__ a_scale,
                 const u8* __restrict__ b_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                 const Y* __restrict__ bias) {
  __shared__ alignas(16) u32 partial[kRowWarps][Rows][32 * 4];
  const Results<Y> results = {a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, addend, bias, y};
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, lanes = gemm.lanes;
  const u32 column_blocks = (u32(gemm.columns) + 4 * lanes - 1) / (4 * lanes), batch = blockIdx.x / column_blocks;
  const int first_column = int(blockIdx.x - batch * column_blocks) * 4 * lanes, first_row = int(blockIdx.z) * Rows;
  a += gemm.find_offset(batch, gemm.a_batch);
  b += gemm.find_offset(batch, gemm.b_batch);
  const u32* rows[Rows];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    rows[row] = a + (first_row + row < gemm.rows ? first_row + row : gemm.rows - 1) * gemm.a_row;
  }
  const int column = first_column + 4 * (lane % lanes);
  const u32* const columns = b + (column < gemm.columns ? column : first_column);
  u32 sums[Rows][4];
  wait_for_predecessors();
  launch_dependents();
  if (gemm.a_offset) multiply_rows<Rows, false>(rows, columns, gemm, results, batch, column, sums);
  else multiply_rows<Rows, true>(rows, columns, gemm, results, batch, column, sums);
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      for (int offset = 16; offset >= lanes; offset /= 2) sums[row][j] += __shfl_xor_sync(kFullMask, sums[row][j], offset);
    }
    if (lane < lanes) {
      store_vec(&partial[warp][row][4 * lane], Vec<u32, 4>{{sums[row][0], sums[row][1], sums[row][2], sums[row][3]}});
    }
  }
  __syncthreads();

  const int group = thread % lanes, row = thread / lanes, slices = gridDim.y;
  const bool has_value = row < Rows;
  u32 value[4] = {0, 0, 0, 0};
  for (int part = 0; has_value && part < kRowWarps; ++part) {
    const Vec<u32, 4> four = load_vec<4>(&partial[part][row][4 * group]);
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
  }
  if (slices > 1) {
    const u32 number = blockIdx.z * gridDim.x + blockIdx.x;
    const int size = Rows * 4 * lanes;
    u32* const own = scratch + i64(number) * slices * size + 4 * thread;
    if (has_value) store_vec(own + blockIdx.y * size, Vec<u32, 4>{{value[0], value[1], value[2], value[3]}});
    if (!last_block(counters + number, unsigned(slices))) return;
    for (int slice = 0; has_value && slice < slices; ++slice) {
      if (slice == int(blockIdx.y)) continue;
      const uint4 four = __ldcg(reinterpret_cast<const uint4*>(own + slice * size));
      value[0] += four.x, value[1] += four.y, value[2] += four.z, value[3] += four.w;
    }
  }
  if (!has_value || first_row + row >= gemm.rows) return;
  const u32* const column_sums = b + gemm.inner * gemm.b_inner;
  FourColumns<Y> finished(gemm, results, column_sums, batch, first_column + 4 * group);
  finished.store(first_row + row, value);
}

// The terms of a sum of bytes as they lie. Packed by _launch_long of gpuexec/ops/quant/integer_matmul.py.
struct ByteTerms {
  i64 depth, a_step, b_step;  // steps from a term to the next
  i32 a_offset, b_offset;     // 128 for unsigned bytes
  Finish finish;
};

// Operands of integer_contract that are walked with its outputs; a scale lies where its zero point does.
enum Walked { kA, kB, kAQuant, kBQuant, kYQuant, kAddend, kBias, kY, kWalked };

// Computes  what integer_gemm computes, of bytes as they lie: products whose extents or steps 32 bits don't hold
// Shapes    a [..., rows, depth], b [..., depth, columns]; y, scales, zero points, addend and bias by what `walk` says of
//           each, over y's axes
// Grid      256 / lanes outputs per block
// Needs     any of zero points, scales, addend and bias may be null
// Numerics  as integer_gemm, to the bit
template <class Y>
__global__ void __launch_bounds__(kBlockThreads)
    integer_contract(const u8* __restrict__ a, const u8* __restrict__ b, const i32* __restrict__ addend, Y* __restrict__ y,
                     const __grid_constant__ Strided<kMaxRank, kWalked> walk, const __grid_constant__ ByteTerms terms,
                     const u8* __restrict__ a_zero, const u8* __restrict__ b_zero, const u8* __restrict__ a_scale,
                     const u8* __restrict__ b_scale, const u8* __restrict__ y_scale, const u8* __restrict__ y_zero,
                     const Y* __restrict__ bias, int lanes, int lane_stride) {
  __shared__ u32 shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_live = team.row < walk.count;
  i64 places[kWalked] = {};
  if (is_live) walk.locate(team.row, places);
  const i32 left_zero = load_zero(a_zero, places[kAQuant], terms.a_offset);
  const i32 right_zero = load_zero(b_zero, places[kBQuant], terms.b_offset);
  a += places[kA];
  b += places[kB];
  u32 sum = 0;
#pragma unroll 4
  for (i64 k = team.lane; k < (is_live ? terms.depth : 0); k += lanes) {
    const i32 left = centre(a[k * terms.a_step], terms.a_offset) - left_zero;
    sum += u32(left * (centre(b[k * terms.b_step], terms.b_offset) - right_zero));
  }
  sum = team.fold(sum, shared, wrapping_add<u32>);
  if (!is_live || team.lane > 0) return;
  const Finish& finish = terms.finish;
  const float scale = finish.alpha * load_scale(a_scale, places[kAQuant], finish.scale_kind);
  const float factor = find_factor<Y>(scale * load_scale(b_scale, places[kBQuant], finish.scale_kind),
                                      load_scale(y_scale, places[kYQuant], finish.scale_kind));
  float added = -0.0f;  // the identity of addition, also for -0
  if constexpr (kIsFloat<Y>) {
    if (bias) added = widen(bias[places[kBias]]);
  }
  const i32 total = addend ? wrapping_add(i32(sum), addend[places[kAddend]]) : i32(sum);
  const i32 zero = load_zero(y_zero, places[kYQuant], finish.y_offset);
  y[places[kY]] = finish_sum<Y>(total, factor, zero, added, finish.y_offset);
}

// How bytes are packed into words. Packed by gpuexec/ops/quant/integer_words.py.
struct WordPacking {
  i64 rows;             // of pack_byte_rows
  i32 depth, words;     // bytes of the inner extent that are there, and the words that they become
  i32 columns, padded;  // of pack_byte_columns, without and with those that fill rows up to 16 bytes
  i32 flip;             // 128 where unsigned bytes are centred
  i32 unused;
};

// Computes  words of four neighbours along the inner extent, as they are
// Shapes    source [rows, depth] bytes, packed [rows, words]
// Grid      one thread per word: x = word / 256
// Needs     both dense
// Numerics  exact; 0 beyond the end of a row
__global__ void __launch_bounds__(256)
    pack_byte_rows(const u8* __restrict__ source, u32* __restrict__ packed, const __grid_constant__ WordPacking packing) {
  const i64 place = i64(blockIdx.x) * 256 + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (place >= packing.rows * packing.words) return;
  const i64 row = place / packing.words;
  const int first = 4 * int(place - row * packing.words);
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < packing.depth) word |= u32(source[row * packing.depth + first + i]) << 8 * i;
  }
  packed[place] = word;
}

// Computes  words of four neighbours along the inner extent, centred, and below them the sums of their columns
// Shapes    source [batch, depth, columns] bytes, packed [batch, words + 1, padded]
// Grid      one block of 256 per 32 columns: x = batch * column blocks + column block
// Needs     both dense
// Numerics  exact; 0 beyond the last row and column
__global__ void __launch_bounds__(kPackThreads)
    pack_byte_columns(const u8* __restrict__ source, u32* __restrict__ packed,
                      const __grid_constant__ WordPacking packing) {
  wait_for_predecessors();
  launch_dependents();
  pack_columns(packed, packing.words, packing.columns, packing.padded, packing.flip, [&](u32 batch, int k, int column) {
    const i64 row = i64(batch) * packing.depth + k;
    return k < packing.depth ? source + (row * packing.columns + column) : nullptr;
  });
}
