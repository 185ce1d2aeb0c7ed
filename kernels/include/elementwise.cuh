// Shared frame of elementwise kernels: the elements of each thread, and loading and storing them around a functor.
//
// A thread takes one unit: kWidth neighbours of the innermost axis where the launch says so (is_vector), else one element. Of
// each operand a unit is read as a vector, or as one element for all lanes where its innermost stride is 0. The last unit may
// be short. The choice is uniform over the grid, so one kernel serves every extent, broadcast and alignment.
#pragma once
#include "index.cuh"
#include "vec.cuh"

constexpr int kThreads = 256;

// Lanes of a unit: 16 bytes of the widest type, at most 8. VECTOR_BYTES and VECTOR_LANES of ops/lib/broadcast.py.
template <class A, class B = A, class C = B>
constexpr int kWidth = [] {
  int bytes = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
  bytes = bytes > int(sizeof(C)) ? bytes : int(sizeof(C));
  return bytes == 1 ? 8 : 16 / bytes;
}();

template <int Width, int Operands>
struct Unit {
  i64 at[Operands];  // offset of the unit's first element in every operand
  int count;         // elements it has, 0 for threads beyond the end

  __device__ Unit(const Strided<kMaxRank, Operands>& walk, i64 size, bool is_vector) {
    const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
    count = 0;
    if (index >= walk.count) return;
    walk.locate(index, at);
    const i64 left = is_vector ? size - index * Width : 1;
    count = left < Width ? int(left) : Width;
  }

  template <class T>
  __device__ Vec<T, Width> load(const T* source, int operand, const Strided<kMaxRank, Operands>& walk) const {
    const bool is_splat = walk.strides[operand][0] == 0;
    source += at[operand];
    if (count == Width && !is_splat) return load_vec<Width>(source);
    Vec<T, Width> lanes;
    const T first = *source;
#pragma unroll
    for (int i = 0; i < Width; ++i) lanes.lanes[i] = i > 0 && i < count && !is_splat ? source[i] : first;
    return lanes;
  }

  template <class T>
  __device__ void store(T* destination, const Vec<T, Width>& lanes) const {
    destination += at[Operands - 1];
    if (count == Width) {
      store_vec(destination, lanes);
      return;
    }
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      if (i < count) destination[i] = lanes.lanes[i];
    }
  }
};

// The mathematical functions under one name for float and double, at full precision.
namespace math {
#define GPUEXEC_MATH(name)                                           \
  __device__ inline float name(float x) { return ::name##f(x); }     \
  __device__ inline double name(double x) { return ::name(x); }
GPUEXEC_MATH(exp)
GPUEXEC_MATH(expm1)
GPUEXEC_MATH(log)
GPUEXEC_MATH(log1p)
GPUEXEC_MATH(sqrt)
GPUEXEC_MATH(floor)
GPUEXEC_MATH(ceil)
GPUEXEC_MATH(rint)
GPUEXEC_MATH(erf)
GPUEXEC_MATH(tanh)
GPUEXEC_MATH(sin)
GPUEXEC_MATH(cos)
GPUEXEC_MATH(tan)
GPUEXEC_MATH(asin)
GPUEXEC_MATH(acos)
GPUEXEC_MATH(atan)
GPUEXEC_MATH(sinh)
GPUEXEC_MATH(cosh)
GPUEXEC_MATH(asinh)
GPUEXEC_MATH(acosh)
GPUEXEC_MATH(atanh)
GPUEXEC_MATH(fabs)
#undef GPUEXEC_MATH
__device__ inline float pow(float a, float b) { return ::powf(a, b); }
__device__ inline double pow(double a, double b) { return ::pow(a, b); }
__device__ inline float fmod(float a, float b) { return ::fmodf(a, b); }
__device__ inline double fmod(double a, double b) { return ::fmod(a, b); }
__device__ inline float copysign(float a, float b) { return ::copysignf(a, b); }
__device__ inline double copysign(double a, double b) { return ::copysign(a, b); }
}  // namespace math
