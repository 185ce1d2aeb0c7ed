// Loaders of narrow weights for the tiles of simt_tile.cuh.
//
// Weights come as vectors, wait in registers while a slab is multiplied, and go into shared memory widened.
#pragma once
#include "narrow_vector.cuh"
#include "simt_tile.cuh"

// Of the lines of a tile, in shared memory: offsets, then scales. Weights of half have none.
template <class Tile, class W>
struct ScaleTable {
  static constexpr int kLines = Tile::kColumns;
  static constexpr int kFloats = kIsFloat<W> ? 4 : 2 * kLines;
  static_assert(Tile::kRows == Tile::kColumns && Tile::kThreads >= kLines, "a thread fills a line of either operand");

  // All threads of the block come here. `first` is the line of the tile's first, of `lines`.
  static __device__ void fill(float* table, const Scales<float>& scales, int first, int lines, i64 step) {
    if constexpr (!kIsFloat<W>) {
      const int thread = threadIdx.x;
      if (thread < kLines) {
        const i64 place = (first + thread < lines ? first + thread : lines - 1) * step;
        const LineScale<W> own(scales, place);
        table[thread] = own.offset;
        table[kLines + thread] = own.scale;
      }
      __syncthreads();
    }
  }
  static __device__ LineScale<W> at(const float* table, int line) {
    if constexpr (kIsFloat<W>) return {};
    else return {table[line], table[kLines + line]};
  }
};

// What loaders that widen have in common: `load` begins, `finish` ends. Own reads a slab from k on, and stores it.
template <class Own>
struct WideningLoader {
  mutable float* target;
  mutable bool is_loaded = false;

  __device__ void load_first(float* slab, int from, int depth) const {
    own().read(from, depth);
    own().store(slab, depth);
  }
  __device__ void load(float* slab, int from) const {
    own().read(from, kSlabDepth);
    target = slab;
    is_loaded = true;
  }
  __device__ void finish() const {
    if (!is_loaded) return;
    own().store(target, kSlabDepth);
    is_loaded = false;
  }

 private:
  __device__ const Own& own() const { return static_cast<const Own&>(*this); }
};

// The right operand, dense along columns, all rows aligned to four weights: four columns of two k, eight apart.
template <class Tile, class W>
struct NarrowRightRows : WideningLoader<NarrowRightRows<Tile, W>> {
  typedef ScaleTable<Tile, W> Table;
  const W* source;
  const float* table;
  int k_step;  // bytes
  int column, k;
  bool is_inside;
  mutable NarrowVector<W, 4> fours[2];

  __device__ NarrowRightRows(const W* matrix, const float* table, int first_column, int columns, i64 k_stride, int first_k)
      : table(table), fours() {
    const int thread = threadIdx.x;
    column = thread % (Tile::kColumns / 4) * 4;
    k = thread / (Tile::kColumns / 4);
    k_step = int(sizeof(W) * k_stride);
    source = matrix + (first_k + k) * k_stride + first_column + column;
    is_inside = first_column + column < columns;
  }
  __device__ void read(int from, int end) const {
    const W* first = behind(source, from, k_step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (is_inside && k + 8 * i < end) fours[i].load(i == 0 ? first : behind(first, 8, k_step));
    }
  }
  __device__ void store(float* slab, int end) const {
    LineScale<W> scales[4];
    if constexpr (!kIsFloat<W>) {
      const Vec<float, 4> offsets = load_vec<4>(table + column), factors = load_vec<4>(table + Table::kLines + column);
#pragma unroll
      for (int j = 0; j < 4; ++j) scales[j] = {offsets.lanes[j], factors.lanes[j]};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Vec<float, 4> values;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float value = scales[j].widen_weight(fours[i], j);
        values.lanes[j] = k + 8 * i < end ? value : 0.0f;
      }
      store_vec(slab + (k + 8 * i) * Tile::kRightPitch + column, values);
    }
  }
};

