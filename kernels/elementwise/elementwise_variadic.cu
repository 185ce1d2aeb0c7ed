// Max, Min, Sum and Mean of any number of inputs: a left fold, up to eight inputs a launch.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "elementwise_binary.cu"
#include "safe.cuh"

constexpr int kMaxInputs = 8;  // MAX_INPUTS of elementwise_variadic.py

struct Maximum {
  template <class A>
  static __device__ A apply(A a, A b) {
    return max_keeping_nan(a, b);
  }
};
struct Minimum {
  template <class A>
  static __device__ A apply(A a, A b) {
    return min_keeping_nan(a, b);
  }
};

// Computes: y = Op(...Op(Op(x0, x1), x2)..., x[count-1]) / divisor.
// Shapes: all inputs broadcast to y by strides of 0.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of every operand aligned to kWidth elements. y may be any input itself. Pointers from `count`
//        on are not read.
// Numerics: left to right in Acc<T>, rounded once. A fold over more than eight inputs passes its result on as the First of the
//           next launch, in Acc<T>. A divisor of 1 divides nothing.
template <class Op, class First, class T, class Y>
__global__ void __launch_bounds__(256)
    fold(const First* x0, const T* x1, const T* x2, const T* x3, const T* x4, const T* x5, const T* x6, const T* x7, Y* y,
         Strided<kMaxRank, kMaxInputs + 1> walk, i64 size, i32 is_vector, i32 count, i32 divisor) {
  constexpr int V = kWidth<First, T, Y>;
  const Unit<V, kMaxInputs + 1> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  Acc<T> sums[V];
  const Vec<First, V> first = unit.load(x0, 0, walk);
#pragma unroll
  for (int i = 0; i < V; ++i) sums[i] = cast<Acc<T>>(first.lanes[i]);
  const T* others[kMaxInputs - 1] = {x1, x2, x3, x4, x5, x6, x7};
#pragma unroll
  for (int k = 1; k < kMaxInputs; ++k) {
    if (k < count) {
      const Vec<T, V> next = unit.load(others[k - 1], k, walk);
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] = Op::apply(sums[i], widen(next.lanes[i]));
    }
  }
  Vec<Y, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) out.lanes[i] = cast<Y>(divisor == 1 ? sums[i] : Acc<T>(sums[i] / Acc<T>(divisor)));
  unit.store(y, out);
}
