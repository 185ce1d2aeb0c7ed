// Scaled dot-product attention on tensor cores (flash attention, mma.sync, sm_80 and up), by head sizes of 64 to 256.
//
// A block has some queries of a head, a warp 32 or 16 of them and all keys of a tile; scores stay in registers. Tiles of
// keys and of values come by asynchronous copies in turn: values while scores are multiplied, the next keys while values
// are. So two blocks fit on a multiprocessor, and one multiplies while the other works on its softmax. Where blocks are few
// a ring has room for the next tiles.
//
// Tiles that no query of the block sees are not read, a warp passes over those that none of its queries sees, and only
// tiles that some query sees in part are tested key by key.
#include "attention_kinds.cuh"
#include "dependent_launch.cuh"
#include "exp2.cuh"
#include "mma.cuh"
#include "vec.cuh"

constexpr int kAttentionThreads = 128, kAttentionWarps = 4, kLaneThreads = 32;
constexpr int kEight = 8;         // keys of a tile that a thread has side by side
constexpr int kPlaneBytes = 128;  // of a line of a tile, for its first numbers
constexpr float kLog2E = 1.4426950408889634f;

// A tile: so many numbers of a head, rows of mma of a warp, and keys at a time. Queries stay in registers where those
// suffice (KeepsQueries); else they are read again for each tile. Where blocks are few, none of which works while another
// waits, several tiles of keys and values are under way together (Ring).
template <int Depth, int Down, int Keys, bool KeepsQueries, int Ring = 1>
struct HeadTile {
  static constexpr int kDepth = Depth, kDown = Down, kKeys = Keys;
  static constexpr int kWarpQueries = 16 * Down, kQueries = kAttentionWarps * kWarpQueries;
  static constexpr int kQueryBytes = kQueries * Depth * 2, kKeyBytes = Keys * Depth * 2;
  static constexpr int kSteps = Depth / 16;  // of mma along a head
  static constexpr bool kKeepsQueries = KeepsQueries;
  static constexpr int kRing = Ring;
  static constexpr int kResultBytes = kAttentionWarps * 16 * Depth * 4;  // of a row of mma of each warp
  static_assert(kResultBytes <= kQueryBytes + 2 * Ring * kKeyBytes, "they fit where queries, keys and values were");

  // The place of a result of a warp in shared memory. Eights are permuted, so that rows which fragments write together lie in
  // different banks.
  static __device__ int find_result(int row, int column) {
    return row * Depth + (column ^ (Depth % 32 == 0 ? row % 4 : row / 2 % 2) * 8);
  }
};

// Of HEAD_TILES in gpuexec/ops/nn/attention_mma.py, with the bytes of shared memory. Scores of 64 keys beside the sums of
// heads of more than 64 numbers are more than the registers of a thread.
typedef HeadTile<64, 1, 64, true, 4> FewHeads64;  // 73,728: blocks are few
typedef HeadTile<64, 2, 64, true> Heads64;        // 32,768
typedef HeadTile<80, 2, 32, false> Heads80;       // 30,720
typedef HeadTile<96, 2, 32, false> Heads96;       // 36,864
typedef HeadTile<128, 2, 32, false> Heads128;     // 49,152
typedef HeadTile<192, 1, 32, true> Heads192;      // 49,152
typedef HeadTile<256, 1, 32, false> Heads256;     // 65,536

// Packed by gpuexec/ops/nn/attention_mma.py. Strides in elements, along batch, head and row; a mask's along keys too.
struct MmaAttention {
  i64 q_strides[3], k_strides[3], v_strides[3], y_strides[3], mask_strides[4];
  i32 heads, group, query_tiles;    // heads of queries; those that share a head of keys; tiles of a head
  i32 queries, keys, depth, values;
  i32 mask_kind, mask_keys;         // keys beyond those of the mask take no part
  i32 past, left, right;            // query i stands at past + i; -1 sees all on its side
  i32 empty_rows, is_float, flags;  // is_float: of y
  float scale, softcap, fill;       // scale above 0; fill: score of a key that a mask of bools takes out
};
enum MmaAttentionFlags { kWideY = 1, kWideMask = 2, kRoundsMask = 4 };

// What happens to scores in front of their softmax: nothing; a mask alone; a softcap, then perhaps a mask.
enum ScoreKind { kPlain, kMasked, kCapped };

