// NonMaxSuppression: a block per batch and class sorts the boxes by score and selects them in that order.
#include "safe.cuh"
#include "scan.cuh"
#include "sort.cuh"

constexpr int kThreads = 1024;

// Boxes by score from the highest down, equal ones by number; a NaN comes last.
struct ScoreBefore {
  const float* scores;

  __device__ u32 key(i64 i) const { return scores[i] == scores[i] ? sortable_key(scores[i]) : 0u; }
  __device__ bool operator()(i64 a, i64 b) const {
    const u32 left = key(a), right = key(b);
    return left != right ? left > right : a < b;
  }
};

struct Box {
  float left, right, low, high;

  __device__ float area() const { return (right - left) * (high - low); }
};

// Corners in any order, as [y, x, y, x]; or the centre and the extents, as [x, y, width, height].
__device__ inline Box read_box(const float* box, int is_centered) {
  if (is_centered) {
    const float x = box[2] / 2, y = box[3] / 2;
    return Box{box[0] - x, box[0] + x, box[1] - y, box[1] + y};
  }
  const bool is_right_first = box[1] >= box[3], is_high_first = box[0] >= box[2];
  return Box{is_right_first ? box[3] : box[1], is_right_first ? box[1] : box[3],
             is_high_first ? box[2] : box[0], is_high_first ? box[0] : box[2]};
}

// Whether intersection over union exceeds the threshold. Boxes without an area overlap with none.
__device__ inline bool overlaps(const Box& a, const Box& b, float threshold) {
  const float left = b.left > a.left ? b.left : a.left, right = b.right < a.right ? b.right : a.right;
  const float low = b.low > a.low ? b.low : a.low, high = b.high < a.high ? b.high : a.high;
  if (right <= left || high <= low) return false;
  const float common = (right - left) * (high - low), first = a.area(), second = b.area();
  const float both = first + second - common;
  if (common <= 0 || first <= 0 || second <= 0 || both <= 0) return false;
  return common / both > threshold;
}

// Writes the numbers of boxes whose score exceeds the threshold (all if there is none), and returns how many.
__device__ inline i64 collect(const float* scores, i64 boxes, const float* threshold, i64* order, u32 (&sums)[kMaxWarps]) {
  i64 count = 0;
  for (i64 base = 0; base < boxes; base += kThreads) {
    const i64 i = base + threadIdx.x;
    const bool is_candidate = i < boxes && (!threshold || scores[i] > *threshold);
    u32 total;
    const u32 before = sum_before(u32(is_candidate), sums, total);
    if (is_candidate) order[count + before] = i;
    count += total;
  }
  __syncthreads();
  return count;
}

// Computes: for each batch and class the boxes that are kept, best first: each next box that no kept one overlaps.
// Shapes: boxes [batches, boxes, 4], scores [batches, classes, boxes], scratch [batches * classes, 2, boxes], selected
//   [batches * classes, most], counts [batches * classes]; thresholds of one element, or null for 0 and for none.
// Grid: one block of 1024 threads per batch and class.
// Needs: all dense.
// Numerics: in float, each operation rounded once.
__global__ void __launch_bounds__(kThreads) select_boxes(
    const float* __restrict__ boxes, const float* __restrict__ scores, const float* __restrict__ iou_threshold,
    const float* __restrict__ score_threshold, i64* scratch, i64* __restrict__ selected, i64* __restrict__ counts,
    i64 classes, i64 box_count, i64 most, int is_centered) {
  __shared__ i64 tile[kSortTile];
  __shared__ u32 sums[kMaxWarps];
  __shared__ i64 nearest[2];
  const i64 line = blockIdx.x;
  const float* const corners = boxes + line / classes * box_count * 4;
  const float* const own_scores = scores + line * box_count;
  const float threshold = iou_threshold ? *iou_threshold : 0.0f;
  i64* const first = scratch + line * 2 * box_count;
  i64* const second = first + box_count;
  const i64 candidates = most > 0 ? collect(own_scores, box_count, score_threshold, first, sums) : 0;
  const i64* const order = sort_in_block(first, second, candidates, tile, ScoreBefore{own_scores});
  i64* const is_suppressed = order == first ? second : first;
  for (i64 i = threadIdx.x; i < candidates; i += kThreads) is_suppressed[i] = 0;
  i64 kept = 0;
  for (i64 current = 0; current < candidates; current = nearest[(kept - 1) & 1]) {
    if (threadIdx.x == 0) {
      selected[line * most + kept] = order[current];
      nearest[kept & 1] = candidates;
    }
    __syncthreads();
    if (kept + 1 == most) {
      kept = most;
      break;
    }
    const Box box = read_box(corners + order[current] * 4, is_centered);
    i64 next = candidates;
    for (i64 i = current + 1 + threadIdx.x; i < candidates; i += kThreads) {
      if (is_suppressed[i]) continue;
      if (overlaps(read_box(corners + order[i] * 4, is_centered), box, threshold)) is_suppressed[i] = 1;
      else if (i < next) next = i;
    }
    if (next < candidates) atomicMin(&nearest[kept & 1], next);
    ++kept;
    __syncthreads();
  }
  if (threadIdx.x == 0) counts[line] = kept;
}

// Computes: rows = (batch, class, box) of all selected boxes, in that order, then zeros.
// Shapes: selected [lines, most], rows [lines * most, 3]; offsets [lines] and total as add_up_counts makes them.
// Grid: one thread per place of `selected`.
// Needs: nothing.
// Numerics: none.
__global__ void __launch_bounds__(kThreads) write_rows(
    const i64* __restrict__ selected, const i64* __restrict__ offsets, const i64* __restrict__ total,
    i64* __restrict__ rows, i64 lines, i64 most, i64 classes) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= lines * most) return;
  const i64 line = i / most, place = i - line * most, end = line + 1 < lines ? offsets[line + 1] : *total;
  const i64 row = offsets[line] + place;
  if (row < end) {
    rows[3 * row] = line / classes;
    rows[3 * row + 1] = line - line / classes * classes;
    rows[3 * row + 2] = selected[i];
  }
  if (i >= *total) {
    for (int column = 0; column < 3; ++column) rows[3 * i + column] = 0;
  }
}
