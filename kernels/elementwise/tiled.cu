// Tiled regions: a graph of operators on elements in one pass, with operands that lie across the results.
#include "across.cuh"
#include "dependent_launch.cuh"
#include "region.cuh"

// What a launch says of places: the division into tiles, the extents of the two axes, those of the others, and strides of
// operands along inner, across and the others; the first row is the results'. Packed by gpuexec/ops/elementwise/tiled.py.
template <class OffsetType, int Others, int Rows>
struct TileWalk {
  typedef OffsetType Offset;
  static constexpr int kOthers = Others, kRows = Rows;
  AcrossTile tile;
  Offset inner, across;
  FastDiv32 others[Others > 1 ? Others - 1 : 1];
  Offset strides[Rows][2 + Others];
};

// An element of a block's tile: its offset in operands, and how many there are from it on along both axes.
template <class Walk>
struct TileElement {
  typename Walk::Offset at[Walk::kRows];
  typename Walk::Offset inner_left, across_left;

  __device__ TileElement(const Walk& walk, int inner_in_tile, int across_in_tile) {
    typedef typename Walk::Offset Offset;
    u32 inner_tile, across_tile, rest = walk.tile.locate(inner_tile, across_tile);
    const Offset inner = (Offset(inner_tile) << walk.tile.inner_shift) * walk.tile.lanes + inner_in_tile;
    const Offset across = (Offset(across_tile) << walk.tile.across_shift) * walk.tile.lanes + across_in_tile;
    inner_left = walk.inner - inner;
    across_left = walk.across - across;
#pragma unroll
    for (int row = 0; row < Walk::kRows; ++row) at[row] = inner * walk.strides[row][0] + across * walk.strides[row][1];
#pragma unroll
    for (int axis = 0; axis < Walk::kOthers; ++axis) {
      u32 coordinate = rest;
      if (axis + 1 < Walk::kOthers) rest = walk.others[axis].divide(rest, coordinate);
#pragma unroll
      for (int row = 0; row < Walk::kRows; ++row) at[row] += Offset(coordinate) * walk.strides[row][2 + axis];
    }
  }
};

// Computes: the results of Region, which gpuexec/ops/elementwise/tiled.py generates: element by element, each step rounded to
//           its type.
// Shapes: inputs broadcast to the one shape of all results, by strides that are 0 or come with the walk.
// Grid: one block of 256 threads per tile of two axes and element of the others, along x.
// Needs: with squares, vectors of operands along inner or across aligned to Region::kWidth elements. A result may be an input
//        that lies as it does.
// Numerics: those of the functors of each step.
template <class Region, class... Operands>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiled(typename Region::Walk walk, typename Region::Numbers numbers, Operands*... operands) {
  typedef TileElement<typename Region::Walk> Element;
  __shared__ u64 shared[Region::kShared];
  const auto begin = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  if constexpr (Region::kWidth > 1) {
    if (walk.tile.lanes > 1) {
      const SquarePlace square(walk.tile);
      const Element first(walk, square.inner * Region::kWidth, square.across * Region::kWidth);
      begin();
      if (first.inner_left > 0 && first.across_left > 0) Region::run_square(walk, first, numbers, operands...);
      return;
    }
  }
  const StagedPlaces places(walk.tile);
  const Element read(walk, places.read_inner, places.read_across);
  const Element written(walk, places.written_inner, places.written_across);
  begin();
  Region::run_staged(walk, places, read, written, numbers, shared, operands...);
}
