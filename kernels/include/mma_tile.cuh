// One tile of a product of matrices on tensor cores (sm_80 and up): a ring of slabs, fragments by ldmatrix, sums.
//
// A slab is so many bytes of the inner extent of a block's lines: rows of the left operand, columns of the right one. An mma
// takes 32 bytes of it, a step, whatever the elements are. An operand is read as it lies: dense along k or along the lines,
// 16 bytes at a time by asynchronous copies past registers; of any other strides and alignment element by element.
//
// Lines beyond the last one repeat it or are zeros: their sums are never stored, so ragged extents cost nothing.
#pragma once
#include "grid.cuh"
#include "mma.cuh"
#include "vec.cuh"

constexpr int kChunkBytes = 16;
constexpr int kEight = 8;  // columns of a row that a thread has side by side once a product is done
template <class T>
constexpr int kChunkElements = kChunkBytes / int(sizeof(T));

// A tile of Rows x Columns sums by WarpsDown x WarpsAcross warps, over a ring of Stages slabs of SlabBytes. BlocksAtOnce
// blocks are to be on a multiprocessor at a time. There are WarpsDeep such groups of warps, each of which takes its share of a
// slab's steps: where blocks are few, the warps of a scheduler wait for each other's results no more.
template <int Rows, int Columns, int SlabBytes, int WarpsDown, int WarpsAcross, int Stages, int BlocksAtOnce,
          int WarpsDeep = 1>
struct MmaTile {
  static constexpr int kRows = Rows, kColumns = Columns, kSlabBytes = SlabBytes, kStages = Stages;
  static constexpr int kBlocksAtOnce = BlocksAtOnce, kWarpsAcross = WarpsAcross;
  static constexpr bool kIsGroupTile = false;
  static constexpr int kGroups = WarpsDeep, kGroupWarps = WarpsDown * WarpsAcross;
  static constexpr int kThreads = 32 * kGroupWarps * kGroups;
  static constexpr int kWarpRows = Rows / WarpsDown, kWarpColumns = Columns / WarpsAcross;
  static constexpr int kDown = kWarpRows / 16, kAcross = kWarpColumns / 8;  // mma of a warp and step
  static constexpr int kSteps = SlabBytes / 32 / WarpsDeep;  // of a slab, of a warp
  static constexpr int kLeftBytes = Rows * SlabBytes, kStageBytes = (Rows + Columns) * SlabBytes;
  static constexpr int kRingBytes = Stages * kStageBytes;
  static_assert(kWarpRows % 16 == 0 && kWarpColumns % 32 == 0, "a warp has whole mma and whole eights of columns");
  static_assert(kSteps % 2 == 0 && Stages >= 2, "two steps of fragments; one stage is filled while another is read");
  static_assert((kSteps & (kSteps - 1)) == 0, "steps of a group are low bits of a step's number");
};

// Of MMA_TILES in gpuexec/ops/lib/slices.py. All rings fit twice in the 164 KB of sm_80 and once in the 100 KB of sm_86; that
// of SmallMma three times and twice.
typedef MmaTile<128, 256, 64, 2, 4, 3, 1> LargeMma;   // 73,728 bytes: rows and columns in plenty
typedef MmaTile<128, 128, 64, 2, 2, 4, 2> MediumMma;  // 65,536 bytes
typedef MmaTile<64, 64, 128, 2, 2, 3, 2> SmallMma;    // 49,152 bytes: blocks are few
typedef MmaTile<16, 64, 256, 1, 2, 4, 2> FlatMma;     // 81,920 bytes: up to 16 rows, where fetching the columns is all
typedef MmaTile<64, 64, 128, 2, 2, 3, 2, 2> SmallDeepMma;  // as SmallMma, by two groups of warps
typedef MmaTile<16, 64, 256, 1, 2, 4, 2, 2> FlatDeepMma;   // as FlatMma, by two

constexpr u32 kGroup = 8;  // rows of tiles that blocks of neighbouring numbers share, so that operands stay in L2

// The place of a tile: within a batch, tiles are numbered down groups of rows of tiles, then across.
template <class Tile>
struct MmaPlace {
  int first_row, first_column;
  u32 batch;

