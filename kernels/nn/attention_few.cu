// Scaled dot-product attention of few queries over keys and values that are read once: decoding.
//
// Keys and values may be floats, of a cache, which are rounded to the type of 16 bits that a precision says while they
// are read: a tensor of the rounded would be made anew for each token. A block has some rows (queries of heads that
// share a head of keys) and a slice of the keys; the last block of a slice merges them. So attention is one launch, and
// so it is with the keys and values of the step appended to the cache: blocks read those from where they were made, and
// one block of each head stores them behind the past, where no block of the launch reads.
#include "attention_kinds.cuh"
#include "dependent_launch.cuh"
#include "grid.cuh"
#include "softmax_state.cuh"
#include "vec.cuh"

constexpr int kFewThreads = 256, kFewWarps = kFewThreads / 32;
constexpr int kColumns = 4;   // of a head that a lane has
constexpr int kLoads = 4;     // keys of a lane, and values, that are under way together
constexpr int kMaxKeys = kLoads * kFewThreads / 8;  // of a tile: those that all lanes have, 8 of them to a key or more

// Packed by gpuexec/ops/nn/attention_few.py. Strides in elements, along batch, head and row; a mask's along keys too.
struct FewAttention {
  i64 q_strides[3], k_strides[3], v_strides[3], y_strides[3], mask_strides[4];
  i64 new_k_strides[3], new_v_strides[3];
  i32 heads, group, queries;  // heads of keys; query heads per head of keys
  i32 keys, past;             // all keys; those before the new ones: all, where none are appended
  i32 depth, values;
  i32 row_tiles, lanes;       // tiles of a head of keys; lanes that share a key: 8, 16 or 32
  i32 mask_kind, empty_rows;  // no mask, bools or floats
  i32 is_float;               // of y
  float scale, fill;          // fill: score of a key that a mask of bools takes out
};

// An argument block as the host packs it, of which a copy in device memory has what changes with the sizes.
template <class S>
struct FewArguments {
  const void* others[9];
  S *room_k, *room_v;
  alignas(16) FewAttention shape;
};

// The rows of a block: x = ((batch * heads) + head) * row tiles + row tile.
template <int Rows>
struct FewRows {
  u32 batch, head, first, count;

  __device__ FewRows(const FewAttention& shape, u32 block) : count(u32(shape.group) * shape.queries) {
    first = block % u32(shape.row_tiles) * Rows;
    block /= u32(shape.row_tiles);
    head = block % u32(shape.heads);
    batch = block / u32(shape.heads);
  }

  // Returns the offset of a row; beyond the last one, of the last.
  __device__ i64 find_offset(const FewAttention& shape, const i64* strides, int r) const {
    const u32 row = first + r < count ? first + r : count - 1;
    const u32 of_group = row / u32(shape.queries);
    return batch * strides[0] + (head * u32(shape.group) + of_group) * strides[1] +
           (row - of_group * u32(shape.queries)) * strides[2];
  }

  // Returns a score with its mask.
  __device__ float find_score(const FewAttention& shape, const u8* mask, int r, i64 key, float score) const {
    if (shape.mask_kind == kNoMask) return score;
    const i64 offset = find_offset(shape, shape.mask_strides, r) + key * shape.mask_strides[3];
    if (shape.mask_kind == kBool) return mask[offset] ? score : shape.fill;
    return score + reinterpret_cast<const float*>(mask)[offset];
  }
};

// Four neighbouring numbers, rounded to R where they are floats; zeros where there are none.
template <class R, class S>
__device__ inline void load_rounded(const S* source, bool is_there, float (&wide)[kColumns]) {
  Vec<S, kColumns> four = {};
  if (is_there) four = load_vec<kColumns>(source);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) wide[j] = widen(cast<R>(four.lanes[j]));
}

// Four of each of a lane's keys, or values: of the first `past` ones, or new.
template <class R, class S>
__device__ inline void load_keys(const S* held, i64 held_stride, const S* added, i64 added_stride, int past, int keys,
                                 int first, bool is_there, float (&wide)[kLoads][kColumns]) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const i64 key = first + i;
    const bool is_past = key < past;
    const i64 offset = key * (is_past ? held_stride : added_stride);
    load_rounded<R>((is_past ? held : added) + offset, is_there && key < keys, wide[i]);
  }
}

template <class R>
__device__ inline void store_share(u8* y, i64 offset, bool is_float, float value) {
  if (is_float) reinterpret_cast<float*>(y)[offset] = value;
  else reinterpret_cast<R*>(y)[offset] = cast<R>(value);
}

