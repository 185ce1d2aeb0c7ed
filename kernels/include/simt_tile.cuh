// One tile of a product on the FP32 or integer units: a ring of slabs, and 8 x 8 or 4 x 8 sums a thread.
//
// Elements have four bytes: floats, or words of four bytes that are neighbours along the inner extent, where k counts
// words. Slabs come by asynchronous copies. k runs upwards with one fused multiply-add each, so the bits are those of the
// plain loop. A slab holds 16 values of k: the left operand as rows [row][k], the right one as [k][column]. So a dense row
// of either operand goes into shared memory 16 bytes at a time, and fragments come out of it as vectors: two or four k of
// a row on the left, four columns of a k on the right. Lanes i and i ^ 1 read the same left address and lanes i and i ^ 2
// the same right one: then the hardware joins the quarters of a half-warp, and a LDS.128 takes two wavefronts in place of
// four, a LDS.64 one in place of two.
#pragma once
#include "async_copy.cuh"
#include "grid.cuh"
#include "vec.cuh"

constexpr int kSlabDepth = 16;  // values of k in a slab
constexpr int kColumnSums = 8;  // columns of a thread's sums: two groups of four, 32 columns apart
// Floats from a row of the left slab to the next. 20 r mod 32 is another multiple of 4 for each of eight rows r: eight
// lanes copying 16 bytes, or 8 x 4 lanes copying 4, touch each bank once.
constexpr int kLeftPitch = 20;

// A tile of RowWarps x ColumnWarps warps, each 4 RowSums x 64, over a ring of Stages slabs. A thread reads Together (2 or
// 4) k of a left row at once. BlocksAtOnce blocks are to be on a multiprocessor at a time.
template <int RowSums, int Together, int RowWarps, int ColumnWarps, int Stages, int BlocksAtOnce>
struct SimtTile {
  static constexpr int kRowSums = RowSums;
  static constexpr int kTogether = Together;
  static constexpr int kRowWarps = RowWarps;
  static constexpr int kStages = Stages;
  static constexpr int kBlocksAtOnce = BlocksAtOnce;
  static constexpr int kRows = 4 * RowSums * RowWarps;
  static constexpr int kColumns = 64 * ColumnWarps;
  static constexpr int kThreads = 32 * RowWarps * ColumnWarps;
  static constexpr int kRightPitch = kColumns + 4;  // 4 k + column: 4 columns of 8 rows touch each bank once
  static constexpr int kLeftFloats = kRows * kLeftPitch;
  static constexpr int kSlabFloats = kLeftFloats + kSlabDepth * kRightPitch;  // the right slab lies behind the left one
  static constexpr int kRingFloats = kStages * kSlabFloats;
  static_assert(kRows * kSlabDepth == 8 * kThreads && kColumns * kSlabDepth == 8 * kThreads,
                "loaders copy 8 floats a thread");
};

// sm_75 copies by registers, so a deep ring hides nothing, and of its 64 KB one large block takes more than half.
#ifdef GPUEXEC_COPIES_BY_REGISTERS
constexpr int kLargeBlocks = 1, kSmallStages = 2;
#else
constexpr int kLargeBlocks = 2, kSmallStages = 4;
#endif

// 128 x 128, 256 threads, 37,376 bytes. With four k at once it would spill: two blocks leave a thread 128 registers.
typedef SimtTile<8, 2, 4, 2, 2, kLargeBlocks> LargeTile;
// 64 x 64, 128 threads, 37,888 bytes. It may be alone on its multiprocessor, hence the deeper ring.
typedef SimtTile<4, 4, 4, 1, kSmallStages, 4> SmallTile;

// The sums of the tile that a thread makes: rows row + 4 i, columns column + 32 g + 0..3.
template <class Tile>
struct SumsPlace {
  int row, column;

  __device__ explicit SumsPlace(int thread) {
    const int warp = thread / 32;
    row = warp % Tile::kRowWarps * (4 * Tile::kRowSums) + (thread >> 1 & 1) + (thread >> 3 & 2);
    column = warp / Tile::kRowWarps * 64 + 4 * ((thread & 1) + (thread >> 1 & 6));
  }
};

// The slabs of the inner extent that a block sums. Slab 0 is the ragged one, of `head` values of k, so that the loop over
// the others asks nothing about k: slab s > 0 begins at head + 16 (s - 1).
struct SlabRange {
  int first, count, head, first_k;

