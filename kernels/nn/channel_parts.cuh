// Means and variances of the channels of images, summed in an order of their own, and the map by them.
//
// A channel of an image is cut into parts, and a part into runs of positions. Of a run, the rows g, g + 8, g + 16 and g + 24
// are measured first, since a lane has them when a product is done; eight of these fours are merged as a tree, neighbours
// first, and so are the runs of a part. Parts are merged in chains. A last part that is no whole one is merged run by run.
// So numbers are the same whoever measures, and however the image lies.
#pragma once
#include "epilogue.cuh"
#include "grid.cuh"
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"

constexpr int kPartPositions = 1024, kRunPositions = 32, kPartRuns = kPartPositions / kRunPositions;
constexpr int kFour = 4, kRunFours = kRunPositions / kFour;
constexpr int kOctet = 8, kPartOctets = kPartRuns / kOctet;  // runs that a thread merges
constexpr int kMergers = 8;                                  // chains that parts are merged in
constexpr int kFetched = 4;                                  // parts of a chain that are fetched together
constexpr int kSideBySide = 4;                               // channels, or vectors of them, of a tile
constexpr int kTileThreads = kSideBySide * kPartRuns;

// Extents of images, and parts of a channel.
struct ChannelSizes {
  i32 channels, positions, parts;

  __device__ int count(int part) const {
    const int left = positions - part * kPartPositions;
    return left < kPartPositions ? left : kPartPositions;
  }
};

// Mean, and sum of squares of distances from it.
struct Moments {
  float mean, squares;

  // Takes in those of as many others, of which `half` is half the number. Either may take in the other, to the same bits.
  __device__ void merge(const Moments& other, float half) {
    const float distance = other.mean - mean;
    squares = fmaf(distance * distance, half, squares + other.squares);
    mean = (mean + other.mean) * 0.5f;
  }
};

// The same of `count` elements.
struct Spread {
  float mean, squares, count;

  // Takes others in (Chan, Golub and LeVeque, 1983).
  __device__ void merge(const Spread& other) {
    const float all = count + other.count, distance = other.mean - mean, share = other.count / all;
    mean += distance * share;
    squares += other.squares + distance * distance * (count * share);
    count = all;
  }
};

__device__ inline Moments measure_four(float a, float b, float c, float d) {
  const float mean = ((a + b) + (c + d)) * 0.25f;
  a -= mean, b -= mean, c -= mean, d -= mean;
  return {mean, fmaf(b, b, a * a) + fmaf(d, d, c * c)};
}

// Merges moments of `count` elements each as a tree, neighbours first.
template <int N>
__device__ inline Moments merge_neighbours(Moments (&moments)[N], float count) {
#pragma unroll
  for (int width = 1; width < N; width *= 2) {
#pragma unroll
    for (int i = 0; i < N; i += 2 * width) moments[i].merge(moments[i + width], 0.5f * count * width);
  }
  return moments[0];
}

// Measures a whole run, by `value(row)`.
template <class Value>
__device__ inline Moments measure_run(const Value& value) {
  Moments fours[kRunFours];
#pragma unroll
  for (int g = 0; g < kRunFours; ++g) {
    fours[g] = measure_four(value(g), value(g + kRunFours), value(g + 2 * kRunFours), value(g + 3 * kRunFours));
  }
  return merge_neighbours(fours, float(kFour));
}

// Measures the first `count` rows of a run, in order; `visit(row, add)` calls add(i, value) for each channel.
template <int Width, class Visit>
__device__ inline void measure_rows(int count, const Visit& visit, Moments (&moments)[Width]) {
  float sums[Width] = {};
#pragma unroll 1
  for (int row = 0; row < count; ++row) visit(row, [&](int i, float value) { sums[i] += value; });
#pragma unroll
  for (int i = 0; i < Width; ++i) moments[i] = {sums[i] / float(count), 0.0f};
#pragma unroll 1
  for (int row = 0; row < count; ++row) {
    visit(row, [&](int i, float value) {
      const float distance = value - moments[i].mean;
      moments[i].squares += distance * distance;
    });
  }
}