  // Of a product that has `rows` and `columns`.
  template <class Gemm>
  __device__ MmaPlace(const Gemm& gemm, u32 tile) {
    const u32 down = (u32(gemm.rows) + Tile::kRows - 1) / Tile::kRows;
    const u32 across = (u32(gemm.columns) + Tile::kColumns - 1) / Tile::kColumns;
    batch = tile / (down * across);
    tile -= batch * (down * across);
    const u32 first = tile / (kGroup * across) * kGroup;
    const u32 height = down - first < kGroup ? down - first : kGroup;
    tile -= first * across;
    const u32 column = tile / height;
    first_row = int(first + tile - column * height) * Tile::kRows;
    first_column = int(column) * Tile::kColumns;
  }
};

// Where the 16-byte chunks of a slab's rows stand: chunk c of row r where chunk c ^ phase(r) would. So the eight rows that
// ldmatrix reads at a time lie in different banks, and so do the eight chunks that a quarter of a warp stores. Such rows
// differ in bit 0 and in the two bits from Shift on:
//   Shift 1   eight rows in succession;
//   Shift 3   rows 0, 1, 8, 9, 16, 17, 24, 25 and those 2, 4 or 6 further on: see `right_place` below.
//
// Where Rows are given, a row is in parts of 128 bytes, each of which has its own rows side by side (wgmma.cuh).
template <int RowBytes, int Shift, int Rows = 0>
struct SlabOrder {
  static_assert(RowBytes == 64 || RowBytes % 128 == 0, "a row is half a line of the banks or whole ones");
  static constexpr int kChunks = RowBytes / kChunkBytes;
  static constexpr int kPeriod = 4 << Shift;  // rows that far apart have the same phase

  static __device__ int phase(int row) {
    // Two rows of 64 bytes share a line: which half is theirs is bit 0 already.
    return RowBytes == 64 ? row >> Shift & 3 : (row & 1) | (row >> Shift & 3) << 1;
  }
  static __device__ int place(int row, int chunk) {
    if constexpr (Rows > 0) return (chunk / 8 * Rows + row) * 128 + (chunk % 8 ^ phase(row)) * kChunkBytes;
    else return row * RowBytes + (chunk ^ phase(row)) * kChunkBytes;
  }
  // The place `step` * 32 bytes along a row from `place`, which is in the row's first 32 bytes.
  static __device__ int advance(int place, int step) {
    constexpr int kTurn = RowBytes == 64 ? 2 : 4;  // steps that differ in bits a phase reaches
    return (place ^ step % kTurn * 32) + step / kTurn * 128;
  }
};

template <class T, class Tile, int Lines, Lie kLie, int Shift>
struct VectorLoader;

// An operand as a block sees it.
template <class T>
struct MmaOperand {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = VectorLoader<T, Tile, Lines, kLie, Shift>;
  static constexpr bool kIsAlwaysWide = false;

  const T* matrix;
  i64 line_stride, k_stride;  // elements
  int lines, inner, first_line, first_k;
  bool is_wide;  // dense along the one axis, 16-byte aligned along the other: copied by vectors

  // Whether VectorLoader copies it. Lines that lie across are whole chunks, or there is room behind them.
  template <Lie kLie>
  __device__ bool has_chunks() const {
    return is_wide && (kLie == Lie::kAlongK || k_stride != 0 || lines % kChunkElements<T> == 0);
  }

  // Returns the place of a line of the block at k = 0; the last one's for those beyond it.
  __device__ const T* find_line(int line) const {
    const int wanted = first_line + line;
    return matrix + (wanted < lines ? wanted : lines - 1) * line_stride;
  }
};

// Whether slabs of an operand are computed by its loader, which has a `load` alone: all of them run in a loop with tests, so
// that the code stands there twice.
template <class Operand>
constexpr bool kIsComputed = false;

// The same of an operand that is wide whatever the launch.
template <class T>
struct WideOperand : MmaOperand<T> {
  static constexpr bool kIsAlwaysWide = true;
  __device__ WideOperand(const T* matrix, i64 line_stride, int lines, int inner, int first_line, int first_k)
      : MmaOperand<T>{matrix, line_stride, 1, lines, inner, first_line, first_k, true} {}
};

