// Support vector machines: kernel functions of rows and vectors, scores of pairs of classes, votes, probabilities.
#include "elementwise.cuh"

constexpr int kTile = 32;        // rows, vectors and features of a tile in shared memory
constexpr int kSide = 16;        // a block is kSide x kSide threads, with 2 x 2 results each
constexpr float kLeast = 1e-7f;  // probabilities of pairs stay this far from 0 and 1
constexpr int kMaxRounds = 100;

enum Likeness { kLinear, kPolynomial, kGaussian, kSigmoid };

// Adds up the products (or squared differences) of two rows with two vectors over a tile of features.
template <bool IsDistance>
__device__ inline void add_tile(
    const float (&a)[kTile][kTile + 1], const float (&b)[kTile][kTile + 1], int x, int y, float (&sums)[2][2]) {
  for (int feature = 0; feature < kTile; ++feature) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float left = a[y + i * kSide][feature], right = b[x + j * kSide][feature];
        if constexpr (IsDistance) sums[i][j] += (left - right) * (left - right);
        else sums[i][j] += left * right;
      }
    }
  }
}

__device__ inline void load_tile(
    const float* __restrict__ from, float (&tile)[kTile][kTile + 1], i64 first_row, i64 rows, i64 first_column, i64 columns) {
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const i64 row = first_row + i / kTile, column = first_column + i % kTile;
    tile[i / kTile][i % kTile] = row < rows && column < columns ? from[row * columns + column] : 0.0f;
  }
}

// Computes: z[r, v] = f(x[r] . s[v]) + bias[v]: f(d) = d; (gamma d + offset)^degree; exp(-gamma |x[r] - s[v]|^2);
//   tanh(gamma d + offset).
// Shapes: x [rows, features], s [vectors, features], z [rows, vectors], dense; bias [vectors], of one element if bias_stride
//   is 0, or null.
// Grid: one block per 32 rows and 32 vectors; neighbouring blocks have the same rows.
// Needs: 256 threads.
// Numerics: sums in float, feature by feature.
__global__ void __launch_bounds__(kThreads) compare_with_vectors(
    const float* __restrict__ x, const float* __restrict__ s, const float* __restrict__ bias, float* __restrict__ z, i64 rows,
    i64 vectors, i64 features, int bias_stride, int likeness, float gamma, float offset, float degree) {
  __shared__ float a[kTile][kTile + 1];
  __shared__ float b[kTile][kTile + 1];
  const int column = threadIdx.x % kSide, line = threadIdx.x / kSide;
  const i64 across = (vectors + kTile - 1) / kTile;
  const i64 row = i64(blockIdx.x) / across * kTile, vector = i64(blockIdx.x) % across * kTile;
  float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
  for (i64 feature = 0; feature < features; feature += kTile) {
    load_tile(x, a, row, rows, feature, features);
    load_tile(s, b, vector, vectors, feature, features);
    __syncthreads();
    if (likeness == kGaussian) add_tile<true>(a, b, column, line, sums);
    else add_tile<false>(a, b, column, line, sums);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const i64 r = row + line + i * kSide, v = vector + column + j * kSide;
      if (r >= rows || v >= vectors) continue;
      float value = sums[i][j];
      if (likeness == kPolynomial) value = math::pow(gamma * value + offset, degree);
      else if (likeness == kGaussian) value = math::exp(-gamma * value);
      else if (likeness == kSigmoid) value = math::tanh(gamma * value + offset);
      z[r * vectors + v] = bias == nullptr ? value : value + bias[v * bias_stride];
    }
  }
}

// Computes: scores[r, p] of the pair p of classes i < j = the vectors of class i, weighted by row j - 1 of the coefficients,
//   plus those of class j, weighted by row i, plus rho[p].
// Shapes: likeness [rows, vectors], coefficients [classes - 1, vectors], rho [pairs], starts [classes + 1] of the vectors of
//   a class, members [pairs, 2], scores [rows, pairs], dense.
// Grid: one thread per row and pair.
// Needs: nothing of alignment.
// Numerics: products in float, sums in double, one rounding.
__global__ void __launch_bounds__(kThreads) score_pairs(
    const float* __restrict__ likeness, const float* __restrict__ coefficients, const float* __restrict__ rho,
    const i32* __restrict__ starts, const i32* __restrict__ members, float* __restrict__ scores, i64 count, i64 pairs,
    i64 vectors) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const i64 row = i / pairs, pair = i - row * pairs;
  const i32 left = members[2 * pair], right = members[2 * pair + 1];
  const float* const alike = likeness + row * vectors;
  double total = 0.0;
  for (i32 v = starts[left]; v < starts[left + 1]; ++v) total += coefficients[(right - 1) * vectors + v] * alike[v];
  for (i32 v = starts[right]; v < starts[right + 1]; ++v) total += coefficients[left * vectors + v] * alike[v];
  scores[i] = float(total + rho[pair]);
}

