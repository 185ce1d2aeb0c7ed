// Padding, texel by texel.
#include "../tensor/pad.cu"
#include "texture.cuh"

// Computes: y[o] = x[fold(o - begin)] where every axis folds into x, else *value.
// Shapes: y dense; x of any strides, cut where pads are negative.
// Grid: one thread per texel of y.
// Needs: elements of sizeof(T) bytes; value has one element and is read in mode constant only.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_pad(
    const Texture<T> x, const Texture<T> value, const Surface<T> y, const __grid_constant__ PadWalk walk) {
  draw<T>(y, walk.count, [&](i64 index) {
    u64 rest = u64(index);
    i64 offset = 0;
    bool is_inside = true;
    for (int axis = 0; axis < walk.rank; ++axis) {
      u64 coordinate;
      rest = walk.output[axis].divide(rest, coordinate);
      const i64 source = fold_coordinate(i64(coordinate) - walk.begin[axis], walk.extent[axis], walk.mode);
      is_inside = is_inside && source >= 0;
      offset += source * walk.stride[axis];
    }
    return is_inside ? x[offset] : value[0];
  });
}
