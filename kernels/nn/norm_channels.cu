// Normalisation of channels: of large ones, row-major or channels last, by parts; of small ones that lie last, by a block.
//
// A large channel of an image is cut into parts of kPartPositions, each measured by 32 lanes, and the parts of a channel are
// merged in a fixed order. So sums are the same however the image lies: row-major a warp has a channel and neighbouring
// lanes read neighbouring positions; channels last neighbouring threads read neighbouring channels, by vectors.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "grid.cuh"
#include "index.cuh"
#include "reduce.cuh"
#include "vec.cuh"

constexpr int kPartPositions = 1024;
constexpr int kPartLanes = kWarpThreads;
constexpr int kOwnPositions = kPartPositions / kPartLanes;
constexpr int kSideBySide = 4;  // channels, or vectors of them, of a tile
constexpr int kTileThreads = kSideBySide * kPartLanes;
constexpr int kMergers = 8;  // chains that parts are merged in
constexpr int kFetched = 4;  // parts of a chain that are fetched together

// Large channels of images as units of work: a unit is a part of a tile of channels. Units are numbered by groups of tiles,
// in a group by parts, in a part by tiles. Packed by gpuexec/ops/nn/norm_channels_launch.py.
struct LargeChannels {
  i32 channels, positions, parts;
  i32 units;                // of all images
  i32 ahead;                // units that are measured before the first one is mapped: at least those of a group
  i32 group;                // tiles of a group
  FastDiv32 by_units;       // units of a group
  FastDiv32 by_neighbours;  // tiles of a group
  FastDiv32 by_tiles;       // tiles of an image
};

// Mean, and sum of squares of distances from it, of `count` elements.
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

// The unit of a block, and the elements of its threads: Width neighbouring channels at every 32nd position.
template <int Width>
struct ChannelUnit {
  static constexpr bool kIsLast = Width > 1;
  static constexpr int kChannels = kSideBySide * Width;
  int tile, part;  // the tile among those of all images
  int lane, own;   // own: the thread's first channel in the tile
  int image, first_channel;
  int begin, end;  // positions
  bool is_inside;
  int start;       // of the thread's channels: an element of the images, as are places below

  __device__ ChannelUnit(const LargeChannels& sizes, u32 unit) {
    const int thread = threadIdx.x;
    lane = kIsLast ? thread / kSideBySide : thread % kPartLanes;
    own = (kIsLast ? thread % kSideBySide : thread / kPartLanes) * Width;
    u32 rest, neighbour, tile_of_image;
    const u32 group = sizes.by_units.divide(unit, rest);
    part = int(sizes.by_neighbours.divide(rest, neighbour));
    tile = int(group) * sizes.group + int(neighbour);
    image = int(sizes.by_tiles.divide(u32(tile), tile_of_image));
    first_channel = int(tile_of_image) * kChannels;
    is_inside = first_channel + own < sizes.channels;
    begin = part * kPartPositions;
    end = sizes.positions - begin < kPartPositions ? sizes.positions : begin + kPartPositions;
    start = image * (sizes.channels * sizes.positions) + (first_channel + own) * (kIsLast ? 1 : sizes.positions);
  }
};

// Sums of the lanes of each channel of a tile, in shared memory.
template <int Width>
struct PartSums {
  static constexpr int kChannels = kSideBySide * Width;
  float lanes[kPartLanes][kChannels + 1];  // a column is read without conflicts
  float totals[kChannels];

  // Sums over the lanes by a tree, for all of them. All threads of the block come here.
  __device__ void fold(const ChannelUnit<Width>& unit, float (&sums)[Width]) {
    const auto fold_warp = [](float sum) {
#pragma unroll
      for (int half = kPartLanes / 2; half > 0; half /= 2) sum += shuffle_down(sum, half, kPartLanes);
      return sum;
    };
    if constexpr (Width == 1) {
      sums[0] = shuffle_first(fold_warp(sums[0]), kPartLanes);
    } else {
#pragma unroll
      for (int i = 0; i < Width; ++i) lanes[unit.lane][unit.own + i] = sums[i];
      __syncthreads();
      const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        const float sum = fold_warp(lanes[lane][i * kSideBySide + warp]);
        if (lane == 0) totals[i * kSideBySide + warp] = sum;
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Width; ++i) sums[i] = totals[unit.own + i];
    }
  }
};

