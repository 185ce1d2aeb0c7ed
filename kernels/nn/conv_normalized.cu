// Convolution on tensor cores (sm_80 and up), and the normalisation of the channels that it makes, as one launch.
//
// A block of the convolution makes a tile as one of conv_mma does, and measures it before its sums leave the registers: a
// lane has fours of rows of a run. The last block of a part of a channel merges its runs, the last one of an image its parts.
// Blocks behind those of the convolution map the image then, the end first, as that is still in L2. All blocks take turns, and
// wait only for blocks that have begun before them.
#include "channel_parts.cuh"
#include "conv_patches.cuh"
#include "dependent_launch.cuh"

// What the blocks do. Packed by _join of gpuexec/ops/nn/conv_normalized.py.
struct NormalizedConv {
  ChannelSizes sizes;
  i32 tiles, slices;  // of the convolution
};

// Units of channels that a block maps, one for each kTileThreads of its threads, and their channels.
template <class Tile>
constexpr int kUnits = Tile::kThreads / kTileThreads;
template <class M, class Tile>
constexpr int kUnitChannelsOf = ChannelUnit<kChunkElements<M>>::kChannels * kUnits<Tile>;

// Merges the moments of a lane's eight columns with those of the lanes whose rows lie between, as a tree, and leaves each of
// eight lanes one column: returns which.
__device__ inline int merge_lanes(Moments (&moments)[kEight]) {
  const int lane = threadIdx.x % kWarpThreads;
  int column = 0;
  float half = 0.5f * kFour;
#pragma unroll
  for (int left = kEight / 2, bit = 4; left > 0; left /= 2, bit *= 2, half *= 2) {
    const bool is_upper = lane & bit;
    column += is_upper ? left : 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const Moments given = is_upper ? moments[i] : moments[left + i];
      if (is_upper) moments[i] = moments[left + i];
      moments[i].merge({__shfl_xor_sync(~0u, given.mean, bit), __shfl_xor_sync(~0u, given.squares, bit)}, half);
    }
  }
  return column;
}

// Finishes the sums of a block, stores them in `made` [rows, channels], and the moments of their runs in `runs` [rows / 32,
// 2, channels]. The ring is free behind the sums of all threads. All threads of the block come here.
template <class R, class Warp, class M, class Steps, class Tile = typename Warp::Shape>
__device__ inline void store_measured(const Warp& warp, const MmaPlace<Tile>& place, int channels, const R* bias, M* made,
                                      float* runs, u8* ring, const Steps& steps) {
  constexpr int kEights = Warp::kEights, kAcross = Tile::kAcross / 4, kRunEights = kFour * kAcross;
  constexpr int kFit = Tile::kRingBytes / (Tile::kThreads * kEight * int(sizeof(float)));
  constexpr int kParked = kFit < kEights ? kEights / 2 : kEights;  // eights that wait in shared memory
  static_assert(kParked <= kFit && kParked % kRunEights == 0, "runs are whole");
  constexpr int kSlot = 4 * Tile::kThreads;
  const int thread = int(forget(threadIdx.x));
  float* const own = reinterpret_cast<float*>(ring) + 4 * thread;
  const auto finish = finish_by<R>(steps);
  __syncthreads();
#pragma unroll
  for (int first = 0; first < kEights; first += kParked) {
#pragma unroll
    for (int i = 0; i < kParked; ++i) {
      float sums[kEight];
      warp.take_eight(first + i, sums);
      store_vec(own + 2 * i * kSlot, Vec<float, 4>{{sums[0], sums[1], sums[2], sums[3]}});
      store_vec(own + (2 * i + 1) * kSlot, Vec<float, 4>{{sums[4], sums[5], sums[6], sums[7]}});
    }
    // The code stands there once: a run of eight columns.
#pragma unroll 1
    for (int i = 0; i < kParked / kFour; ++i) {
      const int eight = i / kAcross * kRunEights + i % kAcross;  // that of the first row, among those that wait
      const int row = place.first_row + warp.find_eight_row(thread, first + eight);
      const int column = place.first_column + warp.find_eight_column(thread, first + eight);
      const bool is_inside = column < channels;
      float addends[kEight] = {};
      if (bias && is_inside) {
#pragma unroll
        for (int part = 0; part < kEight / 4; ++part) {
          const Vec<R, 4> four = load_vec<4>(bias + column + 4 * part);
#pragma unroll
          for (int e = 0; e < 4; ++e) addends[4 * part + e] = widen(four.lanes[e]);
        }
      }
      float values[2 * kFour][4];
      const i64 indices[2 * kFour] = {};  // which steps without operands don't ask for
      const int counts[2 * kFour] = {};
#pragma unroll
      for (int four = 0; four < 2 * kFour; ++four) {
        const Vec<float, 4> sums = load_vec<4>(own + (2 * (eight + four / 2 * kAcross) + four % 2) * kSlot);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          values[four][e] = sums.lanes[e];
          if (bias) values[four][e] += addends[four % 2 * 4 + e];
        }
      }
      finish.many(values, indices, counts);
#pragma unroll
      for (int four = 0; four < 2 * kFour; ++four) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values[four][e] = widen(cast<M>(values[four][e]));
      }
      Moments moments[kEight];
#pragma unroll
      for (int e = 0; e < kEight; ++e) {
        const int part = e / 4;
        moments[e] = measure_four(values[part][e % 4], values[2 + part][e % 4], values[4 + part][e % 4],
                                  values[6 + part][e % 4]);
      }
      const int measured = column + merge_lanes(moments);
      if (is_inside) {
        float* const to = runs + i64(row / kRunPositions) * 2 * channels + measured;
        to[0] = moments[0].mean;
        to[channels] = moments[0].squares;
      }
#pragma unroll
      for (int k = 0; k < kFour; ++k) {
        float sums[kEight];
#pragma unroll
        for (int e = 0; e < kEight; ++e) sums[e] = values[2 * k + e / 4][e % 4];
        Fours<M>::exchange(sums);
        constexpr int kPiece = Fours<M>::kPiece;
        const int at = Fours<M>::find_column(column, thread);
#pragma unroll
        for (int piece = 0; piece < kEight; piece += kPiece) {
          const int to = at + piece / 4 * Fours<M>::kGap;
          Vec<M, kPiece> stored;
#pragma unroll
          for (int e = 0; e < kPiece; ++e) stored.lanes[e] = cast<M>(sums[piece + e]);
          if (to < channels) store_vec(made + i64(row + k * kRunFours) * channels + to, stored);
        }
      }
    }
  }
}

