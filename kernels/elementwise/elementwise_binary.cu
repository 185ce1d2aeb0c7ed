// Binary elementwise operators with broadcasting. A functor gets both elements (half and bf16 as float).
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "safe.cuh"

#define GPUEXEC_BINARY(Name, Result, expression)  \
  struct Name {                                   \
    template <class A>                            \
    static __device__ Result apply(A a, A b) {    \
      return expression;                          \
    }                                             \
  };

GPUEXEC_BINARY(Add, A, wrapping_add(a, b))
GPUEXEC_BINARY(Sub, A, wrapping_sub(a, b))
GPUEXEC_BINARY(Mul, A, wrapping_mul(a, b))
GPUEXEC_BINARY(Div, A, divide_truncating(a, b))
GPUEXEC_BINARY(BitwiseAnd, A, A(a & b))
GPUEXEC_BINARY(BitwiseOr, A, A(a | b))
GPUEXEC_BINARY(BitwiseXor, A, A(a ^ b))
GPUEXEC_BINARY(ShiftLeft, A, shift_left(a, b))
GPUEXEC_BINARY(ShiftRight, A, shift_right(a, b))
GPUEXEC_BINARY(PRelu, A, a < A(0) ? wrapping_mul(a, b) : a)
GPUEXEC_BINARY(Equal, bool, a == b)
GPUEXEC_BINARY(Less, bool, a < b)
GPUEXEC_BINARY(LessOrEqual, bool, a <= b)

// Remainder with the sign of the dividend.
struct TruncatingMod {
  template <class A>
  static __device__ A apply(A a, A b) {
    if constexpr (kIsFloat<A>) return math::fmod(a, b);
    else return remainder_truncating(a, b);
  }
};

// Remainder with the sign of the divisor, zeros included.
struct FlooringMod {
  template <class A>
  static __device__ A apply(A a, A b) {
    if constexpr (kIsFloat<A>) {
      const A rest = math::fmod(a, b);
      if (rest == A(0)) return math::copysign(A(0), b);
      return rest == rest && (rest < A(0)) != (b < A(0)) ? rest + b : rest;
    } else {
      return remainder_flooring(a, b);
    }
  }
};

// Computes: y = Op(a, b) element by element.
// Shapes: a and b broadcast to y by strides of 0.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of a, b and y aligned to kWidth elements. y may be a or b itself.
// Numerics: half and bf16 in float, rounded once; integers wrap, division by zero gives 0.
template <class Op, class T, class Y>
__global__ void __launch_bounds__(256) binary(const T* a, const T* b, Y* y, Strided<kMaxRank, 3> walk, i64 size, i32 is_vector) {
  constexpr int V = kWidth<T, Y>;
  const Unit<V, 3> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<T, V> left = unit.load(a, 0, walk);
  const Vec<T, V> right = unit.load(b, 1, walk);
  Vec<Y, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < unit.count) out.lanes[i] = cast<Y>(Op::apply(widen(left.lanes[i]), widen(right.lanes[i])));
  }
  unit.store(y, out);
}
