// Scaled dot-product attention (flash attention): softmax(scale * q @ k' + mask) @ v, without the scores in memory.
//
// Query heads that share a head of keys are stacked: a row is one query of one of them, so a block reads keys and
// values once for all. Rows are few when one token is decoded; then the keys are divided among several blocks, whose
// sums `attend_merge` merges. Keys are taken in tiles in order, with a running maximum and sum, so the order of every
// sum follows from extents alone.
#include "attention_kinds.cuh"
#include "dependent_launch.cuh"
#include "gemm_simt.cuh"
#include "softmax_state.cuh"

constexpr int kLanes = 16;  // threads of a block along rows, and along keys or values
constexpr int kFewRows = 16;
constexpr int kManyRows = 64;

// What a block works on at a time; half as much of doubles, which take twice the room.
template <class A>
struct Tile {
  static constexpr bool kIsWide = sizeof(A) > 4;
  static constexpr int kKeys = kIsWide ? 32 : 64;
  static constexpr int kValues = kIsWide ? 64 : 128;          // columns of v
  static constexpr int kSlab = kIsWide ? 16 : 32;             // in shared memory, of depth or of the keys of v
  static constexpr int kSlabs = kSlab * 2 * (kManyRows + 4);  // room for slabs of q and k, or one of v
};

constexpr i64 kFar = 1ll << 34;  // beyond any key, window and query, and far from the end of i64

// The keys with first <= key < end.
struct KeyRange {
  i64 first, end;
};

// Packed by gpuexec/ops/nn/attention_launch.py. Strides in elements, along batch, head, row, column; y is dense along
// columns.
struct Attention {
  i64 q_strides[4], k_strides[4], v_strides[4], mask_strides[4], y_strides[4];
  i64 heads, group, queries, keys, depth, values;  // heads of keys; query heads per head of keys
  i64 mask_kind, mask_keys;                        // keys beyond those of the mask take no part
  i64 past, left, right;                           // query i stands at past + i; -1 sees all on its side
  i64 pairs, row_tiles, value_tiles, chunk_keys, chunks;
  i64 empty_rows;
  double scale, softcap;
  double fill;  // score of a key that a mask of bools takes out: -inf, unless it weighs as little as others do

  __device__ i64 rows() const { return group * queries; }

  // With `lengths`, keys beyond a batch's length take no part, and its queries are the last of that length.
  __device__ KeyRange range_of(i64 batch, i64 query, const i64* lengths) const {
    i64 end = mask_keys;
    i64 position = query + past;
    if (lengths != nullptr) {
      i64 length = lengths[batch];
      if (length < 0) length = 0;
      if (length > kFar) length = kFar;
      if (length < end) end = length;
      position = query + length - queries;
    }
    if (right >= 0 && position + right + 1 < end) end = position + right + 1;
    const i64 first = left >= 0 && position > left ? position - left : 0;
    return {first, end > first ? end : first};
  }

  template <class A>
  __device__ A scaled(A product) const { return product * A(scale); }

  template <class A>
  __device__ A capped(A score) const { return softcap > 0 ? A(softcap) * tanh_of(score / A(softcap)) : score; }

  // Whether a key of weight 0 is not looked at; else NaN in its score and in its value spreads, as in a product.
  __device__ bool takes_out() const { return empty_rows == kZero; }

  // A row's sum over its weights' total.
  template <class A>
  __device__ A averaged(A sum, A total, A largest) const {
    const bool is_empty = largest == limits<A>::negative_inf();
    if (empty_rows == kGuarded && total != total) return A(0);
    if (!is_empty) return sum / total;
    return empty_rows == kNan && keys > 0 ? limits<A>::nan() : A(0);
  }

  // A score with its mask added; -inf where the key takes no part.
  template <class T>
  __device__ Acc<T> masked(Acc<T> score, const u8* mask, i64 offset) const {
    typedef Acc<T> A;
    if (mask_kind == kNoMask) return score;
    if (mask_kind == kBool) return mask[offset] ? score : A(fill);
    const A bias = widen(bias_at<T>(mask, offset));
    return bias == limits<A>::negative_inf() && takes_out() ? bias : score + bias;
  }

 private:
  static __device__ float tanh_of(float x) { return tanhf(x); }
  static __device__ double tanh_of(double x) { return ::tanh(x); }

  template <class T, class M>
  static __device__ T read(const u8* mask, i64 offset) { return cast<T>(reinterpret_cast<const M*>(mask)[offset]); }