constexpr i32 kFarthest = 1 << 29;  // beyond any key, window and query

// The keys that queries of a batch see.
struct SeenKeys {
  i32 end, position;  // of all queries: the end of what there is; where query 0 stands
  i32 left, right;

  // With `lengths`, keys beyond a batch's length take no part, and its queries are the last of that length.
  __device__ SeenKeys(const MmaAttention& shape, const i64* lengths, u32 batch)
      : end(shape.mask_keys < shape.keys ? shape.mask_keys : shape.keys),
        position(shape.past),
        left(shape.left),
        right(shape.right) {
    if (lengths == nullptr) return;
    const i64 given = lengths[batch];
    const i32 length = given < 0 ? 0 : given > kFarthest ? kFarthest : i32(given);
    end = length < end ? length : end;
    position = length - shape.queries;
  }

  __device__ i32 find_first(i32 query) const {
    const i32 first = position + query - left;
    return left < 0 || first < 0 ? 0 : first;
  }

  __device__ i32 find_end(i32 query) const {
    const i32 own = position + query + right + 1;
    return right < 0 || own > end ? end : own;
  }
};

// How the lines of a tile lie in shared memory: planes of 128 bytes of each line, then one of the 64 or 32 that are left.
// The 16-byte chunk c of a line stands where chunk c ^ phase would, so that eight lines in succession, which ldmatrix
// reads at a time, lie in different banks, and so do the eight chunks that a quarter of a warp stores.
template <int Depth, int Lines>
struct LineOrder {
  static constexpr int kPlanes = Depth / 64, kRestBytes = Depth % 64 * 2;
  static constexpr int kPlane = Lines * kPlaneBytes;
  static_assert(kRestBytes == 0 || kRestBytes == 32 || kRestBytes == 64, "a line of the rest is half or a quarter");

  static __device__ int find_place(int line, int chunk) { return line * kPlaneBytes + (chunk ^ (line & 7)) * 16; }
  static __device__ int find_rest_place(int line, int chunk) {
    const int phase = kRestBytes == 64 ? line >> 1 & 3 : line >> 2 & 1;
    return line * kRestBytes + (chunk ^ phase) * 16;
  }

  // Of the places of chunk 0 or 1 of a line, that of the chunk `step` * 2 further on, and `lines` further down, which are
  // a multiple of eight.
  static __device__ int advance(int place, int rest_place, int step, int lines) {
    if (step < 4 * kPlanes) return (place ^ step % 4 * 32) + (step / 4 * kPlane + lines * kPlaneBytes);
    return (rest_place ^ step % 4 * 32) + (kPlanes * kPlane + lines * kRestBytes);
  }
};

// The key of a line of a tile: eight lines are the columns of an mma, of which a thread holds two neighbours, and its
// columns of four mma are eight keys side by side.
__device__ constexpr int find_key(int line) {
  return (line & 1) | (line >> 1 & 3) << 3 | (line >> 3 & 3) << 1 | line >> 5 << 5;
}

// Starts to copy lines of `nbytes`, of which `lines_left` are there; what is not there becomes zeros.
template <int Depth, int Lines, bool kIsOfKeys>
__device__ __forceinline__ void copy_lines(SharedAddress to, const u8* first, i32 pitch_bytes, int lines_left,
                                           int nbytes) {
  typedef LineOrder<Depth, Lines> Order;
  const auto copy = [&](int own, int further, int chunk, int place, int plane) {
    const int line = kIsOfKeys ? find_key(own) + find_key(further) : own + further;
    const int left = nbytes - (plane * kPlaneBytes + chunk * 16);
    const int inside = line >= lines_left || left < 0 ? 0 : left < 16 ? left : 16;
    copy_async_vector(to + place, first + i64(line) * pitch_bytes + (plane * kPlaneBytes + chunk * 16), inside);
  };
  if constexpr (Order::kPlanes > 0) {
    constexpr int kPass = kAttentionThreads / 8;
    const int own = threadIdx.x / 8, chunk = threadIdx.x % 8, place = Order::find_place(own, chunk);
#pragma unroll
    for (int line = 0; line < Lines; line += kPass) {
#pragma unroll
      for (int plane = 0; plane < Order::kPlanes; ++plane) {
        copy(own, line, chunk, place + line * kPlaneBytes + plane * Order::kPlane, plane);
      }
    }
  }
  if constexpr (Order::kRestBytes > 0) {
    constexpr int kChunks = Order::kRestBytes / 16, kPass = kAttentionThreads / kChunks;
    const int own = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks, place = Order::find_rest_place(own, chunk);
    if (kPass > Lines && own >= Lines) return;
#pragma unroll
    for (int line = 0; line < Lines; line += kPass) {
      copy(own, line, chunk, place + line * Order::kRestBytes + Order::kPlanes * Order::kPlane, Order::kPlanes);
    }
  }
}

