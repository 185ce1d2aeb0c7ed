// Cast between any two element types.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "narrow_types.cuh"

// Computes: y = x converted as `cast` of types.cuh says.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of x and y aligned to kWidth elements. y may be x itself where both are equally wide.
// Numerics: to floats nearest even, one rounding (bf16: through float); to integers the low bits of the truncated value.
template <class To, class From>
__global__ void __launch_bounds__(256) convert(const From* x, To* y, Strided<kMaxRank, 2> walk, i64 size, i32 is_vector) {
  constexpr int V = kWidth<From, To>;
  const Unit<V, 2> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<From, V> in = unit.load(x, 0, walk);
  Vec<To, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) out.lanes[i] = cast<To>(in.lanes[i]);
  unit.store(y, out);
}

// Computes: y = x converted as `convert_narrow_element` says; x or y, or both, are of a narrow type.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of x and y aligned to kWidth elements. From and To are the unsigned types of their widths.
// Numerics: to floats rounded once, as `mode` says where that is a choice; to integers the low bits of the truncated value.
template <class To, class From>
__global__ void __launch_bounds__(256) convert_narrow(
    const From* __restrict__ x, To* __restrict__ y, Strided<kMaxRank, 2> walk, i64 size, i32 is_vector, i32 from, i32 to,
    i32 mode) {
  constexpr int V = kWidth<From, To>;
  const Unit<V, 2> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<From, V> in = unit.load(x, 0, walk);
  Vec<To, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) out.lanes[i] = convert_narrow_element<To>(in.lanes[i], from, to, mode);
  unit.store(y, out);
}
