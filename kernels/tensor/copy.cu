// Strided copies between windows. Elements are moved as bits: the kernel knows their size, not their type.
#include "across.cuh"
#include "dependent_launch.cuh"
#include "vec.cuh"

constexpr int kThreads = kTileThreads;
constexpr int kUnits = kTileUnits;  // of a thread

struct alignas(16) Unit16 {
  u64 low;
  u64 high;
};

// Two axes moved by tiles: `inner` is walked closely by the destination, `across` by the source. Extents and strides count
// units. Packed by copy.py; a tile without lanes says that units are moved one by one.
struct CopyTile {
  AcrossTile tile;
  i64 inner, across;                  // extents
  i64 source_inner, source_across;    // strides
  i64 destination_inner, destination_across;
};

// The units of a thread: their offsets, and their places among those that a block stages in shared memory.
struct Units {
  i64 from[kUnits], to[kUnits];
  int put[kUnits], take[kUnits];
  bool is_read[kUnits], is_written[kUnits];

  // One by one: unit k is that of a thread k grids further on. Or those in the tile of a block: read in the order of `across`,
  // written in that of `inner`. Or the first of a square.
  __device__ Units(const Strided<kMaxRank, 2>& walk, const CopyTile& copy) {
    u32 inner_tile = 0, across_tile = 0;
    i64 indices[kUnits], offsets[kUnits][2];
    if (copy.tile.lanes > 0) {
      const u32 element = copy.tile.locate(inner_tile, across_tile);
#pragma unroll
      for (int k = 0; k < kUnits; ++k) indices[k] = element;
    } else {
#pragma unroll
      for (int k = 0; k < kUnits; ++k) indices[k] = (i64(blockIdx.x) + i64(k) * gridDim.x) * kThreads + threadIdx.x;
    }
    walk.locate_each(indices, offsets);
    if (copy.tile.lanes > 0) {
      const i64 first_inner = (i64(inner_tile) << copy.tile.inner_shift) * copy.tile.lanes;
      const i64 first_across = (i64(across_tile) << copy.tile.across_shift) * copy.tile.lanes;
      from[0] = offsets[0][0] + first_inner * copy.source_inner + first_across * copy.source_across;
      to[0] = offsets[0][1] + first_inner * copy.destination_inner + first_across * copy.destination_across;
      if (copy.tile.lanes > 1) find_square(copy, copy.inner - first_inner, copy.across - first_across);
      else find_staged(copy, copy.inner - first_inner, copy.across - first_across);
      return;
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      is_read[k] = is_written[k] = indices[k] < walk.count;
      from[k] = offsets[k][0];
      to[k] = offsets[k][1];
    }
  }

  __device__ void find_square(const CopyTile& copy, i64 inner_left, i64 across_left) {
    const SquarePlace square(copy.tile);
    const int inner = square.inner * copy.tile.lanes, across = square.across * copy.tile.lanes;
    is_read[0] = inner < inner_left && across < across_left;
    from[0] += inner * copy.source_inner + across * copy.source_across;
    to[0] += inner * copy.destination_inner + across * copy.destination_across;
  }

  __device__ void find_staged(const CopyTile& copy, i64 inner_left, i64 across_left) {
    const StagedPlaces places(copy.tile);
    const i64 first_from = from[0] + places.read_inner * copy.source_inner + places.read_across * copy.source_across;
    const i64 first_to =
        to[0] + places.written_inner * copy.destination_inner + places.written_across * copy.destination_across;
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      is_read[k] = places.read_inner + k * places.read_step < inner_left && places.read_across < across_left;
      is_written[k] =
          places.written_inner < inner_left && places.written_across + k * places.written_step < across_left;
      from[k] = first_from + k * (places.read_step * copy.source_inner);
      to[k] = first_to + k * (places.written_step * copy.destination_across);
      put[k] = places.put + k * places.read_step;
      take[k] = places.take + k * places.take_step;
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

  template <class T, int Lanes>
  __device__ void turn(const u8* source, u8* destination, const CopyTile& copy) const {
    if (!is_read[0]) return;
    Vec<T, Lanes> rows[Lanes];
#pragma unroll
    for (int i = 0; i < Lanes; ++i) {
      rows[i] = load_vec<Lanes>(reinterpret_cast<const T*>(source) + from[0] + i * copy.source_inner);
    }
#pragma unroll
    for (int j = 0; j < Lanes; ++j) {
      Vec<T, Lanes> turned;
#pragma unroll
      for (int i = 0; i < Lanes; ++i) turned.lanes[i] = rows[i].lanes[j];
      store_vec(reinterpret_cast<T*>(destination) + to[0] + j * copy.destination_across, turned);
    }
  }
};

// Computes: destination[i] = source[i] over the common shape.
// Shapes: any strides on both sides, in units of `unit` bytes (1, 2, 4, 8, 16; tiles up to 8); the windows do not overlap.
// Grid: as many blocks of 256 threads as leave each thread at most four units of walk, or one per tile of a walk's element.
// Needs: both pointers and all strides aligned to a unit; with squares, to one of 8 (of up to 2 bytes), 4 or 2 units.
// Numerics: none, bits are kept.
extern "C" __global__ void __launch_bounds__(kThreads) copy_strided(
    const u8* __restrict__ source, u8* __restrict__ destination, Strided<kMaxRank, 2> walk, CopyTile copy, i32 unit) {
  __shared__ u64 shared[kTileStaged];
  const bool is_staged = copy.tile.lanes == 1;
  const Units units(walk, copy);
  wait_for_predecessors();
  launch_dependents();
  if (copy.tile.lanes > 1) {
    if (unit == 1) units.turn<u8, 8>(source, destination, copy);
    else if (unit == 2) units.turn<u16, 8>(source, destination, copy);
    else if (unit == 4) units.turn<u32, 4>(source, destination, copy);
    else units.turn<u64, 2>(source, destination, copy);
  } else if (unit == 1) units.move<u8>(source, destination, shared, is_staged);
  else if (unit == 2) units.move<u16>(source, destination, shared, is_staged);
  else if (unit == 4) units.move<u32>(source, destination, shared, is_staged);
  else if (unit == 8) units.move<u64>(source, destination, shared, is_staged);
  else units.move<Unit16>(source, destination, shared, false);
}
