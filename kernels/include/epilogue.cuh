// Epilogues: elementwise operators applied to a kernel's results before they are stored.
//
// A kernel with a pack `class... Epilogue` as its last template parameters takes an `epilogue` pack as its last parameters,
// and stores `finish_by<T>(epilogue...)` of each sum. Without an epilogue that is the rounded sum. With `const T*, const T*,
// Steps` (two operands and the steps) each step is rounded to T, as a store and a load would: so the results are
// bit-identical to those of separate kernels.
#pragma once
#include "elementwise_binary.cu"
#include "elementwise_unary.cu"

GPUEXEC_BINARY(AtLeast, A, max_keeping_nan(a, b))
GPUEXEC_BINARY(AtMost, A, min_keeping_nan(a, b))

// The functors of steps, in the order of UNARY and BINARY of gpuexec/ops/elementwise/epilogue.py.
#define GPUEXEC_UNARY_STEPS(each)                                                                                    \
  each(Abs) each(Neg) each(Sign) each(Relu) each(Sqrt) each(Reciprocal) each(Floor) each(Ceil) each(Round) each(Exp) \
  each(Log) each(Erf) each(Tanh) each(Sigmoid) each(LeakyRelu) each(Elu) each(Selu) each(Celu) each(HardSigmoid)     \
  each(HardSwish) each(ThresholdedRelu) each(Softsign) each(Softplus) each(Mish) each(Swish) each(Gelu) each(GeluTanh)
#define GPUEXEC_BINARY_STEPS(each) each(Add) each(Sub) each(Mul) each(Div) each(PRelu) each(AtLeast) each(AtMost)

#define GPUEXEC_NAME(Name) k##Name,
enum class UnaryStep : i32 { GPUEXEC_UNARY_STEPS(GPUEXEC_NAME) };
enum class BinaryStep : i32 { GPUEXEC_BINARY_STEPS(GPUEXEC_NAME) };
#undef GPUEXEC_NAME

// Not inlined, so that a kernel contains each functor once, however many elements a thread computes.
template <class A>
__device__ __noinline__ A apply_unary_step(i32 functor, A x, double alpha, double beta) {
#define GPUEXEC_CASE(Name) \
  case UnaryStep::k##Name: return Name::apply(x, alpha, beta);
  switch (UnaryStep(functor)) { GPUEXEC_UNARY_STEPS(GPUEXEC_CASE) }
#undef GPUEXEC_CASE
  return x;
}

template <class A>
__device__ inline A apply_binary_step(i32 functor, A a, A b) {
#define GPUEXEC_CASE(Name) \
  case BinaryStep::k##Name: return Name::apply(a, b);
  switch (BinaryStep(functor)) { GPUEXEC_BINARY_STEPS(GPUEXEC_CASE) }
#undef GPUEXEC_CASE
  return a;
}

constexpr int kMaxSteps = 6;

// The other input of a step: none, an element of an operand, a number, or the kernel's own result.
enum class Beside : i32 { kNothing, kFirst, kSecond, kNumber, kMade };

struct Step {
  i32 functor;
  Beside beside;
  i64 is_swapped;      // whether the value is the second input
  double alpha, beta;  // attributes; alpha is the number beside the value
};

// Element i of the output goes with element (i / inner) % extent of an operand.
struct OperandPlace {
  FastDiv64 by_inner, by_extent;

  __device__ i64 find(i64 index) const {
    u64 place;
    by_extent.divide(by_inner.divide(u64(index)), place);
    return i64(place);
  }
};

// Packed by gpuexec/ops/elementwise/epilogue.py.
struct Steps {
  i64 count;
  Step steps[kMaxSteps];
  OperandPlace places[2];
};

// Rounds a sum to T.
template <class T>
struct Rounding {
  template <class A>
  __device__ T operator()(A sum, i64) const {
    return cast<T>(sum);
  }
};

// Rounds a sum to T, then applies the steps, for the element at `index` of the output.
template <class T>
struct Finishing {
  const T* first;
  const T* second;
  const Steps& steps;

  template <class A>
  __device__ T operator()(A sum, i64 index) const {
    const T made = cast<T>(sum);
    T value = made;
#pragma unroll 1
    for (int i = 0; i < int(steps.count); ++i) value = take(steps.steps[i], made, value, index);
    return value;
  }

 private:
  __device__ T take(const Step& step, T made, T value, i64 index) const {
    typedef Acc<T> A;
    if (step.beside == Beside::kNothing) {
      return cast<T>(apply_unary_step<A>(step.functor, widen(value), step.alpha, step.beta));
    }
    A other = A(step.alpha);
    if (step.beside == Beside::kFirst) other = widen(first[steps.places[0].find(index)]);
    if (step.beside == Beside::kSecond) other = widen(second[steps.places[1].find(index)]);
    if (step.beside == Beside::kMade) other = widen(made);
    const A own = widen(value);
    return cast<T>(apply_binary_step<A>(step.functor, step.is_swapped ? other : own, step.is_swapped ? own : other));
  }
};

template <class T>
__device__ inline Rounding<T> finish_by() {
  return {};
}

template <class T>
__device__ inline Finishing<T> finish_by(const T* first, const T* second, const Steps& steps) {
  return {first, second, steps};
}