// A thread's 16-byte chunks of a slab, in kPasses passes of all threads: in pass i, chunk `chunk` of row `row` + i * kPassRows
// of shared memory. Rows are lines (kAlongK), or k, of all lines of the block (kAcross).
template <class T, class Tile, int Lines, Lie kLie, int Shift>
struct SlabPart {
  static constexpr int kRowBytes = kLie == Lie::kAlongK ? Tile::kSlabBytes : Lines * int(sizeof(T));
  static constexpr int kRows = kLie == Lie::kAlongK ? Lines : Tile::kSlabBytes / int(sizeof(T));
  static constexpr bool kIsInParts = Tile::kIsGroupTile && kRowBytes > 128;
  typedef SlabOrder<kRowBytes, Shift, kIsInParts ? kRows : 0> Order;
  static constexpr int kPassRows = Tile::kThreads / Order::kChunks;
  static constexpr int kPasses = kRows / kPassRows;
  static_assert(kRows % kPassRows == 0 && kPassRows * Order::kChunks == Tile::kThreads, "passes are whole");

  int row, chunk;

  __device__ explicit SlabPart(int thread) : row(thread / Order::kChunks), chunk(thread % Order::kChunks) {}

  __device__ int place(int pass) const {
    constexpr int kPitch = kIsInParts ? 128 : kRowBytes;
    if constexpr (kPassRows % Order::kPeriod == 0) return Order::place(row, chunk) + pass * kPassRows * kPitch;
    else return Order::place(row + pass * kPassRows, chunk);
  }
};

// The bytes of a chunk that has `count` elements, of which there may be none or more than fit.
template <class T>
__device__ inline int count_chunk_bytes(int count) {
  return count <= 0 ? 0 : count < kChunkElements<T> ? count * int(sizeof(T)) : kChunkBytes;
}

// Copies slabs of a wide operand, one after the other from the block's first one on.
template <class T, class Tile, int Lines, int Shift>
struct VectorLoader<T, Tile, Lines, Lie::kAlongK, Shift> {
  typedef SlabPart<T, Tile, Lines, Lie::kAlongK, Shift> Part;
  Part part;
  const u8* source[Part::kPasses];

  __device__ explicit VectorLoader(const MmaOperand<T>& operand) : part(threadIdx.x) {
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      const T* line = operand.find_line(part.row + i * Part::kPassRows);
      source[i] = reinterpret_cast<const u8*>(line + operand.first_k + part.chunk * kChunkElements<T>);
    }
  }

  // Copies a slab all of whose k are inside.
  __device__ void load_whole(SharedAddress slab) {
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      copy_async_vector(slab + part.place(i), source[i]);
      source[i] += Tile::kSlabBytes;
    }
  }

  // Copies a slab that has `depth` k inside, or more than fit.
  __device__ void load(SharedAddress slab, int depth) {
    const int nbytes = count_chunk_bytes<T>(depth - part.chunk * kChunkElements<T>);
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      copy_async_vector(slab + part.place(i), source[i], nbytes);
      source[i] += Tile::kSlabBytes;
    }
  }
};

template <class T, class Tile, int Lines, int Shift>
struct VectorLoader<T, Tile, Lines, Lie::kAcross, Shift> {
  typedef SlabPart<T, Tile, Lines, Lie::kAcross, Shift> Part;
  Part part;
  const u8* source;
  i64 step;    // bytes from a pass to the next
  int nbytes;  // of the thread's chunks inside

  __device__ explicit VectorLoader(const MmaOperand<T>& operand)
      : part(threadIdx.x), step(operand.k_stride * (Part::kPassRows * int(sizeof(T)))) {
    const int first = operand.first_line + part.chunk * kChunkElements<T>;
    nbytes = count_chunk_bytes<T>(operand.lines - first);
    const int last = (operand.lines - 1) / kChunkElements<T> * kChunkElements<T>;
    const T* const row = operand.matrix + (operand.first_k + part.row) * operand.k_stride;
    source = reinterpret_cast<const u8*>(row + (first < last ? first : last));
  }

  // Copies whole chunks, the last one in place of those behind it. Where that is partly inside, what is behind the last line
  // lies in front of another k's lines, since these slabs are neither the first nor the last ones.
  __device__ void load_whole(SharedAddress slab) {
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      copy_async_vector(slab + part.place(i), source);
      source += step;
    }
  }

  __device__ void load(SharedAddress slab, int depth) {
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      copy_async_vector(slab + part.place(i), source, part.row + i * Part::kPassRows < depth ? nbytes : 0);
      source += step;
    }
  }
};