// Shared memory of what merges, in place of the ring.
template <int Channels>
struct MergedChannels {
  Moments octets[kPartOctets][Channels];
  Spread merged[kMergers][Channels];
};

// Counts that follow the turn: of tiles by part and column of tiles, of parts by column, and signals of columns.
template <class Tile>
struct TurnCounters {
  int across;
  unsigned *of_parts, *of_images, *signals;

  __device__ TurnCounters(unsigned* turns, int rows, const ChannelSizes& sizes) {
    const int images = rows / sizes.positions;
    across = (sizes.channels + Tile::kColumns - 1) / Tile::kColumns;
    of_parts = turns + 1;
    of_images = of_parts + images * sizes.parts * across;
    signals = of_images + images * across;
  }
};

// Takes a turn as take_turn does, into shared memory.
__device__ inline const unsigned* take_turn_into(unsigned* turn, unsigned* counter, unsigned blocks) {
  if (is_first_thread()) *turn = atomicInc(counter, blocks - 1);
  __syncthreads();
  return turn;
}

// Merges what is complete by a tile that is measured: runs of a part, then parts of an image. Whoever does the latter lets
// the blocks go on that map them. All threads of the block come here.
template <class T, class Tile>
__device__ inline void merge_tile(const MmaPlace<Tile>& place, const MmaConv& conv, const ChannelSizes& sizes,
                                  const float* runs, float* partial, float* statistics, unsigned* turns, u8* ring,
                                  float epsilon) {
  constexpr int kUnitChannels = kUnitChannelsOf<T, Tile>;
  const TurnCounters<Tile> counted(turns, conv.gemm.rows, sizes);
  u32 position;
  const int image = int(conv.by_windows.divide(u32(place.first_row), position));
  const int part = int(position) / kPartPositions, count = sizes.count(part), column = place.first_column / Tile::kColumns;
  unsigned* const of_part = counted.of_parts + (image * sizes.parts + part) * counted.across + column;
  if (!last_block(of_part, unsigned(count / Tile::kRows))) return;
  typedef MergedChannels<Tile::kColumns> Merged;
  static_assert(sizeof(Merged) <= Tile::kRingBytes, "what merges fits in the ring");
  Merged& shared = *reinterpret_cast<Merged*>(ring);
  const int left = sizes.channels - place.first_column, live = left < Tile::kColumns ? left : Tile::kColumns;
  const int first_run = (image * sizes.positions + part * kPartPositions) / kRunPositions;
  const float* const own_runs = runs + i64(first_run) * 2 * sizes.channels + place.first_column;
  float* const parts = partial + i64(image) * sizes.parts * 2 * sizes.channels + place.first_column;
  merge_runs<Tile::kColumns, Tile::kThreads>(
      count, live, shared.octets,
      [&](int run, int channel) {
        const float* const at = own_runs + i64(run) * 2 * sizes.channels + channel;
        return Moments{__ldcg(at), __ldcg(at + sizes.channels)};
      },
      [&](int channel, const Moments& moments) {
        float* const to = parts + i64(part) * 2 * sizes.channels + channel;
        to[0] = moments.mean;
        to[sizes.channels] = moments.squares;
      });
  const int of_image = image * counted.across + column;
  if (!last_block(counted.of_images + of_image, unsigned(sizes.parts))) return;
  float* const to = statistics + i64(image) * 2 * sizes.channels + place.first_column;
  merge_parts<Tile::kColumns, Tile::kThreads>(sizes, live, shared.merged, parts, to, epsilon);
  give_signal(counted.signals + of_image, unsigned(sizes.parts * ((live + kUnitChannels - 1) / kUnitChannels)));
}