// Lines dense along k, all aligned to four weights: four k of two lines, a quarter of the threads apart. They are rows of
// the left operand or columns of the right one.
template <class Tile, class W, bool IsLeft>
struct NarrowLines : WideningLoader<NarrowLines<Tile, W, IsLeft>> {
  typedef ScaleTable<Tile, W> Table;
  static constexpr int kApart = Tile::kThreads / 4;
  const W* source;
  const float* table;
  int step;  // bytes from a line to the next
  bool is_inside[2];
  mutable NarrowVector<W, 4> fours[2];

  __device__ NarrowLines(const W* matrix, const float* table, int first_line, int lines, i64 line_stride, int first_k)
      : table(table), fours() {
    const int line = find_line(threadIdx.x), k = find_k(threadIdx.x);
    step = int(sizeof(W) * line_stride);
    source = matrix + (first_line + line) * line_stride + first_k + k;
#pragma unroll
    for (int i = 0; i < 2; ++i) is_inside[i] = first_line + line + i * kApart < lines;
  }
  __device__ void read(int from, int end) const {
    const W* first = behind(source, from, int(sizeof(W)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (is_inside[i] && find_k(threadIdx.x) < end) fours[i].load(i == 0 ? first : behind(first, kApart, step));
    }
  }
  __device__ void store(float* slab, int end) const {
    // The loop of a large tile has no register for a place, which is found again.
    const int thread = Tile::kRowSums == 8 ? opaque(threadIdx.x) : int(threadIdx.x);
    const int line = find_line(thread), k = find_k(thread);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const LineScale<W> scale = Table::at(table, line + i * kApart);
      // k of a column are rows of the right slab, 4 banks apart: lanes of the last eight k store them in another order,
      // else two of them would meet on a bank.
      const int swapped = !IsLeft && k >= 8 ? 2 : 0;
      NarrowVector<W, 4> four = fours[i];
      if (swapped) four.swap_pairs();
      Vec<float, 4> values;
#pragma unroll
      for (int j = 0; j < 4; ++j) values.lanes[j] = k < end ? scale.widen_weight(four, j) : 0.0f;
      if constexpr (IsLeft) {
        store_vec(slab + (line + i * kApart) * kLeftPitch + k, values);
      } else {
        float* const first = slab + k * Tile::kRightPitch + line + i * kApart;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          first[(j < 2 ? j + swapped : j - swapped) * Tile::kRightPitch] = values.lanes[j];
        }
      }
    }
  }

 private:
  static __device__ int find_line(int thread) { return (thread & 7) + thread / 32 * 8; }
  static __device__ int find_k(int thread) { return (thread >> 3 & 3) * 4; }
};

// The right operand by any strides and alignment: eight weights, which are waited for before the slab at hand is
// multiplied.
template <class Tile, class W>
struct NarrowRightElements {
  typedef ScaleTable<Tile, W> Table;
  static constexpr int kApart = Tile::kThreads / 8;
  const W* source;
  const float* table;
  int step, k_step;  // bytes from a load's column to the next one's, and from one k to the next
  int column, k, columns_left, one;

  __device__ NarrowRightElements(const W* matrix, const float* table, int first_column, int columns, i64 column_stride,
                                 i64 k_stride, int first_k)
      : table(table) {
    const int thread = threadIdx.x;
    column = (thread & 3) + thread / 32 * 4;
    k = thread >> 2 & 7;
    one = opaque(1);
    step = int(sizeof(W) * kApart * column_stride);
    k_step = int(sizeof(W) * k_stride);
    source = matrix + (first_k + k) * k_stride + (first_column + column) * column_stride;
    columns_left = columns - first_column - column;
  }
  __device__ void load_first(float* slab, int from, int depth) const { copy(slab, from, depth - k); }
  __device__ void load(float* slab, int from) const { copy(slab, from, kSlabDepth); }
  __device__ void finish() const {}

 private:
  __device__ void copy(float* slab, int from, int k_left) const {
    float* const target = slab + k * Tile::kRightPitch + column;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const W* at = behind(source, from + 8 * j, k_step);
      W weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i > 0) at = behind(at, one, step);
        weights[i] = i * kApart < columns_left && 8 * j < k_left ? *at : cast<W>(0);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = Table::at(table, column + i * kApart).widen_weight(weights[i]);
        target[8 * j * Tile::kRightPitch + i * kApart] = 8 * j < k_left ? value : 0.0f;
      }
    }
  }
};