// Merges the runs of a part of `count` positions, for `live` of so many channels: `read(run, channel)` has their moments,
// `write(channel, moments)` takes those of the part. All threads of the block come here.
template <int Channels, int Threads, class Read, class Write>
__device__ inline void merge_runs(int count, int live, Moments (&octets)[kPartOctets][Channels], const Read& read,
                                  const Write& write) {
  if (count < kPartPositions) {
    for (int channel = threadIdx.x; channel < live; channel += Threads) {
      Spread total = {};
#pragma unroll 1
      for (int run = 0; run * kRunPositions < count; ++run) {
        const int left = count - run * kRunPositions;
        const Moments own = read(run, channel);
        const Spread spread = {own.mean, own.squares, float(left < kRunPositions ? left : kRunPositions)};
        if (run == 0) total = spread;
        else total.merge(spread);
      }
      write(channel, Moments{total.mean, total.squares});
    }
    return;
  }
  for (int i = threadIdx.x; i < kPartOctets * Channels; i += Threads) {
    const int octet = i / Channels, channel = i % Channels;
    if (channel >= live) continue;
    Moments runs[kOctet];
#pragma unroll
    for (int k = 0; k < kOctet; ++k) runs[k] = read(octet * kOctet + k, channel);
    octets[octet][channel] = merge_neighbours(runs, float(kRunPositions));
  }
  __syncthreads();
  for (int channel = threadIdx.x; channel < live; channel += Threads) {
    Moments parts[kPartOctets];
#pragma unroll
    for (int octet = 0; octet < kPartOctets; ++octet) parts[octet] = octets[octet][channel];
    write(channel, merge_neighbours(parts, float(kOctet * kRunPositions)));
  }
}

// Merges the parts [parts, 2, channels] of `live` of so many channels into their mean and 1 / sqrt(variance + epsilon), which
// go to `statistics` [2, channels]. All threads of the block come here.
template <int Channels, int Threads>
__device__ inline void merge_parts(const ChannelSizes& sizes, int live, Spread (&merged)[kMergers][Channels],
                                   const float* parts, float* statistics, float epsilon) {
  const int chains = sizes.parts < kMergers ? sizes.parts : kMergers;
  for (int i = threadIdx.x; i < chains * Channels; i += Threads) {
    const int chain = i / Channels, channel = i % Channels;
    if (channel >= live) continue;
    Spread total = {};
#pragma unroll 1
    for (int part = chain; part < sizes.parts; part += kFetched * kMergers) {
      Spread others[kFetched];
#pragma unroll
      for (int k = 0; k < kFetched; ++k) {
        const int own = part + k * kMergers;
        if (own >= sizes.parts) continue;
        const float* const at = parts + channel + i64(own) * 2 * sizes.channels;
        others[k] = {__ldcg(at), __ldcg(at + sizes.channels), float(sizes.count(own))};
      }
#pragma unroll
      for (int k = 0; k < kFetched; ++k) {
        const int own = part + k * kMergers;
        if (own == chain) total = others[k];
        else if (own < sizes.parts) total.merge(others[k]);
      }
    }
    merged[chain][channel] = total;
  }
  __syncthreads();
  for (int channel = threadIdx.x; channel < live; channel += Threads) {
    Spread total = merged[0][channel];
    for (int chain = 1; chain < chains; ++chain) total.merge(merged[chain][channel]);
    statistics[channel] = total.mean;
    statistics[sizes.channels + channel] = 1.0f / root_of(total.squares / float(sizes.positions) + epsilon);
  }
}

// A part of a tile of channels of an image as kTileThreads threads work on it: of each, Width neighbouring channels that lie
// last, or a single one of a row-major image.
template <int Width>
struct ChannelUnit {
  static constexpr bool kIsLast = Width > 1;
  static constexpr int kChannels = kSideBySide * Width;
  int lane, own;  // own: the thread's first channel in the tile
  int image, part, first_channel;
  int begin, end;  // positions
  bool is_inside;
  int start;       // of the thread's channels: an element of the images, as are places below