// Copies elements one by one to a chunk of shared memory: `count` of them, `stride` elements apart, then zeros.
template <class T>
__device__ inline void copy_elements(u8* destination, const T* source, i64 stride, int count) {
  Vec<T, kChunkElements<T>> chunk;
#pragma unroll
  for (int i = 0; i < kChunkElements<T>; ++i) chunk.lanes[i] = i < count ? source[i * stride] : reinterpret<T>(Bits<T>(0));
  store_vec(reinterpret_cast<T*>(destination), chunk);
}

// Copies the slab of any operand that begins at `k`. It keeps nothing from slab to slab.
template <class T, class Tile, int Lines, Lie kLie, int Shift>
__device__ inline void copy_slab(const MmaOperand<T>& operand, SharedAddress slab, u8* bytes, int k) {
  typedef SlabPart<T, Tile, Lines, kLie, Shift> Part;
  const Part part(forget(threadIdx.x));
#pragma unroll 1
  for (int i = 0; i < Part::kPasses; ++i) {
    const int row = part.row + i * Part::kPassRows, place = Part::Order::place(row, part.chunk);
    const T* source;
    i64 stride;
    int count;
    if constexpr (kLie == Lie::kAlongK) {
      const int first = k + part.chunk * kChunkElements<T>;
      source = operand.find_line(row) + first * operand.k_stride;
      stride = operand.k_stride;
      count = operand.inner - first;
    } else {
      const int first = operand.first_line + part.chunk * kChunkElements<T>;
      source = operand.matrix + (k + row) * operand.k_stride + first * operand.line_stride;
      stride = operand.line_stride;
      count = k + row < operand.inner ? operand.lines - first : 0;
    }
    if (operand.is_wide) copy_async_vector(slab + place, source, count_chunk_bytes<T>(count));
    else copy_elements(bytes + place, source, stride, count);
  }
}

// Exchanges among the four threads of a quad: v[i] of thread t becomes what v[t] of thread i was.
__device__ void transpose_quad(float (&v)[4]) {
  const int own = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & bit) continue;
      const bool is_upper = own & bit;
      const float got = __shfl_xor_sync(~0u, is_upper ? v[low] : v[low | bit], bit);
      (is_upper ? v[low] : v[low | bit]) = got;
    }
  }
}

// What products are summed in: bytes modulo 2^32, all else as floats.
template <class T>
struct MmaSum {
  typedef float Type;
};
template <>
struct MmaSum<i8> {
  typedef i32 Type;
};
__device__ inline float add_sums(float a, float b) { return a + b; }
__device__ inline i32 add_sums(i32 a, i32 b) { return i32(u32(a) + u32(b)); }

// A warp's part of a tile: its sums, which are 0 at first. IsInEights: a thread's columns of four neighbouring mma are eight side
// by side, so that they leave registers without an exchange.
template <class T, class Tile, bool IsInEights>
struct WarpSums {
  typedef T Element;
  typedef Tile Shape;
  typedef typename MmaSum<T>::Type Sum;
  static constexpr int kEights = Tile::kDown * 2 * (Tile::kAcross / 4);

  Sum sums[Tile::kDown][Tile::kAcross][4];

