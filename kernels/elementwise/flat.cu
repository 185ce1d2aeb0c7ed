// Flat regions: a graph of operators on elements in one pass, whose results have one shape.
#include "dependent_launch.cuh"
#include "index_maps.cuh"
#include "region.cuh"

// Computes: the results of Region, which gpuexec/ops/elementwise/flat.py generates: element by element, each step rounded to its
//           type.
// Shapes: inputs broadcast to the one shape of all results, by strides that are 0 or come with the walk.
// Grid: one thread per unit of Region::kWidth elements, or of one, 256 per block, along x.
// Needs: with several lanes, vectors of all operands aligned to Region::kWidth elements. A result may be an input that lies as
//        it does.
// Numerics: those of the functors of each step.
template <class Region, class... Operands>
__global__ void __launch_bounds__(256)
    flat(typename Region::Walk walk, typename Region::Numbers numbers, Operands*... operands) {
  const typename Region::Unit unit(walk);
  wait_for_predecessors();
  launch_dependents();
  if (unit.left <= 0) return;
  Region::run(unit, numbers, operands...);
}