  // Slice `slice` of `slices`; none is longer than another by more than one slab.
  __device__ SlabRange(int inner, int slice, int slices) {
    const int slabs = (inner + kSlabDepth - 1) / kSlabDepth;
    const int each = slabs / slices, longer = slabs - each * slices;  // the first `longer` slices have one slab more
    first = slice * each + (slice < longer ? slice : longer);
    count = each + (slice < longer);
    head = first == 0 ? inner - (slabs - 1) * kSlabDepth : kSlabDepth;
    first_k = first == 0 ? 0 : inner - (slabs - first) * kSlabDepth;
  }
};

// The element that lies count * step bytes behind another, by one IMAD.WIDE. The assembler takes two instructions where it
// knows the count, so a count of 1 comes as opaque(1).
template <class T>
__device__ inline const T* behind(const T* first, int count, int step) {
#ifdef GPUEXEC_SIM
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + i64(count) * step);
#else
  const T* result;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(result) : "r"(count), "r"(step), "l"(first));
  return result;
#endif
}

// Loaders copy a thread's share of a slab: `load_first` one of those in front of the loop, `depth` values of k from k on,
// `load` one from k on, all of whose k are there; both count k from the range's first. Beyond the matrix they write zeros.
// Steps in bytes are below 2^31. A loader that changes elements on the way reads them into registers in `load`, and writes
// them to shared memory in `finish`, a slab's sums later.

// The left operand by rows, dense along k, all rows aligned to 16 bytes: two copies, of rows a quarter of the threads
// apart.
template <class Tile, class T = float>
struct LeftVectors {
  static constexpr int kApart = Tile::kThreads / 4;
  const T* source;
  int step;  // bytes from a row to the next
  int destination, k;
  bool is_inside[2];

  __device__ LeftVectors(const T* matrix, int first_row, int rows, i64 row_stride, i64, int first_k) {
    const int thread = threadIdx.x;
    const int row = (thread & 7) + thread / 32 * 8;
    k = (thread >> 3 & 3) * 4;
    destination = row * kLeftPitch + k;
    step = int(4 * row_stride);
    source = opaque(matrix + (first_row + row) * row_stride + first_k + k);  // else its parts are added up in each slab
#pragma unroll
    for (int i = 0; i < 2; ++i) is_inside[i] = first_row + row + i * kApart < rows;
  }
  __device__ void load_first(T* slab, int from, int depth) const { copy(slab, from, k < depth); }
  __device__ void load(T* slab, int from) const { copy(slab, from, true); }
  __device__ void finish() const {}

 private:
  __device__ void copy(T* slab, int from, bool is_k_inside) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy_async<16>(slab + destination + i * kApart * kLeftPitch,
                     i == 0 ? source + from : behind(source + from, kApart, step), is_inside[i] && is_k_inside);
    }
  }
};

// The left operand by any strides and alignment: eight copies of four bytes, 8 rows x 4 k a warp; where it is wide, two
// copies of 16 as those of LeftVectors, so that a loop over slabs serves both.
template <class Tile, class T = float>
struct LeftAny {
  static constexpr int kApart = Tile::kThreads / 4;
  const T* source;
  int step, k_step;  // bytes from the first rows' elements to the others', and from one k to the next
  int destination, k, one;
  bool is_inside[2], is_wide;

  __device__ LeftAny(const T* matrix, int first_row, int rows, i64 row_stride, i64 k_stride, int first_k, bool is_wide)
      : is_wide(is_wide) {
    const int thread = threadIdx.x;
    const int row = (thread & 7) + thread / 32 * 8;
    k = (thread >> 3 & 3) * (is_wide ? 4 : 1);
    destination = row * kLeftPitch + k;
    one = opaque(1);
    step = int(4 * kApart * row_stride);
    k_step = int(4 * k_stride);
    source = matrix + (first_row + row) * row_stride + (first_k + k) * k_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) is_inside[i] = first_row + row + i * kApart < rows;
  }
  __device__ void load_first(T* slab, int from, int depth) const { copy(slab, from, depth - k); }
  __device__ void load(T* slab, int from) const { copy(slab, from, kSlabDepth); }
  __device__ void finish() const {}

 private:
  __device__ void copy(T* slab, int from, int k_left) const {
    T* const target = slab + destination;
    const T* first = behind(source, from, k_step);
    if (is_wide) {
      copy_async<16>(target, first, is_inside[0] && 0 < k_left);
      copy_async<16>(target + kApart * kLeftPitch, behind(first, one, step), is_inside[1] && 0 < k_left);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i > 0) first = behind(first, one, 4 * k_step);
      copy_async<4>(target + 4 * i, first, is_inside[0] && 4 * i < k_left);
      copy_async<4>(target + 4 * i + kApart * kLeftPitch, behind(first, one, step), is_inside[1] && 4 * i < k_left);
    }
  }
};