  __device__ WarpSums() {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = Sum(0);
      }
    }
  }

  // The group of a thread's warp, and where the warp's part begins in the tile. Four warps that multiply together, one below
  // the other, have successive numbers.
  static __device__ int find_group(int thread) { return Tile::kGroups == 1 ? 0 : thread / (32 * Tile::kGroupWarps); }
  static __device__ int find_row(int thread) {
    const int warp = Tile::kGroups == 1 ? thread / 32 : thread / 32 % Tile::kGroupWarps;
    if constexpr (Tile::kIsGroupTile) return (warp / 4 / Tile::kWarpsAcross * 4 + warp % 4) * Tile::kWarpRows;
    else return warp / Tile::kWarpsAcross * Tile::kWarpRows;
  }
  static __device__ int find_column(int thread) {
    constexpr int kWarps = Tile::kIsGroupTile ? 4 : 1;
    return thread / (32 * kWarps) % Tile::kWarpsAcross * Tile::kWarpColumns;
  }

  // Four sums, of those of a thread.
  static constexpr int kFours = Tile::kDown * Tile::kAcross;
  __device__ Sum (&four(int i))[4] { return sums[i / Tile::kAcross][i % Tile::kAcross]; }

  // Places of an eight in the tile, those of a thread counted along the rows first.
  static __device__ int find_eight_row(int thread, int eight) {
    return find_row(thread) + thread % 32 / 4 + eight / (Tile::kAcross / 4) * 8;
  }
  static __device__ int find_eight_column(int thread, int eight) {
    return find_column(thread) + thread % 4 * kEight + eight % (Tile::kAcross / 4) * 32;
  }

  // Moves the sums behind the first 32 columns to the front.
  __device__ void drop_columns() {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int j = 4; j < Tile::kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j - 4][e] = sums[i][j][e];
      }
    }
  }

  // Returns the sums of an eight. All lanes come here.
  __device__ void take_eight(int eight, Sum (&to)[kEight]) const {
    const int i = eight / (Tile::kAcross / 4) / 2, half = eight / (Tile::kAcross / 4) % 2;
    const int j = eight % (Tile::kAcross / 4) * 4;
    if constexpr (IsInEights) {
#pragma unroll
      for (int e = 0; e < kEight; ++e) to[e] = sums[i][j + e / 2][half * 2 + e % 2];
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float four[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) four[n] = sums[i][j + n][half * 2 + e];
        transpose_quad(four);
#pragma unroll
        for (int n = 0; n < 4; ++n) to[n * 2 + e] = four[n];
      }
    }
  }
};

// The same with the fragments of two steps. While one step is multiplied, the next one is loaded.
template <class T, class Tile, Lie kLeft, Lie kRight>
struct WarpTile : WarpSums<T, Tile, kRight == Lie::kAlongK> {
  typedef WarpSums<T, Tile, kRight == Lie::kAlongK> Sums;
  using Sums::find_column;
  using Sums::find_group;
  using Sums::find_row;
  using Sums::sums;
  static constexpr Lie kLeftLie = kLeft, kRightLie = kRight;
  typedef SlabOrder<kLeft == Lie::kAlongK ? Tile::kSlabBytes : Tile::kRows * int(sizeof(T)), 1> LeftOrder;
  typedef SlabOrder<kRight == Lie::kAlongK ? Tile::kSlabBytes : Tile::kColumns * int(sizeof(T)),
                    kRight == Lie::kAlongK ? 3 : 1>
      RightOrder;
  static constexpr int kPairs = Tile::kAcross / 2;           // ldmatrix has the fragments of two mma
  static constexpr int kLeftSets = Tile::kDown < 4 ? 2 : 1;  // of four rows, each is loaded anew as soon as it is used

  u32 left[kLeftSets][Tile::kDown][4], right[2][kPairs][4];
  int left_place, right_place;  // in a slab, of what this lane names to ldmatrix
  u32 flip = 0;                 // of bytes: what centres those of the left operand, four in a word

  __device__ WarpTile() {
    const int thread = threadIdx.x, lane = thread % 32;
    // Fragments of the left operand are matrices of rows 0 and 8 and k 0 and 8, in this order, the row counting first.
    if constexpr (kLeft == Lie::kAlongK) {
      left_place = LeftOrder::place(find_row(thread) + lane % 16, lane / 16);
    } else {
      left_place = LeftOrder::place(lane % 8 + lane / 16 * 8, find_row(thread) / kEight + lane / 8 % 2);
    }
    if constexpr (kRight == Lie::kAlongK) {
      // Of two neighbouring mma, column c of the first is 8 * (c / 2) + c % 2 and of the second 2 further on. So a thread's
      // two columns of four mma are eight side by side, and rows leave registers by 16-byte stores without an exchange.
      right_place = RightOrder::place(find_column(thread) + lane % 8 / 2 * 8 + lane / 16 * 2 + lane % 2, lane / 8 % 2);
    } else {
      right_place = RightOrder::place(lane % 16, find_column(thread) / kEight + lane / 16);
    }
    if constexpr (Tile::kGroups > 1) {  // the first step of the group
      const int first = find_group(thread) * Tile::kSteps;
      left_place = kLeft == Lie::kAlongK ? LeftOrder::advance(left_place, first)
                                         : left_place + first * 16 * Tile::kRows * int(sizeof(T));
      right_place = kRight == Lie::kAlongK ? RightOrder::advance(right_place, first)
                                           : right_place + first * 16 * Tile::kColumns * int(sizeof(T));
    }
  }

