// Stream compaction: positions of nonzero elements in order, by counts per tile and their prefix sums.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "scan.cuh"

constexpr int kItems = 16;  // neighbours that one thread looks at
constexpr int kTile = kBlockThreads * kItems;

// Which of the thread's items of a tile are not zero, as bits. `mask` leaves out the sign of floats.
template <class T>
__device__ inline u32 find_nonzero(const T* x, i64 first, i64 count, T mask) {
  u32 found = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i < count && T(x[first + i] & mask) != T(0)) found |= 1u << i;
  }
  return found;
}

// Computes: tile_counts[t] = elements of tile t (4096 neighbours) that are not zero; NaN is none, -0 is.
// Shapes: x dense, of `count` elements; tile_counts of at least one.
// Grid: one block per tile, at least one.
// Needs: elements of sizeof(T) bytes.
// Numerics: exact.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) count_nonzero(
    const T* __restrict__ x, i64* __restrict__ tile_counts, i64 count, u64 mask) {
  __shared__ u32 shared[kMaxWarps];
  const i64 first = i64(blockIdx.x) * kTile + threadIdx.x * kItems;
  wait_for_predecessors();
  launch_dependents();
  u32 total;
  sum_before(u32(__popc(find_nonzero(x, first, count, T(mask)))), shared, total);
  if (threadIdx.x == 0) tile_counts[blockIdx.x] = total;
}

// Computes: offsets[i] = counts[0] + ... + counts[i - 1], and total = the sum of all.
// Shapes: counts, offsets [length], total [1].
// Grid: one block, which walks all counts.
// Needs: nothing.
// Numerics: exact.
__global__ void __launch_bounds__(kBlockThreads) add_up_counts(
    const i64* __restrict__ counts, i64* __restrict__ offsets, i64* __restrict__ total, i64 length) {
  __shared__ i64 shared[kMaxWarps];
  wait_for_predecessors();
  launch_dependents();
  i64 carry = 0;
  for (i64 base = 0; base < length; base += kBlockThreads) {
    const i64 i = base + threadIdx.x;
    i64 sum;
    const i64 before = sum_before(i < length ? counts[i] : i64(0), shared, sum);
    if (i < length) offsets[i] = carry + before;
    carry += sum;
  }
  if (threadIdx.x == 0) *total = carry;
}

// Computes: positions = where x is not zero, in order, then zeros; ranks[i] = how many before i are not zero. Either may
//   be null.
// Shapes: x dense, of `count` elements; positions, ranks [count]; offsets as add_up_counts makes them of the counts of tiles.
// Grid: one block per tile, at least one.
// Needs: elements of sizeof(T) bytes.
// Numerics: exact.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) write_positions(
    const T* __restrict__ x, const i64* __restrict__ offsets, const i64* __restrict__ total, i64* __restrict__ positions,
    i64* __restrict__ ranks, i64 count, u64 mask) {
  __shared__ u32 shared[kMaxWarps];
  const i64 first = i64(blockIdx.x) * kTile + threadIdx.x * kItems;
  wait_for_predecessors();
  launch_dependents();
  const u32 found = find_nonzero(x, first, count, T(mask));
  u32 sum;
  i64 rank = offsets[blockIdx.x] + sum_before(u32(__popc(found)), shared, sum);
  for (int i = 0; i < kItems && first + i < count; ++i) {
    if (ranks) ranks[first + i] = rank;
    if (positions && found >> i & 1) positions[rank] = first + i;
    if (positions && first + i >= *total) positions[first + i] = 0;
    rank += found >> i & 1;
  }
}

// A shape, to unravel flat positions by. Packed by nonzero.py; the last axis comes first.
struct Axes {
  i64 rank;
  FastDiv64 extents[kMaxRank];
};

// Computes: coordinates[axis, i] = the coordinate along the axis of flat position positions[i].
// Shapes: positions [count] with any stride, coordinates [rank, count] dense.
// Grid: one thread per position.
// Needs: a shape of at most 8 axes that holds the positions.
// Numerics: exact.
__global__ void __launch_bounds__(kBlockThreads) unravel(
    const i64* __restrict__ positions, i64* __restrict__ coordinates, i64 count, i64 stride,
    const __grid_constant__ Axes axes) {
  const i64 i = i64(blockIdx.x) * kBlockThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  u64 rest = positions[i * stride];
  for (int axis = 0; axis < axes.rank; ++axis) {
    u64 coordinate;
    rest = axes.extents[axis].divide(rest, coordinate);
    coordinates[(axes.rank - 1 - axis) * count + i] = coordinate;
  }
}