// Makes zeros of what is NaN or infinite in 16 bytes; returns whether anything was.
template <class T>
__device__ __forceinline__ bool clear_wild_chunk(u8* bytes) {
  constexpr bool kIsHalf = kIsSame<T, half>;
  constexpr u32 kExponent = kIsHalf ? 0x7c007c00u : 0x7f807f80u, kLeast = kIsHalf ? 0x04000400u : 0x00800080u;
  u32* const words = reinterpret_cast<u32*>(bytes);
  Vec<u32, 4> chunk = load_vec<4>(words);
  u32 found = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) found |= (chunk.lanes[w] & kExponent) + kLeast;  // carries into the signs
  if (!(found & 0x80008000u)) return false;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const u32 wild = ((chunk.lanes[w] & kExponent) + kLeast) & 0x80008000u;
    chunk.lanes[w] &= ~((wild >> 15) * 0xffffu);
  }
  store_vec(words, chunk);
  return true;
}

// The same of the chunks that this thread has copied.
template <class T, int Depth, int Lines>
__device__ __forceinline__ bool clear_wild(u8* tile) {
  typedef LineOrder<Depth, Lines> Order;
  constexpr int kPassBytes = kAttentionThreads * 16, kPlaneBytesOfAll = Order::kPlanes * Order::kPlane;
  bool is_wild = false;
  const int place = Order::find_place(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
  for (int pass = 0; pass < kPlaneBytesOfAll; pass += kPassBytes) is_wild |= clear_wild_chunk<T>(tile + (place + pass));
  if constexpr (Order::kRestBytes > 0) {
    constexpr int kChunks = Order::kRestBytes / 16;
    const int own = threadIdx.x / kChunks, rest_place = Order::find_rest_place(own, threadIdx.x % kChunks);
    if (kAttentionThreads / kChunks > Lines && own >= Lines) return is_wild;
#pragma unroll
    for (int pass = 0; pass < Lines * Order::kRestBytes; pass += kPassBytes) {
      is_wild |= clear_wild_chunk<T>(tile + (kPlaneBytesOfAll + rest_place + pass));
    }
  }
  return is_wild;
}

// A bias in units of log2(e). A finite one stays finite: the lowest number is what masks are often made of, and a row of
// nothing else is as if it had no mask.
__device__ __forceinline__ float scale_bias(float bias) {
  const float scaled = bias * kLog2E, lowest = limits<float>::lowest();
  return scaled < lowest && bias != limits<float>::negative_inf() ? lowest : scaled;
}

// What a mask says of N keys side by side: biases in units of log2(e). `removal` is the bias of a key that takes no part
// whatever its score; NaN, which equals none, where there is no such bias.
template <class T, int N>
struct MaskedKeys {
  float bias[N], removal;

  // Reads those at `offset`, as vectors.
  __device__ __forceinline__ MaskedKeys(const MmaAttention& shape, const u8* mask, i64 offset) {
    if (shape.mask_kind == kBool) read<u8>(mask, offset);
    else if (shape.mask_kind == kFloat) read<float>(mask, offset);
    else read<T>(mask, offset);
    if (shape.flags & kRoundsMask) {
#pragma unroll
      for (int e = 0; e < N; ++e) bias[e] = widen(cast<T>(bias[e]));
    }
#pragma unroll
    for (int e = 0; e < N; ++e) bias[e] = scale_bias(bias[e]);
    const bool removes = shape.mask_kind == kBool || shape.empty_rows == kZero;
    removal = removes ? limits<float>::negative_inf() : limits<float>::nan();
  }

  __device__ bool is_out(int e) const { return bias[e] == removal; }

  // Masks the score of key `e`, of which `factor` makes units of log2(e); one that is out becomes `removed`.
  __device__ float apply(int e, float score, float factor, float removed) const {
    return is_out(e) ? removed : fmaf(score, factor, bias[e]);
  }

 private:
  template <class M>
  __device__ __forceinline__ void read(const u8* mask, i64 offset) {
    constexpr int kMost = 16 / int(sizeof(M)), kPiece = N < kMost ? N : kMost;
#pragma unroll
    for (int e = 0; e < N; e += kPiece) {
      const Vec<M, kPiece> piece = load_vec<kPiece>(reinterpret_cast<const M*>(mask) + offset + e);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if constexpr (kIsSame<M, u8>) bias[e + i] = piece.lanes[i] ? 0.0f : limits<float>::negative_inf();
        else bias[e + i] = widen(piece.lanes[i]);
      }
    }
  }
};

