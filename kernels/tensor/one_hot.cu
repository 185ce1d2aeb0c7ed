// OneHot: a value at the index, another one elsewhere.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

template <class T>
__device__ inline void write_hot(const u8* values, u8* y, i64 i, bool is_on) {
  reinterpret_cast<T*>(y)[i] = reinterpret_cast<const T*>(values)[is_on];
}

// Computes: y[o, d, i] = values[1] where d == indices[o, i] (or depth less, if negative), else values[0].
// Shapes: indices [outer, inner], y [outer, depth, inner], values [2], dense.
// Grid: one thread per element of y.
// Needs: elements of y of 1, 2, 4 or 8 bytes.
// Numerics: none, bits are kept; an index that is no integer is truncated, one out of range matches nowhere.
template <class Index>
__global__ void __launch_bounds__(kThreads) one_hot(
    const Index* __restrict__ indices, const u8* __restrict__ values, u8* __restrict__ y, i64 count, const FastDiv64 depth,
    const FastDiv64 inner, int element_bytes) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 column, place;
  const u64 outer = depth.divide(inner.divide(i, column), place);
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  const i64 index = cast<i64>(indices[outer * inner.divisor + column]);
  const bool is_on = i64(place) == index || i64(place) - i64(depth.divisor) == index;
  if (element_bytes == 1) write_hot<u8>(values, y, i, is_on);
  else if (element_bytes == 2) write_hot<u16>(values, y, i, is_on);
  else if (element_bytes == 4) write_hot<u32>(values, y, i, is_on);
  else write_hot<u64>(values, y, i, is_on);
}
