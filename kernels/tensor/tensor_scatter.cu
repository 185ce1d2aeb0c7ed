// TensorScatter: rows of a cache replaced, at a position per batch entry.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// The cache [batch, outer, rows, inner] and its update [batch, outer, new rows, inner]. Packed by tensor_scatter.py.
struct CacheShape {
  i64 count;  // elements of the cache
  FastDiv64 by_inner, by_rows, by_outer;
  i64 new_rows, is_circular;
};

// Computes  y = past, but rows first[b], first[b] + 1, ... of batch entry b are those of update; circular: modulo rows
// Shapes    past, y [batch, outer, rows, inner], update [batch, outer, new_rows, inner] dense, first [batch]
// Grid      one thread per element of y: x = element / 256
// Needs     elements of sizeof(T) bytes; first may be null for 0. y may be past itself: then nothing else is written
// Numerics  none, bits are kept; a row beyond the cache is left out
template <class T>
__global__ void __launch_bounds__(kThreads)
    tensor_scatter(const T* past, const T* __restrict__ update, const i64* __restrict__ first, T* y,
                   const __grid_constant__ CacheShape shape) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 within, row, outer;
  const u64 outers = shape.by_rows.divide(shape.by_inner.divide(u64(index), within), row);
  const u64 batch = shape.by_outer.divide(outers, outer);
  wait_for_predecessors();
  launch_dependents();
  if (index >= shape.count) return;
  const i64 rows = i64(shape.by_rows.divisor);
  i64 from = first ? first[batch] : 0;
  if (shape.is_circular) {
    from %= rows;
    if (from < 0) from += rows;
  }
  u64 place = row - u64(from);  // wraps to what is no row of the update where it is before the first
  if (shape.is_circular && from > i64(row)) place += u64(rows);
  if (place < u64(shape.new_rows)) {
    y[index] = update[(i64(outers) * shape.new_rows + i64(place)) * i64(shape.by_inner.divisor) + i64(within)];
  } else if (y != past) {
    y[index] = past[index];
  }
}
