// SwiGLU: a gate with its sigmoid, times a value.
#include "dependent_launch.cuh"
#include "elementwise.cuh"

template <class A>
__device__ inline A gate(A x, A value, A alpha) {
  const A slope = alpha * x;
  const A small = math::exp(slope < A(0) ? slope : -slope);  // never overflows
  return x * ((slope < A(0) ? small : A(1)) / (A(1) + small)) * value;
}

// Computes  y = a * sigmoid(alpha * a) * b, element by element
// Shapes    a, b and y alike, by strides
// Grid      one thread per unit, 256 per block, along x
// Needs     with is_vector, vectors of a, b and y aligned to kWidth elements; y may be a or b itself
// Numerics  half and bf16 in float, rounded once
template <class T>
__global__ void __launch_bounds__(kThreads) swiglu(
    const T* a, const T* b, T* y, Strided<kMaxRank, 3> walk, i64 size, i32 is_vector, double alpha) {
  typedef Acc<T> A;
  constexpr int V = kWidth<T>;
  const Unit<V, 3> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  Vec<T, V> gates = unit.load(a, 0, walk);
  const Vec<T, V> values = unit.load(b, 1, walk);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < unit.count) gates.lanes[i] = cast<T>(gate(widen(gates.lanes[i]), widen(values.lanes[i]), A(alpha)));
  }
  unit.store(y, gates);
}
