// MurmurHash3, texel by texel.
#include "../microsoft/murmur_hash3.cu"
#include "texture.cuh"

// Computes  y[i] = the hash of the bytes of x[i]
// Shapes    x, y [count] dense
// Grid      one thread per texel of y
// Needs     nothing
// Numerics  modulo 2**32
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_murmur_hash3(
    const Texture<T> x, const Surface<u32> y, i64 count, u32 seed) {
  draw<u32>(y, count, [&](i64 index) { return hash_of(x[index], seed); });
}
