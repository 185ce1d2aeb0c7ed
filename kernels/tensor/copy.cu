// Strided copies between windows. Elements are moved as bits: the kernel knows their size, not their type.
#include "index.cuh"

constexpr int kThreads = 256;
constexpr int kUnits = 4;                       // of a thread
constexpr int kTileShift = 10;                  // a tile has 2^10 units: kUnits for each thread
constexpr int kStaged = 3 << (kTileShift - 1);  // a tile's, and half as many to pad its rows

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
template <class Index>
struct Units {
  Index from[kUnits], to[kUnits];
  int put[kUnits], take[kUnits];
  bool is_read[kUnits], is_written[kUnits];

  // Finds them one by one: unit k is that of a thread k grids further on.
  __device__ void find_apart(const Strided<kMaxRank, 2>& walk) {
    typedef typename IndexTypes<Index>::Unsigned Unsigned;
    Unsigned indices[kUnits];
    Index offsets[kUnits][2];
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      indices[k] = (Unsigned(blockIdx.x) + Unsigned(k) * gridDim.x) * kThreads + threadIdx.x;
      is_read[k] = is_written[k] = indices[k] < Unsigned(walk.count);
    }
    walk.template locate_each<Index>(indices, offsets);
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      from[k] = offsets[k][0];
      to[k] = offsets[k][1];
    }
  }

  // Finds them in the tile of a block, blockIdx.x = (element of walk * across tiles + across tile) * inner tiles + inner tile:
  // read in the order of `across`, written in that of `inner`.
  __device__ void find_in_tile(const Strided<kMaxRank, 2>& walk, const CopyTile& tile) {
    typedef typename IndexTypes<Index>::Unsigned Unsigned;
    u32 inner_tile, across_tile;
    const Unsigned indices[1] = {tile.across_tiles.divide(tile.inner_tiles.divide(blockIdx.x, inner_tile), across_tile)};
    Index corner[1][2];
    walk.template locate_each<Index>(indices, corner);
    const int across_shift = kTileShift - tile.inner_shift;
    const Index first_inner = Index(inner_tile) << tile.inner_shift, first_across = Index(across_tile) << across_shift;
    corner[0][0] += first_inner * Index(tile.source_inner) + first_across * Index(tile.source_across);
    corner[0][1] += first_inner * Index(tile.destination_inner) + first_across * Index(tile.destination_across);
    const Index inner = Index(tile.inner) - first_inner, across = Index(tile.across) - first_across;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int unit = threadIdx.x + k * kThreads;
      const int read_inner = unit >> across_shift, read_across = unit & ((1 << across_shift) - 1);
      const int written_across = unit >> tile.inner_shift, written_inner = unit & ((1 << tile.inner_shift) - 1);
      is_read[k] = read_inner < inner && read_across < across;
      is_written[k] = written_inner < inner && written_across < across;
      from[k] = corner[0][0] + read_inner * Index(tile.source_inner) + read_across * Index(tile.source_across);
      to[k] = corner[0][1] + written_inner * Index(tile.destination_inner) + written_across * Index(tile.destination_across);
      put[k] = read_across * tile.pitch + read_inner;
      take[k] = written_across * tile.pitch + written_inner;
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
// Needs: both pointers and all strides aligned to a unit; offsets in units that fit Index.
// Numerics: none, bits are kept.
template <class Index>
__global__ void __launch_bounds__(kThreads) copy_strided(
    const u8* __restrict__ source, u8* __restrict__ destination, Strided<kMaxRank, 2> walk, CopyTile tile, i32 unit) {
  __shared__ u64 shared[kStaged];
  const bool is_tile = tile.inner > 0;
  Units<Index> units;
  if (is_tile) units.find_in_tile(walk, tile);
  else units.find_apart(walk);
  if (unit == 1) units.template move<u8>(source, destination, shared, is_tile);
  else if (unit == 2) units.template move<u16>(source, destination, shared, is_tile);
  else if (unit == 4) units.template move<u32>(source, destination, shared, is_tile);
  else if (unit == 8) units.template move<u64>(source, destination, shared, is_tile);
  else units.template move<Unit16>(source, destination, shared, false);
}
