// Clip, whose bounds are tensors of one element, and Where, which moves bits.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "safe.cuh"

// Computes: y = condition ? a : b.
// Shapes: all three inputs broadcast to y by strides of 0. T is an unsigned integer as wide as the elements.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of every operand aligned to kWidth elements. y may be a or b itself.
// Numerics: bits are kept, those of a NaN too.
template <class T>
__global__ void __launch_bounds__(256)
    where(const bool* condition, const T* a, const T* b, T* y, Strided<kMaxRank, 4> walk, i64 size, i32 is_vector) {
  constexpr int V = kWidth<T>;
  const Unit<V, 4> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<bool, V> conditions = unit.load(condition, 0, walk);
  const Vec<T, V> left = unit.load(a, 1, walk);
  const Vec<T, V> right = unit.load(b, 2, walk);
  Vec<T, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) out.lanes[i] = conditions.lanes[i] ? left.lanes[i] : right.lanes[i];
  unit.store(y, out);
}

// Computes: y = min(max(x, low), high); a bound not given is left out.
// Shapes: x any strides, y of the same shape, low and high one element each.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of x and y aligned to kWidth elements. y may be x itself. Where a bound is not given, its
//        pointer is that of x and is not read.
// Numerics: exact; a NaN in x or a bound gives NaN; where low > high the result is high.
template <class T>
__global__ void __launch_bounds__(256) clip(const T* x, const T* low, const T* high, T* y, Strided<kMaxRank, 2> walk, i64 size,
                                            i32 is_vector, i32 has_low, i32 has_high) {
  constexpr int V = kWidth<T>;
  const Unit<V, 2> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<T, V> in = unit.load(x, 0, walk);
  const Acc<T> least = has_low ? widen(*low) : Acc<T>(0);
  const Acc<T> most = has_high ? widen(*high) : Acc<T>(0);
  Vec<T, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    Acc<T> value = widen(in.lanes[i]);
    if (has_low) value = max_keeping_nan(value, least);
    if (has_high) value = min_keeping_nan(value, most);
    out.lanes[i] = cast<T>(value);
  }
  unit.store(y, out);
}
