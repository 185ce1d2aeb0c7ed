// KV caches in preallocated buffers: positions of new rows, and writing them.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Packed by gpuexec/ops/microsoft/cache.py.
struct Places {
  i64 batches, rows;                 // sequences, and new rows of each
  i64 count_step;                    // 0 where one count serves all
  i64 is_wide, are_last, is_causal;  // counts are of 64 bits; they are positions of last rows, not numbers of rows before
};

// Computes for each sequence the first of its new rows and how many rows there are with them, and for each new row its
//          position. A total equal to the number of new rows says that none come before.
// Shapes   counts [batches] or [1] of i32 or i64, total [1] or null; starts, lengths [batches]; positions [batches, rows].
// Grid     one thread per row.
// Needs    nothing of alignment beyond the types.
// Numerics in i64; a start below 0 is 0.
__global__ void __launch_bounds__(kThreads) cache_places(
    const u8* __restrict__ counts, const i32* __restrict__ total, i64* __restrict__ starts, i64* __restrict__ lengths,
    i64* __restrict__ positions, Places places) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  const i64 rows = places.rows, each = rows > 0 ? rows : 1;
  const i64 batch = index / each, row = index % each, at = batch * places.count_step;
  wait_for_predecessors();
  launch_dependents();
  if (index >= places.batches * each) return;
  const i64 count = places.is_wide ? reinterpret_cast<const i64*>(counts)[at] : reinterpret_cast<const i32*>(counts)[at];
  const bool is_first = total != nullptr && *total == rows;
  i64 length = places.are_last ? count + 1 : count + rows;
  i64 start = is_first ? 0 : length - rows;
  if (start < 0) start = 0;
  if (is_first && places.is_causal) length = rows;
  if (row == 0) {
    starts[batch] = start;
    lengths[batch] = length;
  }
  if (row < rows) positions[index] = start + row;
}

// Packed by gpuexec/ops/microsoft/cache.py.
struct NewRows {
  i64 rows, row_stride;  // of the new rows
  i64 old_rows;
};

// Computes a buffer of rows with new ones put in at starts[batch]: elsewhere it is the old one, and 0 behind its end.
// Shapes   y [..., rows, size] dense; walked with old (may be null), new less its rows, the row, the batch.
// Grid     one thread per element of y.
// Needs    old may be y: a thread reads what it writes.
// Numerics moves bits.
template <class Bits>
__global__ void __launch_bounds__(kThreads) place_rows(
    const Bits* old, const Bits* __restrict__ fresh, const i64* __restrict__ starts, Bits* y,
    Strided<kMaxRank, 5> walk, NewRows added) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 offsets[5];
  walk.locate(index, offsets);
  wait_for_predecessors();
  launch_dependents();
  if (index >= walk.count) return;
  const i64 row = offsets[2], from = row - starts[offsets[3]];
  Bits value = Bits(0);
  if (from >= 0 && from < added.rows) {
    value = fresh[offsets[1] + from * added.row_stride];
  } else if (row < added.old_rows) {
    value = old[offsets[0]];
  }
  y[offsets[4]] = value;
}
