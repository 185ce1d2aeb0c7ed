// Sampling of the next token from a row of logits: repetition penalty, temperature, top-k, top-p, and one random number.
#include "dependent_launch.cuh"
#include "grid.cuh"
#include "philox.cuh"
#include "scan.cuh"

constexpr int kMostThreads = 1024;
constexpr int kAhead = 4;             // elements that a thread asks memory for before it uses the first
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kWords = 3 * kDigits;
constexpr float kFarthest = 32.0f;    // a class so many octaves below the first weighs nothing
constexpr u32 kAll = 0xffffffffu;

// Which settings there is one of for each sequence, not one for all. Packed by sample_token.py.
enum Each { kTemperature = 1, kTopK = 2, kTopP = 4, kPenalty = 8 };

// Calls visit(i, value) for i = first, first + step, ... before `end`, with what stands there in a row.
template <class T, class Visit>
__device__ inline void for_each_value(const T* row, u32 first, u32 end, u32 step, Visit visit) {
  u32 i = first;
  for (; i + (kAhead - 1) * step < end; i += kAhead * step) {
    T values[kAhead];
#pragma unroll
    for (u32 k = 0; k < kAhead; ++k) values[k] = row[i + k * step];
#pragma unroll
    for (u32 k = 0; k < kAhead; ++k) visit(i + k * step, cast<float>(values[k]));
  }
  for (; i < end; i += step) visit(i, cast<float>(row[i]));
}

// How many octaves less likely than the first a class is. Those that are near are ordered by its bits; others weigh nothing,
// and NaN is one of them.
struct Place {
  float distance;
  u32 bits;  // the distance by 2^27

  __device__ Place(float value, float largest, float octaves) {
    distance = value == largest ? 0.0f : (largest - value) * octaves;
    bits = distance < kFarthest ? u32(distance * 134217728.0f) : 0;
  }

  __device__ bool is_near() const { return distance < kFarthest; }

  // 2^(31 - distance) by a polynomial, to the same bits as sample_token.py.
  __device__ u32 weight() const {
    const float part = distance - floorf(distance);
    float p = -0.000946877000387758f;
    p = p * part + 0.009209180250763893f;
    p = p * part - 0.05529811978340149f;
    p = p * part + 0.24017895758152008f;
    p = p * part - 0.6931431293487549f;
    p = p * part + 0.9999999403953552f;
    return u32(p * 2147483648.0f) >> (bits >> 27);
  }
};

// What a block has of a row of logits, classes [first, end): the largest of the row, and the octaves of a unit, which the
// temperature says.
template <class T>
struct Row {
  const T* logits;
  u32 first, end;
  float largest, octaves;

  __device__ Place place(float value) const { return Place(value, largest, octaves); }

  // The weight of a class, 0 if it is beyond the bound.
  __device__ u32 weigh(float value, u32 bound) const {
    const Place at = place(value);
    return at.is_near() && at.bits <= bound ? at.weight() : 0;
  }
};

// Shared memory of the search.
struct Search {
  u32 words[kWords];  // for each digit the classes that have it, then low and high words of their weight; or bits
  u64 sums[kMaxWarps];
  Placed<float> largest[kMaxWarps];
  u64 before;
  u32 digit, count;
};

// The blocks that share a row. Two or more meet at a barrier of the grid, as often in each row, whatever its settings are.
struct Blocks {
  u32 count, number;
  u64* held;  // two words of each, for all
  u32* words;  // kWords for each digit, which are 0
  unsigned* barrier;

  // Adds the words of all blocks to those of each, where they are wanted.
  __device__ void add_up(u32* own, bool is_wanted) {
    if (count == 1) return;
    for (int i = threadIdx.x; i < kDigits && is_wanted; i += blockDim.x) {
      if (own[i] == 0) continue;
      const u32 low = own[kDigits + i];
      atomicAdd(&words[i], own[i]);
      const u32 carry = low > 0 && atomicAdd(&words[kDigits + i], low) + low < low;
      if (own[2 * kDigits + i] + carry > 0) atomicAdd(&words[2 * kDigits + i], own[2 * kDigits + i] + carry);
    }
    grid_sync(barrier);
    for (int i = threadIdx.x; i < kWords && is_wanted; i += blockDim.x) own[i] = __ldcg(&words[i]);
    words += kWords;
    __syncthreads();
  }

