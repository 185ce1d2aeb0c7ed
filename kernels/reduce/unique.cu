// Unique: outputs from sorted rows and the marked runs of equal ones.
#include "dependent_launch.cuh"
#include "types.cuh"

constexpr int kThreads = 256;

// Computes: is_head[p] = 1 where row order[p] differs from row order[p - 1], else 0; and, if not null, is_first[order[p]] =
//   is_head[p]. A key above `largest` (NaN) differs from itself.
// Shapes: keys [rows, columns] dense; order, is_head, is_first [rows].
// Grid: one thread per row.
// Needs: rows sorted, equal ones by number: a head is the first occurrence.
// Numerics: none.
template <class K>
__global__ void __launch_bounds__(kThreads) mark_heads(
    const K* __restrict__ keys, const i64* __restrict__ order, u8* __restrict__ is_head, u8* __restrict__ is_first,
    i64 rows, i64 columns, u64 largest) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= rows) return;
  bool is_same = i > 0;
  for (i64 column = 0; column < columns && is_same; ++column) {
    const K key = keys[order[i] * columns + column];
    is_same = key == keys[order[i - 1] * columns + column] && key <= largest;
  }
  is_head[i] = !is_same;
  if (is_first) is_first[order[i]] = !is_same;
}

// Computes: of each run its first row, its length, and for each row the number of its run; runs are numbered in sorted
//   order, or by first_ranks (rank of each first occurrence) if not null. After the last run there are zeros.
// Shapes: order, is_head, head_ranks, heads, first_ranks, firsts, inverse, lengths [rows]; total [1]. The last two may be null.
// Grid: one thread per row.
// Needs: heads, head_ranks and total as write_positions makes them of is_head.
// Numerics: exact.
__global__ void __launch_bounds__(kThreads) write_runs(
    const i64* __restrict__ order, const u8* __restrict__ is_head, const i64* __restrict__ head_ranks,
    const i64* __restrict__ heads, const i64* __restrict__ first_ranks, const i64* __restrict__ total,
    i64* __restrict__ firsts, i64* __restrict__ inverse, i64* __restrict__ lengths, i64 rows) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= rows) return;
  const i64 run = head_ranks[i] + is_head[i] - 1, first = order[heads[run]];
  const i64 number = first_ranks ? first_ranks[first] : run;
  if (inverse) inverse[order[i]] = number;
  if (is_head[i]) {
    firsts[number] = first;
    if (lengths) lengths[number] = (run + 1 < *total ? heads[run + 1] : rows) - i;
  }
  if (i >= *total) {
    firsts[i] = 0;
    if (lengths) lengths[i] = 0;
  }
}

// Computes: y[outer, run, inner] = x[outer, firsts[run], inner]; zeros after the last run.
// Shapes: x, y [outer, rows, inner] dense, of `count` elements; firsts [rows], total [1].
// Grid: one thread per element.
// Needs: elements of sizeof(T) bytes.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kThreads) take_firsts(
    const T* __restrict__ x, const i64* __restrict__ firsts, const i64* __restrict__ total, T* __restrict__ y, i64 rows,
    i64 inner, i64 count) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  const i64 slice = i / inner, run = slice % rows;
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  y[i] = run < *total ? x[(slice - run + firsts[run]) * inner + i % inner] : T(0);
}
