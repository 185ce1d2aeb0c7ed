// Places and stores of products by tiles of tensor cores.
//
// What such kernels share beside their slabs: which tile a block makes, what it reads, and how its sums are scaled, finished
// and stored.
#pragma once
#include "group_tile.cuh"
#include "simt_product.cuh"

// Sums the slabs of a block of operands by strides.
template <class Warp, class T>
__device__ inline void multiply_operands(Warp& warp, const T* a, const T* b, const SimtGemm& gemm, u8* ring) {
  typedef typename Warp::Shape Tile;
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth;
  gemm.advance(place.batch, a, b);
  const MmaOperand<T> left = {a, gemm.a_row, gemm.a_inner,
                              gemm.rows, gemm.inner, place.first_row, first_k, (gemm.wide & kWideA) != 0};
  const MmaOperand<T> right = {b, gemm.b_column, gemm.b_inner,
                               gemm.columns, gemm.inner, place.first_column, first_k, (gemm.wide & kWideB) != 0};
  sum_slabs(warp, left, right, slabs, ring);
}

// How a lane's eight sums of a row leave it, as two fours of neighbouring columns: of 16-bit results side by side, as one
// vector of 16 bytes; of floats eight columns apart, as two, each of which fills sectors with that of the next lane.
template <class Y>
struct Fours {
  static constexpr bool kIsApart = sizeof(Y) == 4;
  static constexpr int kGap = kIsApart ? 8 : 4;             // columns from the first four to the second
  static constexpr int kPiece = kChunkBytes / int(sizeof(Y));  // columns of a vector

  // Of an eight that begins at `column`.
  static __device__ int find_column(int column, int thread) { return kIsApart ? column - thread % 2 * 4 : column; }

  // Of two lanes with eights side by side, the even one takes the first four of both, and the odd one the last. All lanes
  // come here.
  static __device__ void exchange(float (&sums)[kEight]) {
    if constexpr (kIsApart) {
      const bool is_odd = threadIdx.x % 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float got = __shfl_xor_sync(~0u, is_odd ? sums[i] : sums[4 + i], 1);
        (is_odd ? sums[i] : sums[4 + i]) = got;
      }
    }
  }
};

// Eights of a lane that are finished side by side: more where they read a number for each sum, which is under way together.
template <class Finish>
constexpr int kBeside = Finish::kReadsEach ? 4 : 2;

// Whether all fours that are inside are read and stored as vectors, whatever goes with them.
template <class Y, class R, class Finish>
__device__ inline bool are_fours_whole(const SimtGemm& gemm, const R* c, const Finish& finish) {
  const bool has_addend = Finish::kHasAddend && c;
  const bool has_whole_c = !has_addend || (gemm.c_column == 1 && gemm.c_row % kLanes == 0 && is_aligned<kLanes>(c));
  return (gemm.wide & kWideY) && gemm.columns % Fours<Y>::kPiece == 0 && has_whole_c && finish.are_whole();
}

// Stores eights, two fours of a row each, where are_fours_whole says so. `start` is the offset of the batch in y, and in c
// where that has batches, too.
template <bool HasBatches, int Eights, class R, class Y, class Finish>
__device__ inline void store_eights(const SimtGemm& gemm, const R* c, Y* y, i64 start, const int (&rows)[Eights],
                                    const int (&columns)[Eights], const float (&sums)[Eights][kEight],
                                    const Finish& finish) {
  constexpr int kPiece = Fours<Y>::kPiece, kFours = 2 * Eights;
  const bool has_addend = Finish::kHasAddend && c;
  i64 places[kFours];
  int counts[kFours];
  float values[kFours][4];
  R addends[kFours][4];
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
    const int row = rows[four / 2], column = columns[four / 2] + four % 2 * Fours<Y>::kGap;
    places[four] = start + row * gemm.y_row + column;
    counts[four] = row < gemm.rows && column < gemm.columns ? 4 : 0;
    if (has_addend) {
      const R* const from = c + ((HasBatches ? start : 0) + row * gemm.c_row + column);
      read_lanes(from, counts[four], WholeLanes(), addends[four]);
    }
  }
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = values[four][i];
      value = sums[four / 2][four % 2 * 4 + i] * gemm.alpha;
      if (has_addend) value += widen(addends[four][i]) * gemm.beta;
    }
  }
  finish.many(values, places, counts, WholeLanes());
#pragma unroll
  for (int first = 0; first < Eights * kEight; first += kPiece) {
    if (counts[first / 4] == 0) continue;
    Vec<Y, kPiece> stored;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) stored.lanes[i] = cast<Y>(values[(first + i) / 4][(first + i) % 4]);
    store_vec(y + places[first / 4], stored);
  }
}

