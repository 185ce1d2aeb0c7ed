// Scatter by index, deterministic where several updates meet in one place.
// Updates apply in their order, whichever thread runs first: the last one stays, or they are folded one after the other.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "reduce.cuh"

constexpr int kThreads = 256;

// Counts a negative index from the back; tells whether it is within the extent.
__device__ inline bool resolve_index(i64& index, i64 extent) {
  if (index < 0) index += extent;
  return index >= 0 && index < extent;
}

// Records the target of an update, and the update as the latest of its target unless a later one is.
__device__ inline void note_target(i64 update, i64 target, i64* targets, u64* latest) {
  targets[update] = target;
  if (latest && target >= 0) atomicMax(&latest[target], u64(update) + 1);
}

// Computes: targets[i] = place in the output of update i, -1 if its index is out of range; latest[place] = 1 + the last
//   update that goes there, if not null.
// Shapes: indices dense, latest as the output; walk over the updates: strides of the output with 0 along the axis, and of
//   the indices. `extent` and `stride` are those of the output along the axis.
// Grid: one thread per update, at least one block.
// Needs: latest filled with 0.
// Numerics: exact; the order of atomics does not matter.
template <class Index>
__global__ void __launch_bounds__(kThreads) locate_elements(
    const Index* __restrict__ indices, i64* __restrict__ targets, u64* latest,
    const __grid_constant__ Strided<kMaxRank, 2> walk, i64 extent, i64 stride) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 offsets[2];
  walk.locate(i, offsets);
  wait_for_predecessors();
  launch_dependents();
  if (i >= walk.count) return;
  i64 index = indices[offsets[1]];
  const bool is_within = resolve_index(index, extent);
  note_target(offsets[1], is_within ? offsets[0] + index * stride : -1, targets, latest);
}

// The axes that tuples of indices pick along. Packed by scatter.py.
struct PickedAxes {
  i64 count;   // tuples
  i64 length;  // indices per tuple
  i64 extents[kMaxRank];
  i64 strides[kMaxRank];
};

// Computes: targets[i] = slice of the output that tuple i picks, -1 if an index is out of range; latest as above.
// Shapes: indices [count, length] dense; latest as many as slices.
// Grid: one thread per tuple, at least one block.
// Needs: latest filled with 0.
// Numerics: exact; the order of atomics does not matter.
template <class Index>
__global__ void __launch_bounds__(kThreads) locate_slices(
    const Index* __restrict__ indices, i64* __restrict__ targets, u64* latest, const __grid_constant__ PickedAxes axes) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_predecessors();
  launch_dependents();
  if (i >= axes.count) return;
  i64 target = 0;
  bool is_within = true;
  for (int k = 0; k < axes.length; ++k) {
    i64 index = indices[i * axes.length + k];
    is_within = resolve_index(index, axes.extents[k]) && is_within;
    target += index * axes.strides[k];
  }
  note_target(i, is_within ? target : -1, targets, latest);
}

// Computes: y[targets[u], :] = updates[u, :] for each update u that is the last of its place.
// Shapes: updates [count / inner, inner], y [places, inner] dense; targets, latest as noted.
// Grid: one thread per element of the updates, at least one block.
// Needs: elements of sizeof(T) bytes.
// Numerics: none, bits are kept.
template <class T>
__global__ void __launch_bounds__(kThreads) write_latest(
    const T* __restrict__ updates, const i64* __restrict__ targets, const u64* __restrict__ latest, T* __restrict__ y,
    i64 count, const FastDiv64 inner) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 column;
  const u64 update = inner.divide(i, column);
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  const i64 target = targets[update];
  if (target >= 0 && latest[target] == update + 1) y[target * inner.divisor + column] = updates[i];
}

enum Reduction { kAdd, kMul, kMin, kMax };

template <class A>
__device__ inline A combine(A a, A b, int reduction) {
  if (reduction == kAdd) return wrapping_add(a, b);
  if (reduction == kMul) return wrapping_mul(a, b);
  return reduction == kMin ? lesser_of(a, b) : greater_of(a, b);
}

// Computes: y[t, c] = y[t, c] and all updates[u, c] with targets[u] == t, folded in the order of u.
// Shapes: updates [count / inner, inner], y [places, inner] dense; order = updates sorted by target, then number.
// Grid: one thread per element of the updates; the first of a target folds all of it.
// Needs: nothing of alignment.
// Numerics: in Acc<T>, rounded once; integers wrap; min and max keep NaN and take 0 for greater than -0.
template <class T>
__global__ void __launch_bounds__(kThreads) fold_updates(
    const T* __restrict__ updates, const i64* __restrict__ targets, const i64* __restrict__ order, T* __restrict__ y,
    i64 count, const FastDiv64 inner, int reduction) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 column;
  i64 place = inner.divide(i, column);
  wait_for_predecessors();
  launch_dependents();
  if (i >= count) return;
  const i64 target = targets[order[place]], places = inner.divide(count);
  if (target < 0 || (place > 0 && targets[order[place - 1]] == target)) return;
  T& result = y[target * inner.divisor + column];
  Acc<T> sum = widen(result);
  for (; place < places && targets[order[place]] == target; ++place) {
    sum = combine(sum, widen(updates[order[place] * inner.divisor + column]), reduction);
  }
  result = cast<T>(sum);
}