  template <class T>
  __device__ T bias_at(const u8* mask, i64 offset) const {
    switch (mask_kind) {
      case kHalf: return read<T, half>(mask, offset);
      case kBf16: return read<T, bf16>(mask, offset);
      case kFloat: return read<T, float>(mask, offset);
      case kDouble: return read<T, double>(mask, offset);
      case kI8: return read<T, i8>(mask, offset);
      case kI16: return read<T, i16>(mask, offset);
      case kI32: return read<T, i32>(mask, offset);
      case kI64: return read<T, i64>(mask, offset);
      case kU8: return read<T, u8>(mask, offset);
      case kU16: return read<T, u16>(mask, offset);
      case kU32: return read<T, u32>(mask, offset);
      default: return read<T, u64>(mask, offset);
    }
  }
};

// Folds over the lanes of a row, half a warp, with the same result in all of them.
template <class A, class Merge>
__device__ inline A fold_lanes(A value, Merge merge) {
#pragma unroll
  for (int bits = kLanes / 2; bits > 0; bits /= 2) {
    value = merge(value, __shfl_xor_sync(kWholeWarp, value, bits, kLanes));
  }
  return value;
}

// State of each row of a block.
struct Rows {
  i64 q_offset[kManyRows], mask_offset[kManyRows], y_offset[kManyRows], number[kManyRows];
  i64 first[kManyRows], end[kManyRows];  // keys of this block that take part
};

// Position of a block: a tile of rows, a tile of columns of v and a chunk of keys of one batch and head.
struct Place {
  i64 batch, head, row, value, chunk;

  __device__ Place(const Attention& shape, int tile_rows, int tile_values) {
    i64 rest = blockIdx.x;
    row = rest % shape.row_tiles * tile_rows;
    rest /= shape.row_tiles;
    value = rest % shape.value_tiles * tile_values;
    rest /= shape.value_tiles;
    chunk = rest % shape.chunks;
    rest /= shape.chunks;
    head = rest % shape.heads;
    batch = rest / shape.heads;
  }
};

// Fills in a row's entry; one past the last row has no keys.
__device__ inline void describe_row(
    const Attention& shape, const Place& place, const i64* lengths, int slot, Rows& rows) {
  const i64 row = place.row + slot;
  rows.first[slot] = rows.end[slot] = 0;
  if (row >= shape.rows()) return;
  const i64 query = row % shape.queries, head = place.head * shape.group + row / shape.queries;
  const auto offset = [&](const i64 (&strides)[4]) {
    return place.batch * strides[0] + head * strides[1] + query * strides[2];
  };
  rows.q_offset[slot] = offset(shape.q_strides);
  rows.mask_offset[slot] = offset(shape.mask_strides);
  rows.y_offset[slot] = offset(shape.y_strides);
  rows.number[slot] = (place.batch * shape.heads + place.head) * shape.rows() + row;
  const KeyRange range = shape.range_of(place.batch, query, lengths);
  const i64 begin = place.chunk * shape.chunk_keys, end = begin + shape.chunk_keys;
  rows.first[slot] = range.first > begin ? range.first : begin;
  rows.end[slot] = range.end < end ? range.end : end;
}

// The keys that any row of the block sees. Within a head, later queries begin and end later.
__device__ inline KeyRange find_keys(const Attention& shape, const Place& place, const i64* lengths, int tile_rows) {
  const i64 past_last = place.row + tile_rows < shape.rows() ? place.row + tile_rows : shape.rows();
  const bool is_one_head = place.row / shape.queries == (past_last - 1) / shape.queries;
  KeyRange earliest = shape.range_of(place.batch, is_one_head ? place.row % shape.queries : 0, lengths);
  KeyRange latest =
      shape.range_of(place.batch, is_one_head ? (past_last - 1) % shape.queries : shape.queries - 1, lengths);
  const i64 begin = place.chunk * shape.chunk_keys, end = begin + shape.chunk_keys;
  return {earliest.first > begin ? earliest.first : begin, latest.end < end ? latest.end : end};
}

// Calls f(outer, inner) for each place of a slab, distributed so that neighbouring threads are neighbours along `inner`.
template <int kOuter, int kInner, class F>
__device__ inline void visit_slab(F f) {
  static_assert(kOuter * kInner % kBlockThreads == 0, "each thread takes as many places");
#pragma unroll 4
  for (int i = 0; i < kOuter * kInner / kBlockThreads; ++i) {
    const int at = threadIdx.x + i * kBlockThreads;
    f(at / kInner, at % kInner);
  }
}