// The right operand, dense along columns, all rows aligned to 16 bytes: two copies, of rows eight apart.
template <class Tile, class T = float>
struct RightVectors {
  const T* source;
  int k_step;  // bytes
  int destination, k;
  bool is_inside;

  __device__ RightVectors(const T* matrix, int first_column, int columns, i64, i64 k_stride, int first_k) {
    const int thread = threadIdx.x;
    const int column = thread % (Tile::kColumns / 4) * 4;
    k = thread / (Tile::kColumns / 4);
    destination = k * Tile::kRightPitch + column;
    k_step = int(4 * k_stride);
    source = matrix + (first_k + k) * k_stride + first_column + column;
    is_inside = first_column + column < columns;
  }
  __device__ void load_first(T* slab, int from, int depth) const { copy(slab, from, depth - k); }
  __device__ void load(T* slab, int from) const { copy(slab, from, kSlabDepth); }
  __device__ void finish() const {}

 private:
  __device__ void copy(T* slab, int from, int k_left) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const T* first = behind(source, from, k_step);
      copy_async<16>(slab + destination + 8 * i * Tile::kRightPitch, i == 0 ? first : behind(first, 8, k_step),
                     is_inside && 8 * i < k_left);
    }
  }
};

// The right operand by any strides and alignment: eight copies of four bytes, 4 columns x 8 k a warp; where it is wide, two
// copies of 16 as those of RightVectors, so that a loop over slabs serves both.
template <class Tile, class T = float>
struct RightAny {
  static constexpr int kApart = Tile::kThreads / 8;
  const T* source;
  int step, k_step;  // bytes from a copy's column to the next one's, and from one k to the next
  int destination, k, columns_left, one;
  bool is_wide;

  __device__ RightAny(const T* matrix, int first_column, int columns, i64 column_stride, i64 k_stride, int first_k,
                      bool is_wide)
      : is_wide(is_wide) {
    const int thread = threadIdx.x;
    const int column = is_wide ? thread % (Tile::kColumns / 4) * 4 : (thread & 3) + thread / 32 * 4;
    k = is_wide ? thread / (Tile::kColumns / 4) : thread >> 2 & 7;
    destination = k * Tile::kRightPitch + column;
    one = opaque(1);
    step = int(4 * kApart * column_stride);
    k_step = int(4 * k_stride);
    source = matrix + (first_k + k) * k_stride + (first_column + column) * column_stride;
    columns_left = columns - first_column - column;
  }
  __device__ void load_first(T* slab, int from, int depth) const { copy(slab, from, depth - k); }
  __device__ void load(T* slab, int from) const { copy(slab, from, kSlabDepth); }
  __device__ void finish() const {}

 private:
  __device__ void copy(T* slab, int from, int k_left) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const T* at = behind(source, from + 8 * j, k_step);
      T* const target = slab + destination + 8 * j * Tile::kRightPitch;
      if (is_wide) {
        copy_async<16>(target, at, 0 < columns_left && 8 * j < k_left);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i > 0) at = behind(at, one, step);
        copy_async<4>(target + i * kApart, at, i * kApart < columns_left && 8 * j < k_left);
      }
    }
  }
};

// Reads neighbours of a slab: k of a row of the left one, or columns of a k of the right one.
template <class T, int Count>
__device__ inline void read_fragment(T (&values)[Count], const T* slab) {
  const Vec<T, Count> vector = load_vec<Count>(slab);
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] = vector.lanes[i];
}

// The product of an element of each operand, added to a sum.
struct MultiplyFloats {
  typedef float Element;
  typedef float Sum;
  static __device__ Sum add(Element a, Element b, Sum sum) { return fmaf(a, b, sum); }
};

// Sums left(row, k) * right(k, column) over the slabs of a range. All threads of the block come here. `ring` is shared
// memory of Tile::kRingFloats, aligned to 16 bytes.
//
// Fragments are read one k (on the left: as the last k read together is used) before they are needed, those of the next
// slab too: its copies are waited for before the last k of this one. Past that barrier nobody reads this slab any more,
// so one barrier a slab is enough, and the next trip may copy over it.
template <class Tile, class Multiply = MultiplyFloats, class Left, class Right>
__device__ inline void multiply_slabs(const Left& left, const Right& right, const SlabRange& range,
                                      typename Multiply::Element* ring,
                                      typename Multiply::Sum (&sums)[Tile::kRowSums][kColumnSums]) {
  typedef typename Multiply::Element T;
  constexpr int kRowSums = Tile::kRowSums, kTogether = Tile::kTogether, kStages = Tile::kStages;
#pragma unroll
  for (int i = 0; i < kRowSums; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnSums; ++j) sums[i][j] = 0;
  }
  if (range.count == 0) return;
  int k_to_load = 0;
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    const int depth = stage == 0 ? range.head : kSlabDepth;
    if (stage < range.count) {
      left.load_first(ring + stage * Tile::kSlabFloats, k_to_load, depth);
      right.load_first(ring + stage * Tile::kSlabFloats + Tile::kLeftFloats, k_to_load, depth);
    }
    k_to_load += depth;
    commit_copies();
  }
  const SumsPlace<Tile> place(threadIdx.x);
  const T* a_here = ring + place.row * kLeftPitch;
  const T* b_here = ring + Tile::kLeftFloats + place.column;
  T a[kRowSums][kTogether];  // k of each row
  T b[2][2][4];              // [k mod 2][group of columns]
  wait_copies<kStages - 2>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRowSums; ++i) read_fragment(a[i], a_here + 4 * i * kLeftPitch);
