// Convolution of images with few channels on tensor cores (sm_80 and up), as a product by tiles.
//
// Rows are output positions, columns output channels. The inner extent runs over channels and in a channel over taps, as
// weights lie, and is padded once, at its end. Elements of patches are read as the image lies, wait in registers while the
// slab before is multiplied, and go into shared memory rounded to the type of the weights.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "mma_product.cuh"

// A place of the inner extent: where it lies behind tap 0 of channel 0, in elements of the image, and the bits of its tap.
struct alignas(8) PatchPlace {
  i32 offset;
  u32 bits;
};

constexpr u32 kBehind = 1u << 31;  // bit of places behind the last one
// Blocks whose registers a multiprocessor has. Numbers of 16 bits wait in one each, and in one more while they are joined.
template <class S>
constexpr int kFewBlocks = sizeof(S) == 4 ? 3 : 2;

// Extents are of three spatial axes (fewer: 1 in front). Tap t of axis i has bit first_bits[i] + t; of axes along which no
// window leaves the image first_bits is negative, and taps have none. Strides are in elements. Packed by pack_few of
// gpuexec/ops/nn/conv_few.py.
struct FewConv {
  SimtGemm gemm;  // of the product: extents, c (the bias) and y; a_batch is that of images where each has a product
  i32 extents[3], steps[3], dilations[3], starts[3], first_bits[3];
  FastDiv32 by_windows, by_counts[3], by_kernel[3];  // output positions: of an image, and along each axis; taps
  i64 x_batch, x_channel, x_axis[3];

  __device__ u32 find_bit(int axis, u32 tap) const { return first_bits[axis] < 0 ? 0 : 1u << (first_bits[axis] + tap); }
};

// Lists every Width-th place of the inner extent, to the end of its last slab. All threads of the block come here.
template <class Tile, class T, int Width>
__device__ inline void list_places(const FewConv& conv, PatchPlace* places) {
  constexpr int kDepth = Tile::kSlabBytes / int(sizeof(T));
  const int count = (conv.gemm.inner + kDepth - 1) / kDepth * (kDepth / Width);
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
    const u32 k = u32(i) * Width;
    PatchPlace place = {0, kBehind};
    if (k < u32(conv.gemm.inner)) {
      place.bits = 0;
      u32 rest = k;
      i64 offset = 0;
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        u32 tap;
        rest = conv.by_kernel[axis].divide(rest, tap);
        offset += i64(tap) * conv.dilations[axis] * conv.x_axis[axis];
        place.bits |= conv.find_bit(axis, tap);
      }
      place.offset = i32(offset + rest * conv.x_channel);
    }
    places[i] = place;
  }
}

template <class S, class T, class Tile, int Lines, int Shift, int Width>
struct FewLoader;

// The left operand of a convolution as a block sees it.
template <class S, class T, int Width>
struct FewPatches {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = FewLoader<S, T, Tile, Lines, Shift, Width>;
  static constexpr bool kIsAlwaysWide = true;

  const S* x;
  const FewConv& conv;
  const PatchPlace* places;
  int inner, first_line, first_k, end;  // end: of the block's slabs
  u8* ring;
};

// Eight elements of half or bf16, or four floats, made of elements of the image: rounded.
template <class T, class S, int Count>
__device__ inline Vec<u32, 4> round_chunk(const Vec<S, Count>& chunk) {
  Vec<u32, 4> words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kIsSame<T, float>) {
      words.lanes[i] = convert_to_tf32(chunk.lanes[i]);
    } else if constexpr (kIsSame<S, float>) {
      words.lanes[i] = pack_pair<T>(chunk.lanes[2 * i], chunk.lanes[2 * i + 1]);
    } else {
      const u32 low = reinterpret<u16>(chunk.lanes[2 * i]), high = reinterpret<u16>(chunk.lanes[2 * i + 1]);
      words.lanes[i] = low | high << 16;
    }
  }
  return words;
}

// Gathers slabs one after the other from the block's first one on: what is stored was fetched a slab before. A thread has
// every kLineThreads-th chunk of one line, so that all have as much of a slab that is not full; lanes have lines side by
// side, which see places of the image side by side through the same place of the list.
template <class S, class T, class Tile, int Lines, int Shift, int Width>
struct FewLoader {
  typedef SlabOrder<Tile::kSlabBytes, Shift> Order;
  static constexpr int kElements = kChunkElements<T>, kDepth = Tile::kSlabBytes / int(sizeof(T));
  static constexpr int kLineThreads = Tile::kThreads / Lines, kOwn = Order::kChunks / kLineThreads;  // chunks of a thread
  static constexpr int kPlaces = kElements / Width, kRead = kPlaces > 1 ? 2 : 1;  // of a chunk; those read at a time
  static constexpr int kStep = Width == 1 ? 1 : kChunkBytes / int(sizeof(S));     // elements that are read at a time
  static_assert(Lines % 32 == 0 && Tile::kThreads % Lines == 0, "a warp sees its lines through the same places");
  static_assert(Width == 1 || Width == kElements, "elements side by side are those of a chunk");
  const FewPatches<S, T, Width>& patches;
  SharedAddress stages;
  int line, chunk, k;  // of the first chunk; where the slab begins that is fetched next
  const S* source;
  u32 outside;
  Vec<S, kElements> chunks[kOwn];

