// Products of up to eight rows with a matrix, of float: the matrix is read once, 16 bytes a lane.
#include "dependent_launch.cuh"
#include "grid.cuh"
#include "simt_product.cuh"

constexpr int kGemvThreads = 256, kWarps = kGemvThreads / 32;
constexpr int kWarpColumns = 4;  // of gemv_along_k
constexpr int kLaneWidth = 4, kStep = 32 * kLaneWidth;  // k of a lane and of a warp in a step of gemv_along_k
constexpr unsigned kFullMask = 0xffffffffu;
// Loads of the matrix that a thread of gemv_along_columns has under way: 2 blocks x 256 threads x 16 bytes = 8 KB on a
// multiprocessor for each. Those of gemv_along_k come by kWarpColumns: 32 KB for each step.
template <int Rows>
constexpr int kLoads = Rows <= 4 ? 8 : 4;
template <int Rows>
constexpr int kSteps = Rows <= 4 ? 2 : 1;

// The batch, columns and rows of a block: x = batch * column blocks + column block, z = row block. Without slices,
// `number` tells blocks apart.
struct GemvPlace {
  u32 batch, number;
  int first_column, first_row;

  __device__ GemvPlace(const SimtGemm& gemm, int block_columns, int block_rows) {
    const u32 column_blocks = (u32(gemm.columns) + block_columns - 1) / block_columns;
    batch = blockIdx.x / column_blocks;
    number = blockIdx.z * gridDim.x + blockIdx.x;
    first_column = int(blockIdx.x - batch * column_blocks) * block_columns;
    first_row = int(blockIdx.z) * block_rows;
  }

  // A row of the left operand; beyond the last one, the last.
  __device__ const float* find_row(const float* a, int row, const SimtGemm& gemm) const {
    const int inside = first_row + row < gemm.rows ? first_row + row : gemm.rows - 1;
    return a + inside * gemm.a_row;
  }
};

// Adds the slices up and stores; `value` holds the sums of four neighbouring columns of a row of the block. All threads
// come here, those that have none too.
template <int Rows, class Finish>
__device__ inline void finish_block(float (&value)[4], bool has_value, int row, int column, int block_columns,
                                    const GemvPlace& place, const SimtGemm& gemm, const float* c, float* y,
                                    float* scratch, unsigned* counters, const Finish& finish) {
  const int thread = threadIdx.x, slices = gridDim.y;
  if (slices > 1) {
    const int floats = Rows * block_columns;
    float* const own = scratch + i64(place.number) * slices * floats + 4 * thread;
    if (has_value) {
      Vec<float, 4> four;
#pragma unroll
      for (int j = 0; j < 4; ++j) four.lanes[j] = value[j];
      store_vec(own + blockIdx.y * floats, four);
    }
    if (!last_block(counters + place.number, unsigned(slices))) return;
    if (has_value) {
      for (int slice = 0; slice < slices; ++slice) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(own + slice * floats));
        const float parts[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) value[j] = slice == 0 ? parts[j] : value[j] + parts[j];
      }
    }
  }
  if (!has_value || place.first_row + row >= gemm.rows) return;
  store_four(gemm, c, y, gemm.find_offset(place.batch, gemm.y_batch), place.first_row + row, column, value, finish);
}

// Sums each of Count values over the lanes of a warp: lane l gets value l / (32 / Count).
template <int Count>
__device__ inline float sum_over_lanes(float (&values)[Count], int lane) {
  int count = Count;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (count > 1) {  // lanes with the bit take the upper half of the values, the others the lower
      count /= 2;
      const bool is_upper = lane & offset;
#pragma unroll
      for (int i = 0; i < Count / 2; ++i) {
        if (i >= count) break;
        const float given = is_upper ? values[i] : values[i + count];
        const float kept = is_upper ? values[i + count] : values[i];
        values[i] = kept + __shfl_xor_sync(kFullMask, given, offset);
      }
    } else {
      values[0] += __shfl_xor_sync(kFullMask, values[0], offset);
    }
  }
  return values[0];
}

// What a warp of gemv_along_k reads: kWarpColumns columns of the matrix, and the rows. Beyond the last column and row it
// reads the last.
template <int Rows>
struct WarpOperands {
  const float* columns[kWarpColumns];
  const float* rows[Rows];
  i64 a_inner, b_inner;
  int inner;

