// MatMul and Gemm, operands by strides: products of all types, of narrow weights, and of floats that are beyond 32 bits.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "narrow_loader.cuh"

constexpr int kMaxBatchAxes = 8;
constexpr int kFewRows = 4;     // up to here a block makes 8 columns instead of a tile
constexpr int kFewColumns = 8;
constexpr int kFolds = 32;      // partial sums of one element: of k, k + 32, k + 64, ...
// Blocks on a multiprocessor at a time: 64-bit integer products spill on sm_100 where registers must do for two.
template <class T>
constexpr int kBlocksAtOnce = kIsInteger<T> && sizeof(T) == 8 ? 1 : 2;

// Packed by pack_gemm of gpuexec/ops/linalg/product.py. Strides are in elements.
struct Gemm {
  i64 rows, columns, inner;
  i64 a_row, a_inner, b_inner, b_column, c_row, c_column, y_row, y_column;
  double alpha, beta;
  i64 batch_axes;
  i64 batch_extents[kMaxBatchAxes];
  i64 a_batch[kMaxBatchAxes];
  i64 b_batch[kMaxBatchAxes];
  i64 y_batch[kMaxBatchAxes];
};

// Returns alpha * sum + beta * addend, the latter if there is one: integers go through double only where a factor is not 1.
template <class A>
__device__ inline A scale_and_add(const Gemm& gemm, A sum, A addend, bool has_addend) {
  bool is_scaled = gemm.alpha != 1.0;
  bool is_c_scaled = has_addend && gemm.beta != 1.0;
  if constexpr (kIsInteger<A>) {
    if (is_scaled || is_c_scaled) {
      double scaled = double(sum) * gemm.alpha;
      sum = cast<A>(has_addend ? scaled + double(addend) * gemm.beta : scaled);
      addend = A(0);
    }
  } else {
    if (is_scaled) sum = sum * A(gemm.alpha);
    if (is_c_scaled) addend = addend * A(gemm.beta);
  }
  return has_addend ? wrapping_add(sum, addend) : sum;
}

// The sum of an output, scaled, with its addend.
template <class T>
__device__ inline Acc<T> scale_sum(const Gemm& gemm, i64 row, i64 column, Acc<T> sum, const T* c) {
  Acc<T> addend = c ? widen(c[row * gemm.c_row + column * gemm.c_column]) : Acc<T>(0);
  return scale_and_add(gemm, sum, addend, c != nullptr);
}

// Stores a thread's sums of neighbouring rows and columns; `start` is the offset of the batch in the output.
template <class T, class Finish>
__device__ inline void store_sums(const Gemm& gemm, i64 row, i64 column, Acc<T> (&sums)[kSums][kSums], const T* c, T* y,
                                  i64 start, const Finish& finish) {
  if (row >= gemm.rows || column >= gemm.columns) return;
  const int rows = int(gemm.rows - row < kSums ? gemm.rows - row : kSums);
  const int columns = int(gemm.columns - column < kSums ? gemm.columns - column : kSums);
  i64 places[kSums];
  int counts[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    places[i] = start + (row + i) * gemm.y_row + column * gemm.y_column;
    counts[i] = i < rows ? columns : 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (i < rows && j < columns) sums[i][j] = scale_sum(gemm, row + i, column + j, sums[i][j], c);
    }
  }
  finish.many(sums, places, counts, gemm.y_column);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      if (i < rows && j < columns) y[places[i] + j * gemm.y_column] = cast<T>(sums[i][j]);
    }
  }
}

// The right operand in the type of the product.
template <class T>
struct PlainRight {
  const T* b;

  __device__ void advance(const Gemm& gemm, int axis, i64 index) { b += index * gemm.b_batch[axis]; }
  __device__ Acc<T> at(const Gemm& gemm, i64 k, i64 column) const {
    return widen(b[column * gemm.b_column + k * gemm.b_inner]);
  }
  __device__ StridedLoader<T> loader(const Gemm& gemm, i64 first_column) const {
    return {b, first_column, gemm.columns, gemm.inner, gemm.b_column, gemm.b_inner, int(threadIdx.x)};
  }
};

// The right operand as narrow weights, widened while it is read.
template <class T, class W>
struct NarrowRight {
  const W* b;
  Scales<T> scales;
  ScaleSteps steps;

  __device__ void advance(const Gemm& gemm, int axis, i64 index) { b += index * gemm.b_batch[axis]; }
  __device__ Acc<T> at(const Gemm& gemm, i64 k, i64 column) const {
    return widen_weight<T>(b[column * gemm.b_column + k * gemm.b_inner], scales, column * steps.column + k * steps.inner);
  }
  __device__ NarrowLoader<T, W> loader(const Gemm& gemm, i64 first_column) const {
    return {b, scales, first_column, gemm.columns, gemm.inner, gemm.b_column, gemm.b_inner, steps.column, steps.inner,
            int(threadIdx.x)};
  }
};

