// Products of up to four rows of half and bf16 with weights of 2, 4 or 8 bits in blocks, on tensor cores.
//
// Codes come into registers as they lie, 32 of a column for a lane, all of one block. An mma adds up what its four lanes of a
// column have, and their blocks have scales of their own: so the left operand has a row for each row and lane, in which all
// but that lane's k are 0. Which k meets which code is all that counts, so two codes of a word are widened by a mask and a
// fused multiply-add (CodePairs), and the row's numbers are put in their order once for all columns.
#pragma once
#include "coded_columns.cuh"
#include "mma_few.cuh"

// Where rows of a left operand lie: row 0 from k = 0 on, and elements from a row to the next. Or IsInOrder: rows 0 and 2 as
// FragmentOrder has them, twice as many elements a k, and from them to rows 1 and 3.
template <class T, bool IsInOrder>
struct RowsInMemory {
  static constexpr bool kIsInOrder = IsInOrder;
  const T* first;
  i64 pitch;
};

// The order of rows as lanes have them in left operands, 16 bytes of one after the other: of the 32 k of a lane, which begin
// at a multiple of that, two words of rows r and r + 2 in turn. As codes of a word are widened, a word has a k of its first
// half and the one as far in the second.
template <int Bits>
struct FragmentOrder {
  static __device__ int find_place(i64 row, int k, int pitch) {
    constexpr int kPairs = 16 / Bits;
    const int word = k / (2 * kPairs) * kPairs + k % kPairs, half = k / kPairs % 2;
    return int(row) % 2 * (2 * pitch) + word / 2 * 8 + word % 2 * 4 + int(row) / 2 * 2 + half;
  }
};

// Columns of codes as right operands of mma, with the scales of what a lane has of the sums.
template <class T, class R, int Bits>
struct MmaCodes : CodedColumns<Bits> {
  typedef CodedColumns<Bits> Codes;
  typedef CodePairs<T, Bits> Widen;
  static constexpr int kSums = Codes::kSums, kOwn = Codes::kOwn, kStep = Codes::kStep, kTogether = 2;
  static constexpr int kPairs = Widen::kPairs;  // of a word of codes
  using Codes::inner, Codes::k;

  struct Words : Codes::Words {
    R scales[kSums][2];
  };
  // Of rows lane / 16 and that + 2, in the order of codes, as left operands of one mma after the other: zeros for lanes, rows
  // and k that are not there.
  struct Rows {
    u32 words[kOwn / 4][4];
  };

  int scaled_k;  // the first k whose sums the lane scales
  const R* scales[kSums][2];

