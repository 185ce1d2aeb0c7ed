// Statistics of a tensor, texel by texel: each thread walks the elements of its samples, words or bins.
#include "../reduce/statistics.cu"
#include "texture.cuh"

constexpr i64 kSampleWords = sizeof(Sample) / 8;
constexpr i64 kSampleTerms = 4096, kMaxSamples = 1024;  // _BLOCK_TERMS and _MAX_BLOCKS of ops/reduce/statistics.py

// The 8-byte words of a sample, as integers.
union SampleBits {
  Sample sample;
  u64 words[kSampleWords];
  __device__ SampleBits() {}
};

// Computes samples[b] = the statistics of the elements of part b of as many even parts as there are samples.
// Shapes   x of any strides, walked in row-major order; samples as many as its elements ask for.
// Grid     one thread per texel of samples.
// Needs    nothing.
// Numerics in double, elements in order. Sums are left out unless has_sums.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_take_samples(
    const Texture<T> x, const Surface<u64> samples, const __grid_constant__ Strided<kMaxRank, 1> walk, int has_sums) {
  const i64 count = walk.count;
  i64 parts = (count + kSampleTerms - 1) / kSampleTerms;
  parts = parts < 1 ? 1 : parts > kMaxSamples ? kMaxSamples : parts;
  const i64 length = (count + parts - 1) / parts;
  i64 known = -1;  // the part whose sample is in `bits`
  SampleBits bits;
  draw<u64>(samples, parts * kSampleWords, [&](i64 word) {
    const i64 part = word / kSampleWords;
    if (part != known) {
      known = part;
      Taken taken;
      const i64 end = (part + 1) * length < count ? (part + 1) * length : count;
      for (i64 i = part * length; i < end; ++i) {
        i64 at[1];
        walk.locate(i, at);
        taken.add(cast<double>(x[at[0]]), i, has_sums);
      }
      bits.sample = taken.all();
    }
    return bits.words[word % kSampleWords];
  });
}

// Computes words as merge_all_samples
// Shapes   samples [parts]; words [9].
// Grid     one thread per texel of words.
// Needs    nothing.
// Numerics in double, samples in order; else as merge_all_samples.
__global__ void __launch_bounds__(kBlockThreads, 1) draw_merge_all_samples(
    const Texture<u64> samples, const Surface<double> words, int parts, int has_sums) {
  bool is_known = false;
  Sample sample = sample_nothing();
  draw<double>(words, 9, [&](i64 word) {
    for (int part = 0; !is_known && part < parts; ++part) {
      SampleBits bits;
      for (int i = 0; i < int(kSampleWords); ++i) bits.words[i] = samples[part * kSampleWords + i];
      sample = merge_samples(sample, bits.sample);
    }
    is_known = true;
    const double nan = limits<double>::nan(), variance = sample.squares / double(sample.finite);
    const bool has_any = sample.finite > 0, has_moments = has_any && has_sums;
    switch (word) {
      case 0: return double(sample.nans);
      case 1: return double(sample.positive_infs);
      case 2: return double(sample.negative_infs);
      case 3: return double(sample.first_nan);
      case 4: return double(sample.first_inf);
      case 5: return has_any ? sample.least : nan;
      case 6: return has_any ? sample.most : nan;
      case 7: return has_moments ? sample.mean : nan;
      default: return has_moments ? root_of(variance < 0 ? 0.0 : variance) : nan;
    }
  });
}

// Computes counts[b] = how many finite elements lie in bin b, as count_bins
// Shapes   x of any strides, walked in row-major order; words as draw_merge_all_samples makes them of x; counts [bins].
// Grid     one thread per texel of counts.
// Needs    nothing.
// Numerics as count_bins, exact.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_count_bins(
    const Texture<T> x, const Texture<double> words, const Surface<u64> counts,
    const __grid_constant__ Strided<kMaxRank, 1> walk, int bins) {
  const double least = words[5], width = words[6] - least;
  draw<u64>(counts, bins, [&](i64 wanted) {
    u64 total = 0;
    for (i64 i = 0; i < walk.count; ++i) {
      i64 at[1];
      walk.locate(i, at);
      const double value = cast<double>(x[at[0]]);
      if (!is_finite(value)) continue;
      const double place = width > 0 ? (value - least) / width * double(bins) : 0.0;
      const int bin = place < double(bins) ? (place > 0 ? int(place) : 0) : bins - 1;
      total += bin == int(wanted);
    }
    return total;
  });
}