  // Shows a word of this block to all; others[i] is that of another from then on.
  __device__ const u64* show(u64 word, int place) {
    if (is_first_thread()) held[2 * number + place] = word;
    grid_sync(barrier);
    return held + place;
  }
};

// The bits of the last class that is kept if those within a limit are taken in order until there are as many as want() says
// of all, or as much of their weight; equal ones are kept too. Found digit by digit, until one class is left that it can be.
template <bool IsByWeight, class T, class Want>
__device__ inline u32 find_bound(
    const Row<T>& row, u32 limit, bool is_open, Want want, Search& search, Blocks& blocks) {
  u32* const counts = search.words;
  u32 *const low = counts + kDigits, *const high = low + kDigits;
  u64 bound = 0, left = 0;
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    if (is_open) {
      for (int i = threadIdx.x; i < kWords; i += blockDim.x) search.words[i] = 0;
      __syncthreads();
      for_each_value(row.logits, row.first + threadIdx.x, row.end, blockDim.x, [&](u32, float value) {
        const Place at = row.place(value);
        if (!at.is_near() || at.bits > limit || u64(at.bits) >> shift >> kDigitBits != bound) return;
        const int digit = at.bits >> shift & (kDigits - 1);
        atomicAdd(&counts[digit], 1u);
        if constexpr (IsByWeight) {
          const u32 weight = at.weight(), sum = atomicAdd(&low[digit], weight) + weight;
          if (sum < weight) atomicAdd(&high[digit], 1u);
        }
      });
      __syncthreads();
    }
    blocks.add_up(search.words, is_open);
    if (!is_open) continue;
    const auto size_of = [&](int digit) {
      return IsByWeight ? u64(high[digit]) << 32 | low[digit] : u64(counts[digit]);
    };
    const int each = kDigits / blockDim.x, first = threadIdx.x * each;
    u64 own = 0, total;
#pragma unroll 1
    for (int i = first; i < first + each; ++i) own += size_of(i);
    u64 before = sum_before(own, search.sums, total);
    if (shift == 2 * kDigitBits) left = want(total);
    if (total < left) {
      is_open = false;
      continue;
    }
    for (int i = first; i < first + each; ++i) {
      if (before < left && left <= before + size_of(i)) {
        search.digit = i;
        search.count = counts[i];
        search.before = before;
      }
      before += size_of(i);
    }
    __syncthreads();
    bound = bound << kDigitBits | search.digit;
    left -= search.before;
    limit = min(limit, u32(((bound + 1) << shift) - 1));
    is_open = search.count > 1;
  }
  return limit;
}

// The part of what a block has of a row that the warp of this thread adds up: classes [first, end).
struct Part {
  u32 first, end;

  __device__ Part(u32 begin, u32 finish) {
    const u32 width = (finish - begin + blockDim.x - 1 >> (31 - __clz(int(blockDim.x)))) * kWarpThreads;
    first = min(begin + threadIdx.x / kWarpThreads * width, finish);
    end = min(first + width, finish);
  }
};

// The weights of the block's classes within the bound, by warp in search.sums; returns their sum.
template <class T>
__device__ inline u64 sum_weights(const Row<T>& row, u32 bound, Search& search) {
  const int lane = threadIdx.x % kWarpThreads;
  const Part part(row.first, row.end);
  u64 sum = 0;
  for_each_value(row.logits, part.first + lane, part.end, kWarpThreads, [&](u32, float value) {
    sum += row.weigh(value, bound);
  });
  for (int half = kWarpThreads / 2; half > 0; half /= 2) sum += shuffle_down(sum, half, kWarpThreads);
  if (lane == 0) search.sums[threadIdx.x / kWarpThreads] = sum;
  __syncthreads();
  u64 total = 0;
  for (int i = 0; i < blockDim.x / kWarpThreads; ++i) total += search.sums[i];
  return total;
}

