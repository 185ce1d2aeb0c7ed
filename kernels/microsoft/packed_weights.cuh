// Blockwise quantised weights of a few bits, packed in bytes.
#pragma once
#include "types.cuh"

// Packed by PackedShape of gpuexec/ops/microsoft/matmul_nbits.py.
struct PackedShape {
  i64 row;            // elements from one row of weights to the next
  i64 zero_row;       // bytes, or elements, from the zero points of one row to those of the next
  i64 blocks;         // of a row; 0 where blocks run on over rows
  i32 block_shift;    // log2 of the elements of a block
  i32 bits_shift;     // log2 of the bits of an element
  i32 is_high_first;  // whether the first element of a byte is in its high bits
  i32 zero_kind;      // 0: half the range; 1: packed as weights are; 2: of the type of the scales
};

// Pointers to packed weights, their scales, zero points and tables.
template <class T>
struct PackedPointers {
  const u8* weights;
  const T* scales;
  const u8* zeros;
  const i32* groups;   // the block of each k, which adds nothing if out of range; null: consecutive blocks
  const float* table;  // the value of each code; null: the code itself

  __device__ T zero(i64 place) const { return reinterpret_cast<const T*>(zeros)[place]; }
};

// The weights of `column`, which lie dense along `k`: (q - zero) * scale, or table[q] * scale, in float.
template <class T, class Source = PackedPointers<T>>
struct PackedWeights {
  Source source;
  PackedShape shape;

  template <class Bytes>
  __device__ int pick(const Bytes& bytes, i64 first, i64 place) const {
    const int in_byte = 3 - shape.bits_shift;  // log2 of the elements of a byte
    const int last = (1 << in_byte) - 1, at = int(place) & last;
    const int shift = (shape.is_high_first ? last - at : at) << shape.bits_shift;
    return bytes[first + (place >> in_byte)] >> shift & ((1 << (1 << shape.bits_shift)) - 1);
  }

  __device__ float find_zero(i64 column, i64 block) const {
    if (shape.zero_kind == 0) return float(1 << ((1 << shape.bits_shift) - 1));
    if (shape.zero_kind == 1) return float(pick(source.zeros, column * shape.zero_row, block));
    return widen(source.zero(column * shape.zero_row + block));
  }

  __device__ float at(i64 k, i64 column) const {
    const i64 place = column * shape.row + k;
    const int code = pick(source.weights, 0, place);
    if (source.table) return source.table[code] * widen(source.scales[place >> shape.block_shift]);
    const i64 block = source.groups ? i64(source.groups[k]) : k >> shape.block_shift;
    if (u64(block) >= u64(shape.blocks)) return 0.0f;
    return (float(code) - find_zero(column, block)) * widen(source.scales[column * shape.blocks + block]);
  }
};
