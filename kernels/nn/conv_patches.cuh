// Patches of half, bf16 and tf32 images, channels last, as left operands of products by tiles of tensor cores.
//
// Rows are output positions, columns output channels. The inner extent runs over taps, and in a tap over channels: eight
// of them (four floats) are 16 bytes of the input, which are copied as they lie.
#pragma once
#include "index.cuh"
#include "mma_product.cuh"

constexpr int kMaxTaps = 128;
constexpr int kTapsBehind = 16;  // that the last slab may reach beyond them: 256 bytes of it are 16 taps of 8 channels

// One tap of a kernel: where it lies behind tap 0, in elements of the input, and its bit for each axis. Bit 31 is that of
// taps behind the last one.
struct alignas(8) PatchTap {
  i32 offset;
  u32 bits;
};

// Extents are of three spatial axes (fewer: 1 in front). Tap t of axis i has bit first_bits[i] + t; the kernel's extents
// together are at most 31. Strides are in elements. Packed by pack_conv of gpuexec/ops/nn/conv_mma.py.
struct MmaConv {
  SimtGemm gemm;  // of the product: extents, c (the bias) and y
  i32 extents[3], steps[3], dilations[3], starts[3], kernel[3], first_bits[3];
  FastDiv32 by_windows, by_counts[3], by_channels;  // output positions: of an image, and along each axis
  i32 x_batch, x_axis[3];
  i32 step_taps, step_channels, unused;  // from a slab to the next
  PatchTap taps[kMaxTaps + kTapsBehind];
};

// Copies slabs of the left operand [output position, k] of a convolution. A thread keeps for each of its lines where tap 0
// lies and which taps along each axis lie outside of the input; tap and channel of its chunk are those of all its lines.
template <class T, class Tile, int Lines, Lie kLie, int Shift>
struct PatchLoader {
  typedef SlabPart<T, Tile, Lines, kLie, Shift> Part;
  const MmaConv& conv;
  Part part;
  const T* sources[Part::kPasses];
  u32 outside[Part::kPasses];
  int tap, channel;

  template <class Patches>
  __device__ explicit PatchLoader(const Patches& patches) : conv(patches.conv), part(threadIdx.x) {
    u32 first_channel;
    tap = int(conv.by_channels.divide(u32(patches.first_k + part.chunk * kChunkElements<T>), first_channel));
    channel = int(first_channel);
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      const int line = patches.first_line + part.row + i * Part::kPassRows;
      u32 rest;
      const u32 n = conv.by_windows.divide(u32(line), rest);
      outside[i] = line < conv.gemm.rows ? 1u << 31 : ~0u;
      int place = int(n) * conv.x_batch;
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        u32 window;
        rest = conv.by_counts[axis].divide(rest, window);
        const int start = conv.starts[axis] + int(window) * conv.steps[axis];
        place += start * conv.x_axis[axis];
#pragma unroll 1
        for (int t = 0; t < conv.kernel[axis]; ++t) {
          const bool is_outside = u32(start + t * conv.dilations[axis]) >= u32(conv.extents[axis]);
          outside[i] |= u32(is_outside) << (conv.first_bits[axis] + t);
        }
      }
      sources[i] = opaque(patches.x + place);  // else each copy adds up all of its address
    }
  }

  __device__ void load_whole(SharedAddress slab) {
    const PatchTap at = conv.taps[tap];
    const int behind = at.offset + channel;
#pragma unroll
    for (int i = 0; i < Part::kPasses; ++i) {
      copy_async_vector(slab + part.place(i), sources[i] + behind, outside[i] & at.bits ? 0 : kChunkBytes);
    }
    channel += conv.step_channels;
    const bool is_next = channel >= int(conv.by_channels.divisor);
    tap += conv.step_taps + is_next;
    channel -= is_next ? int(conv.by_channels.divisor) : 0;
  }

  __device__ void load(SharedAddress slab, int) { load_whole(slab); }  // taps behind the last one are outside
};

// The left operand of a convolution as a block sees it.
template <class T>
struct MmaPatches {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = PatchLoader<T, Tile, Lines, kLie, Shift>;
  static constexpr bool kIsAlwaysWide = true;

  const T* x;
  const MmaConv& conv;
  int inner, first_line, first_k;
};

// A warp's part of a tile of float images, which are rounded to tf32 in registers: an mma would cut off their low bits.
template <class Tile>
struct RoundingTile : WarpTile<float, Tile, Lie::kAlongK, Lie::kAlongK> {
  typedef WarpTile<float, Tile, Lie::kAlongK, Lie::kAlongK> Base;

  __device__ void multiply(int step, SharedAddress stage, int next) {
#pragma unroll
    for (int i = 0; i < Tile::kDown; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        u32& bits = this->left[step % Base::kLeftSets][i][word];
        bits = convert_to_tf32(reinterpret<float>(bits));
      }
    }
    Base::multiply(step, stage, next);
  }
};
template <class T, class Tile>
using ConvTileOf = typename Select<kIsSame<T, float>, RoundingTile<Tile>,
                                   WarpTile<T, Tile, Lie::kAlongK, Lie::kAlongK>>::type;

// Sums the slabs of slice `slice` of `slices` of a tile.
template <class Warp, class T, class Tile = typename Warp::Shape>
__device__ inline void convolve_block(Warp& warp, const T* x, const T* w, const MmaConv& conv, u8* ring, u32 tile,
                                      int slice, int slices) {
  const MmaPlace<Tile> place(conv.gemm, tile);
  const MmaSlabs slabs(conv.gemm.inner, Tile::kSlabBytes / int(sizeof(T)), slice, slices);
  const int first_k = slabs.first * slabs.depth;
  const SimtGemm& gemm = conv.gemm;
  const MmaPatches<T> left = {x + place.batch * gemm.a_batch[0], conv, gemm.inner, place.first_row, first_k};
  const MmaOperand<T> right = {w + place.batch * gemm.b_batch[0], gemm.b_column, 1, gemm.columns, gemm.inner,
                               place.first_column, first_k, true};
  sum_slabs(warp, left, right, slabs, ring);
}
