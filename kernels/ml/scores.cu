// Labels and post-transformed scores of ai.onnx.ml classifiers and regressors.
#include "elementwise.cuh"

enum Transform { kNone, kSoftmax, kLogistic, kSoftmaxZero, kProbit, kSign };
enum Rule { kLargest, kAbove, kGiven };
enum Pair { kAsTheyAre, kComplement, kOpposite };

template <class A>
__device__ inline A logistic(A x) {
  const A y = A(1) / (A(1) + math::exp(-math::fabs(x)));
  return x < A(0) ? A(1) - y : y;
}

// The quantile of the normal distribution, by Winitzki's approximation of the inverse error function.
template <class A>
__device__ inline A probit(A p) {
  constexpr A kTwoOverPi = A(4.330746750799873), kInverse = A(6.802721088435375);  // 2 / (0.147 pi), 1 / 0.147
  const A x = A(2) * p - A(1);
  const A log = math::log((A(1) - x) * (A(1) + x));
  const A v = kTwoOverPi + A(0.5) * log;
  const A root = math::sqrt(-v + math::sqrt(v * v - kInverse * log));
  return A(1.4142135623730951) * (x < A(0) ? -root : root);
}

template <class A>
__device__ inline A transform_one(A x, int transform) {
  switch (transform) {
    case kLogistic: return logistic(x);
    case kProbit: return probit(x);
    case kSign: return x > A(0) ? A(1) : A(-1);
    default: return x;
  }
}

// Whether a score counts as 0 for kSoftmaxZero.
template <class A>
__device__ inline bool is_zero(A x) {
  return !(x > A(1e-7) || x < A(-1e-7));
}

// The raw scores of a row; a single score of two classes is that of both.
template <class A>
struct Row {
  const A* first;
  int pair;

  __device__ A operator()(i64 column) const {
    if (pair == kAsTheyAre || column == 1) return first[pair == kAsTheyAre ? column : 0];
    return pair == kComplement ? A(1) - first[0] : -first[0];
  }
};

// Computes: labels[r] = names[place], where the place is that of the row's largest score (the first of equals), or whether
//   its last score is above the threshold, or given; scores = the transformed raw ones. One score becomes two classes' if
//   `pair` says so: 1 - s and s, or -s and s.
// Shapes: raw [rows, columns], places [rows] or null, names, labels [rows] or null, scores [rows, columns, or 2 of a pair],
//   dense.
// Grid: one thread per row.
// Needs: columns of 1 or more.
// Numerics: in A, one rounding; a logistic is 1 minus that of the opposite below 0.
template <class A, class T>
__global__ void __launch_bounds__(kThreads, 1) finish_scores(
    const A* __restrict__ raw, const i32* __restrict__ places, const i64* __restrict__ names, T* __restrict__ scores,
    i64* __restrict__ labels, i64 rows, i64 columns, int rule, A threshold, int pair, int transform) {
  const i64 r = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  const Row<A> row{raw + r * columns, pair};
  if (labels != nullptr) {
    i64 place = rule == kGiven ? i64(places[r]) : i64(rule == kAbove && row.first[columns - 1] > threshold);
    if (rule == kLargest) {
      for (i64 column = 1; column < columns; ++column) {
        if (row.first[column] > row.first[place]) place = column;
      }
    }
    labels[r] = names[place];
  }
  const i64 width = pair == kAsTheyAre ? columns : 2;
  T* const y = scores + r * width;
  if (transform == kSoftmax || transform == kSoftmaxZero) {
    A largest = row(0);
    for (i64 column = 1; column < width; ++column) largest = row(column) > largest ? row(column) : largest;
    const auto power = [&](A x) {
      return transform == kSoftmaxZero && is_zero(x) ? x * math::exp(-largest) : math::exp(x - largest);
    };
    A total = A(0);
    for (i64 column = 0; column < width; ++column) total += power(row(column));
    for (i64 column = 0; column < width; ++column) {
      y[column] = cast<T>(transform == kSoftmaxZero && total == A(0) ? A(0.5) : power(row(column)) / total);
    }
    return;
  }
  for (i64 column = 0; column < width; ++column) y[column] = cast<T>(transform_one(row(column), transform));
}