  // Adds the products of Steps steps, which are 128 of k each: a lane's are four neighbours from `k` on. Where not IsWhole,
  // those beyond `inner` count as 0.
  template <int Steps, bool IsWhole>
  __device__ void add_vectors(int k, float (&sums)[Rows * kWarpColumns]) const {
    float w[Steps][kWarpColumns][kLaneWidth] = {};
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      if (!IsWhole && k + s * kStep >= inner) break;
#pragma unroll
      for (int c = 0; c < kWarpColumns; ++c) {
        const float4 four = __ldcs(reinterpret_cast<const float4*>(columns[c] + k + s * kStep));
        w[s][c][0] = four.x, w[s][c][1] = four.y, w[s][c][2] = four.z, w[s][c][3] = four.w;
      }
    }
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      if (!IsWhole && k + s * kStep >= inner) break;
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const Vec<float, kLaneWidth> own = load_vec<kLaneWidth>(rows[row] + k + s * kStep);
#pragma unroll
        for (int c = 0; c < kWarpColumns; ++c) {
#pragma unroll
          for (int i = 0; i < kLaneWidth; ++i) {
            float& sum = sums[row * kWarpColumns + c];
            sum = fmaf(own.lanes[i], w[s][c][i], sum);
          }
        }
      }
    }
  }

  // The same for one step of operands that are not read as vectors, in the same order.
  __device__ void add_elements(int k, float (&sums)[Rows * kWarpColumns]) const {
    const int end = k + kLaneWidth < inner ? k + kLaneWidth : inner;
#pragma unroll 1
    for (; k < end; ++k) {
      float w[kWarpColumns];
#pragma unroll
      for (int c = 0; c < kWarpColumns; ++c) w[c] = __ldg(columns[c] + k * b_inner);
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const float own = rows[row][k * a_inner];
#pragma unroll
        for (int c = 0; c < kWarpColumns; ++c) {
          float& sum = sums[row * kWarpColumns + c];
          sum = fmaf(own, w[c], sum);
        }
      }
    }
  }

  // Adds the products of part `part` of `parts` of the inner extent.
  template <bool IsWide>
  __device__ void add_part(int part, int parts, int lane, float (&sums)[Rows * kWarpColumns]) const {
    const int steps = (inner + kStep - 1) / kStep;
    const int end = int(i64(steps) * (part + 1) / parts);
    int step = int(i64(steps) * part / parts);
    if constexpr (IsWide) {
      const int whole_end = end < inner / kStep ? end : inner / kStep;
#pragma unroll 1
      for (; step + kSteps<Rows> <= whole_end; step += kSteps<Rows>) {
        add_vectors<kSteps<Rows>, true>(step * kStep + kLaneWidth * lane, sums);
      }
#pragma unroll 1
      for (; step < end; ++step) add_vectors<1, false>(step * kStep + kLaneWidth * lane, sums);
    } else {
#pragma unroll 1
      for (; step < end; ++step) add_elements(step * kStep + kLaneWidth * lane, sums);
    }
  }
};

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns] dense along inner, c [rows, columns], y [..., rows, columns],
//           all by strides; scratch [blocks, slices, 32 / lanes * Rows]; counters [blocks]
// Grid      one block of 256 per 32 / gemm.lanes columns, slice and Rows rows: x = batch * column blocks + column block,
//           y = slice, z = row block; gemm.lanes (1, 2, 4 or 8) warps share four columns, each with a part of the inner
//           extent
// Needs     kWideA and kWideB: a_inner and b_inner 1; a, b, their strides and inner multiples of 4
//           elements (16 bytes); else any strides. kWideY: as simt_gemm. c may be null; scratch and counters too with
//           one slice; counters are 0 and are left 0
// Numerics  a lane's k in order, one fma each; lanes by a tree, warps and slices in order; then alpha, beta * c, and the
//           epilogue
template <int Rows, class... Epilogue>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_along_k(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
                 float* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                 Epilogue... epilogue) {
  constexpr int kSums = Rows * kWarpColumns;
  __shared__ alignas(16) float partial[kWarps][kSums];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int folds = gemm.lanes, block_columns = kWarps / folds * kWarpColumns;
  const GemvPlace place(gemm, block_columns, Rows);
  a += gemm.find_offset(place.batch, gemm.a_batch);
  b += gemm.find_offset(place.batch, gemm.b_batch);
  WarpOperands<Rows> operands;
  operands.a_inner = gemm.a_inner;
  operands.b_inner = gemm.b_inner;
  operands.inner = gemm.inner;
#pragma unroll
  for (int row = 0; row < Rows; ++row) operands.rows[row] = place.find_row(a, row, gemm);
#pragma unroll
  for (int j = 0; j < kWarpColumns; ++j) {
    const int column = place.first_column + warp / folds * kWarpColumns + j;
    operands.columns[j] = b + (column < gemm.columns ? column : gemm.columns - 1) * gemm.b_column;
  }
  const int parts = int(gridDim.y) * folds, part = int(blockIdx.y) * folds + warp % folds;
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
  wait_for_predecessors();
  launch_dependents();
  if ((gemm.wide & kWideA) && (gemm.wide & kWideB)) operands.template add_part<true>(part, parts, lane, sums);
  else operands.template add_part<false>(part, parts, lane, sums);
  const float sum = sum_over_lanes(sums, lane);
  const int groups = kWarps / folds;  // of four columns
  if (lane % (32 / kSums) == 0) partial[warp % folds * groups + warp / folds][lane / (32 / kSums)] = sum;
  __syncthreads();

  const int group = thread / Rows, row = thread % Rows;
  const bool has_value = group < groups;
  float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int fold = 0; has_value && fold < folds; ++fold) {
    const Vec<float, 4> four = load_vec<4>(&partial[fold * groups + group][row * kWarpColumns]);
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
  }
  finish_block<Rows>(value, has_value, row, place.first_column + group * kWarpColumns, block_columns, place, gemm, c, y,
                     scratch, counters, finish_by<float>(epilogue...));
}

