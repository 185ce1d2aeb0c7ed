// Epilogues: elementwise operators applied to a kernel's results before they are stored.
//
// A kernel with a pack `class... Epilogue` as its last template parameters takes an `epilogue` pack as its last parameters
// and makes `const auto finish = finish_by<T>(epilogue...)` of it. Then `finish(sum, index)` is what is stored at element
// `index` of the output. `finish.many(values, indices)` turns groups of neighbouring sums, in place, into values of which
// `cast<T>(value)` is stored, for far fewer instructions: each step is decoded once for all groups, operands are found once
// for a group and read as vectors. Without an epilogue sums stay as they are. With `const T*, const T*, Steps` (two operands
// and the steps) each step is rounded to T, as a store and a load would: so the results are bit-identical to those of
// separate kernels. With `StepsTo<Y>` in place of `Steps` what is stored is a Y, rounded behind the last step: a kernel whose
// output is of type `Stored<T, Epilogue...>` stores `cast` to that.
#pragma once
#include "elementwise_binary.cu"
#include "elementwise_unary.cu"
#include "index.cuh"
#include "vec.cuh"

GPUEXEC_BINARY(AtLeast, A, max_keeping_nan(a, b))
GPUEXEC_BINARY(AtMost, A, min_keeping_nan(a, b))

// The functors of steps, in the order of UNARY and BINARY of gpuexec/ops/elementwise/epilogue.py: those of few instructions,
// which stand where a step is applied, and those that a kernel has once, behind a call for each group of elements.
#define GPUEXEC_UNARY_STEPS_INLINE(each) each(Abs) each(Neg) each(Relu) each(LeakyRelu) each(ThresholdedRelu)
#define GPUEXEC_UNARY_STEPS_CALLED(each)                                                                              \
  each(Sign) each(Sqrt) each(Reciprocal) each(Floor) each(Ceil) each(Round) each(Exp) each(Log) each(Erf) each(Tanh)  \
  each(Sigmoid) each(Elu) each(Selu) each(Celu) each(HardSigmoid) each(HardSwish) each(Softsign) each(Softplus)       \
  each(Mish) each(Swish) each(Gelu) each(GeluTanh) each(RoundToHalf) each(RoundToBfloat16) each(RoundToTf32)
#define GPUEXEC_BINARY_STEPS_INLINE(each) each(Add) each(Sub) each(Mul) each(PRelu) each(AtLeast) each(AtMost)
#define GPUEXEC_BINARY_STEPS_CALLED(each) each(Div)

#define GPUEXEC_NAME(Name) k##Name,
enum class UnaryStep : i32 { GPUEXEC_UNARY_STEPS_INLINE(GPUEXEC_NAME) GPUEXEC_UNARY_STEPS_CALLED(GPUEXEC_NAME) };
enum class BinaryStep : i32 { GPUEXEC_BINARY_STEPS_INLINE(GPUEXEC_NAME) GPUEXEC_BINARY_STEPS_CALLED(GPUEXEC_NAME) };
#undef GPUEXEC_NAME

// Replaces each lane by apply(lane), one after the other, with one copy of its code and no indexed registers.
template <class A, int N, class F>
__device__ inline void apply_in_turn(Vec<A, N>& values, F apply) {
#pragma unroll 1
  for (int i = 0; i < N; ++i) {
    const A result = apply(values.lanes[0]);
#pragma unroll
    for (int lane = 1; lane < N; ++lane) values.lanes[lane - 1] = values.lanes[lane];
    values.lanes[N - 1] = result;
  }
}

template <class A, int N>
__device__ __noinline__ Vec<A, N> call_unary_step(UnaryStep functor, Vec<A, N> values, float alpha, float beta) {
#define GPUEXEC_CASE(Name)                                                            \
  case UnaryStep::k##Name:                                                            \
    apply_in_turn(values, [=](A value) { return Name::apply(value, alpha, beta); });  \
    break;
  switch (functor) {
    GPUEXEC_UNARY_STEPS_CALLED(GPUEXEC_CASE)
    default: break;
  }
#undef GPUEXEC_CASE
  return values;
}