// The work of a block of `attend` with a tile of 16 * kRows rows: each thread has kRows rows and their sums.
template <class T, int kRows, class A = Acc<T>>
__device__ inline void attend_tile(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const u8* __restrict__ mask,
    const i64* __restrict__ lengths, const T* __restrict__ sinks, T* __restrict__ y, A* __restrict__ states,
    A* __restrict__ sums, const Attention& shape, A* slabs, A* weights, Rows& rows) {
  typedef Tile<A> Size;
  constexpr int kTileRows = kRows * kLanes, kPitch = kTileRows + 4, kKeyPitch = Size::kKeys + 4;
  constexpr int kOwnKeys = Size::kKeys / kLanes, kOwnValues = Size::kValues / kLanes, kGroup = 4;
  constexpr int kSlab = Size::kSlab;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes * kRows, key = lane * kOwnKeys;
  const Place place(shape, kTileRows, Size::kValues);
  k += place.batch * shape.k_strides[0] + place.head * shape.k_strides[1];
  v += place.batch * shape.v_strides[0] + place.head * shape.v_strides[1] + place.value * shape.v_strides[3];
  const KeyRange keys = find_keys(shape, place, lengths, kTileRows);
  if (threadIdx.x < kTileRows) describe_row(shape, place, lengths, threadIdx.x, rows);
  __syncthreads();
  const i64 live_rows = shape.rows() - place.row, columns = shape.values - place.value;
  const bool is_needed = row < live_rows, takes_out = shape.takes_out();

  A largest[kRows], total[kRows], sum[kRows][kOwnValues];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // A sink is a score in front of those of all keys, without a value.
    const bool has_sink = sinks != nullptr && place.chunk == 0 && row + r < live_rows;
    const i64 head = place.head * shape.group + (place.row + row + r) / shape.queries;
    largest[r] = has_sink ? widen(sinks[head]) : limits<A>::negative_inf();
    total[r] = has_sink ? A(1) : A(0);
#pragma unroll
    for (int c = 0; c < kOwnValues; ++c) sum[r][c] = A(0);
  }

  for (i64 first = keys.first; first < keys.end; first += Size::kKeys) {
    A score[kRows][kOwnKeys];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) score[r][c] = A(0);
    }
    A* q_slab = slabs;
    A* k_slab = slabs + kSlab * kPitch;
    for (i64 depth = 0; depth < shape.depth; depth += kSlab) {
      visit_slab<kTileRows, kSlab>([&](int r, int d) {
        const bool is_inside = r < live_rows && depth + d < shape.depth;
        q_slab[d * kPitch + r] = is_inside ? widen(q[rows.q_offset[r] + (depth + d) * shape.q_strides[3]]) : A(0);
      });
      visit_slab<Size::kKeys, kSlab>([&](int j, int d) {
        const bool is_inside = first + j < keys.end && depth + d < shape.depth;
        k_slab[d * kKeyPitch + j] =
            is_inside ? widen(k[(first + j) * shape.k_strides[2] + (depth + d) * shape.k_strides[3]]) : A(0);
      });
      __syncthreads();
      if (is_needed) {
#pragma unroll 2
        for (int d = 0; d < kSlab; ++d) {
          A a[kRows], b[kOwnKeys];
#pragma unroll
          for (int r = 0; r < kRows; ++r) a[r] = q_slab[d * kPitch + row + r];
#pragma unroll
          for (int c = 0; c < kOwnKeys; ++c) b[c] = k_slab[d * kKeyPitch + key + c];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int c = 0; c < kOwnKeys; ++c) score[r][c] = multiply_add(a[r], b[c], score[r][c]);
          }
        }
      }
      __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A highest = limits<A>::negative_inf();
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) {
        const i64 at = first + key + c;
        const bool takes_part = at >= rows.first[row + r] && at < rows.end[row + r];
        score[r][c] = takes_part ? shape.masked<T>(shape.capped(shape.scaled(score[r][c])), mask,
                                                   rows.mask_offset[row + r] + at * shape.mask_strides[3])
                                 : limits<A>::negative_inf();
        highest = max_keeping_nan(score[r][c], highest);
      }
      highest = max_keeping_nan(fold_lanes(highest, max_keeping_nan<A>), largest[r]);
      const A shrink = SoftmaxState<A>::weight(largest[r], highest);
      A added = A(0);
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) {
        const bool is_out = score[r][c] == limits<A>::negative_inf();
        const A weight = is_out ? A(0) : exp_of(score[r][c] - highest);
        weights[(key + c) * kPitch + row + r] = weight;
        added += weight;
      }
      total[r] = total[r] * shrink + fold_lanes(added, add<A>);
      largest[r] = highest;