// Computes  y = softmax(masked(scale * q @ k')) @ v of q, k and v rounded to R
// Shapes    q [batch, heads * group, queries, depth], k [batch, heads, keys, depth], v [batch, heads, keys, values], mask
//           [batch, heads * group, queries, keys] of bool or float, or null, y [batch, heads * group, queries, values] of
//           float or R, all by strides; scratch [blocks, slices, Rows, values + 2, rounded up to
//           sectors]; counters [blocks]. With new_k [batch, heads, keys - past, depth] and new_v alike, k and v are the
//           past alone, and room_k and room_v the rows behind it, by their strides, which get the new ones
// Grid      one block of 256 per batch, head of keys and Rows rows along x, and slice of the keys along y; those beyond the
//           number of tiles do nothing
// Needs     depth and values multiples of 4, up to 4 * lanes; q, k, v, the new ones and their strides multiples of 4
//           elements, rows dense. scratch and counters may be null with one slice; counters are 0 and are left 0. new_k,
//           new_v, room_k and room_v may be null where past is keys. moved may be null; else room_k, room_v, keys and past
//           are those that stand there, where no launch under way may write: some are read before the wait
// Numerics  scores and sums in float: four of a head in order, one fma each, lanes by a tree; keys of a lane in order, lanes
//           by a tree, warps and slices in order. Weights are rounded to R before they meet v, by the largest score so far.
//           A row whose scores are all -inf is as `empty_rows` says. NaN in a score or in v spreads over its row
template <class S, class R, int Rows>
__global__ void __launch_bounds__(kFewThreads, 2)
    attend_few(const S* __restrict__ q, const S* __restrict__ k, const S* __restrict__ v, const u8* __restrict__ mask,
               u8* __restrict__ y, float* scratch, unsigned* counters, const S* __restrict__ new_k,
               const S* __restrict__ new_v, S* __restrict__ room_k, S* __restrict__ room_v,
               const __grid_constant__ FewAttention shape, const FewArguments<S>* moved) {
  __shared__ alignas(16) float scores[2][Rows][kMaxKeys];  // of two tiles in turn
  __shared__ alignas(16) float partial[kFewWarps][Rows][32 * kColumns];
  __shared__ float totals[kFewWarps][Rows];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int keys = moved ? __ldcg(&moved->shape.keys) : shape.keys, past = moved ? __ldcg(&moved->shape.past) : shape.past;
  const int lanes = shape.lanes, column = lane % lanes * kColumns;
  const int own = thread / lanes * kLoads;  // the first of this lane's keys, which are neighbours
  const int tile_keys = kFewThreads / lanes * kLoads, tiles = (keys + tile_keys - 1) / tile_keys;
  // A grid for more keys than there are has slices without a tile.
  const int slices = tiles < int(gridDim.y) ? (tiles > 0 ? tiles : 1) : int(gridDim.y);
  const bool has_depth = column < shape.depth, has_values = column < shape.values;
  const FewRows<Rows> rows(shape, blockIdx.x);
  k += rows.batch * shape.k_strides[0] + rows.head * shape.k_strides[1] + column;
  v += rows.batch * shape.v_strides[0] + rows.head * shape.v_strides[1] + column;
  // As if the past were in front of them, too.
  new_k += rows.batch * shape.new_k_strides[0] + rows.head * shape.new_k_strides[1] + column -
           past * shape.new_k_strides[2];
  new_v += rows.batch * shape.new_v_strides[0] + rows.head * shape.new_v_strides[1] + column -
           past * shape.new_v_strides[2];
  wait_for_predecessors();
  launch_dependents();
  if (int(blockIdx.y) >= slices) return;

  float queries[Rows][kColumns], sums[Rows][kColumns], largest[Rows], total[Rows];
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    load_rounded<R>(q + rows.find_offset(shape, shape.q_strides, r) + column, has_depth, queries[r]);
    largest[r] = limits<float>::negative_inf();
    total[r] = 0.0f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums[r][j] = 0.0f;
  }
  // Tiles have 32 keys at least, and slices are few: 32 bits hold their product.
  const int end = int(u32(tiles) * (blockIdx.y + 1) / u32(slices));
#pragma unroll 1
  for (int tile = int(u32(tiles) * blockIdx.y / u32(slices)); tile < end; ++tile) {
    const int first = tile * tile_keys + own;
    float of_keys[kLoads][kColumns], of_values[kLoads][kColumns];
    load_keys<R>(k, shape.k_strides[2], new_k, shape.new_k_strides[2], past, keys, first, has_depth, of_keys);
    load_keys<R>(v, shape.v_strides[2], new_v, shape.new_v_strides[2], past, keys, first, has_values, of_values);
    float(&here)[Rows][kMaxKeys] = scores[tile % 2];
    float products[Rows][kLoads];
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        products[r][i] = 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) products[r][i] = fmaf(queries[r][j], of_keys[i][j], products[r][i]);
      }
    }
