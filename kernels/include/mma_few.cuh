// Products of up to eight rows with a matrix on tensor cores: the matrix is read once, into registers, where it is fragments.
//
// Rows are the upper eight of an mma, whose lower ones are zeros. Which k of a row meets which of the matrix is all that
// counts for a sum, so k are numbered as they come: a lane has neighbours, of its row and of its columns alike.
#pragma once
#include "few_rows.cuh"
#include "mma.cuh"
#include "narrow_vector.cuh"

constexpr int kFewThreads = 256, kFewWarps = kFewThreads / 32;
constexpr int kFewRows = 8;

// A warp's columns of the matrix, Width (kSums) of each lane, from its first k on; beyond the last ones it reads the last. Of a
// step of kStep k a lane has kOwn neighbours, of which `load` reads its columns: of one of the kTogether steps that are
// under way at once. `multiply` adds their products with those k of row lane / 4.
template <class T, Lie kLie, int Width>
struct FewColumns;

// Columns g, g + 8, g + 16 and g + 24 of lane 4 g + t.
template <class T>
struct FewColumns<T, Lie::kAlongK, 4> {
  static constexpr int kSums = 4, kColumns = 8 * kSums, kStep = 32, kOwn = 8, kTogether = 4;
  struct Words {
    NarrowVector<T, kOwn> lines[kSums];
  };
  const T* lines[kSums];

  __device__ FewColumns(const T* b, const SimtGemm& gemm, int first_column, int lane, int k) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int column = first_column + lane / 4 + 8 * i;
      lines[i] = b + (column < gemm.columns ? column : gemm.columns - 1) * gemm.b_column + k;
    }
  }
  __device__ void load(Words& words, int step) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) words.lines[i].stream(lines[i] + step * kStep);
  }
  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) lines[i] += kTogether * kStep;
  }
  static __device__ void multiply(const Words& words, const NarrowVector<T, kOwn>& row, float (&sums)[kSums][4]) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      const u32 left[4] = {row.words[pair], 0, row.words[pair + 1], 0};
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const u32 right[2] = {words.lines[i].words[pair], words.lines[i].words[pair + 1]};
        multiply_matrices<T>(sums[i], left, right);
      }
    }
  }
  // Stores the warp's sums in rows that are `pitch` apart.
  static __device__ void store(float* partial, int pitch, int lane, int rows, const float (&sums)[kSums][4]) {
    if (lane / 4 >= rows) return;
    float* const row = partial + lane / 4 * pitch;
#pragma unroll
    for (int i = 0; i < kSums; ++i) store_vec(row + 8 * i + lane % 4 * 2, Vec<float, 2>{{sums[i][0], sums[i][1]}});
  }
};

// Width neighbouring columns of lane 4 g + t, from column Width * g on.
template <class T, int Width>
struct FewColumns<T, Lie::kAcross, Width> {
  static constexpr int kSums = Width, kColumns = 8 * kSums, kStep = 16, kOwn = 4, kTogether = 48 / kSums;
  struct Words {
    NarrowVector<T, kSums> rows[kOwn];
  };
  const T* first;
  i64 pitch;

  __device__ FewColumns(const T* b, const SimtGemm& gemm, int first_column, int lane, int k) : pitch(gemm.b_inner) {
    const int column = first_column + lane / 4 * kSums;
    first = b + k * pitch + (column < gemm.columns ? column : gemm.columns - kSums);
  }
  __device__ void load(Words& words, int step) const {
    const T* row = first + step * kStep * pitch;
#pragma unroll
    for (int i = 0; i < kOwn; ++i, row += pitch) words.rows[i].stream(row);
  }
  __device__ void advance() { first += kTogether * kStep * pitch; }
  static __device__ void multiply(const Words& words, const NarrowVector<T, kOwn>& row, float (&sums)[kSums][4]) {
    const u32 left[4] = {row.words[0], 0, row.words[1], 0};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const u32 right[2] = {pair(words, 0, i), pair(words, 2, i)};
      multiply_matrices<T>(sums[i], left, right);
    }
  }
  static __device__ void store(float* partial, int pitch, int lane, int rows, const float (&sums)[kSums][4]) {
    if (lane / 4 >= rows) return;
    float* const row = partial + lane / 4 * pitch;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const Vec<float, 4> four = {{sums[i][e], sums[i + 1][e], sums[i + 2][e], sums[i + 3][e]}};
        store_vec(row + (lane % 4 * 2 + e) * kSums + i, four);
      }
    }
  }

 private:
  // Two neighbouring k of a column.
  static __device__ u32 pair(const Words& words, int k, int column) {
    const u32 chosen = column % 2 ? 0x7632 : 0x5410;
    return __byte_perm(words.rows[k].words[column / 2], words.rows[k + 1].words[column / 2], chosen);
  }
};