// Folds over the four threads that share a row.
template <class Fold>
__device__ __forceinline__ float fold_quad(float value, Fold fold) {
  value = fold(value, __shfl_xor_sync(~0u, value, 1));
  return fold(value, __shfl_xor_sync(~0u, value, 2));
}

// Stores four numbers of a row as Y, those in front of the last column.
template <class Y>
__device__ __forceinline__ void store_four(const MmaAttention& shape, Y* y, int column, const float* four) {
  if ((shape.flags & kWideY) && column + 4 <= shape.values) {
    const Vec<float, 4> numbers = load_vec<4>(four);
    Vec<Y, 4> stored;
#pragma unroll
    for (int e = 0; e < 4; ++e) stored.lanes[e] = cast<Y>(numbers.lanes[e]);
    store_vec(y, stored);
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 4 && column + e < shape.values; ++e) y[e] = cast<Y>(four[e]);
}

// The place of a block: queries of a head of a batch. Later queries, which see more keys where not all see all, come first.
template <class Tile>
struct HeadPlace {
  u32 batch, head;
  i32 first_query, last_query;

  __device__ HeadPlace(const MmaAttention& shape, u32 block) {
    const u32 rest = block / u32(shape.query_tiles);
    first_query = i32(u32(shape.query_tiles) - 1 - block % u32(shape.query_tiles)) * Tile::kQueries;
    head = rest % u32(shape.heads);
    batch = rest / u32(shape.heads);
    const i32 past_last = first_query + Tile::kQueries;
    last_query = (past_last < shape.queries ? past_last : shape.queries) - 1;
  }

  __device__ i64 find_offset(const i64 (&strides)[3], u32 own_head) const {
    return batch * strides[0] + own_head * strides[1];
  }

  // Whether all of its queries see all keys of [from, to).
  __device__ bool sees_all(const SeenKeys& seen, i32 from, i32 to) const {
    return from >= seen.find_first(last_query) && to <= seen.find_end(first_query);
  }
};

// The queries of a warp, the last one of which may come before the first.
template <class Tile>
struct WarpQueries {
  i32 first, last;

  __device__ WarpQueries(const HeadPlace<Tile>& place, u32 thread)
      : first(place.first_query + i32(thread) / kLaneThreads * Tile::kWarpQueries) {
    last = first + Tile::kWarpQueries - 1 < place.last_query ? first + Tile::kWarpQueries - 1 : place.last_query;
  }

  // Whether some of them see some keys of [from, to).
  __device__ bool sees_some(const SeenKeys& seen, i32 from, i32 to) const {
    return first <= last && from < seen.find_end(last) && to > seen.find_first(first);
  }

  // Whether all of them see all of those.
  __device__ bool sees_all(const SeenKeys& seen, i32 from, i32 to) const {
    return from >= seen.find_first(last) && to <= seen.find_end(first);
  }
};

__device__ inline i64 find_mask_start(const MmaAttention& shape, u32 batch, u32 head) {
  return batch * shape.mask_strides[0] + head * shape.mask_strides[1];
}