  // Loads the fragments of row `i` of mma of a step of a slab.
  __device__ void load_left(SharedAddress slab, int step, int i) {
    u32(&words)[4] = left[step % kLeftSets][i];
    if constexpr (kLeft == Lie::kAlongK) {
      load_matrices(words, slab + (LeftOrder::advance(left_place, step) + i * 16 * Tile::kSlabBytes));
    } else {
      // Warps begin at multiples of 32 rows, so two chunks further on is another bit.
      static_assert(Tile::kWarpRows % 32 == 0 && Tile::kDown <= 4, "rows of mma are bits of a chunk's number");
      load_matrices_transposed(words, slab + ((left_place ^ i * 32) + step * 16 * Tile::kRows * int(sizeof(T))));
    }
  }

  // Loads those of columns 2 * p and 2 * p + 1 of mma, from the slab behind the left one.
  __device__ void load_right(SharedAddress slab, int step, int p) {
    u32(&words)[4] = right[step % 2][p];
    if constexpr (kRight == Lie::kAlongK) {
      const int row = p / 2 * 32 + p % 2 * 4;
      load_matrices(words, slab + (Tile::kLeftBytes + RightOrder::advance(right_place, step) + row * Tile::kSlabBytes));
    } else {
      // As for the left operand; with more than four pairs the higher bits are beyond a phase's reach.
      const int place = (right_place ^ p % 4 * 32) + p / 4 * 128;
      load_matrices_transposed(words, slab + (Tile::kLeftBytes + place + step * 16 * Tile::kColumns * int(sizeof(T))));
    }
  }

  // Loads all fragments of the first step of a stage.
  __device__ void begin(SharedAddress stage) {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) load_left(stage, 0, i);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) load_right(stage, 0, p);
  }

  // Adds the products of a step, and loads the fragments of step `next`, which lie in `stage`, as registers come free. Every
  // other row goes backwards, so that the operands used last are met again at once.
  __device__ void multiply(int step, SharedAddress stage, int next) {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        if (p * Tile::kDown / kPairs == i) load_right(stage, next, p);
      }
      if (kLeftSets == 2) load_left(stage, next, i);
      if constexpr (kIsSame<T, i8>) {
#pragma unroll
        for (int word = 0; word < 4; ++word) left[step % kLeftSets][i][word] ^= flip;
      }
#pragma unroll
      for (int n = 0; n < Tile::kAcross; ++n) {
        const int j = i % 2 == 0 ? n : Tile::kAcross - 1 - n;
        const u32 pair[2] = {right[step % 2][j / 2][j % 2 * 2], right[step % 2][j / 2][j % 2 * 2 + 1]};
        multiply_matrices<T>(sums[i][j], left[step % kLeftSets][i], pair);
      }
      if (kLeftSets == 1) load_left(stage, next, i);
    }
  }
};

// What is left of a warp's part of a tile once groups have added up their sums: each group has its share of the eights.
template <class Warp>
struct FoldedTile {
  typedef typename Warp::Element Element;
  typedef typename Warp::Shape Shape;
  typedef typename Warp::Sum Sum;
  static constexpr int kGroups = Shape::kGroups, kEights = Warp::kEights / kGroups, kFours = 2 * kEights;
  static constexpr int kGroupThreads = 32 * Shape::kGroupWarps;
  static_assert(Warp::kEights % kGroups == 0, "groups have as many eights each");
  static_assert(2 * kGroups * Warp::kEights * kGroupThreads * 4 * int(sizeof(Sum)) <= Shape::kRingBytes,
                "the sums of all groups fit in the ring");

  Sum sums[kFours][4];

