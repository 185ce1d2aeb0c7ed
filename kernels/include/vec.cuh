// Vectorised access to several neighbouring elements. A pointer must be aligned to the whole vector.
#pragma once
#include "types.cuh"

template <class T, int Width>
struct alignas(sizeof(T) * Width) Vec {
  T lanes[Width];
};

template <int Width, class T>
__device__ inline Vec<T, Width> load_vec(const T* source) {
  return *reinterpret_cast<const Vec<T, Width>*>(source);
}

template <class T, int Width>
__device__ inline void store_vec(T* destination, const Vec<T, Width>& value) {
  *reinterpret_cast<Vec<T, Width>*>(destination) = value;
}