// Adds to the block's part of y what is NaN or infinite in the values of keys that its queries see: tiles that some of
// them see in part are summed without.
template <class T, class Tile>
__device__ void add_wild(const MmaAttention& shape, const HeadPlace<Tile>& place, const SeenKeys& seen, const T* v,
                         const u8* mask, u8* y, i64 start) {
  const i64 mask_start = find_mask_start(shape, place.batch, place.head);
  const i32 queries = place.last_query + 1 - place.first_query;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < u32(queries) * u32(shape.values); i += kAttentionThreads) {
    const i32 query = place.first_query + i32(i / u32(shape.values)), column = i32(i % u32(shape.values));
    float added = 0.0f;
#pragma unroll 1
    for (i32 key = seen.find_first(query); key < seen.find_end(query); ++key) {
      const float value = widen(v[key * shape.v_strides[2] + column]);
      if (value - value == 0) continue;
      if (shape.mask_kind != kNoMask) {
        const i64 offset = mask_start + query * shape.mask_strides[2] + key * shape.mask_strides[3];
        if (MaskedKeys<T, 1>(shape, mask, offset).is_out(0)) continue;
      }
      added += value;
    }
    if (added == 0) continue;
    const i64 to = start + query * shape.y_strides[2] + column;
    if (shape.is_float) {
      reinterpret_cast<float*>(y)[to] += added;
    } else {
      T& stored = reinterpret_cast<T*>(y)[to];
      stored = cast<T>(widen(stored) + added);
    }
  }
}

// Computes  y = softmax(score) @ v with score = masked(capped(scale * q @ k'))
// Shapes    q [batch, heads, queries, depth], k [batch, heads / group, keys, depth], v [batch, heads / group, keys,
//           values], mask [batch, heads, queries, mask_keys] of bool, float or T, or null, y [batch, heads, queries,
//           values] of T or float, all by strides; lengths [batch] or null, sinks [heads] or null
// Grid      one block per tile of queries, head and batch, with Tile::kQueryBytes + 2 * Tile::kRing * Tile::kKeyBytes of
//           dynamic shared memory
// Needs     sm_80; depth and values up to Tile::kDepth; q, k, v and their strides multiples of 16 bytes, rows dense; a
//           scale above 0; neither mask nor softcap (kPlain), a mask alone (kMasked) or a softcap (kCapped). kWideY: y and
//           its strides are multiples of 4 elements. kWideMask: the mask is dense along keys and else of multiples of 8
//           elements
// Numerics  scores and sums in float, powers of two within 2 units in the last place, weights rounded to T before they
//           meet v, one rounding of y. A row without keys, or whose scores are all -inf, is as `empty_rows` says. NaN in a
//           score spreads over its row, NaN and infinity in v over the rows that see its key, or over all rows where
//           `empty_rows` is not kZero
template <class T, class Tile, ScoreKind kKind>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attend_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const u8* __restrict__ mask,
               const i64* __restrict__ lengths, const T* __restrict__ sinks, u8* __restrict__ y,
               const __grid_constant__ MmaAttention shape) {
  constexpr int kDepth = Tile::kDepth, kDown = Tile::kDown, kKeys = Tile::kKeys;
  constexpr int kColumns = kKeys / 8, kAcross = kDepth / 8;  // mma of scores, and of sums
  constexpr int kRing = Tile::kRing, kPairBytes = 2 * Tile::kKeyBytes;
  typedef LineOrder<kDepth, Tile::kQueries> QueryOrder;
  typedef LineOrder<kDepth, kKeys> KeyOrder;
  extern __shared__ __align__(128) u8 tiles[];
  __shared__ u32 is_wild;  // whether a value that was met is no finite number
  if (threadIdx.x == 0) is_wild = 0;
  const SharedAddress query_tile = find_shared_address(tiles), key_tile = query_tile + Tile::kQueryBytes;
  const SharedAddress value_tile = key_tile + Tile::kKeyBytes;
  const HeadPlace<Tile> place(shape, blockIdx.x);
  const u32 key_head = place.head / u32(shape.group);
  const u8* const keys = reinterpret_cast<const u8*>(k + place.find_offset(shape.k_strides, key_head));
  const u8* const values = reinterpret_cast<const u8*>(v + place.find_offset(shape.v_strides, key_head));
  const i32 key_pitch = i32(shape.k_strides[2]) * 2, value_pitch = i32(shape.v_strides[2]) * 2;

  wait_for_predecessors();
  launch_dependents();
  const SeenKeys seen(shape, lengths, place.batch);
  const i32 end = seen.find_end(place.last_query), first_tile = seen.find_first(place.first_query) / kKeys * kKeys;
  const auto copy_keys = [&](i32 first_key) {
    if (first_key < end) {
      copy_lines<kDepth, kKeys, true>(key_tile, keys + i64(first_key) * key_pitch, key_pitch, end - first_key,
                                      shape.depth * 2);
    }
    commit_copies();
  };
  // Of a ring, keys and values of a tile, as one group of copies.
  const auto copy_pair = [&](i32 first_key) {
    const int at = (first_key - first_tile) / kKeys % kRing * kPairBytes;
    if (first_key < end) {
      copy_lines<kDepth, kKeys, true>(key_tile + at, keys + i64(first_key) * key_pitch, key_pitch, end - first_key,
                                      shape.depth * 2);
      copy_lines<kDepth, kKeys, true>(value_tile + at, values + i64(first_key) * value_pitch, value_pitch,
                                      end - first_key, shape.values * 2);
    }
    commit_copies();
  };
  {
    const u8* const first = reinterpret_cast<const u8*>(q + place.find_offset(shape.q_strides, place.head));
    const i32 pitch = i32(shape.q_strides[2]) * 2;
    copy_lines<kDepth, Tile::kQueries, false>(query_tile, first + i64(place.first_query) * pitch, pitch,
                                              shape.queries - place.first_query, shape.depth * 2);
  }
  if constexpr (kRing == 1) {
    copy_keys(first_tile);
  } else {
    commit_copies();
#pragma unroll 1
    for (int i = 0; i < kRing; ++i) copy_pair(first_tile + i * kKeys);
  }

  const auto load_queries = [&](u32(&rows)[kDown][4], int step, u32 thread) {
    const int line = int(thread) / kLaneThreads * Tile::kWarpQueries + int(thread) % 16, chunk = int(thread) / 16 % 2;
    const int in_plane = QueryOrder::find_place(line, chunk), in_rest = QueryOrder::find_rest_place(line, chunk);
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
      load_matrices(rows[i], query_tile + QueryOrder::advance(in_plane, in_rest, step, 16 * i));
    }
  };

  const float no_score = limits<float>::negative_inf();
  constexpr bool is_capped = kKind == kCapped;
  const bool is_masked = kKind == kMasked || (kKind == kCapped && shape.mask_kind != kNoMask);
  const float own_factor = is_capped ? 1.0f : shape.scale * kLog2E;   // of scores, for units of log2(e)
  const float factor = is_masked ? 1.0f : own_factor;                 // of what is masked already
  float sums[kDown][kAcross][4], largest[kDown][2], total[kDown][2];  // largest in units of log2(e)
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A sink is a score in front of those of all keys, without a value.
      largest[i][half] = sinks != nullptr ? widen(sinks[place.head]) * kLog2E : no_score;
      total[i][half] = sinks != nullptr && threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAcross; ++j) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0.0f;
  }
  u32 queries[Tile::kKeepsQueries ? Tile::kSteps : 1][kDown][4];
  if constexpr (Tile::kKeepsQueries) {
    wait_copies<kRing == 1 ? 0 : kRing>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) load_queries(queries[step], step, threadIdx.x);
  }

