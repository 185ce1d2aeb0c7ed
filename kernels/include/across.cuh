// Tiles of two axes, of which one operand lies closely along the one and another along the other.
//
// Where rows of both begin with a vector, each thread takes a square of `lanes` vectors, which it turns in registers: there
// is no shared memory and no barrier, and a quarter of a warp reads and writes whole sectors. Else a tile of 2^10 elements is
// staged in shared memory, read in the order of the one operand and written in that of the other.
#pragma once
#include "index.cuh"

constexpr int kTileThreads = 256;
constexpr int kTileUnits = 4;      // elements of a thread in a tile that is staged
constexpr int kTileStaged = 1536;  // elements that a tile takes at most, with the padding of its rows: 256 rows of 4 halves

// How two axes are divided into tiles: `inner` is walked closely by what is written, `across` by what is turned. Packed by
// gpuexec/ops/lib/across.py.
struct AcrossTile {
  FastDiv32 inner_tiles, across_tiles;  // tiles along each axis
  i32 lanes;                            // of a side of a thread's square; 1: a tile is staged; 0: there are no tiles
  i32 inner_shift, across_shift;        // a tile has 2^inner_shift units of lanes along the one axis, and so along the other
  i32 pitch;                            // from one row of staged elements to the next

  // Finds the tile of a block: blockIdx.x = (element of other axes * across tiles + across tile) * inner tiles + inner tile.
  // Returns the element of other axes.
  __device__ u32 locate(u32& inner_tile, u32& across_tile) const {
    return across_tiles.divide(inner_tiles.divide(blockIdx.x, inner_tile), across_tile);
  }
};

// Where the elements of a thread lie in a tile that is staged. A side is at most kTileThreads, so they lie behind one another
// along one axis.
struct StagedPlaces {
  int read_inner, read_across, read_step;           // element k is read `read_step` * k further along inner
  int written_inner, written_across, written_step;  // and written `written_step` * k further along across
  int put, take, take_step;                         // staged from `put` on, taken from `take` on

  __device__ explicit StagedPlaces(const AcrossTile& tile) {
    const int thread = threadIdx.x;
    read_inner = thread >> tile.across_shift;
    read_across = thread & ((1 << tile.across_shift) - 1);
    read_step = kTileThreads >> tile.across_shift;
    written_inner = thread & ((1 << tile.inner_shift) - 1);
    written_across = thread >> tile.inner_shift;
    written_step = kTileThreads >> tile.inner_shift;
    put = read_across * tile.pitch + read_inner;
    take = written_across * tile.pitch + written_inner;
    take_step = written_step * tile.pitch;
  }
};

// Where the square of a thread lies in a tile, in units of lanes. A warp has 4 squares along inner and 8 along across, a
// quarter of it 2 and 4: with vectors of 16 bytes these read 64 bytes of a row, and write 32.
struct SquarePlace {
  int inner, across;

  __device__ explicit SquarePlace(const AcrossTile& tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps_shift = tile.inner_shift - 2;
    inner = (warp & ((1 << warps_shift) - 1)) << 2 | (lane >> 2 & 3);
    across = (warp >> warps_shift) << 3 | (lane & 3) | (lane >> 2 & 4);
  }
};