template <class A, int N>
__device__ __noinline__ Vec<A, N> call_divide_step(Vec<A, N> values, Vec<A, N> others) {
  apply_in_turn(values, [&](A value) {
    const A other = others.lanes[0];
#pragma unroll
    for (int lane = 1; lane < N; ++lane) others.lanes[lane - 1] = others.lanes[lane];
    return Div::apply(value, other);
  });
  return values;
}

constexpr int kMaxSteps = 6;

// The other input of a step: none, an element of an operand, a number, or the kernel's own result.
enum class Beside : i32 { kNothing, kFirst, kSecond, kNumber, kMade };

struct Step {
  i32 functor;
  Beside beside;
  i32 is_swapped;     // whether the value is the second input
  float alpha, beta;  // attributes; alpha is the number beside the value
};

// Element i of the output goes with element (i / inner) % extent of an operand.
struct OperandPlace {
  FastDiv32 by_inner, by_extent;
  i32 is_aligned;  // whether it starts at a multiple of kLanes elements

  // Finds an element, and the place of `index` among the `inner` ones that share it. An index beyond the output finds an
  // element, too: groups that reach beyond it are not told apart.
  __device__ u32 find(u32 index, u32& place) const {
    u32 element;
    by_extent.divide(by_inner.divide(index & 0x7fffffffu, place), element);
    return element;
  }
};

// Packed by gpuexec/ops/elementwise/epilogue.py, for outputs of less than 2^31 elements.
struct Steps {
  i32 count;
  Step steps[kMaxSteps];
  OperandPlace places[2];
};

template <class Y>
struct StepsTo : Steps {};

// The type of what a kernel of this epilogue stores, whose sums are finished as T.
template <class T, class... Epilogue>
struct StoredType {
  typedef T Type;
};
template <class T, class Y>
struct StoredType<T, const T*, const T*, StepsTo<Y>> {
  typedef Y Type;
};
template <class T, class... Epilogue>
using Stored = typename StoredType<T, Epilogue...>::Type;

constexpr int kLanes = 4;  // neighbours in a group

// Rounds sums to T.
template <class T>
struct Rounding {
  static constexpr int kGroup = 1;  // elements that are best finished together

  template <class A>
  __device__ T operator()(A sum, i64) const {
    return cast<T>(sum);
  }

  template <int Groups, int N, class A>
  __device__ void many(A (&)[Groups][N], const i64 (&)[Groups], i64 = 1) const {}
};

// Rounds sums to T, then applies the steps.
template <class T>
struct Finishing {
  typedef Acc<T> A;
  static constexpr int kGroup = kLanes;

  const T* first;
  const T* second;
  const Steps& steps;

  __device__ T operator()(A sum, i64 index) const {
    A values[1][1] = {{sum}};
    const i64 indices[1] = {index};
    many(values, indices);
    return cast<T>(values[0][0]);
  }

