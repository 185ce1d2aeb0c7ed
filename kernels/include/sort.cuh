// Sorting of ordinals (element numbers) by a comparison: tiles in shared memory, then merges by rank.
//
// `before(a, b)` is a strict total order on ordinals: equal elements are ordered by number. So there are no ties, and
// the result is that of a stable sort, whatever the algorithm.
#pragma once
#include "types.cuh"

constexpr int kSortTile = 1024;

// A negative ordinal marks an empty place, and is ordered last.
template <class Before>
__device__ inline bool precedes(i64 a, i64 b, const Before& before) {
  if (a < 0 || b < 0) return a >= 0 && b < 0;
  return before(a, b);
}

// Sorts the first `count` ordinals of a tile by a bitonic network. The whole block takes part, with the tile just written
// by any of its threads; all threads see the result.
template <class Before>
__device__ inline void sort_tile(i64 (&tile)[kSortTile], int count, const Before& before) {
  int extent = 1;
  while (extent < count) extent *= 2;
  for (int i = count + threadIdx.x; i < extent; i += blockDim.x) tile[i] = -1;
  __syncthreads();
  for (int width = 2; width <= extent; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      for (int pair = threadIdx.x; pair < extent / 2; pair += blockDim.x) {
        const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const i64 a = tile[low], b = tile[high];
        const bool is_upward = (low & width) == 0;
        if (is_upward ? precedes(b, a, before) : precedes(a, b, before)) {
          tile[low] = b;
          tile[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Where order[place] goes when each `ways` neighbouring sorted runs of `run` ordinals become one: its place in its own
// run, plus how many of each other run come before it.
template <class Before>
__device__ inline i64 merge_place(const i64* order, i64 count, i64 run, int ways, i64 place, const Before& before) {
  const i64 own = place / run, first = own / ways * ways, ordinal = order[place];
  i64 rank = first * run + place - own * run;
  for (i64 other = first; other < first + ways; ++other) {
    const i64 start = other * run;
    if (start >= count) break;
    if (other == own) continue;
    i64 low = 0, high = count - start < run ? count - start : run;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (before(order[start + middle], ordinal)) low = middle + 1;
      else high = middle;
    }
    rank += low;
  }
  return rank;
}

// Sorts ordinals in global memory by one block, and returns where they are then: `order` or `spare`, both of `count`.
template <class Before>
__device__ inline i64* sort_in_block(
    i64* order, i64* spare, i64 count, i64 (&tile)[kSortTile], const Before& before) {
  for (i64 start = 0; start < count; start += kSortTile) {
    const int part = int(count - start < kSortTile ? count - start : kSortTile);
    for (int i = threadIdx.x; i < part; i += blockDim.x) tile[i] = order[start + i];
    sort_tile(tile, part, before);
    for (int i = threadIdx.x; i < part; i += blockDim.x) order[start + i] = tile[i];
    __syncthreads();
  }
  for (i64 run = kSortTile; run < count; run *= 2) {
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
      spare[merge_place(order, count, run, 2, i, before)] = order[i];
    }
    __syncthreads();
    i64* const merged = spare;
    spare = order;
    order = merged;
  }
  return order;
}