#pragma unroll
  for (int g = 0; g < 2; ++g) read_fragment(b[0][g], b_here + 32 * g);

  constexpr int kLast = (kStages - 1) * Tile::kSlabFloats;
  int read = 0;  // the slab's place in the ring, in floats
#pragma unroll 1
  for (int to_come = range.count - 1; to_come >= 0; --to_come) {
    if (to_come >= kStages - 1) {
      const int write = read == 0 ? kLast : read - Tile::kSlabFloats;
      left.load(ring + write, k_to_load);
      right.load(ring + write + Tile::kLeftFloats, k_to_load);
      k_to_load += kSlabDepth;
    }
    commit_copies();
    int step = read == kLast ? -kLast : Tile::kSlabFloats;
    if (to_come == 0) step = 0;  // the last trip reads its own slab again, in vain
    read += step;
#pragma unroll
    for (int k = 0; k < kSlabDepth; ++k) {
      const bool is_last = k + 1 == kSlabDepth;
      if (is_last) {
        left.finish();
        right.finish();
        wait_copies<kStages - 2>();
        __syncthreads();
        a_here += step;
        b_here += step;
      }
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        read_fragment(b[(k + 1) % 2][g], b_here + (is_last ? 0 : k + 1) * Tile::kRightPitch + 32 * g);
      }
#pragma unroll
      for (int i = 0; i < kRowSums; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnSums; ++j) {
          sums[i][j] = Multiply::add(a[i][k % kTogether], b[k % 2][j / 4][j % 4], sums[i][j]);
        }
        const bool are_used = (k + 1) % kTogether == 0;
        if (are_used) read_fragment(a[i], a_here + (is_last ? 0 : k + 1) + 4 * i * kLeftPitch);
      }
    }
  }
}

// The type by which CUDA loads four sums at once.
__device__ float4 four_of(float);
__device__ uint4 four_of(u32);

// Adds the sums of a tile's slices: leaves the block's own in `scratch` and answers false, but in the block that comes
// last, which adds up the slices in their order. Needs Tile::kRows * Tile::kColumns elements for each slice of each tile,
// and a counter a tile that is 0 and is left 0. All threads of the block come here.
template <class Tile, class T>
__device__ inline bool join_slices(T (&sums)[Tile::kRowSums][kColumnSums], T* scratch, unsigned* counters, u32 tile,
                                   int thread, int slice, int slices) {
  typedef decltype(four_of(T())) Four;
  if (slices == 1) return true;
  constexpr i64 kSums = i64(Tile::kRows) * Tile::kColumns;
  T* const own = scratch + tile * (slices * kSums) + 4 * thread;
#pragma unroll
  for (int i = 0; i < Tile::kRowSums; ++i) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      Vec<T, 4> four;
#pragma unroll
      for (int j = 0; j < 4; ++j) four.lanes[j] = sums[i][4 * g + j];
      store_vec(own + slice * kSums + (2 * i + g) * (4 * Tile::kThreads), four);
    }
  }
  if (!last_block(counters + tile, unsigned(slices))) return false;
#pragma unroll
  for (int i = 0; i < Tile::kRowSums; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnSums; ++j) sums[i][j] = 0;
  }
#pragma unroll 1
  for (int s = 0; s < slices; ++s) {
#pragma unroll
    for (int i = 0; i < Tile::kRowSums; ++i) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const T* source = own + s * kSums + (2 * i + g) * (4 * Tile::kThreads);
        const auto four = __ldcg(reinterpret_cast<const Four*>(source));
        sums[i][4 * g] += four.x;
        sums[i][4 * g + 1] += four.y;
        sums[i][4 * g + 2] += four.z;
        sums[i][4 * g + 3] += four.w;
      }
    }
  }
  return true;
}