#pragma unroll 1
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) products[r][i] += __shfl_xor_sync(kWholeWarp, products[r][i], offset);
      }
    }
    if (lane % lanes < kLoads) {  // each has all sums, and finishes one
      const int number = lane % lanes, key = first + number;
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const float(&all)[kLoads] = products[r];
        const float product = number < 2 ? (number == 0 ? all[0] : all[1]) : (number == 2 ? all[2] : all[3]);
        here[r][own + number] = key < keys ? rows.find_score(shape, mask, r, key, product * shape.scale)
                                           : limits<float>::negative_inf();
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      float highest = largest[r];
      for (int key = lane; key < tile_keys; key += 32) highest = fmaxf(highest, here[r][key]);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, offset));
      const float shift = highest == limits<float>::negative_inf() ? 0.0f : highest;  // -inf less -inf is no number
      const float shrink = exp_of(largest[r] - shift);
      largest[r] = highest;
      total[r] *= shrink;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sums[r][j] *= shrink;
      const Vec<float, kLoads> four = load_vec<kLoads>(&here[r][own]);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const float weight = exp_of(four.lanes[i] - shift), rounded = widen(cast<R>(weight));
        total[r] += weight;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sums[r][j] = fmaf(rounded, of_values[i][j], sums[r][j]);
      }
    }
  }

  // Each new row is stored once, by a block that has read it: of the first rows of its head, and the last slice.
  if (rows.first == 0 && int(blockIdx.y) + 1 == slices) {
    if (moved) room_k = moved->room_k, room_v = moved->room_v;
    room_k += rows.batch * shape.k_strides[0] + rows.head * shape.k_strides[1] + column;
    room_v += rows.batch * shape.v_strides[0] + rows.head * shape.v_strides[1] + column;
#pragma unroll 1
    for (i64 key = past + thread / lanes; key < keys; key += kFewThreads / lanes) {
      const i64 row = key - past;
      if (has_depth) store_vec(room_k + row * shape.k_strides[2], load_vec<kColumns>(new_k + key * shape.new_k_strides[2]));
      if (has_values) store_vec(room_v + row * shape.v_strides[2], load_vec<kColumns>(new_v + key * shape.new_v_strides[2]));
    }
  }

  // Of the keys of a warp, then of all warps.
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    for (int offset = 16; offset >= lanes; offset /= 2) {
      total[r] += __shfl_xor_sync(kWholeWarp, total[r], offset);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sums[r][j] += __shfl_xor_sync(kWholeWarp, sums[r][j], offset);
    }
    if (lane < lanes) {
      store_vec(&partial[warp][r][column], Vec<float, 4>{{sums[r][0], sums[r][1], sums[r][2], sums[r][3]}});
    }
    if (lane == 0) totals[warp][r] = total[r];
  }
  __syncthreads();
  const int width = (shape.values + 2 + 7) / 8 * 8;  // of whole sectors
  float* const own_scratch = slices > 1 ? scratch + i64(blockIdx.x) * slices * Rows * width : nullptr;
  const int live = int(rows.count - rows.first) < Rows ? int(rows.count - rows.first) : Rows;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    float all = 0.0f;
#pragma unroll
    for (int part = 0; part < kFewWarps; ++part) all += totals[part][r];
    total[r] = all;
  }
  const auto finish = [&](int r, int at, float sum, float all, float most) {
    const bool is_empty = most == limits<float>::negative_inf() && all == 0;
    float share = is_empty ? 0.0f : sum / all;
    if (is_empty && shape.empty_rows == kNan && keys > 0) share = limits<float>::nan();
    if (shape.empty_rows == kGuarded && all != all) share = 0.0f;
    store_share<R>(y, rows.find_offset(shape, shape.y_strides, r) + at, shape.is_float, share);
  };
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (r >= live) break;
    float* const target = own_scratch + (i64(blockIdx.y) * Rows + r) * width;
    if (thread < shape.values) {
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < kFewWarps; ++part) sum += partial[part][r][thread];
      if (slices > 1) target[thread] = sum;
      else finish(r, thread, sum, total[r], largest[r]);
    }
    if (slices > 1 && thread == 0) target[shape.values] = largest[r], target[shape.values + 1] = total[r];
  }
  if (slices == 1 || !last_block(counters + blockIdx.x, unsigned(slices))) return;
#pragma unroll 1
  for (int i = thread; i < live * shape.values; i += kFewThreads) {
    const int r = i / shape.values, at = i - r * shape.values;
    const float* const parts = own_scratch + r * width;
    float most = limits<float>::negative_inf(), sum = 0.0f, all = 0.0f;
#pragma unroll 4
    for (int slice = 0; slice < slices; ++slice) {
      const float* const part = parts + i64(slice) * Rows * width;
      const float own_most = __ldcg(part + shape.values), own_sum = __ldcg(part + at);
      const float own_total = __ldcg(part + shape.values + 1), common = fmaxf(most, own_most);
      const float shift = common == limits<float>::negative_inf() ? 0.0f : common;
      const float shrink = exp_of(most - shift), weight = exp_of(own_most - shift);
      sum = fmaf(sum, shrink, own_sum * weight);
      all = fmaf(all, shrink, own_total * weight);
      most = common;
    }
    finish(r, at, sum, all, most);
  }
}
