// Merge sort of rows by many blocks: keys, sorted tiles, merges. gpuexec/ops/reduce/sort.py launches them in this order.
#include "dependent_launch.cuh"
#include "safe.cuh"
#include "sort.cuh"

constexpr int kThreads = 256;
constexpr int kWays = 8;  // runs that one merge joins

// Rows in lexicographic order, equal ones by number.
template <class K>
struct RowBefore {
  const K* keys;
  i64 columns;

  __device__ bool operator()(i64 a, i64 b) const {
    for (i64 column = 0; column < columns; ++column) {
      const K left = keys[a * columns + column], right = keys[b * columns + column];
      if (left != right) return left < right;
    }
    return a < b;
  }
};

// Computes: keys[i] = the unsigned integer that orders as x[i] does; -0 as 0, every NaN one key above all others.
// Shapes: x, keys dense, of `count` elements.
// Grid: one thread per element.
// Needs: nothing of alignment.
// Numerics: exact.
template <class T>
__global__ void __launch_bounds__(kThreads) make_keys(const T* __restrict__ x, Bits<T>* __restrict__ keys, i64 count) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i < count) keys[i] = sortable_key(x[i]);
}

// Computes: order = 0 ... rows - 1, each tile of 1024 sorted by its rows of keys.
// Shapes: keys [rows, columns] dense, order [rows].
// Grid: one block per tile.
// Needs: nothing of alignment.
// Numerics: none.
template <class K>
__global__ void __launch_bounds__(kThreads) sort_tiles(
    const K* __restrict__ keys, i64* __restrict__ order, i64 rows, i64 columns) {
  __shared__ i64 tile[kSortTile];
  const i64 start = i64(blockIdx.x) * kSortTile;
  wait_for_predecessors();
  launch_dependents();
  if (start >= rows) return;
  const int count = int(rows - start < kSortTile ? rows - start : kSortTile);
  for (int i = threadIdx.x; i < count; i += kThreads) tile[i] = start + i;
  sort_tile(tile, count, RowBefore<K>{keys, columns});
  for (int i = threadIdx.x; i < count; i += kThreads) order[start + i] = tile[i];
}

// Computes: merged = order, with each 8 neighbouring sorted runs of `run` joined into one sorted run.
// Shapes: keys [rows, columns] dense; order, merged [rows].
// Grid: one thread per row.
// Needs: order sorted in runs. A run of all rows is copied.
// Numerics: none.
template <class K>
__global__ void __launch_bounds__(kThreads) merge_runs(
    const K* __restrict__ keys, const i64* __restrict__ order, i64* __restrict__ merged, i64 rows, i64 columns, i64 run) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= rows) return;
  merged[merge_place(order, rows, run, kWays, i, RowBefore<K>{keys, columns})] = order[i];
}
