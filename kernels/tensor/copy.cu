// Strided copies between windows. Elements are moved as bits: the kernel knows their size, not their type.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;
constexpr int kUnits = 4;       // of a thread
constexpr int kTileShift = 10;  // a tile has 2^10 units: kUnits for each thread
constexpr int kStaged = 1280;   // and at most so many with the padding of rows, at 256 rows of 4

struct alignas(16) Unit16 {
  u64 low;
  u64 high;
};

// Two axes moved by tiles: `inner` is walked closely by the destination, `across` by the source. A tile has 2^inner_shift
// units along the one, the rest along the other. Packed by copy.py; inner is 0 where units are moved one by one.
struct CopyTile {
  FastDiv32 inner_tiles, across_tiles;  // tiles along each axis
  i32 inner_shift, pitch;               // pitch: from one row of staged units to the next
  i64 inner, across;                    // extents
  i64 source_inner, source_across;      // strides
  i64 destination_inner, destination_across;
};

// The units of a thread: their offsets, and their places among those that a block stages in shared memory.
struct Units {
  i64 from[kUnits], to[kUnits];
  int put[kUnits], take[kUnits];
  bool is_read[kUnits], is_written[kUnits];

  // One by one: unit k is that of a thread k grids further on. Or those in the tile of a block, blockIdx.x = (element of
  // walk * across tiles + across tile) * inner tiles + inner tile: read in the order of `across`, written in that of `inner`.
  __device__ Units(const Strided<kMaxRank, 2>& walk, const CopyTile& tile) {
    u32 inner_tile = 0, across_tile = 0;
    i64 indices[kUnits], offsets[kUnits][2];
    if (tile.inner > 0) {
      const u32 element = tile.across_tiles.divide(tile.inner_tiles.divide(blockIdx.x, inner_tile), across_tile);
#pragma unroll
      for (int k = 0; k < kUnits; ++k) indices[k] = element;
    } else {
#pragma unroll
      for (int k = 0; k < kUnits; ++k) indices[k] = (i64(blockIdx.x) + i64(k) * gridDim.x) * kThreads + threadIdx.x;
    }
    walk.locate_each(indices, offsets);
    if (tile.inner > 0) {
      find_in_tile(tile, inner_tile, across_tile, offsets[0][0], offsets[0][1]);
      return;
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      is_read[k] = is_written[k] = indices[k] < walk.count;
      from[k] = offsets[k][0];
      to[k] = offsets[k][1];
    }
  }

  __device__ void find_in_tile(const CopyTile& tile, u32 inner_tile, u32 across_tile, i64 corner_from, i64 corner_to) {
    const int across_shift = kTileShift - tile.inner_shift, thread = threadIdx.x;
    const i64 first_inner = i64(inner_tile) << tile.inner_shift, first_across = i64(across_tile) << across_shift;
    const i64 inner = tile.inner - first_inner, across = tile.across - first_across;
    const int read_inner = thread >> across_shift, read_across = thread & ((1 << across_shift) - 1);
    const int written_across = thread >> tile.inner_shift, written_inner = thread & ((1 << tile.inner_shift) - 1);
    const i64 first_from =
        corner_from + (first_inner + read_inner) * tile.source_inner + (first_across + read_across) * tile.source_across;
    const i64 first_to = corner_to + (first_inner + written_inner) * tile.destination_inner +
                         (first_across + written_across) * tile.destination_across;
    // A side is at most kThreads, so the units of a thread lie behind one another along the other side.
    const int read_step = kThreads >> across_shift, written_step = kThreads >> tile.inner_shift;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      is_read[k] = read_inner + k * read_step < inner && read_across < across;
      is_written[k] = written_inner < inner && written_across + k * written_step < across;
      from[k] = first_from + k * (read_step * tile.source_inner);
      to[k] = first_to + k * (written_step * tile.destination_across);
      put[k] = read_across * tile.pitch + read_inner + k * read_step;
      take[k] = (written_across + k * written_step) * tile.pitch + written_inner;
    }
  }

  template <class T>
  __device__ void move(const u8* source, u8* destination, u64* shared, bool is_staged) const {
    T values[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (is_read[k]) values[k] = reinterpret_cast<const T*>(source)[from[k]];
    }
    if (is_staged) {
      T* staged = reinterpret_cast<T*>(shared);
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if (is_read[k]) staged[put[k]] = values[k];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if (is_written[k]) values[k] = staged[take[k]];
      }
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      if (is_written[k]) reinterpret_cast<T*>(destination)[to[k]] = values[k];
    }
  }
};

// Computes: destination[i] = source[i] over the common shape.
// Shapes: any strides on both sides, in units of `unit` bytes (1, 2, 4, 8, 16; tiles up to 8); the windows do not overlap.
// Grid: as many blocks of 256 threads as leave each thread at most four units of walk, or one per tile of a walk's element.
// Needs: both pointers and all strides aligned to a unit.
// Numerics: none, bits are kept.
extern "C" __global__ void __launch_bounds__(kThreads) copy_strided(
    const u8* __restrict__ source, u8* __restrict__ destination, Strided<kMaxRank, 2> walk, CopyTile tile, i32 unit) {
  __shared__ u64 shared[kStaged];
  const bool is_tile = tile.inner > 0;
  const Units units(walk, tile);
  wait_for_predecessors();
  launch_dependents();
  if (unit == 1) units.move<u8>(source, destination, shared, is_tile);
  else if (unit == 2) units.move<u16>(source, destination, shared, is_tile);
  else if (unit == 4) units.move<u32>(source, destination, shared, is_tile);
  else if (unit == 8) units.move<u64>(source, destination, shared, is_tile);
  else units.move<Unit16>(source, destination, shared, false);
}