  // Finishes groups of elements of the output: lane k of a group is element indices[group] + k * stride. Lanes that are not
  // stored may lie beyond the output.
  template <int Groups, int N>
  __device__ void many(A (&values)[Groups][N], const i64 (&indices)[Groups], i64 stride = 1) const {
    A made[Groups][N];
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
#pragma unroll
      for (int lane = 0; lane < N; ++lane) made[group][lane] = values[group][lane] = round(values[group][lane]);
    }
#pragma unroll 1
    for (int i = 0; i < steps.count; ++i) {
      const Step& step = steps.steps[i];
      if (step.beside == Beside::kNothing) {
        apply_unary(step, values);
      } else {
        A others[Groups][N];
        take_others(step, made, indices, u32(stride), others);
        if (step.is_swapped) apply_binary<true>(step, values, others);
        else apply_binary<false>(step, values, others);
      }
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
#pragma unroll
        for (int lane = 0; lane < N; ++lane) values[group][lane] = round(values[group][lane]);
      }
    }
  }

 private:
  static __device__ A round(A value) { return widen(cast<T>(value)); }

  template <int Groups, int N>
  __device__ void take_others(const Step& step, const A (&made)[Groups][N], const i64 (&indices)[Groups], u32 stride,
                              A (&others)[Groups][N]) const {
    if (step.beside == Beside::kFirst || step.beside == Beside::kSecond) {
      const bool is_second = step.beside == Beside::kSecond;
      const T* operand = is_second ? second : first;
      const OperandPlace place = steps.places[is_second];
      bool is_shared[Groups];
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
        is_shared[group] = load(operand, place, u32(indices[group]), stride, others[group]);
      }
      // Behind all loads, so that they are under way together.
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
#pragma unroll
        for (int lane = 1; lane < N; ++lane) {
          if (is_shared[group]) others[group][lane] = others[group][0];
        }
      }
      return;
    }
    const bool is_made = step.beside == Beside::kMade;
    const A number = step.alpha;
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
#pragma unroll
      for (int lane = 0; lane < N; ++lane) others[group][lane] = is_made ? made[group][lane] : number;
    }
  }

  // Reads the elements of an operand that go with a group: neighbours, each by itself, or one for all; then returns true,
  // and it is the first lane alone that has it.
  template <int N>
  static __device__ bool load(const T* operand, const OperandPlace& place, u32 index, u32 stride, A (&lanes)[N]) {
    u32 among;
    const u32 at = place.find(index, among);
    if (N == 1 || (stride == 1 && among + N <= place.by_inner.divisor)) {
      lanes[0] = widen(operand[at]);
      return true;
    }
    if (stride == 1 && place.by_inner.divisor == 1 && at + N <= place.by_extent.divisor) {
      if (N == kLanes && place.is_aligned && at % kLanes == 0) {
        const Vec<T, N> vector = load_vec<N>(operand + at);
#pragma unroll
        for (int lane = 0; lane < N; ++lane) lanes[lane] = widen(vector.lanes[lane]);
      } else {
#pragma unroll
        for (int lane = 0; lane < N; ++lane) lanes[lane] = widen(operand[at + lane]);
      }
    } else {
#pragma unroll
      for (int lane = 0; lane < N; ++lane) lanes[lane] = widen(operand[place.find(index + lane * stride, among)]);
    }
    return false;
  }

  template <int Groups, int N>
  static __device__ void apply_unary(const Step& step, A (&values)[Groups][N]) {
    const auto apply = [&](auto functor) {
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
#pragma unroll
        for (int lane = 0; lane < N; ++lane) {
          values[group][lane] = decltype(functor)::apply(values[group][lane], step.alpha, step.beta);
        }
      }
    };
#define GPUEXEC_CASE(Name) \
  case UnaryStep::k##Name: apply(Name()); break;
    switch (UnaryStep(step.functor)) {
      GPUEXEC_UNARY_STEPS_INLINE(GPUEXEC_CASE)
      default:
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
          store(call_unary_step(UnaryStep(step.functor), pack(values[group]), step.alpha, step.beta), values[group]);
        }
    }
#undef GPUEXEC_CASE
  }

  template <bool IsSwapped, int Groups, int N>
  static __device__ void apply_binary(const Step& step, A (&values)[Groups][N], const A (&others)[Groups][N]) {
    const auto apply = [&](auto functor) {
#pragma unroll
      for (int group = 0; group < Groups; ++group) {
#pragma unroll
        for (int lane = 0; lane < N; ++lane) {
          const A value = values[group][lane], other = others[group][lane];
          values[group][lane] = decltype(functor)::apply(IsSwapped ? other : value, IsSwapped ? value : other);
        }
      }
    };
#define GPUEXEC_CASE(Name) \
  case BinaryStep::k##Name: apply(Name()); break;
    switch (BinaryStep(step.functor)) {
      GPUEXEC_BINARY_STEPS_INLINE(GPUEXEC_CASE)
      default:
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
          const Vec<A, N> value = pack(values[group]), other = pack(others[group]);
          store(call_divide_step(IsSwapped ? other : value, IsSwapped ? value : other), values[group]);
        }
    }
#undef GPUEXEC_CASE
  }

  template <int N>
  static __device__ Vec<A, N> pack(const A (&lanes)[N]) {
    Vec<A, N> vector;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) vector.lanes[lane] = lanes[lane];
    return vector;
  }

  template <int N>
  static __device__ void store(const Vec<A, N>& vector, A (&lanes)[N]) {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) lanes[lane] = vector.lanes[lane];
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
