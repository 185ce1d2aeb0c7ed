// Regions of operators on elements, texel by texel.
#include "region.cuh"
#include "elementwise.cuh"

// Computes: one result of Region, which gpuexec/ops/elementwise/region_blits.py generates: element by element, each step rounded
//           to its type.
// Shapes: inputs broadcast to y by strides of 0.
// Grid: one thread per texel of y.
// Needs: the walk of the inputs and y, by elements.
// Numerics: as `flat`, bit for bit.
template <class Region, class Y, class... Inputs>
__global__ void __launch_bounds__(256) draw_flat(
    const Surface<Y> y, const __grid_constant__ typename Region::Walk walk, i64 size,
    const __grid_constant__ typename Region::Numbers numbers, Texture<Inputs>... inputs) {
  draw<Y>(y, size, [&](i64 index) {
    const Place<1, sizeof...(Inputs) + 1> place(walk, index, false);
    return Region::find(numbers, place.at, inputs...);
  });
}
