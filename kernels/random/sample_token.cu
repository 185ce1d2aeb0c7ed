// Sampling of the next token from a row of logits: repetition penalty, temperature, top-k, top-p, and one random number.
#include "dependent_launch.cuh"
#include "philox.cuh"
#include "scan.cuh"

constexpr int kMostThreads = 1024;
constexpr int kAhead = 8;             // elements that a thread asks memory for before it uses the first
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr float kFarthest = 22.0f;    // a class so far below the first has a weight of less than 2^-31 of its
constexpr u32 kAll = 0xffffffffu;

// Which settings there is one of for each sequence, not one for all. Packed by sample_token.py.
enum Each { kTemperature = 1, kTopK = 2, kTopP = 4, kPenalty = 8 };

// Logits of a row, as they are or as penalties left them. NaN is the least.
template <class T>
struct Logits {
  const T* given;
  const float* changed;  // or null

  __device__ float operator[](i64 i) const {
    const float value = changed ? changed[i] : cast<float>(given[i]);
    return value == value ? value : -limits<float>::inf();
  }
};

// Calls visit(i, value) for i = first, first + step, ... before `end`.
template <class T, class Visit>
__device__ inline void for_each_value(const Logits<T>& logits, i64 first, i64 end, int step, Visit visit) {
  for (i64 i = first; i < end; i += kAhead * step) {
    float values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) values[k] = i + k * step < end ? logits[i + k * step] : 0.0f;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k * step < end) visit(i + k * step, values[k]);
    }
  }
}

// The scaled distance of a class below the first: one that is not kFarthest away has a place of 32 bits, which order by
// distance, and a weight. NaN is far.
struct Scale {
  float largest, inverse;

  __device__ float distance(float value) const { return value == largest ? 0.0f : (largest - value) * inverse; }
};

__device__ inline u32 place_of(float distance) { return u32(distance * 134217728.0f); }  // 2^27

// 2^31 * e^-distance, for a distance of [0, kFarthest), to the same bits as sample_token.py.
__device__ inline u32 weight_of(float distance) {
  const float x = -distance, power = floorf(x * 1.44269504f + 0.5f);
  const float rest = (x - power * 0.693359375f) - power * -2.12194440e-4f;
  float p = 1.0f;
#pragma unroll
  for (int n = 7; n > 0; --n) p = 1.0f + rest * p * float(1.0 / n);
  return u32(p * reinterpret<float>(u32(int(power) + 31 + 127) << 23));
}

// Shared memory of the search.
struct Search {
  u32 counts[kDigits], low[kDigits], high[kDigits];  // of the classes with a digit: how many, and their weight
  u64 sums[kMaxWarps];
  Placed<float> largest[kMaxWarps];
  u64 before;
  u32 digit, count;
};

// The place of the last class that is kept if classes are taken by distance until there are `wanted` of them, or of
// their weight; all of its place are kept. Found digit by digit, until one class is left that it can be.
template <bool IsByWeight, class T>
__device__ inline u32 find_bound(
    const Logits<T>& logits, const Scale& scale, i64 classes, u64 wanted, Search& search) {
  u64 bound = 0, left = wanted;
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) search.counts[i] = search.low[i] = search.high[i] = 0;
    __syncthreads();
    for_each_value(logits, threadIdx.x, classes, blockDim.x, [&](i64, float value) {
      const float distance = scale.distance(value);
      if (!(distance < kFarthest)) return;
      const u32 place = place_of(distance);
      if (u64(place) >> shift >> kDigitBits != bound) return;
      const int digit = place >> shift & (kDigits - 1);
      atomicAdd(&search.counts[digit], 1u);
      if constexpr (IsByWeight) {
        const u32 weight = weight_of(distance), sum = atomicAdd(&search.low[digit], weight) + weight;
        if (sum < weight) atomicAdd(&search.high[digit], 1u);
      }
    });
    __syncthreads();
    const auto size_of = [&](int digit) {
      return IsByWeight ? u64(search.high[digit]) << 32 | search.low[digit] : u64(search.counts[digit]);
    };
    const int each = kDigits / blockDim.x, first = threadIdx.x * each;
    u64 own = 0, total;
    for (int i = first; i < first + each; ++i) own += size_of(i);
    u64 before = sum_before(own, search.sums, total);
    if (total < left) return kAll;
    for (int i = first; i < first + each; ++i) {
      if (before < left && left <= before + size_of(i)) {
        search.digit = i;
        search.count = search.counts[i];
        search.before = before;
      }
      before += size_of(i);
    }
    __syncthreads();
    bound = bound << kDigitBits | search.digit;
    left -= search.before;
    if (search.count == 1) return u32(((bound + 1) << shift) - 1);
  }
  return u32(bound);
}