// What a block makes: gemm.lanes warps share columns, each with a part of the steps of the block's slice.
template <class Columns>
struct FewBlock {
  static constexpr int kPitch = Columns::kColumns + 4;
  typedef float Partials[kFewWarps][kFewRows * kPitch];

  u32 folds;
  int block_columns, slice_first, slice_end;  // the last two in k
  int inner, lane, warp, step, step_end;
  float sums[Columns::kSums][4];

  __device__ explicit FewBlock(const SimtGemm& gemm)
      : folds(gemm.lanes), inner(gemm.inner), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {
    block_columns = int(kFewWarps / folds) * Columns::kColumns;
    const u32 steps = u32(inner + Columns::kStep - 1) / Columns::kStep, parts = gridDim.y * folds;
    const u32 each = steps / parts, longer = steps - each * parts;  // the first `longer` parts have one step more
    const u32 first_part = blockIdx.y * folds, part = first_part + u32(warp) % folds;
    const auto begin = [&](u32 number) { return int(number * each + (number < longer ? number : longer)); };
    step = begin(part);
    step_end = begin(part + 1);
    slice_first = begin(first_part) * Columns::kStep;
    slice_end = begin(first_part + folds) * Columns::kStep;
#pragma unroll
    for (int i = 0; i < Columns::kSums; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] = 0.0f;
    }
  }

  // The warp's first column, and the lane's first k.
  __device__ int find_column(const FewRowsPlace& place) const {
    return place.first_column + int(u32(warp) / folds) * Columns::kColumns;
  }
  __device__ int find_k() const { return step * Columns::kStep + lane % 4 * Columns::kOwn; }

  // Adds up what warps and slices have, and stores it. All threads of the block come here.
  template <class R, class Y, class Finish>
  __device__ void finish(Partials& partials, const FewRowsPlace& place, const SimtGemm& gemm, const R* c, Y* y,
                         float* scratch, unsigned* counters, const Finish& finish) {
    Columns::store(partials[warp], kPitch, lane, gemm.rows, sums);
    __syncthreads();
    const u32 fours = u32(block_columns) / 4, thread = threadIdx.x;
    const int row = int(thread / fours), column = int(thread % fours) * 4;
    const bool has_value = row < gemm.rows;
    float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (u32 fold = 0; has_value && fold < folds; ++fold) {
      const float* const part = partials[column / Columns::kColumns * folds + fold];
      const Vec<float, 4> four = load_vec<4>(part + row * kPitch + column % Columns::kColumns);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] += four.lanes[j];
    }
    finish_few_rows(value, has_value, row, place.first_column + column, gemm.rows * block_columns, place, gemm, c, y,
                    scratch, counters, finish);
  }
};

// A product with a matrix as it lies.
template <class T, Lie kLie, int Width>
struct FewProduct : FewBlock<FewColumns<T, kLie, Width>> {
  typedef FewColumns<T, kLie, Width> Columns;
  typedef FewBlock<Columns> Block;
  static constexpr int kOwn = Columns::kOwn, kTogether = Columns::kTogether;
  using Block::inner, Block::lane, Block::step, Block::step_end, Block::sums;

  __device__ explicit FewProduct(const SimtGemm& gemm) : Block(gemm) {}

  // Sums products of columns of `b` with rows, of which `find_row` gives a lane its own, from k = 0 on; it is called with the
  // first columns under way. What it gives beyond the last row counts nowhere.
  template <class FindRow>
  __device__ void multiply(const T* b, const SimtGemm& gemm, const FewRowsPlace& place, const FindRow& find_row) {
    int k = this->find_k();
    Columns columns(b, gemm, this->find_column(place), lane, k);
    typename Columns::Words words[kTogether];
    NarrowVector<T, kOwn> of_row[kTogether];
    // Calls load for each of the steps that come next, or clear where the lane has no k there.
    const auto for_each = [&](const auto& load, const auto& clear) {
      if (step + kTogether <= step_end && (step + kTogether) * Columns::kStep <= inner) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) load(i);
      } else {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (step + i < step_end && k + i * Columns::kStep < inner) load(i);
          else clear(i);
        }
      }
    };
    const T* row = nullptr;
    // The first turn multiplies nothing: so what loads columns stands there once.
#pragma unroll 1
    for (bool is_first = true; is_first || step < step_end; is_first = false) {
      if (!is_first) {
        for_each([&](int i) { of_row[i].load_any(row + i * Columns::kStep); }, [&](int i) { of_row[i] = {}; });
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (i == kTogether / 2 && step + i >= step_end) break;  // a short slice takes half a turn
          Columns::multiply(words[i], of_row[i], sums);
        }
        step += kTogether;
        k += kTogether * Columns::kStep;
        row += kTogether * Columns::kStep;
        columns.advance();
      }
      for_each([&](int i) { columns.load(words[i], i); }, [&](int i) { words[i] = {}; });
      if (is_first) row = find_row(lane / 4) + k;
    }
  }
};