#pragma unroll
      for (int c = 0; c < kOwnValues; ++c) sum[r][c] *= shrink;
    }

    // Other threads read the weights only after the barrier that follows the first slab of v.
    constexpr int kValuePitch = Size::kValues + 4;
#pragma unroll 1
    for (int part = 0; part < Size::kKeys; part += kSlab) {
      visit_slab<kSlab, Size::kValues>([&](int j, int c) {
        const i64 at = first + part + j;
        slabs[j * kValuePitch + c] =
            at < keys.end && c < columns ? widen(v[at * shape.v_strides[2] + c * shape.v_strides[3]]) : A(0);
      });
      __syncthreads();
      if (is_needed) {
#pragma unroll 2
        for (int j = 0; j < kSlab; ++j) {
          A a[kRows], b[kOwnValues];
#pragma unroll
          for (int r = 0; r < kRows; ++r) a[r] = weights[(part + j) * kPitch + row + r];
#pragma unroll
          for (int c = 0; c < kOwnValues; ++c) {
            b[c] = slabs[j * kValuePitch + c / kGroup * kLanes * kGroup + lane * kGroup + c % kGroup];
          }
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (a[r] == A(0) && takes_out) continue;  // NaN in a value that is masked does not spread
#pragma unroll
            for (int c = 0; c < kOwnValues; ++c) sum[r][c] = multiply_add(a[r], b[c], sum[r][c]);
          }
        }
      }
      __syncthreads();
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= live_rows) break;
    const i64 state = rows.number[row + r] * shape.chunks + place.chunk;
    if (shape.chunks > 1 && lane == 0 && place.value == 0) {
      states[2 * state] = largest[r];
      states[2 * state + 1] = total[r];
    }
#pragma unroll
    for (int c = 0; c < kOwnValues; ++c) {
      const int column = c / kGroup * kLanes * kGroup + lane * kGroup + c % kGroup;
      if (column >= columns) continue;
      if (shape.chunks > 1) {
        sums[state * shape.values + place.value + column] = sum[r][c];
      } else {
        y[rows.y_offset[row + r] + place.value + column] = cast<T>(shape.averaged(sum[r][c], total[r], largest[r]));
      }
    }
  }
}

// Computes y = softmax(score) @ v with score = masked(capped(scale * q @ k')), or what attend_merge makes y of: for
//          each row and chunk of keys the largest score, the sum of exp(score - largest), and that sum weighted by v.
// Shapes   q [batch, heads * group, queries, depth], k [batch, heads, keys, depth], v [batch, heads, keys, values],
//          mask [batch, heads * group, queries, mask_keys] of any type, y like q with `values` columns, all by strides;
//          lengths [batch] or null, sinks [heads * group] or null; states [rows, chunks, 2], sums [rows, chunks, values] if chunks > 1.
// Grid     one block per batch, head of keys, chunk of keys, 128 columns of v and 64 rows (16 where they are few).
// Needs    nothing of alignment.
// Numerics in Acc<T>, products in order along the depth with fused multiply-adds, one rounding. A row without keys, or
//          whose scores are all -inf, is zero. NaN in a score spreads over its row; in v, where its weight is not 0.
//          Unless `empty_rows` says that it is to be as the product of a softmax.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, sizeof(T) > 4 ? 1 : 2) attend(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const u8* __restrict__ mask,
    const i64* __restrict__ lengths, const T* __restrict__ sinks, T* __restrict__ y, Acc<T>* __restrict__ states,
    Acc<T>* __restrict__ sums, Attention shape) {
  typedef Acc<T> A;
  __shared__ alignas(16) A slabs[Tile<A>::kSlabs];
  __shared__ alignas(16) A weights[Tile<A>::kKeys * (kManyRows + 4)];
  __shared__ Rows rows;
  wait_for_predecessors();
  launch_dependents();
  if (shape.rows() <= kFewRows) {
    attend_tile<T, kFewRows / kLanes>(q, k, v, mask, lengths, sinks, y, states, sums, shape, slabs, weights, rows);
  } else {
    attend_tile<T, kManyRows / kLanes>(q, k, v, mask, lengths, sinks, y, states, sums, shape, slabs, weights, rows);
  }
}