// The weight of a class, 0 if it is far or beyond the bound.
__device__ inline u32 weigh(const Scale& scale, float value, u32 bound) {
  const float distance = scale.distance(value);
  return distance < kFarthest && place_of(distance) <= bound ? weight_of(distance) : 0;
}

// The part of a row that the warp of this thread adds up: classes [first, end).
struct Part {
  i64 first, end;

  __device__ Part(i64 classes) {
    const i64 width = (classes + blockDim.x - 1) / blockDim.x * kWarpThreads;
    first = threadIdx.x / kWarpThreads * width;
    end = first + width < classes ? first + width : classes;
  }
};

// The weights of the classes within the bound, by warp in search.sums; returns their sum.
template <class T>
__device__ inline u64 sum_weights(
    const Logits<T>& logits, const Scale& scale, i64 classes, u32 bound, Search& search) {
  const int lane = threadIdx.x % kWarpThreads;
  const Part part(classes);
  u64 sum = 0;
  for_each_value(logits, part.first + lane, part.end, kWarpThreads, [&](i64, float value) {
    sum += weigh(scale, value, bound);
  });
  for (int half = kWarpThreads / 2; half > 0; half /= 2) sum += shuffle_down(sum, half, kWarpThreads);
  if (lane == 0) search.sums[threadIdx.x / kWarpThreads] = sum;
  __syncthreads();
  u64 total = 0;
  for (int i = 0; i < blockDim.x / kWarpThreads; ++i) total += search.sums[i];
  return total;
}

// Writes the first class at which the running sum of weights exceeds `wanted`, by the warp whose part it lies in.
template <class T>
__device__ inline void find_class(
    const Logits<T>& logits, const Scale& scale, i64 classes, u32 bound, u64 wanted, const Search& search, i64* chosen) {
  const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
  u64 before = 0;
  for (int i = 0; i < warp; ++i) before += search.sums[i];
  if (wanted < before || wanted >= before + search.sums[warp]) return;
  const Part part(classes);
  for (i64 base = part.first; base < part.end; base += kWarpThreads) {
    const i64 i = base + lane;
    u64 sum = i < part.end ? weigh(scale, logits[i], bound) : 0;
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const u64 other = __shfl_up_sync(kWholeWarp, sum, distance);
      if (lane >= distance) sum += other;
    }
    const u32 above = __ballot_sync(kWholeWarp, before + sum > wanted);
    if (above) {
      if (lane == __ffs(int(above)) - 1) *chosen = i;
      return;
    }
    before += __shfl_sync(kWholeWarp, sum, kWarpThreads - 1);
  }
}

