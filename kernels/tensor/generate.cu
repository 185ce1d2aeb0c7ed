// Tensors made of scalars: ranges, and host-known content passed by value.
#include "dependent_launch.cuh"
#include "safe.cuh"

constexpr int kThreads = 256;

template <int Bytes>
struct Content {
  u8 bytes[Bytes];
};

// Computes: y[i] = start + i * delta, for integers modulo 2^width.
// Shapes: y [count].
// Grid: one thread per element.
// Needs: nothing.
// Numerics: one product and one sum in T, each rounded; half and bf16 in float, rounded once.
template <class T>
__global__ void __launch_bounds__(kThreads) range(T* __restrict__ y, i64 count, Acc<T> start, Acc<T> delta) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i < count) y[i] = cast<T>(wrapping_add(start, wrapping_mul(cast<Acc<T>>(i), delta)));
}

// Computes: y[first + i] = content[i] for i < count.
// Shapes: y is dense, its elements of any type.
// Grid: one thread per byte of Content, used or not.
// Needs: first + count <= bytes of y, count <= Bytes.
// Numerics: none, bits are kept.
template <int Bytes>
__global__ void __launch_bounds__(kThreads) store(
    u8* __restrict__ y, const __grid_constant__ Content<Bytes> content, i64 first, i32 count) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i < count) y[first + i] = content.bytes[i];
}
