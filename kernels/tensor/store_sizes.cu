// Numbers of a size, stored where launches of a graph read them: in copies of their argument blocks.
#include "types.cuh"

constexpr int kThreads = 256;
constexpr int kMaxNumbers = 32;

// PLACE of gpuexec/ops/tensor/store_sizes.py.
struct SizePlace {
  i64 base;          // added to the number
  u32 at;            // bytes into the blocks
  u16 entry, width;  // of the row; bytes that are stored
};

struct SizeRow {
  i64 numbers[kMaxNumbers];
};

// Computes  the `width` bytes at places[i].at of blocks = row[places[i].entry] + places[i].base, for i < count
// Shapes    places [count], blocks of bytes, row by value
// Grid      one thread per place
// Needs     widths of 4 or 8 bytes, at multiples of them; entries below 32; places that don't overlap
// Numerics  integers, whose low bytes are stored
__global__ void __launch_bounds__(kThreads)
    store_sizes(const SizePlace* __restrict__ places, u8* __restrict__ blocks, const __grid_constant__ SizeRow row, i32 count) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const SizePlace place = places[i];
  const u64 number = u64(row.numbers[place.entry]) + u64(place.base);
  if (place.width == 8) *reinterpret_cast<u64*>(blocks + place.at) = number;
  else *reinterpret_cast<u32*>(blocks + place.at) = u32(number);
}
