// Row regions: a graph of operators on elements, and of reductions of rows, in one pass.
#include "dependent_launch.cuh"
#include "row_walk.cuh"

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