#pragma unroll 1
  for (i32 first_key = first_tile; first_key < end; first_key += kKeys) {
    const int at = (first_key - first_tile) / kKeys % kRing * kPairBytes;
    // Clears values that this thread has copied.
    const auto clear_values = [&] {
      if (shape.empty_rows == kZero && (is_masked || !place.sees_all(seen, first_key, first_key + kKeys))) {
        if (clear_wild<T, kDepth, kKeys>(tiles + (Tile::kQueryBytes + Tile::kKeyBytes + at))) is_wild = 1;
      }
    };
    wait_copies<kRing - 1>();
    if constexpr (kRing > 1) clear_values();
    __syncthreads();  // keys are here, of a ring values too, and those of the tile before are read
    if constexpr (kRing == 1) {
      copy_lines<kDepth, kKeys, true>(value_tile, values + i64(first_key) * value_pitch, value_pitch, end - first_key,
                                      shape.values * 2);
      commit_copies();
    } else if (first_key == first_tile) {
      commit_copies();  // a group for each tile
    } else {
      copy_pair(first_key + (kRing - 1) * kKeys);
    }
    // What is worked out of this is not kept from tile to tile: sums have the registers.
    const u32 thread = forget(threadIdx.x);
    const WarpQueries<Tile> queries_here(place, thread);
    const bool is_seen = __any_sync(~0u, queries_here.sees_some(seen, first_key, first_key + kKeys));
    float scores[kDown][kColumns][4];
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) scores[i][j][0] = scores[i][j][1] = scores[i][j][2] = scores[i][j][3] = 0.0f;
    }
    if (is_seen) {
      const int line = int(thread) % 8 + int(thread) / 16 % 2 * 8, chunk = int(thread) / 8 % 2;
      const int in_plane = KeyOrder::find_place(line, chunk), in_rest = KeyOrder::find_rest_place(line, chunk);
#pragma unroll
      for (int step = 0; step < Tile::kSteps; ++step) {
        u32 read[kDown][4];
        if constexpr (!Tile::kKeepsQueries) load_queries(read, step, thread);
#pragma unroll
        for (int p = 0; p < kColumns / 2; ++p) {
          u32 pair[4];
          load_matrices(pair, key_tile + at + KeyOrder::advance(in_plane, in_rest, step, 16 * p));
          const u32 columns[2][2] = {{pair[0], pair[1]}, {pair[2], pair[3]}};
#pragma unroll
          for (int i = 0; i < kDown; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              if constexpr (Tile::kKeepsQueries) multiply_matrices<T>(scores[i][2 * p + j], queries[step][i], columns[j]);
              else multiply_matrices<T>(scores[i][2 * p + j], read[i], columns[j]);
            }
          }
        }
      }
    }
    if constexpr (kRing == 1) {
      wait_copies<0>();
      clear_values();
      __syncthreads();  // values are here, and the keys are read
      copy_keys(first_key + kKeys);
    }
    if (!is_seen) continue;

    if (is_capped) {
      const float inner = __fdividef(shape.scale, shape.softcap) * (2 * kLog2E), outer = shape.softcap * kLog2E;
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
            float& score = scores[i][j][e];
            score = outer - 2 * outer * __fdividef(1.0f, exp2_fast(score * inner) + 1.0f);
          }
        }
      }
    }
    if (is_masked || __any_sync(~0u, !queries_here.sees_all(seen, first_key, first_key + kKeys))) {
      const auto find_mask = [&](i32 query, i32 key) {
        return find_mask_start(shape, place.batch, place.head) + query * shape.mask_strides[2] + key * shape.mask_strides[3];
      };
      const float removed = shape.mask_kind == kBool ? scale_bias(shape.fill) : no_score;
      const bool is_wide = (shape.flags & kWideMask) && first_key + kKeys <= shape.mask_keys;
      const i32 first_query = queries_here.first + i32(thread) % kLaneThreads / 4;
      const i32 own_key = first_key + i32(thread) % 4 * kEight;
      if (is_masked && !is_wide) {
        // One by one, each of which is the first of all in its turn: so what reads a mask stands there once.
        constexpr int kScores = kDown * kColumns * 4;
        const auto at = [&](int n) -> float& { return scores[n / (4 * kColumns)][n / 4 % kColumns][n % 4]; };
#pragma unroll 1
        for (int n = 0; n < kScores; ++n) {
          const i32 query = first_query + n / (4 * kColumns) * 16 + n / 2 % 2 * 8;
          const i32 key = own_key + n / 16 % (kColumns / 4) * (4 * kEight) + n / 4 % 4 * 2 + n % 2;
          float score = scores[0][0][0];
#pragma unroll
          for (int other = 1; other < kScores; ++other) at(other - 1) = at(other);
          if (query < shape.queries && key < seen.find_end(query)) {
            score = MaskedKeys<T, 1>(shape, mask, find_mask(query, key)).apply(0, score, own_factor, removed);
          }
          at(kScores - 1) = score;
        }
      } else if (is_masked) {
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            __syncwarp();  // so that what is read next is not held meanwhile
            const i32 query = first_query + i * 16 + half * 8, row = query < shape.queries ? query : shape.queries - 1;
#pragma unroll
            for (int j = 0; j < kColumns; j += 4) {
              const MaskedKeys<T, kEight> masked(shape, mask, find_mask(row, own_key + j * kEight));
#pragma unroll
              for (int e = 0; e < kEight; ++e) {
                float& score = scores[i][j + e / 2][half * 2 + e % 2];
                score = masked.apply(e, score, own_factor, removed);
              }
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const i32 query = first_query + i * 16 + half * 8;
          const i32 from = seen.find_first(query), to = query < shape.queries ? seen.find_end(query) : 0;
          const u32 seen_keys = to > from ? to - from : 0, start = own_key - from;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (start + (j / 4 * (4 * kEight) + j % 4 * 2 + e) >= seen_keys) scores[i][j][half * 2 + e] = no_score;
            }
          }
        }
      }
    }

    u32 weights[kKeys / 16][kDown][4];  // left operands of the product with values
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = scores[i][0][half * 2];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          highest = fmaxf(highest, fmaxf(scores[i][j][half * 2], scores[i][j][half * 2 + 1]));
        }
        highest = fold_quad(highest * factor, [](float a, float b) { return fmaxf(a, b); });
        highest = fmaxf(highest, largest[i][half]);
        const float shift = highest == no_score ? 0.0f : highest;  // -inf less -inf is no number
        const float shrink = exp2_fast(largest[i][half] - shift);
        largest[i][half] = highest;
        float added = 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          float weight[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            weight[e] = exp2_fast(fmaf(scores[i][j][half * 2 + e], factor, -shift));
            added += weight[e];
          }
          weights[j / 2][i][j % 2 * 2 + half] = pack_pair<T>(weight[0], weight[1]);
        }
        total[i][half] = fmaf(total[i][half], shrink, added);
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          sums[i][j][half * 2] *= shrink;
          sums[i][j][half * 2 + 1] *= shrink;
        }
      }
    }
    const int line = int(thread) % 16, chunk = int(thread) / 16 % 2;
    const int in_plane = KeyOrder::find_place(line, chunk), in_rest = KeyOrder::find_rest_place(line, chunk);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int p = 0; p < kDepth / 16; ++p) {
        u32 pair[4];
        load_matrices_transposed(pair, value_tile + at + KeyOrder::advance(in_plane, in_rest, p, 16 * step));
        const u32 columns[2][2] = {{pair[0], pair[1]}, {pair[2], pair[3]}};
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) multiply_matrices<T>(sums[i][2 * p + j], weights[step][i], columns[j]);
        }
      }
    }
  }
  wait_copies<0>();

  // Worked out again, so that the loop does not keep it.
  const HeadPlace<Tile> done(shape, forget(blockIdx.x));
  const u32 thread = forget(threadIdx.x), lane = thread % kLaneThreads;
  const i32 warp_first = done.first_query + i32(thread) / kLaneThreads * Tile::kWarpQueries;
  const i64 start = done.find_offset(shape.y_strides, done.head);
  // Rows leave by shared memory, which nobody reads any more: so what stores them stands there once.
  float* const rows = reinterpret_cast<float*>(tiles) + thread / kLaneThreads * (16 * kDepth);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = fold_quad(total[i][half], [](float a, float b) { return a + b; });
      const bool is_empty = largest[i][half] == no_score && all == 0;
      float share = is_empty ? 0.0f : __fdividef(1.0f, all);
      if (is_empty && shape.empty_rows == kNan && shape.keys > 0) share = limits<float>::nan();
      const bool is_guarded = shape.empty_rows == kGuarded && all != all;
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        Vec<float, 2> pair;
#pragma unroll
        for (int e = 0; e < 2; ++e) pair.lanes[e] = is_guarded ? 0.0f : sums[i][j][half * 2 + e] * share;
        store_vec(rows + Tile::find_result(half * 8 + i32(lane) / 4, j * 8 + i32(lane) % 4 * 2), pair);
      }
    }
    __syncwarp();
#pragma unroll 2
    for (u32 four = lane; four < 16 * kDepth / 4; four += kLaneThreads) {
      const i32 row = i32(four / (kDepth / 4)), column = i32(four % (kDepth / 4)) * 4, query = warp_first + i * 16 + row;
      if (query >= shape.queries) continue;
      const float* const from = rows + Tile::find_result(row, column);
      // A column whose lowest bits are known would be stored as four numbers, not as a vector.
      const i64 to = start + query * shape.y_strides[2] + i32(forget(u32(column)));
      if (shape.is_float) store_four(shape, reinterpret_cast<float*>(y) + to, column, from);
      else store_four(shape, reinterpret_cast<T*>(y) + to, column, from);
    }
    __syncwarp();
  }
  if (!is_wild) return;
  __syncthreads();
  const SeenKeys all_seen(shape, lengths, done.batch);
  const T* const own_values = v + done.find_offset(shape.v_strides, done.head / u32(shape.group));
  add_wild<T>(shape, done, all_seen, own_values, mask, y, start);
}