// Writes the first class at which the running sum of the block's weights exceeds `wanted`, by the warp whose part it is in;
// nothing where it is another block's.
template <class T>
__device__ inline void find_class(const Row<T>& row, u32 bound, u64 wanted, const Search& search, i64* chosen) {
  const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
  u64 before = 0;
  for (int i = 0; i < warp; ++i) before += search.sums[i];
  // The difference wraps where the number lies before the part.
  if (wanted - before >= search.sums[warp]) return;
  const Part part(row.first, row.end);
  for (u32 base = part.first; base < part.end; base += kWarpThreads) {
    const u32 i = base + lane;
    u64 sum = i < part.end ? row.weigh(cast<float>(row.logits[i]), bound) : 0;
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

// Writes classes [begin, finish) of a row, with the logits of tokens multiplied by a factor, or divided if they are not
// negative; once for each.
template <class T>
__device__ inline void penalise(
    const T* row, T* changed, u32 begin, u32 finish, const i64* tokens, i64 count, float factor, Search& search) {
  for (u32 start = begin; start < finish; start += 32 * kWords) {
    const u32 end = min(start + 32 * kWords, finish);
    for (int i = threadIdx.x; i < kWords; i += blockDim.x) search.words[i] = 0;
    __syncthreads();
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
      const i64 token = tokens[i] - start;
      if (token >= 0 && token < end - start) atomicOr(&search.words[token / 32], 1u << token % 32);
    }
    __syncthreads();
    for_each_value(row, start + threadIdx.x, end, blockDim.x, [&](u32 i, float value) {
      const bool is_held = search.words[(i - start) / 32] >> (i - start) % 32 & 1;
      changed[i] = cast<T>(!is_held ? value : value < 0.0f ? value * factor : value / factor);
    });
    __syncthreads();
  }
}

// The largest value of the block's classes, and the first class that has it. NaN is the least of all.
template <class T>
__device__ inline Placed<float> find_largest(const T* logits, u32 first, u32 end, Search& search) {
  const auto merge = [](Placed<float> a, Placed<float> b) { return wins(a, b, false, false) ? a : b; };
  Placed<float> largest{-limits<float>::inf(), first + threadIdx.x < end ? i64(first + threadIdx.x) : -1};
  for_each_value(logits, first + threadIdx.x, end, blockDim.x, [&](u32 i, float value) {
    if (value > largest.value) largest = Placed<float>{value, i};
  });
  for (int half = kWarpThreads / 2; half > 0; half /= 2) {
    largest = merge(largest, shuffle_down(largest, half, kWarpThreads));
  }
  if (threadIdx.x % kWarpThreads == 0) search.largest[threadIdx.x / kWarpThreads] = largest;
  __syncthreads();
  largest = search.largest[0];
  for (int i = 1; i < blockDim.x / kWarpThreads; ++i) largest = merge(largest, search.largest[i]);
  return largest;
}

// Computes: y[s, j] = a class, as likely as its weight e^(x / temperature) is among the weights of the classes kept: of
//   the top_k first ones those of the largest weights that make up top_p of it. Before, a logit of which tokens[s, :count
//   - (rows - 1 - j)] has the class is multiplied by the penalty, or divided if it is not negative. Temperature 0: the
//   first class of the largest logit.
// Shapes: x [sequences, rows, classes], y, places [sequences, rows], tokens [sequences, count]; temperature, top_k, top_p
//   and penalty one element, or one for each sequence as `each` says; null where they do nothing, as tokens and places.
//   key two words, or null. changed as x with tokens, else nothing. Of a row of several blocks: held two words for each,
//   counters a barrier and, for each row, kWords for each digit of top_k and of top_p that is there.
// Grid: `parts` blocks per row, of 64 to 1024 threads, a power of two; cooperative if they are several.
// Needs: 1 <= classes < 2^31; counters that are 0.
// Numerics: penalised logits are rounded to T, distances are float, and weights multiples of about 2^-31 of the largest:
//   integers are summed, so the order does not matter. Classes of equal distance are kept together. NaN is never drawn.
template <class T>
__global__ void __launch_bounds__(kMostThreads, 1) sample_token(
    const T* __restrict__ x, const float* __restrict__ temperature, const i64* __restrict__ top_k,
    const float* __restrict__ top_p, const i64* __restrict__ tokens, const float* __restrict__ penalty,
    const i64* __restrict__ places, const u64* __restrict__ key, i64* __restrict__ y, T* changed, u64* held,
    u32* counters, i32 classes, i32 rows, i32 parts, i64 count, u32 each, const Draw draw) {
  __shared__ Search search;
  const u32 number = blockIdx.x / u32(parts), sequence = number / u32(rows);
  const u32 width = (u32(classes) + parts - 1) / parts;
  Blocks blocks{u32(parts), blockIdx.x % u32(parts), held + i64(number) * 2 * parts, counters, counters};
  blocks.words += 1 + number * u32((top_k ? 3 : 0) + (top_p ? 3 : 0)) * kWords;
  const u32 first = min(blocks.number * width, u32(classes)), end = min(first + width, u32(classes));
  const T* logits = x + i64(number) * classes;
  wait_for_predecessors();
  launch_dependents();
  if (tokens) {
    T* const own = changed + i64(number) * classes;
    const i64 held_count = count - (rows - 1 - number % u32(rows));
    const float factor = penalty[each & kPenalty ? sequence : 0];
    penalise(logits, own, first, end, tokens + sequence * count, held_count, factor, search);
    logits = own;
  }

  Placed<float> largest = find_largest(logits, first, end, search);
  if (parts > 1) {
    const u64* const all = blocks.show(u64(reinterpret<u32>(largest.value)) << 32 | u32(largest.place), 0);
    for (int i = 0; i < parts; ++i) {
      const u64 word = __ldcg(&all[2 * i]);
      const Placed<float> other{reinterpret<float>(u32(word >> 32)), i64(i32(word))};
      if (wins(other, largest, false, false)) largest = other;
    }
  }
  const float divisor = temperature ? temperature[each & kTemperature ? sequence : 0] : 1.0f;
  const bool is_drawn = divisor > 0.0f;
  const Row<T> row{logits, first, end, largest.value, 1.0f / divisor * 1.44269504f};
  u32 bound = kAll;
  if (top_k) {
    const i64 most = top_k[each & kTopK ? sequence : 0];
    const bool is_open = is_drawn && most > 0 && most < classes;
    bound = find_bound<false>(row, bound, is_open, [&](u64) { return u64(most); }, search, blocks);
  }
  if (top_p) {
    const float share = top_p[each & kTopP ? sequence : 0];
    const auto want = [&](u64 total) {
      const u64 wanted = share > 0.0f ? u64(double(total) * double(share)) : 0;
      return wanted > 0 ? wanted : 1;
    };
    bound = find_bound<true>(row, bound, is_drawn && share < 1.0f, want, search, blocks);
  }
  u64 before = 0, own = is_drawn ? sum_weights(row, bound, search) : 0, sum = own;
  if (parts > 1) {
    const u64* const all = blocks.show(own, 1);
    sum = 0;
    for (u32 i = 0; i < parts; ++i) {
      if (i == blocks.number) before = sum;
      sum += __ldcg(&all[2 * i]);
    }
  }
  if (sum == 0) {  // the likeliest is wanted, or there is nothing but NaN
    if (threadIdx.x == 0 && blocks.number == 0) y[number] = largest.place;
    return;
  }
  const u64 pair[2] = {key ? key[0] : 0, key && !places ? key[1] : 0};
  const u64 block = places ? u64(sequence) << 32 | u32(places[number]) : u64(number);
  double numbers[2];
  draw_uniform(draw, pair, block, numbers);
  u64 wanted = u64(numbers[0] * double(sum));
  wanted = wanted < sum ? wanted : sum - 1;
  find_class(row, bound, wanted - before, search, &y[number]);
}