  __device__ MmaCodes(const PackedPointers<R>& source, const PackedShape& shape, const SimtGemm& gemm, int first_column,
                      int lane, int k)
      : Codes(source, shape, gemm, first_column, lane, k), scaled_k(k + (lane / 4 % 4 - lane % 4) * kOwn) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const i64 column = Codes::find_column(gemm, first_column + 8 * i + lane % 4 * 2 + e);
        scales[i][e] = opaque(source.scales + column * shape.blocks);
      }
    }
  }

  // Loads a step from here on. Behind the last k scales are 0, and codes meet zeros.
  __device__ void load(Words& words, int step) const {
    Codes::load(words, step);
    const int scaled = this->find_k(scaled_k, step) >> this->block_shift;
    const bool is_scaled = scaled_k + step * kStep < inner;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const R scale = __ldg(scales[i][e] + scaled);
        words.scales[i][e] = is_scaled ? scale : cast<R>(0.0f);
      }
    }
  }

  __device__ void advance() {
    Codes::advance(kTogether);
    scaled_k += kTogether * kStep;
  }

  // Whether a lane has k of its own in the left operand.
  static __device__ bool has_rows(int lane) { return lane / 4 % 4 == lane % 4; }

  // Loads a step of row lane / 16 + 2 * half, which is there, for a lane that has k.
  template <int kHalf>
  __device__ void load_row(Rows& rows, const T* row, int step) const {
    const T* const from = row + (k + step * kStep);
    u32 words[kOwn / 2];
#pragma unroll
    for (int eight = 0; eight < kOwn / 8; ++eight) {
      NarrowVector<T, 8> numbers = {};
      if (k + step * kStep + 8 * eight < inner) numbers.load(from + 8 * eight);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[4 * eight + i] = numbers.words[i];
    }
#pragma unroll
    for (int i = 0; i < kOwn / 2; ++i) {
      const int first = i / kPairs * 2 * kPairs + i % kPairs, second = first + kPairs;
      const u32 pair = __byte_perm(words[first / 2], words[second / 2], first % 2 ? 0x7632 : 0x5410);
      rows.words[i / 2][i % 2 * 2 + kHalf] = pair;
    }
  }

  // The same of rows lane / 16 and that + 2, of which one at least is there, in the order of fragments.
  __device__ void load_fragments(Rows& rows, const T* both, int step) const {
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) {
      const Vec<u32, 4> four = load_vec<4>(reinterpret_cast<const u32*>(both + (2 * step * kStep + 8 * i)));
#pragma unroll
      for (int word = 0; word < 4; ++word) rows.words[i][word] = four.lanes[word];
    }
  }

  __device__ void multiply(const Words& words, const Rows& rows, float (&sums)[kSums][4]) const {
    u32 zeros[kSums];
    this->find_zeros(words, zeros);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const Widen widen_codes(zeros[i], this->mask);
      float block[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int pair = 0; pair < kOwn / 2; pair += 2) {
        u32 right[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          right[j] = widen_codes.widen_apart(words.word(i, (pair + j) / kPairs), (pair + j) % kPairs);
        }
        multiply_matrices<T>(block, rows.words[pair / 2], right);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] = fmaf(block[e], widen(words.scales[i][e % 2]), sums[i][e]);
    }
  }

  // Adds up what lanes have of the same rows and columns, and stores it in rows that are `pitch` apart.
  static __device__ void store(float* partial, int pitch, int lane, int rows, float (&sums)[kSums][4]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[i][e] += __shfl_xor_sync(~0u, sums[i][e], 4);
        sums[i][e] += __shfl_xor_sync(~0u, sums[i][e], 8);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 16 + 2 * half;
        const Vec<float, 2> two = {{sums[i][2 * half], sums[i][2 * half + 1]}};
        if (lane / 4 % 4 == 0 && row < rows) store_vec(partial + row * pitch + 8 * i + lane % 4 * 2, two);
      }
    }
  }
};

// A product with codes.
template <class T, class R, int Bits>
struct CodedProduct : FewBlock<MmaCodes<T, R, Bits>> {
  typedef MmaCodes<T, R, Bits> Columns;
  typedef FewBlock<Columns> Block;
  using Block::lane, Block::step, Block::step_end, Block::sums;

  __device__ explicit CodedProduct(const SimtGemm& gemm) : Block(gemm) {}

  // Sums products of columns of codes with the rows that `find_rows` gives, which is called with the first codes under way.
  template <class FindRows>
  __device__ void multiply(const PackedPointers<R>& source, const PackedShape& shape, const SimtGemm& gemm,
                           const FewRowsPlace& place, const FindRows& find_rows) {
    Columns columns(source, shape, gemm, this->find_column(place), lane, this->find_k());
    typename Columns::Words words[Columns::kTogether];
    typename Columns::Rows rows = {};
    const auto load = [&] {
#pragma unroll
      for (int i = 0; i < Columns::kTogether; ++i) {
        if (step + i < step_end) columns.load(words[i], i);
      }
    };
    load();
    const auto left = find_rows();
    constexpr bool kIsInOrder = decltype(left)::kIsInOrder;
    const int row = lane / 16;
    const T* first = left.first + row * left.pitch + (kIsInOrder ? 2 * this->find_k() : 0);
    const T* second = nullptr;
    if constexpr (!kIsInOrder) {
      first = opaque(first);
      second = opaque(first + 2 * left.pitch);
    }
    const bool has_first = Columns::has_rows(lane) && row < gemm.rows;
    const bool has_second = Columns::has_rows(lane) && row + 2 < gemm.rows;
#pragma unroll 1
    while (step < step_end) {
#pragma unroll
      for (int i = 0; i < Columns::kTogether; ++i) {
        if (step + i >= step_end) break;
        if constexpr (kIsInOrder) {
          if (has_first) columns.load_fragments(rows, first, i);
        } else {
          if (has_first) columns.template load_row<0>(rows, first, i);
          if (has_second) columns.template load_row<1>(rows, second, i);
        }
        columns.multiply(words[i], rows, sums);
      }
      step += Columns::kTogether;
      if constexpr (kIsInOrder) first += 2 * Columns::kTogether * Columns::kStep;
      columns.advance();
      load();
    }
  }
};
