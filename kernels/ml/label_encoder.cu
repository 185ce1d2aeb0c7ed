// LabelEncoder: binary search of each element among sorted keys.
#include "safe.cuh"

constexpr int kThreads = 256;

template <class T>
__device__ inline void write_value(const u8* values, u8* y, i64 i, i64 place) {
  reinterpret_cast<T*>(y)[i] = reinterpret_cast<const T*>(values)[place];
}

// Computes: y[i] = values[k] where x[i] is key k, and the last of the values, the default, where it is none. Any NaN is one
//   key, as are both zeros.
// Shapes: x, y [count], keys [known] in rising order of `sortable_key`, values [known + 1], dense.
// Grid: one thread per element.
// Needs: values of 1, 2, 4 or 8 bytes.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kThreads) encode_labels(
    const T* __restrict__ x, const Bits<T>* __restrict__ keys, const u8* __restrict__ values, u8* __restrict__ y, i64 count,
    i64 known, int value_bytes) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const Bits<T> key = sortable_key(x[i]);
  i64 low = 0, high = known;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  const i64 place = low < known && keys[low] == key ? low : known;
  if (value_bytes == 1) write_value<u8>(values, y, i, place);
  else if (value_bytes == 2) write_value<u16>(values, y, i, place);
  else if (value_bytes == 4) write_value<u32>(values, y, i, place);
  else write_value<u64>(values, y, i, place);
}
