// Strided copies between windows, and padding. Elements are moved as bits: kernels know their size, not their type.
#include "index.cuh"

constexpr int kThreads = 256;
constexpr int kUnitsPerThread = 4;
constexpr int kTile = 32;
constexpr int kTileRows = kThreads / kTile;

struct alignas(16) Unit16 {
  u64 low;
  u64 high;
};

// Two axes moved by tiles of 32 x 32: `inner` is walked closely by the destination, `across` by the source.
// Packed by copy.py; inner is 0 where units are moved one by one.
struct CopyTile {
  i64 inner, across;                           // extents
  i64 source_inner, source_across;             // strides
  i64 destination_inner, destination_across;
};

template <class T>
__device__ void copy_units(const u8* source, u8* destination, const Strided<kMaxRank, 4>& walk) {
  const T* from = reinterpret_cast<const T*>(source);
  T* to = reinterpret_cast<T*>(destination);
  i64 first = i64(blockIdx.x) * (kThreads * kUnitsPerThread) + threadIdx.x;
  T values[kUnitsPerThread];
  i64 targets[kUnitsPerThread];
#pragma unroll
  for (int k = 0; k < kUnitsPerThread; ++k) {
    i64 index = first + k * kThreads;
    if (index >= walk.count) continue;
    i64 offsets[4];
    walk.locate(index, offsets);
    values[k] = from[offsets[0]];
    targets[k] = offsets[1];
  }
#pragma unroll
  for (int k = 0; k < kUnitsPerThread; ++k) {
    if (first + k * kThreads < walk.count) to[targets[k]] = values[k];
  }
}

template <class T>
__device__ void copy_tile(
    const u8* source, u8* destination, const Strided<kMaxRank, 4>& walk, const CopyTile& tile, u64* shared) {
  T* staged = reinterpret_cast<T*>(shared);  // [kTile inner, kTile + 1 across]: the odd row length spreads the banks
  i64 corner[4];                             // source, destination, coordinate on inner, coordinate on across
  walk.locate(blockIdx.x, corner);
  const T* from = reinterpret_cast<const T*>(source) + corner[0];
  T* to = reinterpret_cast<T*>(destination) + corner[1];
  int inner = int(tile.inner - corner[2] < kTile ? tile.inner - corner[2] : kTile);
  int across = int(tile.across - corner[3] < kTile ? tile.across - corner[3] : kTile);
  int column = threadIdx.x % kTile;
  int first_row = threadIdx.x / kTile;
#pragma unroll
  for (int row = first_row; row < kTile; row += kTileRows) {
    if (row < inner && column < across) {
      staged[row * (kTile + 1) + column] = from[row * tile.source_inner + column * tile.source_across];
    }
  }
  __syncthreads();
#pragma unroll
  for (int row = first_row; row < kTile; row += kTileRows) {
    if (row < across && column < inner) {
      to[column * tile.destination_inner + row * tile.destination_across] = staged[column * (kTile + 1) + row];
    }
  }
}

// Computes: destination[i] = source[i] over the common shape.
// Shapes: any strides on both sides, in units of `unit` bytes (1, 2, 4, 8, 16; tiles up to 8); the windows do not overlap.
// Grid: one block per 1024 units, or one per tile; walk operands: source, destination, coordinates of the two tile axes.
// Needs: both pointers and all strides aligned to a unit.
// Numerics: none, bits are kept.
extern "C" __global__ void __launch_bounds__(kThreads) copy_strided(
    const u8* __restrict__ source, u8* __restrict__ destination, Strided<kMaxRank, 4> walk, CopyTile tile, i32 unit) {
  __shared__ u64 shared[kTile * (kTile + 1)];
  if (tile.inner > 0) {
    if (unit == 1) copy_tile<u8>(source, destination, walk, tile, shared);
    else if (unit == 2) copy_tile<u16>(source, destination, walk, tile, shared);
    else if (unit == 4) copy_tile<u32>(source, destination, walk, tile, shared);
    else copy_tile<u64>(source, destination, walk, tile, shared);
    return;
  }
  if (unit == 1) copy_units<u8>(source, destination, walk);
  else if (unit == 2) copy_units<u16>(source, destination, walk);
  else if (unit == 4) copy_units<u32>(source, destination, walk);
  else if (unit == 8) copy_units<u64>(source, destination, walk);
  else copy_units<Unit16>(source, destination, walk);
}