  // Adds the groups' sums in their order. The ring is free behind the sums of all threads, who all come here.
  __device__ FoldedTile(const Warp& warp, u8* ring) {
    const int thread = threadIdx.x, group = Warp::find_group(thread);
    Sum* const held = reinterpret_cast<Sum*>(ring) + thread % kGroupThreads * 4;
    const auto find_four = [&](int owner, int four) { return held + (owner * 2 * Warp::kEights + four) * (4 * kGroupThreads); };
    __syncthreads();
#pragma unroll
    for (int eight = 0; eight < Warp::kEights; ++eight) {
      Sum own[kEight];
      warp.take_eight(eight, own);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_vec(find_four(group, 2 * eight + half),
                  Vec<Sum, 4>{{own[half * 4], own[half * 4 + 1], own[half * 4 + 2], own[half * 4 + 3]}});
      }
    }
    __syncthreads();
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
#pragma unroll
      for (int each = 0; each < kGroups; ++each) {
        const Vec<Sum, 4> part = load_vec<4>(find_four(each, group * kFours + four));
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[four][i] = each == 0 ? part.lanes[i] : add_sums(sums[four][i], part.lanes[i]);
      }
    }
  }

  __device__ Sum (&four(int i))[4] { return sums[i]; }
  static __device__ int find_eight_row(int thread, int eight) {
    return Warp::find_eight_row(thread, Warp::find_group(thread) * kEights + eight);
  }
  static __device__ int find_eight_column(int thread, int eight) {
    return Warp::find_eight_column(thread, Warp::find_group(thread) * kEights + eight);
  }
  __device__ void take_eight(int eight, Sum (&to)[kEight]) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) to[i] = sums[2 * eight + i / 4][i % 4];
  }
};

// The slabs of the inner extent that a block sums.
struct MmaSlabs {
  int first, count, depth;

  // Slice `slice` of `slices`.
  __device__ MmaSlabs(int inner, int depth, int slice, int slices) : depth(depth) {
    const i64 slabs = (i64(inner) + depth - 1) / depth;
    first = int(slabs * slice / slices);
    count = int(slabs * (slice + 1) / slices) - first;
  }
};

// Sums left(row, k) * right(k, column) over slabs. All threads of the block come here. `ring` is shared memory of
// Tile::kRingBytes, aligned to 1024.
//
// The left operand may be another than MmaOperand: one that is always wide, and names what copies its slabs. Then the right
// one may, too. Warp is WarpTile, or does more as it multiplies.
//
// Of operands that VectorLoader copies, whole slabs run in a loop that is unrolled by the stages, so that their places are
// immediates; the rest, and all slabs of others, run in a loop with tests. Of others that loop has turns in front, which load
// and multiply nothing: so what copies their elements stands there once, and is compiled once.
template <class Warp, class Left, class Right>
__device__ void sum_slabs(Warp& warp, const Left& a, const Right& b, const MmaSlabs& slabs, u8* ring) {
  typedef typename Warp::Element T;
  typedef typename Warp::Shape Tile;
  constexpr Lie kLeft = Warp::kLeftLie, kRight = Warp::kRightLie;
  constexpr int kStages = Tile::kStages, kSteps = Tile::kSteps, kRightShift = kRight == Lie::kAlongK ? 3 : 1;
  const SharedAddress stages = find_shared_address(ring);
  const int end = slabs.first + slabs.count;
  int to_come = slabs.count;  // slabs that are not multiplied yet

  // Multiplies the slab in `stage`, if there is one, whose fragments of step 0 are in registers already, and refills the stage.
  // Before its last step the next slab is waited for. Behind that barrier nobody reads this stage any more: all fragments of
  // it are in registers.
  const auto run_slab = [&](int stage, int next, bool is_there, const auto& refill) {
    if (is_there) {
#pragma unroll
      for (int step = 0; step < kSteps - 1; ++step) warp.multiply(step, stages + stage * Tile::kStageBytes, step + 1);
      wait_copies<kStages - 2>();
      __syncthreads();
    }
    refill(stage);
    commit_copies();
    if (is_there) warp.multiply(kSteps - 1, stages + next * Tile::kStageBytes, 0);
  };
  // Waits for the first slab, and loads its first fragments.
  const auto begin = [&] {
    wait_copies<kStages - 1>();
    __syncthreads();
    if (slabs.count > 0) warp.begin(stages);
  };
  const auto run_rest = [&](const auto& load) {
    int stage = 0;
#pragma unroll 1
    for (; to_come > 0; --to_come) {
      const int next = stage + 1 == kStages ? 0 : stage + 1;
      // Behind the last slab there is none: what is read in its place is used nowhere.
      run_slab(stage, to_come > 1 ? next : stage, Left::kIsAlwaysWide || to_come <= slabs.count, [&](int free) {
        if (to_come > kStages) load((end - to_come + kStages) * slabs.depth, free * Tile::kStageBytes);
      });
      if (!Left::kIsAlwaysWide && to_come - 1 == slabs.count) begin();
      stage = next;
    }
  };

  if constexpr (!Left::kIsAlwaysWide) {
    if (!a.template has_chunks<kLeft>() || !b.template has_chunks<kRight>()) {
      to_come += kStages;
      run_rest([&](int k, int at) {
        copy_slab<T, Tile, Tile::kRows, kLeft, 1>(a, stages + at, ring + at, k);
        at += Tile::kLeftBytes;
        copy_slab<T, Tile, Tile::kColumns, kRight, kRightShift>(b, stages + at, ring + at, k);
      });
      return;
    }
  }
  typename Left::template Loader<Tile, Tile::kRows, kLeft, 1> left(a);
  typename Right::template Loader<Tile, Tile::kColumns, kRight, kRightShift> right(b);
  const auto load = [&](int k, int at) {
    left.load(stages + at, a.inner - k);
    right.load(stages + (at + Tile::kLeftBytes), b.inner - k);
  };
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < slabs.count) load((slabs.first + stage) * slabs.depth, stage * Tile::kStageBytes);
    commit_copies();  // a group for each slab, even where there is none, so that waits count slabs
  }
  begin();
  if constexpr (!kIsComputed<Left>) {
#pragma unroll 1
    for (; to_come > 2 * kStages; to_come -= kStages) {  // what is loaded here is whole
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        run_slab(stage, (stage + 1) % kStages, true, [&](int free) {
          left.load_whole(stages + free * Tile::kStageBytes);
          right.load_whole(stages + (free * Tile::kStageBytes + Tile::kLeftBytes));
        });
      }
    }
  }
  run_rest(load);
}

