// Tensors made of scalars, texel by texel: ranges, and host-known content passed by value.
#include "../tensor/generate.cu"
#include "texture.cuh"

// Computes: y[i] = start + i * delta, for integers modulo 2^width.
// Shapes: y [count].
// Grid: one thread per texel of y.
// Needs: nothing.
// Numerics: as `range`.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_range(const Surface<T> y, i64 count, Acc<T> start, Acc<T> delta) {
  draw<T>(y, count, [&](i64 index) {
    return cast<T>(wrapping_add(start, wrapping_mul(cast<Acc<T>>(index), delta)));
  });
}

// Computes: y[first + i] = content[i] for i < count.
// Shapes: y is dense, its elements of any type.
// Grid: one thread per texel of Content, used or not, and one more.
// Needs: first + count <= bytes of y, count <= Bytes.
// Numerics: none, bits are kept.
template <int Bytes>
__global__ void __launch_bounds__(kThreads) draw_store(
    const Surface<u8> y, const __grid_constant__ Content<Bytes> content, i64 first, i32 count) {
  draw<u8>(y.as<u8>(u64(first)), count, [&](i64 index) { return content.bytes[index]; });
}
