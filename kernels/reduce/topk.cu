// TopK: radix selection of the k-th key of a line by one block, then a sort of the selected elements.
#include "dependent_launch.cuh"
#include "safe.cuh"
#include "scan.cuh"
#include "sort.cuh"

constexpr int kMaxThreads = 1024;
constexpr int kDigits = 256;

// The keys of a line, inverted if the largest come first; equal elements are ordered by place.
template <class T>
struct Line {
  const T* first;
  i64 stride;
  Bits<T> flip;

  __device__ Bits<T> key(i64 i) const { return Bits<T>(sortable_key(first[i * stride]) ^ flip); }
  __device__ bool operator()(i64 a, i64 b) const {
    const Bits<T> left = key(a), right = key(b);
    return left != right ? left < right : a < b;
  }
};

// Shared memory of the search.
struct Search {
  u32 counts[kDigits];
  u32 sums[kMaxWarps];
  u32 digit, before;
};

// Puts the places of the first k of a line into `chosen`: those of a smaller key than the k-th in order, then as many of
// its equals as are left, in order. For blocks of 256 threads or more.
template <class T>
__device__ inline void collect(const Line<T>& line, i64 length, i64 k, i64* chosen, Search& search) {
  typedef Bits<T> K;
  K bound = K(0), mask = K(0);
  i64 left = k;  // of those whose high digits are the bound's, how many are among the first k
  for (int shift = 8 * int(sizeof(K)) - 8; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) search.counts[threadIdx.x] = 0;
    __syncthreads();
    for (i64 i = threadIdx.x; i < length; i += blockDim.x) {
      const K key = line.key(i);
      if (K(key & mask) == bound) atomicAdd(&search.counts[key >> shift & (kDigits - 1)], 1u);
    }
    __syncthreads();
    const u32 count = threadIdx.x < kDigits ? search.counts[threadIdx.x] : 0;
    u32 total;
    const u32 before = sum_before(count, search.sums, total);
    if (before < left && left <= i64(before) + count) {
      search.digit = threadIdx.x;
      search.before = before;
    }
    __syncthreads();
    bound = K(bound | K(K(search.digit) << shift));
    mask = K(mask | K(K(kDigits - 1) << shift));
    left -= search.before;
  }
  i64 smaller = 0, equal = 0;
  for (i64 base = 0; base < length && (smaller < k - left || equal < left); base += blockDim.x) {
    const i64 i = base + threadIdx.x;
    const K key = i < length ? line.key(i) : K(0);
    const bool is_smaller = i < length && key < bound, is_equal = i < length && key == bound;
    u32 total;
    const u32 before = sum_before(u32(is_smaller) | u32(is_equal) << 16, search.sums, total);
    const i64 rank = equal + (before >> 16);
    if (is_smaller) chosen[smaller + (before & 0xffff)] = i;
    if (is_equal && rank < left) chosen[k - left + rank] = i;
    smaller += total & 0xffff;
    equal += total >> 16;
  }
  __syncthreads();
}

// Computes: along each line the k largest (or smallest) elements in that order and their places; equal ones by place, NaN
//   above all numbers, -0 as 0.
// Shapes: x [outer, length, inner] dense; values, indices [outer, k, inner]; scratch [outer * inner, 2, k] if k > 1024.
// Grid: one block per line, of 32 to 1024 threads; 1024 if the line is longer than that.
// Needs: 1 <= k <= length < 2^32.
// Numerics: exact; the order is total, so it does not depend on the algorithm.
template <class T>
__global__ void __launch_bounds__(kMaxThreads, 1) topk(
    const T* __restrict__ x, T* __restrict__ values, i64* __restrict__ indices, i64* scratch, i64 length, i64 inner, i64 k,
    int is_largest) {
  __shared__ i64 tile[kSortTile];
  __shared__ Search search;
  const Line<T> line{x + row_start(blockIdx.x, length, inner), inner, Bits<T>(is_largest ? ~Bits<T>(0) : Bits<T>(0))};
  const i64* chosen = tile;
  wait_for_predecessors();
  launch_dependents();
  if (length <= kSortTile) {
    for (int i = threadIdx.x; i < length; i += blockDim.x) tile[i] = i;
    sort_tile(tile, int(length), line);
  } else if (k <= kSortTile) {
    collect(line, length, k, tile, search);
    sort_tile(tile, int(k), line);
  } else {
    i64* const order = scratch + 2 * k * blockIdx.x;
    collect(line, length, k, order, search);
    chosen = sort_in_block(order, order + k, k, tile, line);
  }
  const i64 start = row_start(blockIdx.x, k, inner);
  for (i64 i = threadIdx.x; i < k; i += blockDim.x) {
    values[start + i * inner] = line.first[chosen[i] * inner];
    indices[start + i * inner] = chosen[i];
  }
}
