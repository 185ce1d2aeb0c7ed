// Multinomial: classes sampled by their log-probabilities.
#include "philox.cuh"

constexpr int kThreads = 256;  // parts that a row is summed in; multinomial.py has as many

// e^x in double for x of (-708, 0], else 0: a series of products and sums, each rounded by itself.
__device__ inline double exp_below(double x) {
  if (!(x > -708.0)) return 0.0;
  const double power = floor(x * 1.4426950408889634 + 0.5);
  const double rest = (x - power * 0.693147180369123816490) - power * 1.90821492927058770002e-10;
  double p = 1.0;
#pragma unroll
  for (int n = 13; n > 0; --n) p = 1.0 + rest * p * (1.0 / n);
  return p * reinterpret<double>(u64(i64(power) + 1023) << 52);
}

// Computes: y[row, i] = the first class whose running sum of exp(x[row] - max) exceeds u * the whole sum; else the last.
// Shapes: x [rows, classes], y [rows, samples]; key two words: seed and number of the run, or null.
// Grid: one block per row.
// Needs: classes >= 1.
// Numerics: in double; a row is summed in 256 parts, each in order, then the parts in order. NaN has no weight.
template <class T, class Index>
__global__ void __launch_bounds__(kThreads) multinomial(
    const T* __restrict__ x, Index* __restrict__ y, i64 classes, i64 samples, const u64* __restrict__ key,
    const Draw draw) {
  __shared__ double parts[kThreads];
  const i64 row = blockIdx.x, width = (classes + kThreads - 1) / kThreads;
  const i64 first = threadIdx.x * width, end = first + width < classes ? first + width : classes;
  const T* const logs = x + row * classes;

  double largest = -limits<double>::inf();
  for (i64 i = first; i < end; ++i) {
    const double log = cast<double>(logs[i]);
    if (log > largest) largest = log;
  }
  parts[threadIdx.x] = largest;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half && parts[threadIdx.x + half] > parts[threadIdx.x]) {
      parts[threadIdx.x] = parts[threadIdx.x + half];
    }
    __syncthreads();
  }
  largest = parts[0];
  __syncthreads();

  double sum = 0.0;
  for (i64 i = first; i < end; ++i) sum += exp_below(cast<double>(logs[i]) - largest);
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int part = 1; part < kThreads; ++part) parts[part] += parts[part - 1];
  }
  __syncthreads();

  for (i64 i = threadIdx.x; i < samples; i += kThreads) {
    const i64 number = row * samples + i;
    double numbers[2];
    draw_uniform(draw, key, u64(number / 2), numbers);
    const double wanted = numbers[number % 2] * parts[kThreads - 1];
    int part = 0;
    while (part < kThreads && !(parts[part] > wanted)) ++part;
    i64 chosen = classes - 1;
    if (part < kThreads) {
      // The part is summed from zero again, in the order it was summed before, and added to the parts before it.
      const double before = part > 0 ? parts[part - 1] : 0.0;
      double inner = 0.0;
      for (i64 j = part * width; j < (part + 1) * width && j < classes; ++j) {
        inner += exp_below(cast<double>(logs[j]) - largest);
        if (before + inner > wanted) {
          chosen = j;
          break;
        }
      }
    }
    y[number] = Index(chosen);
  }
}