// Measures a unit. The block that is the last one of its tile merges the parts of the tile's channels into their mean and
// 1 / sqrt(variance + epsilon), and lets the blocks go on that map them.
template <class T, int Width>
__device__ inline void measure_unit(const ChannelUnit<Width>& unit, const T* x, float* partial, float* statistics,
                                    unsigned* counter, unsigned* signal, const LargeChannels& sizes, float epsilon) {
  constexpr int kChannels = PartSums<Width>::kChannels;
  __shared__ PartSums<Width> shared;
  __shared__ Spread merged[kMergers][kChannels];
  const int step = ChannelUnit<Width>::kIsLast ? sizes.channels : 1, stride = opaque(kPartLanes * step);
  const int count = unit.is_inside ? (unit.end - unit.begin - unit.lane + kPartLanes - 1) / kPartLanes : 0;
  Vec<T, Width> held[kOwnPositions];
  int place = unit.start + (unit.begin + unit.lane) * step;
#pragma unroll
  for (int k = 0; k < kOwnPositions; ++k, place += stride) {
    if (k < count) held[k] = load_vec<Width>(x + u32(place));
  }
  const auto visit = [&](auto add) {
#pragma unroll
    for (int k = 0; k < kOwnPositions; ++k) {
      if (k >= count) continue;
#pragma unroll
      for (int i = 0; i < Width; ++i) add(i, widen(held[k].lanes[i]));
    }
  };
  float sums[Width] = {}, means[Width];
  visit([&](int i, float value) { sums[i] += value; });
  shared.fold(unit, sums);
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    means[i] = sums[i] / float(unit.end - unit.begin);
    sums[i] = 0.0f;
  }
  if constexpr (sizeof(T) < sizeof(float)) {  // widened anew: registers hold no more than they were read as
#pragma unroll
    for (int k = 0; k < kOwnPositions; ++k) {
      Words<Vec<T, Width>> pun(held[k]);
#pragma unroll
      for (int i = 0; i < pun.kCount; ++i) pun.words[i] = u32(opaque(int(pun.words[i])));
      held[k] = pun.value;
    }
  }
  visit([&](int i, float value) {
    const float distance = value - means[i];
    sums[i] += distance * distance;
  });
  shared.fold(unit, sums);
  float* const parts = partial + i64(unit.image) * sizes.parts * 2 * sizes.channels + unit.first_channel;
  if (unit.lane == 0 && unit.is_inside) {
    float* const to = parts + i64(unit.part) * 2 * sizes.channels + unit.own;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      to[i] = means[i];
      to[sizes.channels + i] = sums[i];
    }
  }
  if (!last_block(counter + unit.tile, sizes.parts)) return;

  const auto count_of = [&](int part) {
    const int left = sizes.positions - part * kPartPositions;
    return float(left < kPartPositions ? left : kPartPositions);
  };
  const int left = sizes.channels - unit.first_channel, live = left < kChannels ? left : kChannels;
  const int chains = sizes.parts < kMergers ? sizes.parts : kMergers;
  for (int i = threadIdx.x; i < chains * kChannels; i += kTileThreads) {
    const int chain = i / kChannels, channel = i % kChannels;
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
        others[k] = {__ldcg(at), __ldcg(at + sizes.channels), count_of(own)};
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
  for (int channel = threadIdx.x; channel < live; channel += kTileThreads) {
    Spread total = merged[0][channel];
    for (int chain = 1; chain < chains; ++chain) total.merge(merged[chain][channel]);
    float* const to = statistics + i64(unit.image) * 2 * sizes.channels + unit.first_channel + channel;
    to[0] = total.mean;
    to[sizes.channels] = 1.0f / root_of(total.squares / float(sizes.positions) + epsilon);
  }
  give_signal(signal + unit.tile, sizes.parts);
}

