// Tree ensembles: traversal of each tree to a leaf, and aggregation of the leaves' votes.
#include "types.cuh"

constexpr int kThreads = 256;
constexpr u32 kTestBits = 7, kMissingBit = 8;
constexpr int kFeatureShift = 4;

enum Test { kAtMost, kLess, kAtLeast, kGreater, kEqual, kUnequal, kMember };
enum Aggregate { kAverage, kSum, kMin, kMax };

// An inner node, packed by gpuexec/ops/ml/forest.py. A child is a node, or the leaf ~child if it is negative.
template <class S>
struct alignas(sizeof(S) == 4 ? 16 : 8) Split {
  S threshold;  // of kMember the number of a set
  i32 yes, no;
  u32 test;     // feature << 4 | whether NaN goes to `yes` << 3 | Test
};

// Whether a value is among the members of a set, which are sorted.
template <class S>
__device__ inline bool is_member(S value, const S* members, i32 low, i32 end) {
  i32 high = end;
  while (low < high) {
    const i32 middle = low + (high - low) / 2;
    if (members[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low < end && members[low] == value;
}

template <class S>
__device__ inline bool passes(const Split<S>& split, S value, const S* members, const i32* starts) {
  if (value != value) return (split.test & kMissingBit) != 0;
  switch (split.test & kTestBits) {
    case kAtMost: return value <= split.threshold;
    case kLess: return value < split.threshold;
    case kAtLeast: return value >= split.threshold;
    case kGreater: return value > split.threshold;
    case kEqual: return value == split.threshold;
    case kUnequal: return value != split.threshold;
    default: return is_member(value, members, starts[i32(split.threshold)], starts[i32(split.threshold) + 1]);
  }
}

// Computes: leaves[t, r] = the leaf of tree t that row r falls into; NaN goes where the node says.
// Shapes: x [rows, features], roots [trees], members of all sets one after the other, starts [sets + 1], leaves
//   [trees, rows], dense.
// Grid: one thread per tree and row; neighbouring threads have neighbouring rows of the same tree.
// Needs: trees without cycles, features below their number.
// Numerics: none.
template <class S>
__global__ void __launch_bounds__(kThreads) find_leaves(
    const S* __restrict__ x, const Split<S>* __restrict__ nodes, const i32* __restrict__ roots, const S* __restrict__ members,
    const i32* __restrict__ starts, i32* __restrict__ leaves, i64 count, i64 rows, i64 features) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const i64 tree = i / rows;
  const S* const row = x + (i - tree * rows) * features;
  i32 place = roots[tree];
  while (place >= 0) {
    const Split<S> split = nodes[place];
    place = passes(split, row[split.test >> kFeatureShift], members, starts) ? split.yes : split.no;
  }
  leaves[i] = ~place;
}

// Computes: scores[r, k] = the sum (average over trees, least, greatest) of the weights that the leaves of row r have for
//   target k, plus base[k]; without any weight, base[k].
// Shapes: leaves [trees, rows], first [all leaves + 1], targets and weights by leaf and target, base [kinds] or null, scores
//   [rows, kinds], dense.
// Grid: one thread per row and target; neighbouring threads have neighbouring rows.
// Needs: the votes of a leaf sorted by target.
// Numerics: in A, by tree in order.
template <class A>
__global__ void __launch_bounds__(kThreads) sum_votes(
    const i32* __restrict__ leaves, const i32* __restrict__ first, const i32* __restrict__ targets, const A* __restrict__ weights,
    const A* __restrict__ base, A* __restrict__ scores, i64 count, i64 rows, i64 trees, i64 kinds, int aggregate) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const i64 target = i / rows, row = i - target * rows;
  A total = A(0);
  bool is_first = true;
  for (i64 tree = 0; tree < trees; ++tree) {
    const i32 leaf = leaves[tree * rows + row], end = first[leaf + 1];
    i32 low = first[leaf], high = end;
    while (low < high) {
      const i32 middle = low + (high - low) / 2;
      if (targets[middle] < target) low = middle + 1;
      else high = middle;
    }
    for (; low < end && targets[low] == target; ++low) {
      const A weight = weights[low];
      if (aggregate <= kSum) total += weight;
      else if (is_first || (aggregate == kMin ? weight < total : weight > total)) total = weight;
      is_first = false;
    }
  }
  if (aggregate == kAverage) total /= A(trees);
  scores[row * kinds + target] = base == nullptr ? total : total + base[target];
}
