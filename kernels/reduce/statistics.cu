// Statistics of a tensor: counts and first places of NaN and infinities, range, mean, deviation, histogram.
// The result is a few words, however large the tensor.
#include "index.cuh"
#include "reduce.cuh"

constexpr int kMaxBins = 256;

// Statistics of a set of elements. Places are -1 where there is none; the last four are of finite elements: extrema, mean,
// and the sum of squared distances from it.
struct Sample {
  i64 nans, positive_infs, negative_infs, first_nan, first_inf, finite;
  double least, most, mean, squares;
};

__device__ inline Sample sample_nothing() {
  return Sample{0, 0, 0, -1, -1, 0, limits<double>::inf(), limits<double>::negative_inf(), 0.0, 0.0};
}

__device__ inline i64 earlier_of(i64 a, i64 b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

__device__ inline Sample merge_samples(const Sample& a, const Sample& b) {
  Sample both;
  both.nans = a.nans + b.nans;
  both.positive_infs = a.positive_infs + b.positive_infs;
  both.negative_infs = a.negative_infs + b.negative_infs;
  both.first_nan = earlier_of(a.first_nan, b.first_nan);
  both.first_inf = earlier_of(a.first_inf, b.first_inf);
  both.finite = a.finite + b.finite;
  both.least = lesser_of(a.least, b.least);
  both.most = greater_of(a.most, b.most);
  const double share = both.finite > 0 ? double(b.finite) / double(both.finite) : 0.0, apart = b.mean - a.mean;
  both.mean = a.mean + apart * share;
  both.squares = a.squares + b.squares + apart * apart * share * double(a.finite);
  return both;
}

// Merges the samples of the threads of a block in a fixed tree; thread 0 gets the result. A shuffle would take 20 words a
// step.
__device__ inline Sample fold_block(const Sample& mine, Sample (&shared)[kBlockThreads]) {
  const int thread = threadIdx.x;
  shared[thread] = mine;
  __syncthreads();
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    if (thread < half) shared[thread] = merge_samples(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  return shared[0];
}

__device__ inline bool is_finite(double x) { return x - x == 0.0; }

// A running sample. Until all elements are added, `mean` and `squares` of the sample are sums of distances from its first
// finite element, which lose fewer digits than sums of the elements.
struct Taken {
  Sample sample = sample_nothing();
  double shift = 0.0;

  __device__ inline void add(double value, i64 place, bool has_sums) {
    if (is_finite(value)) {
      if (sample.finite == 0) shift = value;
      sample.finite += 1;
      sample.least = lesser_of(sample.least, value);
      sample.most = greater_of(sample.most, value);
      if (has_sums) {
        const double distance = value - shift;
        sample.mean += distance;
        sample.squares += distance * distance;
      }
    } else if (value != value) {
      sample.nans += 1;
      sample.first_nan = earlier_of(sample.first_nan, place);
    } else {
      if (value > 0) sample.positive_infs += 1;
      else sample.negative_infs += 1;
      sample.first_inf = earlier_of(sample.first_inf, place);
    }
  }

  __device__ inline Sample all() const {
    Sample whole = sample;
    if (whole.finite == 0) return whole;
    const double offset = sample.mean / double(sample.finite);
    whole.mean = shift + offset;
    whole.squares = sample.squares - sample.mean * offset;
    return whole;
  }
};

// Computes samples[b] = the statistics of the elements of block b: those at b * 256 + thread, and every 256 * gridDim on.
// Shapes   x of any strides, walked in row-major order; samples [gridDim].
// Grid     1 to 1024 blocks, as many as follow from the number of elements.
// Needs    nothing of alignment.
// Numerics in double; a thread adds its elements in order, threads merge in a fixed tree. Sums, of distances from each
//          thread's first finite element, are left out unless has_sums.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) take_samples(
    const T* __restrict__ x, Sample* __restrict__ samples, Strided<kMaxRank, 1> walk, int has_sums) {
  __shared__ Sample shared[kBlockThreads];
  Taken taken;
  for (i64 i = i64(blockIdx.x) * kBlockThreads + threadIdx.x; i < walk.count;
       i += i64(gridDim.x) * kBlockThreads) {
    i64 offset[1];
    walk.locate(i, offset);
    taken.add(cast<double>(x[offset[0]]), i, has_sums);
  }
  const Sample sample = fold_block(taken.all(), shared);
  if (threadIdx.x == 0) samples[blockIdx.x] = sample;
}

// Computes words = [NaNs, infinities above and below, first NaN, first infinity, least, most, mean, standard deviation]:
//          a place is -1 where there is none; the last four are of finite elements, and NaN where there are none.
// Shapes   samples [blocks]; words [9].
// Grid     one block.
// Needs    nothing.
// Numerics in double; a thread merges every 256th sample in order, threads merge in a fixed tree. The deviation is that of
//          all elements (no Bessel), never below 0; without has_sums it and the mean are NaN.
__global__ void __launch_bounds__(kBlockThreads, 1) merge_all_samples(
    const Sample* __restrict__ samples, double* __restrict__ words, int blocks, int has_sums) {
  __shared__ Sample shared[kBlockThreads];
  Sample sample = sample_nothing();
  for (int b = threadIdx.x; b < blocks; b += kBlockThreads) sample = merge_samples(sample, samples[b]);
  sample = fold_block(sample, shared);
  if (threadIdx.x != 0) return;
  const double nan = limits<double>::nan(), variance = sample.squares / double(sample.finite);
  const bool has_any = sample.finite > 0;
  words[0] = double(sample.nans);
  words[1] = double(sample.positive_infs);
  words[2] = double(sample.negative_infs);
  words[3] = double(sample.first_nan);
  words[4] = double(sample.first_inf);
  words[5] = has_any ? sample.least : nan;
  words[6] = has_any ? sample.most : nan;
  words[7] = has_any && has_sums ? sample.mean : nan;
  words[8] = has_any && has_sums ? root_of(variance < 0 ? 0.0 : variance) : nan;
}

// Computes counts[b] += how many finite elements lie in bin b of those that part [least, most] evenly; most is in the last.
// Shapes   x of any strides; words as merge_all_samples makes them of x; counts [bins], zeros before.
// Grid     1 to 1024 blocks, as many as follow from the number of elements.
// Needs    bins of at most 256.
// Numerics the bin in double: floor((x - least) / (most - least) * bins); counts are exact in whatever order they are added.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) count_bins(
    const T* __restrict__ x, const double* __restrict__ words, u64* counts, Strided<kMaxRank, 1> walk, int bins) {
  __shared__ u32 shared[kMaxBins];
  for (int b = threadIdx.x; b < bins; b += kBlockThreads) shared[b] = 0;
  __syncthreads();
  const double least = words[5], width = words[6] - least;
  for (i64 i = i64(blockIdx.x) * kBlockThreads + threadIdx.x; i < walk.count;
       i += i64(gridDim.x) * kBlockThreads) {
    i64 offset[1];
    walk.locate(i, offset);
    const double value = cast<double>(x[offset[0]]);
    if (!is_finite(value)) continue;
    const double place = width > 0 ? (value - least) / width * double(bins) : 0.0;
    const int bin = place < double(bins) ? (place > 0 ? int(place) : 0) : bins - 1;
    atomicAdd(&shared[bin], 1u);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < bins; b += kBlockThreads) {
    if (shared[b]) atomicAdd(&counts[b], u64(shared[b]));
  }
}