  __device__ ChannelUnit(const ChannelSizes& sizes, int image, int tile, int part, int thread)
      : image(image), part(part), first_channel(tile * kChannels) {
    lane = kIsLast ? thread / kSideBySide : thread % kPartRuns;
    own = (kIsLast ? thread % kSideBySide : thread / kPartRuns) * Width;
    is_inside = first_channel + own < sizes.channels;
    begin = part * kPartPositions;
    end = begin + sizes.count(part);
    start = image * (sizes.channels * sizes.positions) + (first_channel + own) * (kIsLast ? 1 : sizes.positions);
  }

  __device__ int count_live(const ChannelSizes& sizes) const {
    const int left = sizes.channels - first_channel;
    return left < kChannels ? left : kChannels;
  }
};

// How a unit reads what it maps: what no block of the launch has written, or others have.
struct FromAnywhere {
  template <int Width, class T>
  static __device__ Vec<T, Width> load(const T* source) {
    return load_vec<Width>(source);
  }
};
struct FromOthers {  // not through L1
  template <int Width, class T>
  static __device__ Vec<T, Width> load(const T* source) {
    static_assert(sizeof(Vec<T, Width>) == sizeof(float4), "a load of 16 bytes");
    union {
      float4 bytes;
      Vec<T, Width> vector;
    } pun = {__ldcg(reinterpret_cast<const float4*>(source))};
    return pun.vector;
  }
};

// Maps a unit whose channels are measured.
template <class From, class T, int Width, class Y, class Finish>
__device__ inline void map_unit(const ChannelUnit<Width>& unit, const T* x, const T* scale, const T* bias, Y* y,
                                const float* statistics, const ChannelSizes& sizes, const Finish& finish) {
  constexpr bool kIsLast = ChannelUnit<Width>::kIsLast;
  constexpr int kVector = kIsLast ? Width : 4, kGroups = kVector / 4;  // row-major: of neighbouring positions
  constexpr int kOwnVectors = kIsLast ? kRunPositions : kRunPositions / kVector;
  constexpr int kMapped = kIsLast ? 8 : 4, kTogether = kMapped / kGroups;  // groups of four elements, and vectors, at once
  if (!unit.is_inside) return;
  float centers[Width], inverses[Width], scales[Width], biases[Width];
  const int channel = unit.first_channel + unit.own;
  const float* const measured = statistics + i64(unit.image) * 2 * sizes.channels + channel;
  const Vec<T, Width> own_scales = load_vec<Width>(scale + channel), own_biases = load_vec<Width>(bias + channel);
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    centers[i] = __ldcg(measured + i);
    inverses[i] = __ldcg(measured + sizes.channels + i);
    scales[i] = widen(own_scales.lanes[i]);
    biases[i] = widen(own_biases.lanes[i]);
  }
  const int spread = kIsLast ? 1 : kVector;  // positions of a vector
  const int stride = opaque(kPartRuns * (kIsLast ? sizes.channels : kVector));
  int position = unit.begin + unit.lane * spread, place = unit.start + position * (kIsLast ? sizes.channels : 1);
#pragma unroll 1
  for (int first = 0; first < kOwnVectors; first += kTogether) {
    Vec<T, kVector> given[kTogether];
    float values[kMapped][4];
    i64 places[kMapped];
    int counts[kMapped];
#pragma unroll
    for (int k = 0; k < kTogether; ++k, position += kPartRuns * spread, place += stride) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        places[k * kGroups + g] = u32(place) + 4 * g;
        counts[k * kGroups + g] = position < unit.end ? 4 : 0;
      }
      if (position < unit.end) given[k] = From::template load<kVector>(x + u32(place));
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int i = kIsLast ? j : 0;
        float& value = values[k * kGroups + j / 4][j % 4];
        value = 0.0f;
        if (counts[k * kGroups] <= 0) continue;
        value = (widen(given[k].lanes[j]) - centers[i]) * inverses[i] * scales[i] + biases[i];
      }
    }
    finish.many(values, places, counts);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (counts[k * kGroups] <= 0) break;
      Vec<Y, kVector> finished;
#pragma unroll
      for (int j = 0; j < kVector; ++j) finished.lanes[j] = cast<Y>(values[k * kGroups + j / 4][j % 4]);
      store_vec(y + finish.where(places[k * kGroups]), finished);
    }
  }
}
