// Products of up to eight rows with a matrix, of float or of narrow weights: the matrix is read once, 16 bytes a lane.
#include "dependent_launch.cuh"
#include "few_rows.cuh"
#include "narrow_vector.cuh"

constexpr int kGemvThreads = 256, kWarps = kGemvThreads / 32;
constexpr int kWarpColumns = 4;  // of gemv_along_k
// k of a lane in a step of gemv_along_k: 16 bytes, but where eight rows leave no registers for so many.
template <class W, int Rows>
constexpr int kLaneWidth = sizeof(W) == 1 && Rows == 8 ? 8 : 16 / sizeof(W);
constexpr unsigned kFullMask = 0xffffffffu;
// Loads of the matrix that a thread of gemv_along_columns has under way: 2 blocks x 256 threads x 16 bytes = 8 KB on a
// multiprocessor for each. Those of gemv_along_k come by kWarpColumns: 32 KB for each step. More would spill: four rows have
// twice as many sums where a thread has eight columns of half, and sixteen weights of int8 to a step.
template <class W, int Rows>
constexpr int kLoads = Rows <= (sizeof(W) == 2 ? 2 : 4) ? 8 : 4;
template <class W, int Rows>
constexpr int kSteps = Rows <= (sizeof(W) == 1 ? 2 : 4) ? 2 : 1;

// Fours of a lane's k that gemv_along_k has side by side: of more, many rows would spill.
template <class W, int Rows>
constexpr int kUnrolled = Rows >= 4 ? 1 : 4;

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
template <class W, int Rows>
struct WarpOperands {
  static constexpr int kLane = kLaneWidth<W, Rows>, kStep = 32 * kLane;  // k of a lane and of a warp in a step
  const W* columns[kWarpColumns];
  const float* rows[Rows];
  LineScale<W> scales[kWarpColumns];
  i64 a_inner, b_inner;
  int inner;

  // Adds the products of Steps steps: of each a lane's k are neighbours, from `k` on. Where not IsWhole, those beyond
  // `inner` count as 0.
  template <int Steps, bool IsWhole>
  __device__ void add_vectors(int k, float (&sums)[Rows * kWarpColumns]) const {
    NarrowVector<W, kLane> w[Steps][kWarpColumns] = {};
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      if (!IsWhole && k + s * kStep >= inner) break;
#pragma unroll
      for (int c = 0; c < kWarpColumns; ++c) w[s][c].stream(columns[c] + k + s * kStep);
    }
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      if (!IsWhole && k + s * kStep >= inner) break;
#pragma unroll kUnrolled<W, Rows>
      for (int first = 0; first < kLane; first += 4) {
        float wide[kWarpColumns][4];
#pragma unroll
        for (int c = 0; c < kWarpColumns; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) wide[c][i] = scales[c].widen_weight(w[s][c], i);
          w[s][c].drop_four();
        }
#pragma unroll
        for (int row = 0; row < Rows; ++row) {
          const Vec<float, 4> own = load_vec<4>(rows[row] + k + s * kStep + first);
#pragma unroll
          for (int c = 0; c < kWarpColumns; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& sum = sums[row * kWarpColumns + c];
              sum = fmaf(own.lanes[i], wide[c][i], sum);
            }
          }
        }
      }
    }
  }

  // The same for one step of operands that are not read as vectors, in the same order.
  __device__ void add_elements(int k, float (&sums)[Rows * kWarpColumns]) const {
    const int end = k + kLane < inner ? k + kLane : inner;
#pragma unroll 1
    for (; k < end; ++k) {
      float w[kWarpColumns];
#pragma unroll
      for (int c = 0; c < kWarpColumns; ++c) w[c] = scales[c].widen_weight(columns[c][k * b_inner]);
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
      for (; step + kSteps<W, Rows> <= whole_end; step += kSteps<W, Rows>) {
        add_vectors<kSteps<W, Rows>, true>(step * kStep + kLane * lane, sums);
      }
#pragma unroll 1
      for (; step < end; ++step) add_vectors<1, false>(step * kStep + kLane * lane, sums);
    } else {
#pragma unroll 1
      for (; step < end; ++step) add_elements(step * kStep + kLane * lane, sums);
    }
  }
};