// Computes: y[s, j] = a class, as likely as its weight e^(x / temperature) is among the weights of the classes kept: of
//   the top_k first ones those of the largest weights that make up top_p of it. Before, a logit of which tokens[s, :count
//   - (rows - 1 - j)] has the class is multiplied by the penalty, or divided if it is not negative. Temperature 0: the
//   first class of the largest logit.
// Shapes: x [sequences, rows, classes], y, places [sequences, rows], tokens [sequences, count]; temperature, top_k, top_p
//   and penalty one element, or one for each sequence as `each` says; null where they do nothing, as tokens and places.
//   key two words, or null. changed as x with tokens, else nothing.
// Grid: one block per row, of 64 to 1024 threads, a power of two.
// Needs: classes >= 1.
// Numerics: logits and distances in float, weights as multiples of 2^-31 of the largest; integers are summed, so the
//   order does not matter. Classes of equal distance are kept together. NaN is the least.
template <class T>
__global__ void __launch_bounds__(kMostThreads, 1) sample_token(
    const T* __restrict__ x, const float* __restrict__ temperature, const i64* __restrict__ top_k,
    const float* __restrict__ top_p, const i64* __restrict__ tokens, const float* __restrict__ penalty,
    const i64* __restrict__ places, const u64* __restrict__ key, i64* __restrict__ y, float* changed, i64 classes,
    i64 rows, i64 count, u32 each, const Draw draw) {
  __shared__ Search search;
  const i64 row = blockIdx.x, sequence = row / rows;
  const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads, warps = blockDim.x / kWarpThreads;
  const T* const given = x + row * classes;
  float* const own = changed + row * classes;
  wait_for_predecessors();
  launch_dependents();
  Logits<T> logits{given, nullptr};
  if (tokens) {
    const float factor = penalty[each & kPenalty ? sequence : 0];
    const i64 end = count - (rows - 1 - row % rows);
    for (i64 i = threadIdx.x; i < classes; i += blockDim.x) own[i] = logits[i];
    __syncthreads();
    for (i64 i = threadIdx.x; i < end; i += blockDim.x) {
      const i64 token = tokens[sequence * count + i];
      if (token < 0 || token >= classes) continue;
      const float value = logits[token];
      atomicExch(&own[token], value < 0.0f ? value * factor : value / factor);
    }
    __syncthreads();
    logits.changed = own;
  }

  const auto merge = [](Placed<float> a, Placed<float> b) { return wins(a, b, false, false) ? a : b; };
  Placed<float> largest{0.0f, -1};
  for_each_value(logits, threadIdx.x, classes, blockDim.x, [&](i64 i, float value) {
    largest = merge(largest, Placed<float>{value, i});
  });
  for (int half = kWarpThreads / 2; half > 0; half /= 2) {
    largest = merge(largest, shuffle_down(largest, half, kWarpThreads));
  }
  if (lane == 0) search.largest[warp] = largest;
  __syncthreads();
  largest = search.largest[0];
  for (int i = 1; i < warps; ++i) largest = merge(largest, search.largest[i]);
  const float divisor = temperature ? temperature[each & kTemperature ? sequence : 0] : 1.0f;
  if (!(divisor > 0.0f)) {
    if (threadIdx.x == 0) y[row] = largest.place;
    return;
  }

  const Scale scale{largest.value, 1.0f / divisor};
  const i64 most = top_k ? top_k[each & kTopK ? sequence : 0] : 0;
  u32 bound = kAll;
  if (most > 0 && most < classes) bound = find_bound<false>(logits, scale, classes, u64(most), search);
  u64 sum = sum_weights(logits, scale, classes, bound, search);
  const float share = top_p ? top_p[each & kTopP ? sequence : 0] : 1.0f;
  if (share < 1.0f) {
    const u64 wanted = share > 0.0f ? u64(double(sum) * double(share)) : 0;
    bound = find_bound<true>(logits, scale, classes, wanted > 0 ? wanted : 1, search);
    sum = sum_weights(logits, scale, classes, bound, search);
  }

  const u64 numbered[2] = {key ? key[0] : 0, key && !places ? key[1] : 0};
  const u64 block = places ? u64(sequence) << 32 | u32(places[row]) : u64(row);
  double numbers[2];
  draw_uniform(draw, numbered, block, numbers);
  const u64 wanted = u64(numbers[0] * double(sum));
  find_class(logits, scale, classes, bound, wanted < sum ? wanted : sum - 1, search, &y[row]);
}
