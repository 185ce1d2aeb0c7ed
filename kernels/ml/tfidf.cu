// TfIdfVectorizer: counts of n-grams in rows of tokens, and their weighting.
#include "index.cuh"

constexpr int kThreads = 256;

// Index of a key among sorted keys; -1 where it is not among them.
__device__ inline i64 place_of(const i64* keys, i64 count, i64 key) {
  i64 low = 0, high = count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low < count && keys[low] == key ? low : -1;
}

// Computes: counts[r, g] += 1 for each n-gram g that begins at a place of row r with a distance between its tokens; one of
//   one token has distance 1 alone.
// Shapes: x [rows, columns], counts [rows, grams], dense; the tables of gpuexec/ops/ml/ngrams.py: vocabulary [words], edges
//   and targets [edge_count], found [nodes].
// Grid: one thread per place and distance, `count` in all; `distances` of a place lie beside each other.
// Needs: counts are 0 before.
// Numerics: none.
template <class T>
__global__ void __launch_bounds__(kThreads) count_ngrams(
    const T* __restrict__ x, const i64* __restrict__ vocabulary, const i64* __restrict__ edges,
    const int* __restrict__ targets, const int* __restrict__ found, u32* __restrict__ counts, i64 count,
    const FastDiv64 column_divisor, const FastDiv64 distances, i64 columns, i64 words, i64 edge_count, i64 grams, i64 tokens,
    int longest) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 skipped, column;
  const i64 first = i64(distances.divide(u64(i), skipped));
  const i64 row = i64(column_divisor.divide(u64(first), column));
  const i64 distance = i64(skipped) + 1;
  i64 node = 0;
  for (int length = 1; length <= longest; ++length) {
    const i64 along = i64(column) + (length - 1) * distance;
    if (along >= columns) return;
    const i64 word = place_of(vocabulary, words, i64(x[row * columns + along]));
    const i64 edge = word < 0 ? -1 : place_of(edges, edge_count, node * tokens + word);
    if (edge < 0) return;
    node = targets[edge];
    const int gram = found[node];
    if (gram >= 0 && (length > 1 || distance == 1)) atomicAdd(&counts[row * grams + gram], 1u);
  }
}

enum Mode { kOften, kOnce, kOftenWeighed };

// Computes: y[r, c] = sum over the n-grams g of column c of count, weight where there is one, or weight * count.
// Shapes: counts [rows, grams], y [count / columns, columns], dense; the n-grams of column c are members[starts[c] ..
//   starts[c + 1]); weights [grams].
// Grid: one thread per element of y.
// Needs: nothing of alignment.
// Numerics: in float, n-grams of a column in order.
__global__ void __launch_bounds__(kThreads) weigh_ngrams(
    const u32* __restrict__ counts, const int* __restrict__ starts, const int* __restrict__ members,
    const float* __restrict__ weights, float* __restrict__ y, i64 count, const FastDiv64 columns, i64 grams, int mode) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  u64 column;
  const i64 row = i64(columns.divide(u64(i), column));
  float total = 0.0f;
  for (int k = starts[column]; k < starts[column + 1]; ++k) {
    const int gram = members[k];
    const u32 often = counts[row * grams + gram];
    float value = float(mode == kOnce && often > 1 ? 1u : often);
    if (mode != kOften) value *= weights[gram];
    total += value;
  }
  y[i] = total;
}
