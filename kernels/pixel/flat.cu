// Regions of operators on elements, or with index maps, texel by texel.
#include "index_maps.cuh"
#include "region.cuh"
#include "elementwise.cuh"

// An element of a result by its place in memory, from which a region with index maps finds its coordinates.
template <class Offset>
struct DrawnUnit {
  Offset index, at;

  __device__ explicit DrawnUnit(i64 element) : index(Offset(element)), at(index) {}
};

template <class T>
__device__ inline T load_within(bool is_within, const Texture<T>& source) {
  return is_within ? *source : cast<T>(0);
}

// Computes: one result of Region, which gpuexec/ops/elementwise/region_blits.py generates: element by element, each step rounded
//           to its type.
// Shapes: inputs are read where the walk says that they lie for an element of y.
// Grid: one thread per texel of y.
// Needs: y dense in some order of its axes, which is the walk's.
// Numerics: as `flat`, bit for bit.
template <class Region, class Y, class... Inputs>
__global__ void __launch_bounds__(256) draw_flat(
    const Surface<Y> y, const __grid_constant__ typename Region::Walk walk, i64 size,
    const __grid_constant__ typename Region::Numbers numbers, Texture<Inputs>... inputs) {
  draw<Y>(y, size, [&](i64 index) { return Region::find(walk, numbers, index, inputs...); });
}
