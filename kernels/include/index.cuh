// Strided indexing: offsets of operands from a linear index, by structs that gpuexec/ops/lib/strided.py packs.
#pragma once
#include "types.cuh"

constexpr int kMaxRank = 8;  // axes that are left once neighbours are merged

__device__ inline u64 multiply_high(u64 a, u64 b) {
#ifdef GPUEXEC_SIM
  return (u64)((unsigned __int128)a * b >> 64);
#else
  return __umul64hi(a, b);
#endif
}

// Division of n < 2^31 by an invariant divisor: a multiplication and a shift (Granlund and Montgomery, PLDI 1994, section 4).
// Packed by pack_fast_div32.
struct FastDiv32 {
  u32 divisor, multiplier, shift;

  __device__ u32 divide(u32 n) const { return (u32(u64(n) * multiplier >> 32) + n) >> shift; }
  __device__ u32 divide(u32 n, u32& remainder) const {
    u32 quotient = divide(n);
    remainder = n - quotient * divisor;
    return quotient;
  }
};

// The same for n < 2^63. Packed by pack_fast_div64.
struct FastDiv64 {
  u64 divisor, multiplier;
  u32 shift, unused;

  __device__ u64 divide(u64 n) const { return (multiply_high(n, multiplier) + n) >> shift; }
  __device__ u64 divide(u64 n, u64& remainder) const {
    u64 quotient = divide(n);
    remainder = n - quotient * divisor;
    return quotient;
  }
};

// Iteration over several operands in one order: extents of the common shape and, for each operand, strides in elements
// (0 where it is broadcast, negative where it is reversed). Axis 0 is the innermost; axes from `rank` on are unused.
// Packed by Walk.pack of ops/lib/strided.py, for as many operands.
template <int Rank, int Operands>
struct Strided {
  i64 count;              // elements of the common shape
  i32 rank;               // axes in use, may be 0
  i32 is_wide;            // whether an index or an offset needs more than 31 bits
  FastDiv64 extents[Rank];  // of a struct that is not wide: the multiplier and shift of FastDiv32
  i64 strides[Operands][Rank];

  // Computes the offset of element `index` (row-major in the common shape) in every operand.
  __device__ void locate(i64 index, i64 (&offsets)[Operands]) const {
    if (is_wide) {
      locate_as<i64, u64, FastDiv64>(index, offsets);
    } else {
      locate_as<i32, u32, FastDiv32>(index, offsets);
    }
  }

  // The same for several elements at once, by a loop over the axes: little code, and each axis is read once for all.
  template <int Count>
  __device__ void locate_each(const i64 (&indices)[Count], i64 (&offsets)[Count][Operands]) const {
    if (is_wide) {
      locate_each_as<i64, u64, FastDiv64>(indices, offsets);
    } else {
      locate_each_as<i32, u32, FastDiv32>(indices, offsets);
    }
  }

 private:
  template <class Signed, class Unsigned, class Divisor, int Count>
  __device__ void locate_each_as(const i64 (&indices)[Count], i64 (&offsets)[Count][Operands]) const {
    Unsigned rest[Count];
    Signed sums[Count][Operands];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      rest[i] = Unsigned(indices[i]);
#pragma unroll
      for (int k = 0; k < Operands; ++k) sums[i][k] = 0;
    }
#pragma unroll 1
    for (int axis = 0; axis < rank; ++axis) {
      const Divisor extent = divisor_at<Divisor>(axis);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        Unsigned coordinate;
        rest[i] = extent.divide(rest[i], coordinate);
#pragma unroll
        for (int k = 0; k < Operands; ++k) sums[i][k] += Signed(coordinate) * Signed(strides[k][axis]);
      }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
#pragma unroll
      for (int k = 0; k < Operands; ++k) offsets[i][k] = sums[i][k];
    }
  }

  template <class Signed, class Unsigned, class Divisor>
  __device__ void locate_as(i64 index, i64 (&offsets)[Operands]) const {
    Signed sums[Operands];
    for (int k = 0; k < Operands; ++k) sums[k] = 0;
    Unsigned rest = Unsigned(index);
#pragma unroll
    for (int axis = 0; axis < Rank; ++axis) {
      if (axis + 1 >= rank) {
        for (int k = 0; k < Operands; ++k) sums[k] += Signed(rest) * Signed(strides[k][axis]);
        break;
      }
      Unsigned coordinate;
      rest = divisor_at<Divisor>(axis).divide(rest, coordinate);
      for (int k = 0; k < Operands; ++k) sums[k] += Signed(coordinate) * Signed(strides[k][axis]);
    }
    for (int k = 0; k < Operands; ++k) offsets[k] = sums[k];
  }

  template <class Divisor>
  __device__ Divisor divisor_at(int axis) const {
    if constexpr (kIsSame<Divisor, FastDiv32>) {
      return FastDiv32{u32(extents[axis].divisor), u32(extents[axis].multiplier), extents[axis].shift};
    } else {
      return extents[axis];
    }
  }
};
