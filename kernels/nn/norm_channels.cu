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
constexpr int kPartLanes = 32;
constexpr int kSideBySide = kBlockThreads / kPartLanes;  // channels, or vectors of them, of a block
constexpr int kMergers = 8;                              // chains that parts are merged in
constexpr int kMapped = 4;                               // groups of four elements that a thread maps

// Where the elements of the images lie, in elements. Packed by gpuexec/ops/nn/norm_channels_launch.py.
struct LargeChannels {
  i32 channels, positions, parts;
  FastDiv32 by_tiles;  // tiles of channels: of a block
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

// Sums of the lanes of each channel of a block, in shared memory: row r has those of lane r.
template <int Width>
struct PartSums {
  static constexpr int kChannels = kSideBySide * Width;
  float lanes[kPartLanes][kChannels];

  // Sums over the lanes by a tree, and leaves the sums in row 0. All threads of the block come here.
  __device__ void fold(int lane, int first, const float (&sums)[Width]) {
#pragma unroll
    for (int i = 0; i < Width; ++i) lanes[lane][first + i] = sums[i];
    __syncthreads();
#pragma unroll 1
    for (int half = kPartLanes / 2; half > 0; half /= 2) {
      for (int i = threadIdx.x; i < half * kChannels; i += kBlockThreads) {
        lanes[i / kChannels][i % kChannels] += lanes[i / kChannels + half][i % kChannels];
      }
      __syncthreads();
    }
  }
};

// Computes  mean and 1 / sqrt(variance + epsilon) of each channel of each image
// Shapes    x [n, channels, positions], or [n, positions, channels] where Width > 1; center, inverse [n, channels];
//           partial [n, parts, 2, channels]; counters [n, tiles]
// Grid      one block per tile of channels and part: x = image * tiles + tile, of 8 * Width channels, y = part
// Needs     Width > 1: channels a multiple of it, x aligned to as many elements. counters are 0 and are left 0
// Numerics  in float: of a part the mean, then the squares of distances, each lane in the order of positions, lanes as a
//           tree; parts in eight chains, one after the other, then the chains
template <class T, int Width>
__global__ void __launch_bounds__(kBlockThreads, 3)
    measure_large_channels(const T* __restrict__ x, float* __restrict__ center, float* __restrict__ inverse,
                           float* partial, unsigned* counters, LargeChannels sizes, float epsilon) {
  constexpr bool kIsLast = Width > 1;
  __shared__ PartSums<Width> shared;
  __shared__ Spread merged[kMergers][PartSums<Width>::kChannels];
  constexpr int kChannels = PartSums<Width>::kChannels;
  const int thread = threadIdx.x;
  const int lane = kIsLast ? thread / kSideBySide : thread % kPartLanes;
  const int own = (kIsLast ? thread % kSideBySide : thread / kPartLanes) * Width;  // first channel in the tile
  u32 tile;
  const u32 image = sizes.by_tiles.divide(blockIdx.x, tile);
  const int first_channel = int(tile) * kChannels;
  const bool is_inside = first_channel + own < sizes.channels;
  const int begin = int(blockIdx.y) * kPartPositions;
  const int end = sizes.positions - begin < kPartPositions ? sizes.positions : begin + kPartPositions;
  const i64 step = kIsLast ? sizes.channels : 1;
  const T* source = x + i64(image) * sizes.channels * sizes.positions +
                    (first_channel + own) * (kIsLast ? i64(1) : i64(sizes.positions));
  wait_for_predecessors();
  launch_dependents();

  const auto visit = [&](auto add) {
    if (!is_inside) return;
#pragma unroll 4
    for (int position = begin + lane; position < end; position += kPartLanes) {
      const Vec<T, Width> vector = load_vec<Width>(source + position * step);
#pragma unroll
      for (int i = 0; i < Width; ++i) add(i, widen(vector.lanes[i]));
    }
  };
  float sums[Width] = {};
  visit([&](int i, float value) { sums[i] += value; });
  shared.fold(lane, own, sums);
  float means[Width];
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    means[i] = shared.lanes[0][own + i] / float(end - begin);
    sums[i] = 0.0f;
  }
  __syncthreads();
  visit([&](int i, float value) {
    const float distance = value - means[i];
    sums[i] += distance * distance;
  });
  shared.fold(lane, own, sums);
  float* const parts = partial + i64(image) * sizes.parts * 2 * sizes.channels;
  if (lane == 0 && is_inside) {
    float* const to = parts + i64(blockIdx.y) * 2 * sizes.channels + first_channel + own;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      to[i] = means[i];
      to[sizes.channels + i] = shared.lanes[0][own + i];
    }
  }
  if (!last_block(counters + blockIdx.x, gridDim.y)) return;

  const auto count_of = [&](int part) {
    const int left = sizes.positions - part * kPartPositions;
    return float(left < kPartPositions ? left : kPartPositions);
  };
  const int live = sizes.channels - first_channel < kChannels ? sizes.channels - first_channel : kChannels;
  const int chains = sizes.parts < kMergers ? sizes.parts : kMergers;
  for (int i = thread; i < chains * kChannels; i += kBlockThreads) {
    const int chain = i / kChannels, channel = i % kChannels;
    if (channel >= live) continue;
    const float* from = parts + first_channel + channel;
    Spread total = {};
#pragma unroll 2
    for (int part = chain; part < sizes.parts; part += kMergers) {
      const float* at = from + i64(part) * 2 * sizes.channels;
      const Spread other = {__ldcg(at), __ldcg(at + sizes.channels), count_of(part)};
      if (part == chain) total = other;
      else total.merge(other);
    }
    merged[chain][channel] = total;
  }
  __syncthreads();
  for (int channel = thread; channel < live; channel += kBlockThreads) {
    Spread total = merged[0][channel];
    for (int chain = 1; chain < chains; ++chain) total.merge(merged[chain][channel]);
    const i64 to = i64(image) * sizes.channels + first_channel + channel;
    center[to] = total.mean;
    inverse[to] = 1.0f / root_of(total.squares / float(sizes.positions) + epsilon);
  }
}

