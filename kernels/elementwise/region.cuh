// Frame of flat regions: the elements of each thread, and where they lie in operands.
//
// gpuexec/ops/elementwise/flat.py generates the type `Region` that a kernel of regions is instantiated with.
#pragma once
#include "elementwise_binary.cu"
#include "elementwise_pow.cu"
#include "elementwise_unary.cu"
#include "elementwise_variadic.cu"
#include "index.cuh"
#include "vec.cuh"

// The divisor of offsets of a type.
template <class Offset>
using DivisorOf = typename Select<kIsSame<Offset, i32>, FastDiv32, FastDiv64>::type;

// What a launch says of places: elements of a result, lanes of a unit, the inner extents in units, and strides of operands in
// units along axis 0, in elements along others. Packed by gpuexec/ops/elementwise/flat.py.
template <class OffsetType, int Extents, int Strides>
struct FlatWalk {
  typedef OffsetType Offset;
  Offset size;
  i32 lanes;
  DivisorOf<Offset> extents[Extents > 0 ? Extents : 1];
  Offset strides[Strides > 0 ? Strides : 1];
};

// Attributes of operators and constants of the model.
template <int Floats, int Doubles, int Integers>
struct RegionNumbers {
  double doubles[Doubles > 0 ? Doubles : 1];
  i64 integers[Integers > 0 ? Integers : 1];
  float floats[Floats > 0 ? Floats : 1];
};

// A thread's unit: Width neighbours along the innermost axis, or one element where the launch says so.
template <int Width, class Offset>
struct FlatUnit {
  Offset index;  // of the unit
  Offset at;     // of its first element in operands that lie as the result does
  int count;     // elements it has, 0 for threads beyond the end

  template <class Walk>
  __device__ explicit FlatUnit(const Walk& walk) {
    index = Offset(blockIdx.x) * kThreads + Offset(threadIdx.x);
    at = index * walk.lanes;
    const Offset left = walk.size - at;
    count = left <= 0 ? 0 : left < walk.lanes ? int(left) : walk.lanes;
  }

  // Reads the unit of an operand; lanes beyond the unit hold its first element.
  template <class T>
  __device__ Vec<T, Width> load(const T* source, Offset first) const {
    source += first;
    if (count == Width) return load_vec<Width>(source);
    Vec<T, Width> lanes;
    const T one = *source;
#pragma unroll
    for (int i = 0; i < Width; ++i) lanes.lanes[i] = i > 0 && i < count ? source[i] : one;
    return lanes;
  }

  template <class T>
  __device__ void store(T* destination, const Vec<T, Width>& lanes) const {
    destination += at;
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

// A number as a value of type T is stored and read again.
template <class T, class A>
__device__ inline Acc<T> round_to(A x) {
  return widen(cast<T>(x));
}