// Maps a unit whose channels are measured.
template <class T, int Width, class Y, class Finish>
__device__ inline void map_unit(const ChannelUnit<Width>& unit, const T* x, const T* scale, const T* bias, Y* y,
                                const float* statistics, const LargeChannels& sizes, const Finish& finish) {
  constexpr bool kIsLast = ChannelUnit<Width>::kIsLast;
  constexpr int kVector = kIsLast ? Width : 4, kGroups = kVector / 4;  // row-major: of neighbouring positions
  constexpr int kOwnVectors = kIsLast ? kOwnPositions : kOwnPositions / kVector;
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
  const int stride = opaque(kPartLanes * (kIsLast ? sizes.channels : kVector));
  int position = unit.begin + unit.lane * spread, place = unit.start + position * (kIsLast ? sizes.channels : 1);
#pragma unroll 1
  for (int first = 0; first < kOwnVectors; first += kTogether) {
    Vec<T, kVector> given[kTogether];
    float values[kMapped][4];
    i64 places[kMapped];
    int counts[kMapped];
#pragma unroll
    for (int k = 0; k < kTogether; ++k, position += kPartLanes * spread, place += stride) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        places[k * kGroups + g] = u32(place) + 4 * g;
        counts[k * kGroups + g] = position < unit.end ? 4 : 0;
      }
      if (position < unit.end) given[k] = load_vec<kVector>(x + u32(place));
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

// Computes  y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each channel of each image
// Shapes    x, y [n, channels, positions], or [n, positions, channels] where IsLast; scale, bias [channels]; partial
//           [n, parts, 2, channels]; statistics [n, 2, channels]; counters [1 + 2 * n * tiles]
// Grid      two blocks per unit, which take turns: the first ones measure units, others map them as soon as their
//           channels are measured, while these are in L2. A block waits for none but those that have begun before it
// Needs     channels a multiple of 8, positions one of 4; x and y aligned to 16 bytes, scale and bias to eight elements;
//           less than 2^31 elements. counters are 0 and are left 0
// Numerics  in float: of a part the mean, then the squares of distances, each lane in the order of positions, lanes as a
//           tree; parts in eight chains, one after the other, then the chains; rounded once; then the epilogue
template <class T, bool IsLast, class... Epilogue>
__global__ void __launch_bounds__(kTileThreads, IsLast ? 3 : 6)
    normalize_large_channels(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ bias,
                             Stored<T, Epilogue...>* __restrict__ y, float* partial, float* statistics,
                             unsigned* counters, LargeChannels sizes, float epsilon, Epilogue... epilogue) {
  constexpr int kWidth = IsLast ? 16 / int(sizeof(T)) : 1;
  wait_for_predecessors();
  launch_dependents();
  const int turn = int(take_turn(counters, gridDim.x));
  unsigned* const signals = counters + 1 + gridDim.x / 2 / sizes.parts;
  // First units are measured alone, then one is mapped and one measured in turn, then the last ones are mapped.
  const int paired = turn - sizes.ahead, left = turn - sizes.units;
  const bool is_mapped = paired >= 0 && (left >= sizes.units - sizes.ahead || paired % 2 == 0);
  if (!is_mapped) {
    const ChannelUnit<kWidth> unit(sizes, u32(paired < 0 ? turn : sizes.ahead + paired / 2));
    measure_unit<T, kWidth>(unit, x, partial, statistics, counters + 1, signals, sizes, epsilon);
  } else {
    const ChannelUnit<kWidth> unit(sizes, u32(left >= sizes.units - sizes.ahead ? left : paired / 2));
    await_signal(signals + unit.tile);
    map_unit<T, kWidth>(unit, x, scale, bias, y, statistics, sizes, finish_by<T>(epilogue...));
  }
}

constexpr int kSmallChannels = 8, kSmallWidth = 4;  // of a block, and of a thread: 32 bytes of floats are a sector
constexpr int kSmallLanes = kBlockThreads / (kSmallChannels / kSmallWidth);

// Computes  y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each channel of each image
// Shapes    x, y [n, positions, channels] dense; scale, bias [channels]
// Grid      one block per image and eight channels: x = image * (channels / 8) + eight
// Needs     channels a multiple of 8; x, y, scale and bias aligned to 4 elements; lanes a power of two of up to 256
// Numerics  those of normalize_rows for as many lanes: in float, lane l adds positions l, l + lanes, ...; lanes as a tree
//           within 32, then these in order; the mean, then squares of distances; rounded once; then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 3)
    normalize_small_channels(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ bias,
                             Stored<T, Epilogue...>* __restrict__ y, i32 positions, i32 channels, i32 lanes,
                             FastDiv32 by_eights, float epsilon, Epilogue... epilogue) {
  typedef Stored<T, Epilogue...> Y;
  constexpr int kRounds = kBlockThreads / kSmallLanes;
  __shared__ float shared[kBlockThreads][kSmallChannels];
  const int thread = threadIdx.x, own = thread % kRounds * kSmallWidth, first_lane = thread / kRounds;
  u32 eight;
  const u32 image = by_eights.divide(blockIdx.x, eight);
  const int channel = int(eight) * kSmallChannels + own;
  const i64 start = i64(image) * positions * channels + channel;
  wait_for_predecessors();
  launch_dependents();

  // Adds up add(sum, value) of each of the thread's lanes, then the lanes, and gives all threads the sums.
  const auto sum_over = [&](auto term, float (&total)[kSmallWidth]) {
    for (int lane = first_lane; lane < lanes; lane += kSmallLanes) {
      float sums[kSmallWidth] = {};
#pragma unroll 4
      for (int position = lane; position < positions; position += lanes) {
        const Vec<T, kSmallWidth> vector = load_vec<kSmallWidth>(x + start + i64(position) * channels);
#pragma unroll
        for (int i = 0; i < kSmallWidth; ++i) sums[i] += term(i, widen(vector.lanes[i]));
      }
#pragma unroll
      for (int i = 0; i < kSmallWidth; ++i) shared[lane][own + i] = sums[i];
    }
    __syncthreads();
    const int width = lanes < kWarpThreads ? lanes : kWarpThreads;
#pragma unroll 1
    for (int half = width / 2; half > 0; half /= 2) {
      for (int lane = first_lane; lane < lanes; lane += kSmallLanes) {
        if (lane % width < half) {
#pragma unroll
          for (int i = 0; i < kSmallWidth; ++i) shared[lane][own + i] += shared[lane + half][own + i];
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kSmallWidth; ++i) total[i] = shared[0][own + i];
    for (int lane = width; lane < lanes; lane += width) {
#pragma unroll
      for (int i = 0; i < kSmallWidth; ++i) total[i] += shared[lane][own + i];
    }
    __syncthreads();
  };
  float center[kSmallWidth], inverse[kSmallWidth];
  sum_over([](int, float value) { return value; }, center);
#pragma unroll
  for (int i = 0; i < kSmallWidth; ++i) center[i] /= float(positions);
  sum_over([&](int i, float value) { return (value - center[i]) * (value - center[i]); }, inverse);
#pragma unroll
  for (int i = 0; i < kSmallWidth; ++i) inverse[i] = 1.0f / root_of(inverse[i] / float(positions) + epsilon);

  const Vec<T, kSmallWidth> scales = load_vec<kSmallWidth>(scale + channel);
  const Vec<T, kSmallWidth> biases = load_vec<kSmallWidth>(bias + channel);
  const auto finish = finish_by<T>(epilogue...);
  for (int position = first_lane; position < positions; position += kSmallLanes) {
    const i64 place = start + i64(position) * channels;
    const Vec<T, kSmallWidth> vector = load_vec<kSmallWidth>(x + place);
    float values[1][kSmallWidth];
#pragma unroll
    for (int i = 0; i < kSmallWidth; ++i) {
      values[0][i] = (widen(vector.lanes[i]) - center[i]) * inverse[i] * widen(scales.lanes[i]);
      values[0][i] += widen(biases.lanes[i]);
    }
    finish.many(values, {place}, {kSmallWidth});
    Vec<Y, kSmallWidth> finished;
#pragma unroll
    for (int i = 0; i < kSmallWidth; ++i) finished.lanes[i] = cast<Y>(values[0][i]);
    store_vec(y + finish.where(place), finished);
  }
}
