// CUDA's vector types with CUDA's alignments: 2 and 4 elements are aligned to their size, 16 bytes at most.
#pragma once
#include "runtime.h"

#define GPUEXEC_VECTOR_1_2_4(T, N)                               \
  struct N##1 {                                                  \
    T x;                                                         \
  };                                                             \
  struct alignas(sizeof(T) * 2) N##2 {                           \
    T x, y;                                                      \
  };                                                             \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) N##4 { \
    T x, y, z, w;                                                \
  };                                                             \
  static inline N##1 make_##N##1(T x) { return {x}; }            \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; }    \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }

#define GPUEXEC_VECTOR_3(T, N) \
  struct N##3 {                \
    T x, y, z;                 \
  };                           \
  static inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }

#define GPUEXEC_VECTOR(T, N) GPUEXEC_VECTOR_1_2_4(T, N) GPUEXEC_VECTOR_3(T, N)

GPUEXEC_VECTOR(signed char, char)
GPUEXEC_VECTOR(unsigned char, uchar)
GPUEXEC_VECTOR(short, short)
GPUEXEC_VECTOR(unsigned short, ushort)
GPUEXEC_VECTOR(int, int)
GPUEXEC_VECTOR_1_2_4(unsigned, uint)  // uint3 belongs to the runtime
GPUEXEC_VECTOR(long, long)
GPUEXEC_VECTOR(unsigned long, ulong)
GPUEXEC_VECTOR(long long, longlong)
GPUEXEC_VECTOR(unsigned long long, ulonglong)
GPUEXEC_VECTOR(float, float)
GPUEXEC_VECTOR(double, double)

#undef GPUEXEC_VECTOR
#undef GPUEXEC_VECTOR_3
#undef GPUEXEC_VECTOR_1_2_4

static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