// Up to kFewRows rows and kFewColumns columns: 32 threads share a column. Neighbouring threads are neighbours along k
// where a column lies dense in k, else along the columns; the sums are the same.
template <class T, class Right, class Finish>
__device__ inline void multiply_few_rows(const T* a, const Right& right, const T* c, T* y, const Gemm& gemm,
                                         i64 first_column, i64 start, const Finish& finish) {
  typedef Acc<T> A;
  __shared__ A partial[kFolds][kFewRows * kFewColumns + 1];
  int thread = threadIdx.x;
  int column = gemm.b_inner == 1 ? thread / kFolds : thread % kFewColumns;
  int fold = gemm.b_inner == 1 ? thread % kFolds : thread / kFewColumns;
  A sums[kFewRows];
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) sums[row] = A(0);
  if (first_column + column < gemm.columns) {
    for (i64 k = fold; k < gemm.inner; k += kFolds) {
      A value = right.at(gemm, k, first_column + column);
#pragma unroll
      for (int row = 0; row < kFewRows; ++row) {
        if (row < gemm.rows) sums[row] = multiply_add(widen(a[row * gemm.a_row + k * gemm.a_inner]), value, sums[row]);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kFewRows; ++row) partial[fold][row * kFewColumns + column] = sums[row];
  __syncthreads();
  if (thread >= kFewRows * kFewColumns) return;
  A sum = partial[0][thread];
  for (int i = 1; i < kFolds; ++i) sum = wrapping_add(sum, partial[i][thread]);
  const i64 own_row = thread / kFewColumns, own_column = first_column + thread % kFewColumns;
  if (own_row >= gemm.rows || own_column >= gemm.columns) return;
  i64 place = start + own_row * gemm.y_row + own_column * gemm.y_column;
  store_finished(finish, y, place, scale_sum(gemm, own_row, own_column, sum, c));
}

// The work of a block of gemm, for any form of its right operand. Waits before it reads any operand.
template <class T, class Right, class Wait, class Finish>
__device__ inline void multiply_block(const T* a, Right b, const T* c, T* y, const Gemm& gemm, const Wait& wait,
                                      const Finish& finish) {
  bool has_few_rows = gemm.rows <= kFewRows;
  const TilePlace place(gemm.rows, gemm.columns, has_few_rows ? kFewColumns : kTile);
  i64 first_row = place.first_row, first_column = place.first_column;
  i64 batch = place.outer;
  i64 start = 0;
  for (int axis = int(gemm.batch_axes) - 1; axis >= 0; --axis) {
    i64 index = batch % gemm.batch_extents[axis];
    batch /= gemm.batch_extents[axis];
    a += index * gemm.a_batch[axis];
    b.advance(gemm, axis, index);
    start += index * gemm.y_batch[axis];
  }
  wait();
  if (has_few_rows) {
    multiply_few_rows(a, b, c, y, gemm, first_column, start, finish);
    return;
  }
  StridedLoader<T> left(a, first_row, gemm.rows, gemm.inner, gemm.a_row, gemm.a_inner, threadIdx.x);
  auto right = b.loader(gemm, first_column);
  i64 row = first_row + sums_row(threadIdx.x);
  i64 column = first_column + sums_column(threadIdx.x);
  Acc<T> sums[kSums][kSums];
  multiply_tile(left, right, gemm.inner, row < gemm.rows && column < gemm.columns, sums);
  store_sums(gemm, row, column, sums, c, y, start, finish);
}

// Computes  y[batch] = alpha * a[batch] @ b[batch] + beta * c, with 0 for an empty inner extent
// Shapes    a [..., rows, inner], b [..., inner, columns], c [rows, columns], y [..., rows, columns], all by strides
// Grid      one block of 256 per 64 x 64 tile, or per 8 columns where there are at most 4 rows:
//           x = (batch * row tiles + row tile) * column tiles + column tile
// Needs     c may be null
// Numerics  half and bf16 in float, rounded once; integers wrap. Tiles: k in order, one fma each. Few rows: 32 such
//           sums over every 32nd k, added in order; then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, kBlocksAtOnce<T>)
    gemm(const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ c, T* __restrict__ y, Gemm gemm,
         Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_block(a, PlainRight<T>{b}, c, y, gemm, wait, finish_by<T>(epilogue...));
}

// Computes  what gemm computes, b narrow: value (b - zero) * scale, rounded to T
// Shapes    as gemm; scale and zero by the strides of `steps`
// Grid      as gemm
// Needs     c, scale (of half weights) and zero may be null
// Numerics  as gemm of the widened b, to the bit
template <class T, class W, class... Epilogue>
__global__ void __launch_bounds__(256, 2)
    gemm_narrow(const T* __restrict__ a, const W* __restrict__ b, const T* __restrict__ c, T* __restrict__ y, Gemm gemm,
                const T* __restrict__ scale, const i8* __restrict__ zero, ScaleSteps steps,
                Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  multiply_block(a, NarrowRight<T, W>{b, {scale, zero}, steps}, c, y, gemm, wait, finish_by<T>(epilogue...));
}
