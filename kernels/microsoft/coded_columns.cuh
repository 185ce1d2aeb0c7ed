// Columns of codes of 2, 4 or 8 bits as lanes of a warp read them: 32 neighbours of a column at a time, all of one block.
#pragma once
#include "code_pairs.cuh"
#include "grid.cuh"
#include "narrow_vector.cuh"
#include "packed_weights.cuh"
#include "simt_product.cuh"

// Columns g, g + 8, g + 16 and g + 24 of a warp and lane 4 g + t, from its first k on.
template <int Bits>
struct CodedColumns {
  static constexpr int kSums = 4, kColumns = 8 * kSums, kOwn = 32, kStep = 4 * kOwn;
  static constexpr int kByteShift = Bits == 8 ? 0 : Bits == 4 ? 1 : 2;  // log2 of the codes of a byte
  static constexpr int kVectorWords = Bits < 4 ? Bits : 4;

  struct Words {
    NarrowVector<u32, kVectorWords> codes[kSums][Bits / kVectorWords];
    u32 zeros[kSums];  // bytes that have the zero points, so many bits up
    int zero_shift;

    __device__ u32 word(int column, int i) const { return codes[column][i / kVectorWords].words[i % kVectorWords]; }
  };

  int inner, start, k;  // the lane's first k, at the beginning and now
  int block_shift;
  bool has_zeros;
  u32 mask;  // of codes; the compiler, which does not know it, keeps it in a register
  const u32* codes[kSums];
  const u8* zeros[kSums];

  template <class R>
  __device__ CodedColumns(const PackedPointers<R>& source, const PackedShape& shape, const SimtGemm& gemm,
                          int first_column, int lane, int k)
      : inner(gemm.inner), start(k), k(k), block_shift(shape.block_shift), has_zeros(shape.zero_kind == 1),
        mask(CodePairs<half, Bits>::kMask + u32(gemm.inner >> 31)) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const i64 column = find_column(gemm, first_column + 8 * i + lane / 4);
      codes[i] = opaque(reinterpret_cast<const u32*>(source.weights + (column * shape.row + k) * Bits / 8));
      zeros[i] = opaque(source.zeros + column * shape.zero_row);
    }
  }

  // A column; beyond the last one, the last.
  static __device__ i64 find_column(const SimtGemm& gemm, int column) {
    return column < gemm.columns ? column : gemm.columns - 1;
  }

  // The k of a step from here on that stands for `own`, a multiple of kOwn; beyond the last k, the last such multiple.
  __device__ int find_k(int own, int step) const {
    const int wanted = own + step * kStep, last = (inner - 1) / kOwn * kOwn;
    return wanted < last ? wanted : last;
  }

  // Loads codes and zero points of a step; behind the last k, those of the last 32.
  __device__ void load(Words& words, int step) const {
    const int at = find_k(k, step), block = at >> block_shift, behind = (at - start) / (32 / Bits);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int part = 0; part < Bits / kVectorWords; ++part) {
        words.codes[i][part].stream(codes[i] + (behind + part * kVectorWords));
      }
    }
    if (__builtin_expect(has_zeros, false)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) words.zeros[i] = __ldg(zeros[i] + (block >> kByteShift));
      words.zero_shift = (block & ((1 << kByteShift) - 1)) * Bits;
    }
  }

  __device__ void advance(int steps) { k += steps * kStep; }

  // Finds the zero points of a step.
  __device__ void find_zeros(const Words& words, u32 (&found)[kSums]) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) found[i] = 1u << (Bits - 1);
    if (__builtin_expect(has_zeros, false)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) found[i] = words.zeros[i] >> words.zero_shift & ((1u << Bits) - 1);
    }
  }
};
