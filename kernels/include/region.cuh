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
  Offset left;   // elements from there on; none for threads beyond the end
  int lanes;

  template <class Walk>
  __device__ explicit FlatUnit(const Walk& walk) : lanes(walk.lanes) {
    index = Offset(blockIdx.x) * kThreads + Offset(threadIdx.x);
    at = index * lanes;
    left = walk.size - at;
  }

  // Whether it has all of its elements, which then are read and written as vectors.
  __device__ bool is_whole() const { return lanes == Width && left >= Width; }

  // Elements of a unit that is not whole.
  __device__ int count() const { return left < lanes ? int(left) : lanes; }
};

// A number as a value of type T is stored and read again.
template <class T, class A>
__device__ inline Acc<T> round_to(A x) {
  return widen(cast<T>(x));
}