// Four neighbouring columns of the matrix; beyond the last one it reads the last.
struct FourColumns {
  const float* first;
  i64 steps[4];  // from the first to each

  __device__ FourColumns(const float* b, int column, const SimtGemm& gemm) {
    const int inside = column < gemm.columns ? column : gemm.columns - ((gemm.wide & kWideB) ? 4 : 1);
    first = b + inside * gemm.b_column;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      steps[j] = (inside + j < gemm.columns ? j : gemm.columns - 1 - inside) * gemm.b_column;
    }
  }

  template <bool IsWide>
  __device__ void load(i64 offset, float (&four)[4]) const {
    if constexpr (IsWide) {
      const float4 loaded = __ldcs(reinterpret_cast<const float4*>(first + offset));
      four[0] = loaded.x, four[1] = loaded.y, four[2] = loaded.z, four[3] = loaded.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = first[offset + steps[j]];
    }
  }
};

// Adds the products of k = first, first + step, ... below `end`, Loads of them at a time.
template <int Rows, int Loads, bool IsWide>
__device__ inline int add_every(const float* const (&rows)[Rows], const FourColumns& columns, const SimtGemm& gemm,
                                int k, int step, int end, float (&sums)[Rows][4]) {
#pragma unroll 1
  for (; k + (Loads - 1) * step < end; k += Loads * step) {
    float w[Loads][4];
#pragma unroll
    for (int i = 0; i < Loads; ++i) columns.load<IsWide>((k + i * step) * gemm.b_inner, w[i]);
#pragma unroll
    for (int i = 0; i < Loads; ++i) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const float own = rows[row][(k + i * step) * gemm.a_inner];
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[row][j] = fmaf(own, w[i][j], sums[row][j]);
      }
    }
  }
  return k;
}

// Computes  what gemv_along_k computes
// Shapes    as gemv_along_k, b dense along columns; scratch [blocks, slices, 4 * lanes * Rows]
// Grid      as gemv_along_k, per 4 * gemm.lanes columns; 256 / gemm.lanes (8, 16 or 32) threads share four columns, each
//           with every so-many-th k
// Needs     kWideB: b_column 1; b, b_inner, columns and b_batch multiples of 4 elements (16 bytes); else
//           any strides. kWideY: as simt_gemm. c may be null; scratch and counters too with one slice; counters are 0
//           and are left 0
// Numerics  a thread's k in order, one fma each; threads of a warp by a tree, warps and slices in order; then alpha,
//           beta * c, and the epilogue
template <int Rows, class... Epilogue>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_along_columns(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
                       float* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                       unsigned* counters, Epilogue... epilogue) {
  __shared__ alignas(16) float partial[kWarps][Rows][32 * 4];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int lanes = gemm.lanes, block_columns = 4 * lanes;
  const GemvPlace place(gemm, block_columns, Rows);
  a += gemm.find_offset(place.batch, gemm.a_batch);
  b += gemm.find_offset(place.batch, gemm.b_batch);
  const float* rows[Rows];
#pragma unroll
  for (int row = 0; row < Rows; ++row) rows[row] = place.find_row(a, row, gemm);
  const FourColumns columns(b, place.first_column + 4 * (lane % lanes), gemm);
  const int slices = gridDim.y, step = kGemvThreads / lanes;
  const int first = int(i64(gemm.inner) * blockIdx.y / slices) + thread / lanes;
  const int end = int(i64(gemm.inner) * (blockIdx.y + 1) / slices);
  float sums[Rows][4];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[row][j] = 0.0f;
  }
  wait_for_predecessors();
  launch_dependents();
  if (gemm.wide & kWideB) {
    const int k = add_every<Rows, kLoads<Rows>, true>(rows, columns, gemm, first, step, end, sums);
    add_every<Rows, 1, true>(rows, columns, gemm, k, step, end, sums);
  } else {
    add_every<Rows, 1, false>(rows, columns, gemm, first, step, end, sums);
  }
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      for (int offset = 16; offset >= lanes; offset /= 2) {
        sums[row][j] += __shfl_xor_sync(kFullMask, sums[row][j], offset);
      }
    }
    if (lane < lanes) {
      store_vec(&partial[warp][row][4 * lane], Vec<float, 4>{{sums[row][0], sums[row][1], sums[row][2], sums[row][3]}});
    }
  }
  __syncthreads();

  const int group = thread % lanes, row = thread / lanes;
  const bool has_value = row < Rows;
  float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int part = 0; has_value && part < kWarps; ++part) {
    const Vec<float, 4> four = load_vec<4>(&partial[part][row][4 * group]);
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
  }
  finish_block<Rows>(value, has_value, row, place.first_column + 4 * group, block_columns, place, gemm, c, y, scratch,
                     counters, finish_by<float>(epilogue...));
}