// Computes  z[n, window, o] = steps(bias[o] + sum over taps t and channels c of w[o, t, c] * x[n, window + t, c]);
//           y = (z - mean) / sqrt(variance + epsilon) * scale + shift over each channel o of each image
// Shapes    as conv_mma with one group; made (z) and y [n, windows, out channels]; scale, shift [out channels]; runs [n *
//           windows / 32, 2, out channels]; partial [n, parts, 2, out channels]; statistics [n, 2, out channels]; turns [1 +
//           n * (parts + 2) * columns of tiles]
// Grid      a block for each slice of a tile, slices last; then one for each part and each kThreads / 128 tiles of channels
// Needs     as conv_mma, and sm_80. Out channels a multiple of 8, windows of an image one of the rows of a tile; made, scale
//           and shift aligned to 16 bytes, bias to four elements. turns are 0 and are left 0
// Numerics  as conv_mma with the epilogue Steps, rounded; then as normalize_large_channels
template <class Steps, class T, class R, class Tile, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksAtOnce)
    conv_normalized(const T* __restrict__ x, const T* __restrict__ w, const R* __restrict__ bias,
                    Stored<typename Steps::Stored, Epilogue...>* __restrict__ y, const __grid_constant__ MmaConv conv,
                    float* scratch, unsigned* counters, const typename Steps::Stored* __restrict__ scale,
                    const typename Steps::Stored* __restrict__ shift, typename Steps::Stored* made, float* runs,
                    float* partial, float* statistics, unsigned* turns, const __grid_constant__ NormalizedConv norm,
                    float epsilon, const __grid_constant__ Steps steps, Epilogue... epilogue) {
  typedef typename Steps::Stored M;
  constexpr int kWidth = kChunkElements<M>, kUnitChannels = kUnitChannelsOf<M, Tile>;
  static_assert(Tile::kColumns % kUnitChannels == 0, "a block maps channels of one column of tiles");
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  const ChannelSizes& sizes = norm.sizes;
  // The turn stays behind the ring: registers are all taken by the slabs.
  const unsigned* const own_turn = take_turn_into(reinterpret_cast<unsigned*>(ring + Tile::kRingBytes), turns, gridDim.x);
  launch_dependents();
  const int blocks = norm.tiles * norm.slices;
  if (const int turn = int(*own_turn); turn >= blocks) {
    const int units = (sizes.channels + kUnitChannels - 1) / kUnitChannels;
    const int place = int(gridDim.x) - 1 - turn, unit = place % units;
    const int image = place / units / sizes.parts, part = place / units % sizes.parts;
    const ChannelUnit<kWidth> own(sizes, image, unit * kUnits<Tile> + int(threadIdx.x) / kTileThreads, part,
                                  int(threadIdx.x) % kTileThreads);
    const TurnCounters<Tile> counted(turns, conv.gemm.rows, sizes);
    await_signal(counted.signals + image * counted.across + unit * kUnitChannels / Tile::kColumns);
    map_unit<FromOthers>(own, made, scale, shift, y, statistics, sizes, finish_by<M>(epilogue...));
    return;
  }
  ConvTileOf<T, Tile> warp;
  {
    const u32 turn = *own_turn;
    convolve_block(warp, x, w, conv, ring, turn % u32(norm.tiles), int(turn / u32(norm.tiles)), norm.slices);
  }
  const u32 turn = *opaque(own_turn), tile = turn % u32(forget(u32(norm.tiles)));
  if (!join_slices(warp, scratch, counters, tile, int(turn / u32(norm.tiles)), norm.slices)) return;
  const MmaPlace<Tile> place(conv.gemm, tile);
  store_measured(warp, place, sizes.channels, bias, made, runs, ring, steps);
  merge_tile<M>(place, conv, sizes, runs, partial, statistics, turns, ring, epsilon);
}