// The work of a block of gemv_along_k and gemv_along_k_narrow. Waits before it reads any operand.
template <int Rows, class W, class Y, class Wait, class Finish>
__device__ inline void multiply_along_k(const float* a, const W* b, const float* c, Y* y, const SimtGemm& gemm,
                                        float* scratch, unsigned* counters, const Scales<float>& scales, i64 scale_step,
                                        const Wait& wait, const Finish& finish) {
  constexpr int kSums = Rows * kWarpColumns;
  __shared__ alignas(16) float partial[kWarps][kSums];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int folds = gemm.lanes, block_columns = kWarps / folds * kWarpColumns;
  const FewRowsPlace place(gemm, block_columns, Rows);
  a += gemm.find_offset(place.batch, gemm.a_batch);
  b += gemm.find_offset(place.batch, gemm.b_batch);
  WarpOperands<W, Rows> operands;
  operands.a_inner = gemm.a_inner;
  operands.b_inner = gemm.b_inner;
  operands.inner = gemm.inner;
#pragma unroll
  for (int row = 0; row < Rows; ++row) operands.rows[row] = place.find_row(a, row, gemm);
  wait();
#pragma unroll
  for (int j = 0; j < kWarpColumns; ++j) {
    const int column = place.first_column + warp / folds * kWarpColumns + j;
    const int inside = column < gemm.columns ? column : gemm.columns - 1;
    operands.columns[j] = b + inside * gemm.b_column;
    operands.scales[j] = LineScale<W>(scales, inside * scale_step);
  }
  const int parts = int(gridDim.y) * folds, part = int(blockIdx.y) * folds + warp % folds;
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
  if ((gemm.wide & kWideA) && (gemm.wide & kWideB)) operands.template add_part<true>(part, parts, lane, sums);
  else operands.template add_part<false>(part, parts, lane, sums);
  const float sum = sum_over_lanes(sums, lane);
  const int groups = kWarps / folds;  // of four columns
  if (lane % (32 / kSums) == 0) partial[warp % folds * groups + warp / folds][lane / (32 / kSums)] = sum;
  __syncthreads();

  const FewRowsPlace end(gemm, block_columns, Rows, opaque(blockIdx.x));  // found again: there are no registers to keep it
  const int group = thread / Rows, row = thread % Rows;
  const bool has_value = group < groups;
  float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int fold = 0; has_value && fold < folds; ++fold) {
    const Vec<float, 4> four = load_vec<4>(&partial[fold * groups + group][row * kWarpColumns]);
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
  }
  finish_few_rows(value, has_value, row, end.first_column + group * kWarpColumns, Rows * block_columns, end, gemm, c, y,
                  scratch, counters, finish);
}

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
                 Stored<float, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                 Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_along_k<Rows>(a, b, c, y, gemm, scratch, counters, {}, 0, wait, finish_by<float>(epilogue...));
}

// Computes  what gemv_along_k computes, b narrow: value (b - zero) * scale, rounded to float
// Shapes    as gemv_along_k; scale and zero [columns], or one element where scale_step is 0
// Grid      as gemv_along_k
// Needs     as gemv_along_k, but of b and its strides, and of inner, multiples of 16 bytes of weights. scale (of half
//           weights) and zero may be null
// Numerics  as gemv_along_k of the widened b, with more neighbouring k to a lane
template <int Rows, class W, class... Epilogue>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_along_k_narrow(const float* __restrict__ a, const W* __restrict__ b, const float* __restrict__ c,
                        float* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                        const float* __restrict__ scale, const i8* __restrict__ zero, i64 scale_step, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_along_k<Rows>(a, b, c, y, gemm, scratch, counters, {scale, zero}, scale_step, wait,
                         finish_by<float>(epilogue...));
}

// Columns of the matrix that a thread of gemv_along_columns has.
template <class W, int Rows>
constexpr int kColumnWidth = sizeof(W) == 4 || Rows > 4 ? 4 : 8;

// Neighbouring columns of the matrix; beyond the last one it reads the last.
template <class W, int Width>
struct ThreadColumns {
  const W* first;
  i64 steps[Width];  // from the first to each
  LineScale<W> scales[Width];

  __device__ ThreadColumns(const W* b, int column, const SimtGemm& gemm, const Scales<float>& weight_scales,
                           i64 scale_step) {
    const int inside = column < gemm.columns ? column : gemm.columns - ((gemm.wide & kWideB) ? Width : 1);
    first = b + inside * gemm.b_column;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      const int own = inside + j < gemm.columns ? j : gemm.columns - 1 - inside;
      steps[j] = own * gemm.b_column;
      scales[j] = LineScale<W>(weight_scales, (inside + own) * scale_step);
    }
  }
};