// Computes y from the states and sums of the chunks of a row; nothing where there is one chunk.
// Shapes   states [rows, chunks, 2], sums [rows, chunks, values]; y by strides.
// Grid     one thread per element of y.
// Needs    nothing of alignment.
// Numerics in Acc<T>, chunks in order, one rounding.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) attend_merge(
    const Acc<T>* __restrict__ states, const Acc<T>* __restrict__ sums, T* __restrict__ y, Attention shape) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kBlockThreads + threadIdx.x;
  const i64 row = index / shape.values, column = index % shape.values;
  wait_for_predecessors();
  launch_dependents();
  if (shape.chunks <= 1 || index >= shape.pairs * shape.rows() * shape.values) return;
  states += row * shape.chunks * 2;
  sums += row * shape.chunks * shape.values + column;
  A largest = limits<A>::negative_inf();
  for (i64 i = 0; i < shape.chunks; ++i) largest = max_keeping_nan(states[2 * i], largest);
  A total = A(0), sum = A(0);
  for (i64 i = 0; i < shape.chunks; ++i) {
    if (states[2 * i] == limits<A>::negative_inf()) continue;
    const A weight = SoftmaxState<A>::weight(states[2 * i], largest);
    total += states[2 * i + 1] * weight;
    sum += sums[i * shape.values] * weight;
  }
  const i64 within = row % shape.rows(), pair = row / shape.rows();
  const i64 head = pair % shape.heads * shape.group + within / shape.queries;
  const i64 place = pair / shape.heads * shape.y_strides[0] + head * shape.y_strides[1] +
                    within % shape.queries * shape.y_strides[2];
  y[place + column] = cast<T>(shape.averaged(sum, total, largest));
}

// Computes the scores of all keys for a row: mode 0 scale * q @ k', 1 capped, 2 masked too, 3 their softmax.
// Shapes   as attend; y [batch, heads * group, queries, keys] dense.
// Grid     a warp per row.
// Needs    nothing of alignment.
// Numerics as attend; mode 3 works out each score twice.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) attention_scores(
    const T* __restrict__ q, const T* __restrict__ k, const u8* __restrict__ mask, const i64* __restrict__ lengths,
    const T* __restrict__ sinks, T* __restrict__ y, Attention shape, int mode) {
  typedef Acc<T> A;
  typedef SoftmaxState<A> State;
  __shared__ State shared[kBlockThreads];
  const Team team(kWarpThreads, 1);
  const i64 heads = shape.heads * shape.group, all = shape.pairs * shape.rows();
  const i64 row = team.row < all ? team.row : 0, end = team.row < all ? shape.keys : 0;
  const i64 query = row % shape.queries, head = row / shape.queries % heads, batch = row / shape.queries / heads;
  q += batch * shape.q_strides[0] + head * shape.q_strides[1] + query * shape.q_strides[2];
  k += batch * shape.k_strides[0] + head / shape.group * shape.k_strides[1];
  y += row * shape.keys;
  const i64 mask_row = batch * shape.mask_strides[0] + head * shape.mask_strides[1] + query * shape.mask_strides[2];
  wait_for_predecessors();
  launch_dependents();
  const KeyRange range = end > 0 ? shape.range_of(batch, query, lengths) : KeyRange{0, 0};
  const auto score_of = [&](i64 key) {
    A score = A(0);
#pragma unroll 2
    for (i64 d = 0; d < shape.depth; ++d) {
      const T other = k[key * shape.k_strides[2] + d * shape.k_strides[3]];
      score = multiply_add(widen(q[d * shape.q_strides[3]]), widen(other), score);
    }
    score = shape.scaled(score);
    if (mode >= 1) score = shape.capped(score);
    if (mode < 2) return score;
    const bool takes_part = key >= range.first && key < range.end;
    if (!takes_part) return limits<A>::negative_inf();
    return shape.masked<T>(score, mask, mask_row + key * shape.mask_strides[3]);
  };
  if (mode < 3) {
    for (i64 key = team.lane; key < end; key += kWarpThreads) y[key] = cast<T>(score_of(key));
    return;
  }
  State state = State::empty();
  for (i64 key = range.first + team.lane; key < range.end; key += kWarpThreads) {
    state = State::merge(state, State::of(score_of(key)));
  }
  state = team.fold(state, shared, State::merge);
  if (sinks != nullptr) state.sum += exp_of(widen(sinks[head]) - state.largest);
  for (i64 key = team.lane; key < end; key += kWarpThreads) {
    // A row of no keys is zero; one with a NaN is NaN, even where a key takes no part.
    const A score = score_of(key), weight = score == limits<A>::negative_inf() ? A(0) : exp_of(score - state.largest);
    y[key] = cast<T>(state.largest == limits<A>::negative_inf() ? A(0) : weight / state.strict_sum());
  }
}