// Adds the sums of a tile's slices: leaves the block's own in `scratch` and answers false, but in the block that comes
// last, which adds up the slices in their order. Needs Tile::kRows * Tile::kColumns sums for each slice of each tile,
// and a counter a tile that is 0 and is left 0. All threads of the block come here.
template <class Warp>
__device__ inline bool join_slices(Warp& warp, typename Warp::Sum* scratch, unsigned* counters, u32 tile, int slice,
                                   int slices) {
  typedef typename Warp::Shape Tile;
  typedef typename Warp::Sum Sum;
  typedef typename Select<kIsSame<Sum, float>, float4, int4>::type Four;
  if (slices == 1) return true;
  constexpr i64 kSums = i64(Tile::kRows) * Tile::kColumns;
  Sum* const own = scratch + (tile * i64(slices) + slice) * kSums + 4 * threadIdx.x;
#pragma unroll
  for (int i = 0; i < Warp::kFours; ++i) {
    const Sum(&sums)[4] = warp.four(i);
    store_vec(own + i * (4 * Tile::kThreads), Vec<Sum, 4>{{sums[0], sums[1], sums[2], sums[3]}});
  }
  if (!last_block(counters + tile, unsigned(slices))) return false;
#pragma unroll
  for (int i = 0; i < Warp::kFours; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) warp.four(i)[e] = Sum(0);
  }
  const Sum* source = scratch + tile * (slices * kSums) + 4 * forget(threadIdx.x);
  // Of small tiles, sums of several slices are under way together.
  constexpr int kTogether = Warp::kFours < 16 ? 16 / Warp::kFours : 1;
#pragma unroll kTogether
  for (; slices > 0; --slices, source += kSums) {
#pragma unroll
    for (int i = 0; i < Warp::kFours; ++i) {
      const Sum* four_sums = source + i * (4 * Tile::kThreads);
      const Four four = __ldcg(reinterpret_cast<const Four*>(four_sums));  // of other blocks: not through L1
      Sum(&sums)[4] = warp.four(i);
      sums[0] = add_sums(sums[0], four.x);
      sums[1] = add_sums(sums[1], four.y);
      sums[2] = add_sums(sums[2], four.z);
      sums[3] = add_sums(sums[3], four.w);
    }
  }
  return true;
}
