// Unary elementwise operators. A functor gets the element (half and bf16 as float) and numeric attributes.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "safe.cuh"

// Functors that only name a function.
#define GPUEXEC_UNARY(Name, expression)                   \
  struct Name {                                           \
    template <class A>                                    \
    static __device__ A apply(A x, double, double) {      \
      return expression;                                  \
    }                                                     \
  };

template <class A>
__device__ inline A absolute(A x) {
  if constexpr (kIsFloat<A>) return math::fabs(x);
  else if constexpr (kIsSigned<A>) return x < A(0) ? wrapping_neg(x) : x;
  else return x;
}

template <class A>
__device__ inline A sigmoid(A x) {
  const A e = math::exp(-absolute(x));
  return (x >= A(0) ? A(1) : e) / (A(1) + e);
}

template <class A>
__device__ inline A softplus(A x) {
  return max_keeping_nan(x, A(0)) + math::log1p(math::exp(-absolute(x)));
}

template <class A>
__device__ inline A clamp_to_unit(A x) {
  return min_keeping_nan(max_keeping_nan(x, A(0)), A(1));
}

GPUEXEC_UNARY(Abs, absolute(x))
GPUEXEC_UNARY(Neg, wrapping_neg(x))
GPUEXEC_UNARY(Sign, x > A(0) ? A(1) : x < A(0) ? A(-1) : x == A(0) ? A(0) : x)
GPUEXEC_UNARY(Relu, max_keeping_nan(x, A(0)))
GPUEXEC_UNARY(LogicalNot, A(x ^ A(1)))
GPUEXEC_UNARY(BitwiseNot, A(~x))
GPUEXEC_UNARY(Sqrt, math::sqrt(x))
GPUEXEC_UNARY(Reciprocal, A(1) / x)
GPUEXEC_UNARY(Exp, math::exp(x))
GPUEXEC_UNARY(Log, math::log(x))
GPUEXEC_UNARY(Floor, math::floor(x))
GPUEXEC_UNARY(Ceil, math::ceil(x))
GPUEXEC_UNARY(Round, math::rint(x))
GPUEXEC_UNARY(Erf, math::erf(x))
GPUEXEC_UNARY(Tanh, math::tanh(x))
GPUEXEC_UNARY(Sigmoid, sigmoid(x))
GPUEXEC_UNARY(Sin, math::sin(x))
GPUEXEC_UNARY(Cos, math::cos(x))
GPUEXEC_UNARY(Tan, math::tan(x))
GPUEXEC_UNARY(Asin, math::asin(x))
GPUEXEC_UNARY(Acos, math::acos(x))
GPUEXEC_UNARY(Atan, math::atan(x))
GPUEXEC_UNARY(Sinh, math::sinh(x))
GPUEXEC_UNARY(Cosh, math::cosh(x))
GPUEXEC_UNARY(Asinh, math::asinh(x))
GPUEXEC_UNARY(Acosh, math::acosh(x))
GPUEXEC_UNARY(Atanh, math::atanh(x))
GPUEXEC_UNARY(Softplus, softplus(x))
GPUEXEC_UNARY(Softsign, x / (A(1) + absolute(x)))
GPUEXEC_UNARY(Mish, x * math::tanh(softplus(x)))
GPUEXEC_UNARY(HardSwish, x * clamp_to_unit(x * A(1.0 / 6.0) + A(0.5)))
GPUEXEC_UNARY(Gelu, A(0.5) * x * (A(1) + math::erf(x * A(0.70710678118654752440))))
GPUEXEC_UNARY(GeluTanh, A(0.5) * x * (A(1) + math::tanh(A(0.79788456080286535588) * (x + A(0.044715) * (x * x * x)))))

// Rounds to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does.
__device__ inline float round_to_tf32(float x) {
  const u32 bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? x : reinterpret<float>((bits + 0x1000u) & 0xffffe000u);
}

GPUEXEC_UNARY(RoundToHalf, A(widen(cast<half>(x))))
GPUEXEC_UNARY(RoundToBfloat16, A(widen(cast<bf16>(x))))
GPUEXEC_UNARY(RoundToTf32, A(round_to_tf32(float(x))))

// Functors with attributes.
struct LeakyRelu {
  template <class A>
  static __device__ A apply(A x, double alpha, double) {
    return x < A(0) ? A(alpha) * x : x;
  }
};

struct Elu {
  template <class A>
  static __device__ A apply(A x, double alpha, double) {
    return x < A(0) ? A(alpha) * math::expm1(x) : x;
  }
};

struct Selu {
  template <class A>
  static __device__ A apply(A x, double alpha, double gamma) {
    return A(gamma) * (x > A(0) ? x : A(alpha) * math::expm1(x));
  }
};

struct Celu {
  template <class A>
  static __device__ A apply(A x, double alpha, double) {
    return max_keeping_nan(x, A(0)) + min_keeping_nan(A(alpha) * math::expm1(x / A(alpha)), A(0));
  }
};

struct HardSigmoid {
  template <class A>
  static __device__ A apply(A x, double alpha, double beta) {
    return clamp_to_unit(A(alpha) * x + A(beta));
  }
};

struct ScaleAndShift {
  template <class A>
  static __device__ A apply(A x, double alpha, double beta) {
    return A(alpha) * x + A(beta);
  }
};

struct ThresholdedRelu {
  template <class A>
  static __device__ A apply(A x, double alpha, double) {
    return x > A(alpha) ? x : A(0);
  }
};

// A threshold may be a fraction, so integers are compared in double; a whole bias leaves them exact.
struct Shrink {
  template <class A>
  static __device__ A apply(A x, double bias, double lambd) {
    if constexpr (kIsFloat<A>) {
      return x < A(-lambd) ? x + A(bias) : x > A(lambd) ? x - A(bias) : A(0);
    } else {
      const double value = double(x);
      const bool is_below = value < -lambd;
      if (!is_below && !(value > lambd)) return A(0);
      if (bias == math::rint(bias)) return is_below ? wrapping_add(x, cast<A>(bias)) : wrapping_sub(x, cast<A>(bias));
      return cast<A>(is_below ? value + bias : value - bias);
    }
  }
};

struct Swish {
  template <class A>
  static __device__ A apply(A x, double alpha, double) {
    return x * sigmoid(A(alpha) * x);
  }
};

struct IsNaN {
  template <class A>
  static __device__ bool apply(A x, double, double) {
    return x != x;
  }
};

struct IsInf {
  template <class A>
  static __device__ bool apply(A x, double detect_negative, double detect_positive) {
    return (detect_negative != 0 && x == limits<A>::negative_inf()) || (detect_positive != 0 && x == limits<A>::inf());
  }
};

// Computes: y = Op(x) element by element.
// Shapes: x any strides, y of the same shape.
// Grid: one thread per unit, 256 per block, along x.
// Needs: with is_vector, vectors of x and y aligned to kWidth elements. y may be x itself.
// Numerics: half and bf16 in float, rounded once; functions of CUDA's math library at full precision.
template <class Op, class X, class Y>
__global__ void __launch_bounds__(256)
    unary(const X* x, Y* y, Strided<kMaxRank, 2> walk, i64 size, i32 is_vector, double alpha, double beta) {
  constexpr int V = kWidth<X, Y>;
  const Unit<V, 2> unit(walk, size, is_vector);
  wait_for_predecessors();
  launch_dependents();
  if (unit.count == 0) return;
  const Vec<X, V> in = unit.load(x, 0, walk);
  Vec<Y, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < unit.count) out.lanes[i] = cast<Y>(Op::apply(widen(in.lanes[i]), alpha, beta));
  }
  unit.store(y, out);
}
