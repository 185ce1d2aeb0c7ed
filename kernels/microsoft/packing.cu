// Packed sequences without padding: token positions, and restoring the padding.
#include "index.cuh"

constexpr int kThreads = 256;

// Computes the places of all tokens and then of all padding, running sums of the numbers of tokens, and the largest.
// Shapes   counts [batches]; places [batches, rows], sums [batches + 1], most [1], total [1].
// Grid     one thread per place.
// Needs    nothing of alignment.
// Numerics in i64; a count outside [0, rows] is the nearest number in it.
__global__ void __launch_bounds__(kThreads) order_tokens(
    const i32* __restrict__ counts, i32* __restrict__ places, i32* __restrict__ sums, i32* __restrict__ most,
    i64* __restrict__ total, i64 batches, i64 rows) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x, places_in_all = batches * rows;
  const bool is_first = index == 0;  // writes the outputs of one element
  const i64 batch = rows > 0 ? index / rows : 0, row = rows > 0 ? index % rows : 0;
  i64 before = 0, all = 0, own = 0, largest = 0;
  for (i64 i = 0; i < batches; ++i) {
    i64 count = counts[i];
    count = count < 0 ? 0 : count > rows ? rows : count;
    if (is_first) sums[i] = i32(all);
    if (i == batch) {
      before = all;
      own = count;
    }
    all += count;
    largest = count > largest ? count : largest;
  }
  if (is_first) {
    sums[batches] = i32(all);
    most[0] = i32(largest);
    total[0] = all;
  }
  if (index < places_in_all) places[row < own ? before + row : all + batch * rows - before + row - own] = i32(index);
}

// Computes y[places[i]] = x[i] for all rows of x, and 0 at the other places.
// Shapes   x [tokens, columns], places [rows], y [rows, columns], dense; each place once.
// Grid     one thread per element of y.
// Needs    nothing of alignment.
// Numerics moves bits; a place out of range is left out.
template <class Bits>
__global__ void __launch_bounds__(kThreads) restore_rows(
    const Bits* __restrict__ x, const i32* __restrict__ places, Bits* __restrict__ y, FastDiv64 by_columns, i64 tokens,
    i64 rows, i64 columns) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= rows * columns) return;
  u64 column;
  const i64 row = i64(by_columns.divide(u64(index), column)), place = places[row];
  if (place < 0 || place >= rows) return;
  y[place * columns + i64(column)] = row < tokens ? x[index] : Bits(0);
}