// Adds up the slices of the block's tile, and stores its sums: alpha * sum + beta * c, with the epilogue. HasBatches: a batch
// of c begins where that of y does. Groups of warps have added up theirs. All threads of the block come here.
template <class R, bool HasBatches, class Warp, class Y, class... Epilogue>
__device__ inline void store_folded(Warp& warp, const SimtGemm& gemm, const R* c, Y* y, float* scratch,
                                    unsigned* counters, u8* ring, const Epilogue&... epilogue) {
  typedef typename Warp::Shape Tile;
  const u32 tile = forget(blockIdx.x);
  if (!join_slices(warp, scratch, counters, tile, blockIdx.y, gridDim.y)) return;

  const MmaPlace<Tile> place(gemm, tile);
  const int thread = int(forget(threadIdx.x));
  const i64 start = gemm.find_offset(place.batch, gemm.y_batch);
  const auto finish = finish_by<R>(epilogue...);
  const bool is_whole = are_fours_whole<Y>(gemm, c, finish);
  constexpr int kEights = Warp::kEights, kMost = kBeside<decltype(finish)>, kAtOnce = kEights < kMost ? kEights : kMost;
  const auto find_row = [&](int eight) { return place.first_row + warp.find_eight_row(thread, eight); };
  const auto find_column = [&](int eight) {
    return place.first_column + Fours<Y>::find_column(warp.find_eight_column(thread, eight), thread);
  };
  const auto store = [&](int first, const float (&sums)[kAtOnce][kEight]) {
    int rows[kAtOnce], columns[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      rows[i] = find_row(first + i);
      columns[i] = find_column(first + i);
    }
    store_eights<HasBatches>(gemm, c, y, start, rows, columns, sums, finish);
  };
  if (sizeof...(Epilogue) == 0 && is_whole) {
#pragma unroll
    for (int first = 0; first < kEights; first += kAtOnce) {
      float sums[kAtOnce][kEight];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        warp.take_eight(first + i, sums[i]);
        Fours<Y>::exchange(sums[i]);
      }
      store(first, sums);
    }
    return;
  }
  // Code of steps stands there once, and calls, and so does what stores fours that are not whole: sums wait in shared memory,
  // as many at a time as fit, which nobody reads any more behind this barrier.
  constexpr int kFit = Tile::kRingBytes / (Tile::kThreads * kEight * int(sizeof(float)));
  constexpr int kParked = kFit < kEights ? kEights / 2 : kEights;
  static_assert(kParked <= kFit && kParked % kAtOnce == 0, "half of the sums fit in the ring");
  // The second of fours that are apart waits with the lane beside, so that lanes exchange them without a bank conflict.
  constexpr bool kIsApart = Fours<Y>::kIsApart;
  constexpr int kSlot = 4 * Tile::kThreads;
  const int own = 4 * threadIdx.x, beside = kIsApart ? own ^ 4 : own, odd = threadIdx.x % 2;
  float* const parked = reinterpret_cast<float*>(ring);
  const int even = own + (kIsApart ? odd * kSlot : 0), uneven = beside + (kIsApart ? odd * kSlot : kSlot);
  const auto take = [&](int i, float* sums) {
    const Vec<float, 4> four = load_vec<4>(parked + i / 2 * 2 * kSlot + (i % 2 == 0 ? even : uneven));
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = four.lanes[j];
  };
  __syncthreads();
#pragma unroll
  for (int first = 0; first < kEights; first += kParked) {
#pragma unroll
    for (int i = 0; i < kParked; ++i) {
      float sums[kEight];
      warp.take_eight(first + i, sums);
      store_vec(parked + 2 * i * kSlot + own, Vec<float, 4>{{sums[0], sums[1], sums[2], sums[3]}});
      store_vec(parked + (2 * i + 1) * kSlot + beside, Vec<float, 4>{{sums[4], sums[5], sums[6], sums[7]}});
    }
    if constexpr (kIsApart) __syncwarp();
    if (sizeof...(Epilogue) != 0 && is_whole) {
#pragma unroll 1
      for (int i = 0; i < kParked; i += kAtOnce) {
        float sums[kAtOnce][kEight];
#pragma unroll
        for (int half = 0; half < 2 * kAtOnce; ++half) take(2 * i + half, sums[half / 2] + half % 2 * 4);
        store(first + i, sums);
      }
    } else {
#pragma unroll 1
      for (int four = 0; four < 2 * kParked; ++four) {
        const int eight = first + four / 2;
        float sums[4];
        take(four, sums);
        store_four<HasBatches>(gemm, c, y, start, find_row(eight), find_column(eight) + four % 2 * Fours<Y>::kGap, sums,
                               finish);
      }
    }
    if constexpr (kIsApart) __syncwarp();
  }
}

// The same of a tile whose groups have not. The ring is free behind the sums of all threads.
template <class R, bool HasBatches = false, class Warp, class Y, class... Epilogue>
__device__ inline void store_product(Warp& warp, const SimtGemm& gemm, const R* c, Y* y, float* scratch,
                                     unsigned* counters, u8* ring, const Epilogue&... epilogue) {
  if constexpr (Warp::Shape::kGroups > 1) {
    FoldedTile<Warp> folded(warp, ring);
    store_folded<R, HasBatches>(folded, gemm, c, y, scratch, counters, ring, epilogue...);
  } else {
    store_folded<R, HasBatches>(warp, gemm, c, y, scratch, counters, ring, epilogue...);
  }
}
