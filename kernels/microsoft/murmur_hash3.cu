// MurmurHash3: 32-bit hashes of numbers.
#include "types.cuh"

constexpr int kThreads = 256;

__device__ inline u32 rotate(u32 x, int bits) { return x << bits | x >> (32 - bits); }

// The 32-bit hash for x86 of the bytes of a word of 32 bits, or of 64, the low half first.
template <class T>
__device__ inline u32 hash_of(T x, u32 seed) {
  u32 hash = seed;
#pragma unroll
  for (int half = 0; half < int(sizeof(T)) / 4; ++half) {
    const u32 word = u32(u64(x) >> 32 * half);
    hash ^= rotate(word * 0xcc9e2d51u, 15) * 0x1b873593u;
    hash = rotate(hash, 13) * 5 + 0xe6546b64u;
  }
  hash ^= u32(sizeof(T));
  hash = (hash ^ hash >> 16) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return hash ^ hash >> 16;
}

// Computes y[i] = the hash of the bytes of x[i].
// Shapes   x, y [count] dense.
// Grid     one thread per element.
// Needs    nothing of alignment beyond the type's.
// Numerics modulo 2**32.
template <class T>
__global__ void __launch_bounds__(kThreads) murmur_hash3(
    const T* __restrict__ x, u32* __restrict__ y, i64 count, u32 seed) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = hash_of(x[i], seed);
}