// The number of the pair of classes i < j.
__device__ inline i64 pair_number(i64 i, i64 j, i64 classes) {
  return i * (2 * classes - i - 1) / 2 + j - i - 1;
}

// Computes: places[r] = the class that wins most of its pairs, the first of equals; i wins i < j if the score is above 0.
// Shapes: scores [rows, pairs], places [rows], dense.
// Grid: one thread per row.
// Needs: nothing of alignment.
// Numerics: none.
__global__ void __launch_bounds__(kThreads) count_votes(
    const float* __restrict__ scores, i32* __restrict__ places, i64 rows, i64 classes) {
  const i64 r = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  const float* const row = scores + r * (classes * (classes - 1) / 2);
  i32 best = -1, place = 0;
  for (i64 i = 0; i < classes; ++i) {
    i32 votes = 0;
    for (i64 j = 0; j < i; ++j) votes += !(row[pair_number(j, i, classes)] > 0.0f);
    for (i64 j = i + 1; j < classes; ++j) votes += row[pair_number(i, j, classes)] > 0.0f;
    if (votes > best) {
      best = votes;
      place = i32(i);
    }
  }
  places[r] = place;
}

// Computes: p[r, i] = the probability of class i that fits those of the pairs, 1 / (1 + exp(a s + b)), best: the second
//   method of Wu, Lin and Weng (JMLR 5, 2004), up to 100 rounds.
// Shapes: scores [rows, pairs], a, b [pairs], p [rows, classes], scratch [classes * (classes + 1), rows], dense.
// Grid: one thread per row; neighbouring threads have neighbouring places of the scratch.
// Needs: nothing of alignment.
// Numerics: in float.
__global__ void __launch_bounds__(kThreads, 1) couple_classes(
    const float* __restrict__ scores, const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ p,
    float* __restrict__ scratch, i64 rows, i64 classes) {
  const i64 r = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  const auto q = [&](i64 i, i64 j) -> float& { return scratch[(i * classes + j) * rows + r]; };
  const auto qp = [&](i64 i) -> float& { return scratch[(classes * classes + i) * rows + r]; };
  float* const own = p + r * classes;
  for (i64 i = 0; i < classes; ++i) {
    own[i] = 1.0f / float(classes);
    q(i, i) = 0.0f;
  }
  i64 pair = r * (classes * (classes - 1) / 2), number = 0;
  for (i64 i = 0; i < classes; ++i) {
    for (i64 j = i + 1; j < classes; ++j, ++pair, ++number) {
      const float x = scores[pair] * a[number] + b[number], power = math::exp(-math::fabs(x));
      const float high = 1.0f / (1.0f + power), logistic = x < 0.0f ? 1.0f - high : high;
      const float raw = 1.0f - logistic;
      const float win = raw < kLeast ? kLeast : raw > 1.0f - kLeast ? 1.0f - kLeast : raw, lose = 1.0f - win;
      q(i, j) = q(j, i) = -lose * win;
      q(i, i) += lose * lose;
      q(j, j) += win * win;
    }
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    float all = 0.0f, worst = 0.0f;
    for (i64 i = 0; i < classes; ++i) {
      float sum = 0.0f;
      for (i64 j = 0; j < classes; ++j) sum += q(i, j) * own[j];
      qp(i) = sum;
      all += own[i] * sum;
    }
    for (i64 i = 0; i < classes; ++i) {
      const float error = math::fabs(qp(i) - all);
      worst = error > worst ? error : worst;
    }
    if (worst < 0.005f / float(classes)) break;
    for (i64 i = 0; i < classes; ++i) {
      const float step = (all - qp(i)) / q(i, i), scale = 1.0f + step;
      own[i] += step;
      all = (all + step * (step * q(i, i) + 2.0f * qp(i))) / scale / scale;
      for (i64 j = 0; j < classes; ++j) {
        qp(j) = (qp(j) + step * q(i, j)) / scale;
        own[j] /= scale;
      }
    }
  }
}
