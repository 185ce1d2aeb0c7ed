// Padding by constant, edge, reflection or wrap-around, also by negative amounts.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

enum PadMode : i32 { kConstant, kReflect, kEdge, kWrap };

// One entry per axis, innermost first. Packed by pad.py.
struct PadWalk {
  i64 count;  // elements of the output
  i32 rank;
  i32 mode;
  FastDiv64 output[kMaxRank];  // extents
  i64 begin[kMaxRank];         // how far the input lies behind the start of the output; negative where it is cut
  i64 extent[kMaxRank];        // of the input, after cutting
  i64 stride[kMaxRank];        // of the input
};

__device__ inline i64 modulo(i64 a, i64 b) {
  i64 rest = a % b;
  return rest < 0 ? rest + b : rest;
}

// The input coordinate in [0, extent) of output coordinate `at`, or -1 for the constant.
__device__ inline i64 fold_coordinate(i64 at, i64 extent, i32 mode) {
  if (at >= 0 && at < extent) return at;
  if (mode == kConstant) return -1;
  if (mode == kEdge) return at < 0 ? 0 : extent - 1;
  if (mode == kWrap) return modulo(at, extent);
  if (extent == 1) return 0;
  i64 folded = modulo(at, 2 * (extent - 1));
  return folded < extent ? folded : 2 * (extent - 1) - folded;
}

// Computes: y[o] = x[fold(o - begin)] where every axis folds into x, else *value.
// Shapes: y dense; x of any strides, cut where pads are negative.
// Grid: one thread per element of y.
// Needs: elements of sizeof(T) bytes; value points to one element and is read in mode constant only.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kThreads) pad(
    const T* __restrict__ x, const T* __restrict__ value, T* __restrict__ y, const __grid_constant__ PadWalk walk) {
  i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  u64 rest = i;
  i64 offset = 0;
  bool is_inside = true;
  for (int axis = 0; axis < walk.rank; ++axis) {
    u64 coordinate;
    rest = walk.output[axis].divide(rest, coordinate);
    i64 source = fold_coordinate(i64(coordinate) - walk.begin[axis], walk.extent[axis], walk.mode);
    is_inside = is_inside && source >= 0;
    offset += source * walk.stride[axis];
  }
  y[i] = is_inside ? x[offset] : *value;
}
