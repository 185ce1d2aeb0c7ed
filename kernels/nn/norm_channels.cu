// Normalisation of channels: of large ones, row-major or channels last, by parts; of small ones that lie last, by a block.
//
// A part of a large channel of an image is measured by 32 lanes, each of which has a run of neighbouring positions. Channels
// last, neighbouring threads read neighbouring channels, by vectors; row-major a warp has a channel, and what neighbouring
// lanes read of neighbouring positions goes to the lane of the run through shared memory.
#include "channel_parts.cuh"
#include "dependent_launch.cuh"

// Large channels of images as units of work: a unit is a part of a tile of channels. Units are numbered by groups of tiles,
// in a group by parts, in a part by tiles. Packed by gpuexec/ops/nn/norm_channels_launch.py.
struct LargeChannels : ChannelSizes {
  i32 units;                // of all images
  i32 ahead;                // units that are measured before the first one is mapped: at least those of a group
  i32 group;                // tiles of a group
  FastDiv32 by_units;       // units of a group
  FastDiv32 by_neighbours;  // tiles of a group
  FastDiv32 by_tiles;       // tiles of an image

  // Finds a unit, and its tile among those of all images.
  template <int Width>
  __device__ ChannelUnit<Width> find(u32 unit, int& tile) const {
    u32 rest, neighbour, tile_of_image;
    const u32 own = by_units.divide(unit, rest);
    const int part = int(by_neighbours.divide(rest, neighbour));
    tile = int(own) * group + int(neighbour);
    const int image = int(by_tiles.divide(u32(tile), tile_of_image));
    return ChannelUnit<Width>(*this, image, int(tile_of_image), part, threadIdx.x);
  }
};

// What a unit is measured through, in shared memory. A column of rows, and the runs of a channel, are read without conflicts.
template <int Width>
struct MeasuredUnit {
  static constexpr int kChannels = ChannelUnit<Width>::kChannels;
  float rows[Width == 1 ? kSideBySide : 1][Width == 1 ? kPartRuns : 1][kRunPositions + 1];
  Moments runs[kPartRuns][kChannels + 1];
  Moments octets[kPartOctets][kChannels];
  Spread merged[kMergers][kChannels];
};

// Measures the run of a thread.
template <class T, int Width>
__device__ inline void measure_own(const ChannelUnit<Width>& unit, const T* x, const ChannelSizes& sizes,
                                   MeasuredUnit<Width>& shared) {
  const int left = unit.is_inside ? unit.end - unit.begin : 0, count = left - unit.lane * kRunPositions;
  Moments moments[Width];
  if constexpr (Width == 1) {
    T held[kPartRuns];
    const T* const first = x + u32(unit.start + unit.begin + unit.lane);
#pragma unroll
    for (int run = 0; run < kPartRuns; ++run) {
      if (unit.lane + run * kRunPositions < left) held[run] = first[run * kRunPositions];
    }
    float(&rows)[kPartRuns][kRunPositions + 1] = shared.rows[unit.own];
#pragma unroll
    for (int run = 0; run < kPartRuns; ++run) {
      if (unit.lane + run * kRunPositions < left) rows[run][unit.lane] = widen(held[run]);
    }
    __syncwarp();
    const float* const own = rows[unit.lane];
    if (count >= kRunPositions) moments[0] = measure_run([&](int row) { return own[row]; });
    else measure_rows(count, [&](int row, auto add) { add(0, own[row]); }, moments);
  } else {
    const int stride = opaque(sizes.channels);
    const T* const own = x + u32(unit.start + (unit.begin + unit.lane * kRunPositions) * stride);
    if (count >= kRunPositions) {
      Vec<T, Width> held[kRunPositions];
#pragma unroll
      for (int row = 0; row < kRunPositions; ++row) held[row] = load_vec<Width>(own + u32(row * stride));
#pragma unroll
      for (int i = 0; i < Width; ++i) moments[i] = measure_run([&](int row) { return widen(held[row].lanes[i]); });
    } else {
      const auto visit = [&](int row, auto add) {
        const Vec<T, Width> vector = load_vec<Width>(own + u32(row * stride));
#pragma unroll
        for (int i = 0; i < Width; ++i) add(i, widen(vector.lanes[i]));
      };
      measure_rows(count, visit, moments);
    }
  }
  if (count <= 0) return;
#pragma unroll
  for (int i = 0; i < Width; ++i) shared.runs[unit.lane][unit.own + i] = moments[i];
}

// Measures a unit. The block that is the last one of its tile merges the parts of the tile's channels into their mean and
// 1 / sqrt(variance + epsilon), and lets the blocks go on that map them.
template <class T, int Width>
__device__ inline void measure_unit(const ChannelUnit<Width>& unit, const T* x, float* partial, float* statistics,
                                    unsigned* counter, unsigned* signal, const ChannelSizes& sizes, float epsilon) {
  __shared__ MeasuredUnit<Width> shared;
  const int live = unit.count_live(sizes);
  float* const parts = partial + i64(unit.image) * sizes.parts * 2 * sizes.channels + unit.first_channel;
  measure_own(unit, x, sizes, shared);
  __syncthreads();
  merge_runs<ChannelUnit<Width>::kChannels, kTileThreads>(
      unit.end - unit.begin, live, shared.octets, [&](int run, int channel) { return shared.runs[run][channel]; },
      [&](int channel, const Moments& moments) {
        float* const to = parts + i64(unit.part) * 2 * sizes.channels + channel;
        to[0] = moments.mean;
        to[sizes.channels] = moments.squares;
      });
  if (!last_block(counter, sizes.parts)) return;
  float* const to = statistics + i64(unit.image) * 2 * sizes.channels + unit.first_channel;
  merge_parts<ChannelUnit<Width>::kChannels, kTileThreads>(sizes, live, shared.merged, parts, to, epsilon);
  give_signal(signal, sizes.parts);
}

// Computes  y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each channel of each image
// Shapes    x, y [n, channels, positions], or [n, positions, channels] where IsLast; scale, bias [channels]; partial
//           [n, parts, 2, channels]; statistics [n, 2, channels]; counters [1 + 2 * n * tiles]
// Grid      two blocks per unit, which take turns: the first ones measure units, others map them as soon as their
//           channels are measured, while these are in L2. A block waits for none but those that have begun before it
// Needs     channels a multiple of 8, positions one of 4; x and y aligned to 16 bytes, scale and bias to eight elements;
//           less than 2^31 elements. counters are 0 and are left 0
// Numerics  in float: means and squares of distances, of fours, runs and parts as trees, of parts in eight chains, one after
//           the other, then of the chains; rounded once; then the epilogue
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
  int tile;
  if (!is_mapped) {
    const auto unit = sizes.template find<kWidth>(u32(paired < 0 ? turn : sizes.ahead + paired / 2), tile);
    measure_unit(unit, x, partial, statistics, counters + 1 + tile, signals + tile, sizes, epsilon);
  } else {
    const auto unit = sizes.template find<kWidth>(u32(left >= sizes.units - sizes.ahead ? left : paired / 2), tile);
    await_signal(signals + tile);
    map_unit<FromAnywhere>(unit, x, scale, bias, y, statistics, sizes, finish_by<T>(epilogue...));
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
