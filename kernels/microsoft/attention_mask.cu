// Attention masks of several forms as additive biases of the scores.
#include "dependent_launch.cuh"
#include "index.cuh"

constexpr int kThreads = 256;

// Forms of a mask of int32. Ends: how many keys of each batch are visible; ranges: ends of all batches, then the first
// keys; flags: 0 masks a key.
enum MaskForm { kNone, kEnds, kRanges, kFlags };

// Packed by gpuexec/ops/microsoft/mask.py.
struct MaskRule {
  i64 form, batches;
  double filter;  // added where a key takes no part
};

// Computes y = bias + (0 where the key takes part, else filter).
// Shapes   y [batch, heads, rows, keys] dense or 1 where nothing depends on an axis; walked with bias, flags, the number
//          of the key and that of the batch.
// Grid     one thread per element of y.
// Needs    nothing of alignment.
// Numerics in float, one rounding to T.
template <class T>
__global__ void __launch_bounds__(kThreads) mask_bias(
    const i32* __restrict__ mask, const T* __restrict__ bias, T* __restrict__ y, Strided<kMaxRank, 5> walk,
    MaskRule rule) {
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  i64 offsets[5];
  walk.locate(index, offsets);
  wait_for_predecessors();
  launch_dependents();
  if (index >= walk.count) return;
  const i64 key = offsets[2], batch = offsets[3];
  bool is_in = true;
  if (rule.form == kFlags) {
    is_in = mask[offsets[1]] > 0;
  } else if (rule.form != kNone) {
    is_in = key < mask[batch] && (rule.form == kEnds || key >= mask[rule.batches + batch]);
  }
  const float added = is_in ? 0.0f : float(rule.filter);
  y[offsets[4]] = cast<T>(bias == nullptr ? added : widen(bias[offsets[0]]) + added);
}