// Adds the products of k = first, first + step, ... below `end`, Loads of them at a time.
template <int Rows, int Loads, bool IsWide, class W, int Width>
__device__ inline int add_every(const float* const (&rows)[Rows], const ThreadColumns<W, Width>& columns,
                                const SimtGemm& gemm, int k, int step, int end, float (&sums)[Rows][Width]) {
#pragma unroll 1
  for (; k + (Loads - 1) * step < end; k += Loads * step) {
    NarrowVector<W, Width> w[Loads];
    W single[Width];
#pragma unroll
    for (int i = 0; i < Loads; ++i) {
      const W* source = columns.first + (k + i * step) * gemm.b_inner;
      if constexpr (IsWide) {
        w[i].stream(source);
      } else {
#pragma unroll
        for (int j = 0; j < Width; ++j) single[j] = source[columns.steps[j]];
      }
    }
#pragma unroll
    for (int i = 0; i < Loads; ++i) {
      float wide[Width];
#pragma unroll
      for (int j = 0; j < Width; ++j) {
        if constexpr (IsWide) wide[j] = columns.scales[j].widen_weight(w[i], j);
        else wide[j] = columns.scales[j].widen_weight(single[j]);
      }
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const float own = rows[row][(k + i * step) * gemm.a_inner];
#pragma unroll
        for (int j = 0; j < Width; ++j) sums[row][j] = fmaf(own, wide[j], sums[row][j]);
      }
    }
  }
  return k;
}

// The work of a block of gemv_along_columns and gemv_along_columns_narrow. Waits before it reads any operand.
template <int Rows, class W, class Y, class Wait, class Finish>
__device__ inline void multiply_along_columns(const float* a, const W* b, const float* c, Y* y, const SimtGemm& gemm,
                                              float* scratch, unsigned* counters, const Scales<float>& scales,
                                              i64 scale_step, const Wait& wait, const Finish& finish) {
  constexpr int kWidth = kColumnWidth<W, Rows>;
  __shared__ alignas(16) float partial[kWarps][Rows][32 * kWidth];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int lanes = gemm.lanes, block_columns = kWidth * lanes;
  const FewRowsPlace place(gemm, block_columns, Rows);
  a += gemm.find_offset(place.batch, gemm.a_batch);
  b += gemm.find_offset(place.batch, gemm.b_batch);
  const float* rows[Rows];
#pragma unroll
  for (int row = 0; row < Rows; ++row) rows[row] = place.find_row(a, row, gemm);
  wait();
  const ThreadColumns<W, kWidth> columns(b, place.first_column + kWidth * (lane % lanes), gemm, scales, scale_step);
  const int slices = gridDim.y, step = kGemvThreads / lanes;
  const int first = int(i64(gemm.inner) * blockIdx.y / slices) + thread / lanes;
  const int end = int(i64(gemm.inner) * (blockIdx.y + 1) / slices);
  float sums[Rows][kWidth];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[row][j] = 0.0f;
  }
  if (gemm.wide & kWideB) {
    const int k = add_every<Rows, kLoads<W, Rows>, true>(rows, columns, gemm, first, step, end, sums);
    add_every<Rows, 1, true>(rows, columns, gemm, k, step, end, sums);
  } else {
    add_every<Rows, 1, false>(rows, columns, gemm, first, step, end, sums);
  }
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      for (int offset = 16; offset >= lanes; offset /= 2) {
        sums[row][j] += __shfl_xor_sync(kFullMask, sums[row][j], offset);
      }
    }
    if (lane < lanes) {
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        store_vec(&partial[warp][row][kWidth * lane + j],
                  Vec<float, 4>{{sums[row][j], sums[row][j + 1], sums[row][j + 2], sums[row][j + 3]}});
      }
    }
  }
  __syncthreads();

  const int groups = block_columns / 4, group = thread % groups, row = thread / groups;
  const bool has_value = row < Rows;
  float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int part = 0; has_value && part < kWarps; ++part) {
    const Vec<float, 4> four = load_vec<4>(&partial[part][row][4 * group]);
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
  }
  finish_few_rows(value, has_value, row, place.first_column + 4 * group, Rows * block_columns, place, gemm, c, y, scratch,
                  counters, finish);
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
                       Stored<float, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                       Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_along_columns<Rows>(a, b, c, y, gemm, scratch, counters, {}, 0, wait, finish_by<float>(epilogue...));
}

// Computes  what gemv_along_columns computes, b narrow: value (b - zero) * scale, rounded to float
// Shapes    as gemv_along_columns; scale and zero [columns], or one element where scale_step is 0
// Grid      as gemv_along_columns, but kColumnWidth columns in place of four; gemm.lanes (4, 8, 16 or 32)
// Needs     as gemv_along_columns, but of b, its strides and columns multiples of kColumnWidth elements. scale (of half
//           weights) and zero may be null
// Numerics  as gemv_along_columns of the widened b, to the bit where they have as many lanes and slices
template <int Rows, class W, class... Epilogue>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_along_columns_narrow(const float* __restrict__ a, const W* __restrict__ b, const float* __restrict__ c,
                              float* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch, unsigned* counters,
                              const float* __restrict__ scale, const i8* __restrict__ zero, i64 scale_step, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_along_columns<Rows>(a, b, c, y, gemm, scratch, counters, {scale, zero}, scale_step, wait,
                               finish_by<float>(epilogue...));
}