  __device__ explicit FewLoader(const FewPatches<S, T, Width>& patches)
      : patches(patches), stages(find_shared_address(patches.ring)), line(threadIdx.x % Lines),
        chunk(threadIdx.x / Lines), k(patches.first_k) {
    const FewConv& conv = patches.conv;
    const int row = patches.first_line + line;
    u32 rest;
    const u32 n = conv.by_windows.divide(u32(row < conv.gemm.rows ? row : conv.gemm.rows - 1), rest);
    outside = kBehind;
    i64 place = n * conv.x_batch;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      u32 window;
      rest = conv.by_counts[axis].divide(rest, window);
      const int start = conv.starts[axis] + int(window) * conv.steps[axis];
      place += start * conv.x_axis[axis];
      if (conv.first_bits[axis] < 0) continue;
#pragma unroll 1
      for (u32 tap = 0; tap < conv.by_kernel[axis].divisor; ++tap) {
        const bool is_outside = u32(start + int(tap) * conv.dilations[axis]) >= u32(conv.extents[axis]);
        outside |= is_outside ? conv.find_bit(axis, tap) : 0;
      }
    }
    source = patches.x + place;
    fetch();
  }

  // Behind the block's slabs nothing is read.
  __device__ void fetch() {
    if (k >= patches.end) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const PatchPlace* const listed = patches.places + (k + (chunk + i * kLineThreads) * kElements) / Width;
#pragma unroll
      for (int first = 0; first < kPlaces; first += kRead) {
        const Vec<PatchPlace, kRead> places = load_vec<kRead>(listed + first);
#pragma unroll
        for (int j = 0; j < kRead; ++j) read(places.lanes[j], chunks[i].lanes + (first + j) * Width);
      }
    }
    k += kDepth;
  }

  // Reads the elements of a place, or zeros.
  __device__ void read(const PatchPlace& place, S* to) const {
    const bool is_inside = !(outside & place.bits);
#pragma unroll
    for (int first = 0; first < Width; first += kStep) {
      Vec<S, kStep> elements = {};
      if (is_inside) elements = load_vec<kStep>(source + place.offset + first);
#pragma unroll
      for (int lane = 0; lane < kStep; ++lane) to[first + lane] = elements.lanes[lane];
    }
  }

  __device__ void load_whole(SharedAddress slab) {
    u8* const bytes = patches.ring + (slab - stages);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int place = Order::place(line, chunk + i * kLineThreads);
      store_vec(reinterpret_cast<u32*>(bytes + place), round_chunk<T>(chunks[i]));
    }
    fetch();
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }  // places behind the last one are outside
};

// Sums the block's slabs.
template <class S, int Width, class Warp, class T, class Tile = typename Warp::Shape>
__device__ inline void convolve_few(Warp& warp, const S* x, const T* w, const FewConv& conv, const PatchPlace* places,
                                    u8* ring) {
  const SimtGemm& gemm = conv.gemm;
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const int first_k = slabs.first * slabs.depth;
  const FewPatches<S, T, Width> left = {x + place.batch * gemm.a_batch[0], conv, places, gemm.inner, place.first_row,
                                        first_k, first_k + slabs.count * slabs.depth, ring};
  const MmaOperand<T> right = {w, gemm.b_column, 1, gemm.columns, gemm.inner, place.first_column, first_k, true};
  sum_slabs(warp, left, right, slabs, ring);
}

// Computes  y[n, window, o] = bias[o] + sum over channels c and taps t of w[o, c, t] * x[n, c, window + t]
// Shapes    x [batch, channels, spatial] by strides; w [out channels, channels * taps] by rows; bias [out channels]; y
//           [batch, windows, out channels] by strides; scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      as mma_gemm, over output positions and output channels; batches are images, or there are none
// Needs     sm_80. Rows of w aligned to 16 bytes; floats of w rounded to tf32. Width elements of a row of the kernel lie side
//           by side, aligned to 16 bytes, in every window, and are together inside. S is T or float. kWideY: y aligned to 8
//           elements. bias may be null; scratch and counters too with one slice; counters are 0 and are left 0. Places
//           of an image fit in 31 bits. Shared memory for the ring, and for a PatchPlace of each Width places of the slabs
// Numerics  x rounded to T, floats to tf32, ties away from zero; then as mma_gemm: products exact, summed in float in the
//           order of the hardware, zeros in the padding; slices in order; then bias, rounded once, and the epilogue
template <class S, class T, class R, class Tile, int Width, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, kFewBlocks<S>)
    conv_few(const S* __restrict__ x, const T* __restrict__ w, const R* __restrict__ bias,
             Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ FewConv conv, float* scratch,
             unsigned* counters, Epilogue... epilogue) {
  extern __shared__ __align__(1024) u8 ring[];
  PatchPlace* const places = reinterpret_cast<PatchPlace*>(ring + Tile::kRingBytes);
  list_places<Tile, T, Width>(conv, places);
  __syncthreads();
  wait_for_predecessors();
  WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK> warp;
  convolve_few<S, Width>(warp, x, w, conv, places, ring);
  launch_dependents();
  store_product<R>(warp, conv.gemm, bias, y, scratch, counters, ring, epilogue...);
}
