// Row regions: a graph of operators on elements, and of reductions of rows, in one pass.
#include "dependent_launch.cuh"
#include "folds.cuh"
#include "region.cuh"

// What a launch says of places: the rows and their length, lanes of a team, extents of all axes of rows but the outermost, and
// strides of operands along the axes of rows that they move on, then along columns where that is not 0 or 1. Packed by
// gpuexec/ops/elementwise/row_kernel.py.
template <class OffsetType, int Extents, int Strides>
struct RowWalk {
  typedef OffsetType Offset;
  Offset rows, columns;
  i32 lanes, unused;
  DivisorOf<Offset> extents[Extents > 0 ? Extents : 1];
  Offset strides[Strides > 0 ? Strides : 1];
};

// The row of a team. Teams beyond the last one are given the first row and no columns, since all threads take part in folds.
template <class Offset>
struct RowPlace {
  bool is_live;
  Offset row, end;
  Offset first;  // of the row's elements in results

  template <class Walk>
  __device__ RowPlace(const Walk& walk, const Team& team)
      : is_live(team.row < walk.rows),
        row(is_live ? Offset(team.row) : Offset(0)),
        end(is_live ? walk.columns : Offset(0)),
        first(row * walk.columns) {}
};

// Computes: the results of Region, which gpuexec/ops/elementwise/row_kernel.py generates: of each row, and of each of its
//           elements, each step rounded to its type.
// Shapes: operands [rows, columns] by strides that are 0 or come with the walk; results [rows, columns] or [rows], dense.
// Grid: 256 / lanes rows per block.
// Needs: nothing of alignment. A result may be an input that lies as it does, as the lowering allows.
// Numerics: those of the operators' own kernels: each lane folds every lanes-th column in order, then a tree over lanes.
template <class Region, class... Operands>
__global__ void __launch_bounds__(kBlockThreads, 1)
    rows(typename Region::Walk walk, typename Region::Numbers numbers, Operands*... operands) {
  const Team team(walk.lanes, 1);
  const typename Region::Place place(walk, team);
  wait_for_predecessors();
  launch_dependents();
  Region::run(walk, numbers, team, place, operands...);
}