// Computes  y = (x - center) * inverse * scale + bias
// Shapes    x, y as x of measure_large_channels; center, inverse [n, channels]; scale, bias [channels]
// Grid      4096 elements per block of 256 threads
// Needs     IsLast: channels a multiple of 4, scale and bias aligned to as many, else positions; x and y aligned to 4
//           elements; less than 2^31 elements
// Numerics  in float, in the order written; rounded once; then the epilogue
template <class T, bool IsLast, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 3)
    normalize_large_channels(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ bias,
                             const float* __restrict__ center, const float* __restrict__ inverse,
                             Stored<T, Epilogue...>* __restrict__ y, i64 count, FastDiv32 by_inner,
                             FastDiv32 by_channels, Epilogue... epilogue) {
  typedef Stored<T, Epilogue...> Y;
  const auto finish = finish_by<T>(epilogue...);
  const i64 first = (i64(blockIdx.x) * kMapped * kBlockThreads + threadIdx.x) * 4;
  float values[kMapped][4];
  i64 places[kMapped];
  int counts[kMapped];
  wait_for_predecessors();
  launch_dependents();
#pragma unroll
  for (int i = 0; i < kMapped; ++i) {
    const i64 place = places[i] = first + i * (4 * kBlockThreads);
    counts[i] = place < count ? 4 : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
    if (place >= count) continue;
    const Vec<T, 4> given = load_vec<4>(x + place);
    u32 channel, inner;
    const u32 outer = by_inner.divide(u32(place), inner);  // channels last: position; else: channel of an image
    const u32 image = by_channels.divide(outer, channel);
    const auto map = [&](int j, float center, float inverse, T scale, T bias) {
      values[i][j] = (widen(given.lanes[j]) - center) * inverse * widen(scale) + widen(bias);
    };
    if constexpr (IsLast) {
      // Here `by_inner` counts channels, and `by_channels` positions.
      const i64 statistic = i64(image) * by_inner.divisor + inner;
      const Vec<float, 4> centers = load_vec<4>(center + statistic), inverses = load_vec<4>(inverse + statistic);
      const Vec<T, 4> scales = load_vec<4>(scale + inner), biases = load_vec<4>(bias + inner);
#pragma unroll
      for (int j = 0; j < 4; ++j) map(j, centers.lanes[j], inverses.lanes[j], scales.lanes[j], biases.lanes[j]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) map(j, center[outer], inverse[outer], scale[channel], bias[channel]);
    }
  }
  finish.many(values, places, counts);
#pragma unroll
  for (int i = 0; i < kMapped; ++i) {
    if (places[i] >= count) break;
    Vec<Y, 4> finished;
#pragma unroll
    for (int j = 0; j < 4; ++j) finished.lanes[j] = cast<Y>(values[i][j]);
    store_vec(y + finish.where(places[i]), finished);
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
