// Tiles of products that groups of four warps make by wgmma (sm_90a alone), out of slabs that lie as those of mma_tile.cuh.
//
// Fragments pass no registers, and the products of a slab are under way while the next one is waited for: so a ring has room
// for the slab that is multiplied, for the one before it, and for those to come.
#pragma once
#include "mma_tile.cuh"
#include "wgmma.cuh"

// A tile of Rows x Columns by a group of warps for each 64 rows and each part of the columns.
template <int Rows, int Columns, int GroupsAcross, int Stages, int BlocksAtOnce>
struct GroupShape : MmaTile<Rows, Columns, kGroupRowBytes, Rows / 16, GroupsAcross, Stages, BlocksAtOnce> {
  static constexpr bool kIsGroupTile = true;
  static_assert(Rows % kGroupLines == 0, "whole groups");
  static_assert(Stages >= 4, "two slabs are multiplied while others are fetched");
};

// Of GROUP_TILES in gpuexec/ops/lib/slices.py.
typedef GroupShape<64, 64, 1, 6, 2> SmallGroup;    // 98,304 bytes: blocks are few
typedef GroupShape<64, 128, 2, 5, 1> WideGroup;    // 122,880 bytes
typedef GroupShape<128, 256, 1, 4, 1> LargeGroup;  // 196,608 bytes: rows and columns in plenty

// A warp's sums of a tile, and what its group is multiplying.
template <class T, class Tile, Lie kLeft, Lie kRight>
struct GroupTile : WarpSums<T, Tile, false> {
  typedef WarpSums<T, Tile, false> Sums;
  static_assert(kIsSmallFloat<T>, "numbers of 16 bits");
  static constexpr Lie kLeftLie = kLeft, kRightLie = kRight;
  static constexpr int kSlabDepth = Tile::kSlabBytes / int(sizeof(T)), kSteps = kSlabDepth / 16;

  GroupProducts products;

  // The operands of the thread's group in a slab.
  static __device__ GroupOperand find_left(SharedAddress slab) {
    const int row = kHasOneGroup ? 0 : Sums::find_row(threadIdx.x) / kGroupLines * kGroupLines;
    return find_operand<kLeft>(slab, row);
  }
  static __device__ GroupOperand find_right(SharedAddress slab) {
    return find_operand<kRight>(slab + Tile::kLeftBytes, kHasOneGroup ? 0 : Sums::find_column(threadIdx.x));
  }

  // Begins the products of a slab, of which all threads have fenced what they wrote.
  __device__ void multiply(GroupOperand left, GroupOperand right) {
    begin_products(products);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_group<T, kLeft == Lie::kAcross, kRight == Lie::kAcross>(
          products, this->sums[0], left.after(advance<kLeft>(step)), right.after(advance<kRight>(step)));
    }
    commit_products(products);
  }

 private:
  static constexpr bool kHasOneGroup = Tile::kThreads == kGroupThreads;

  // Lines from `line` on.
  template <Lie kLie>
  static __device__ GroupOperand find_operand(SharedAddress slab, int line) {
    constexpr int kApart = kSlabDepth * kGroupRowBytes;
    if constexpr (kLie == Lie::kAlongK) return {slab + line * kGroupRowBytes, kApart};
    else return {slab + (line / kGroupLines * kApart + line % kGroupLines * int(sizeof(T))), kApart};
  }
  // Bytes from a slab's first step to another one.
  template <Lie kLie>
  static constexpr int advance(int step) {
    return kLie == Lie::kAlongK ? step * 32 : step * 16 * kGroupRowBytes;
  }
};

template <class T, class Tile, Lie kLeft, Lie kRight, bool IsGroupTile = Tile::kIsGroupTile>
struct ProductTileOf {
  typedef WarpTile<T, Tile, kLeft, kRight> Type;
};
template <class T, class Tile, Lie kLeft, Lie kRight>
struct ProductTileOf<T, Tile, kLeft, kRight, true> {
  typedef GroupTile<T, Tile, kLeft, kRight> Type;
};
template <class T, class Tile, Lie kLeft, Lie kRight>
using ProductTile = typename ProductTileOf<T, Tile, kLeft, kRight>::Type;

// What sum_slabs of mma_tile.cuh does, of operands that VectorLoader copies. A stage is filled anew behind the barrier at
// which all warps know that the slab in it, two before the one that is multiplied next, has been.
template <class T, class Tile, Lie kLeft, Lie kRight, class Left, class Right>
__device__ void sum_slabs(GroupTile<T, Tile, kLeft, kRight>& warp, const Left& a, const Right& b, const MmaSlabs& slabs,
                          u8* ring) {
  constexpr int kStages = Tile::kStages, kAhead = kStages - 2;
  const SharedAddress stages = find_shared_address(ring);
  const GroupOperand first_left = warp.find_left(stages), first_right = warp.find_right(stages);
  typename Left::template Loader<Tile, Tile::kRows, kLeft, 1> left(a);
  typename Right::template Loader<Tile, Tile::kColumns, kRight, 1> right(b);
  int filled = 0, read = 0;
  // Loads are in groups, one for each slab, even where there is none, so that waits count slabs.
  const auto fill = [&](int slab) {
    const SharedAddress at = stages + filled * Tile::kStageBytes;
    const int k = (slabs.first + slab) * slabs.depth;
    if (slab < slabs.count) {
      left.load(at, a.inner - k);
      right.load(at + Tile::kLeftBytes, b.inner - k);
    }
    commit_copies();
    filled = filled + 1 == kStages ? 0 : filled + 1;
  };
  const auto begin_slab = [&] {
    wait_copies<kAhead - 1>();
    fence_for_group(warp.products);
    __syncthreads();
    warp.multiply(first_left.after(read * Tile::kStageBytes), first_right.after(read * Tile::kStageBytes));
    read = read + 1 == kStages ? 0 : read + 1;
  };
  // The first turns load and multiply nothing: so what loads with tests stands there once.
#pragma unroll 1
  for (int slab = -kAhead; slab < slabs.count; ++slab) {
    if constexpr (!kIsComputed<Left>) {
#pragma unroll 1
      for (; slab >= 0 && slab + kAhead < slabs.count - 1; ++slab) {  // what is loaded here is whole
        begin_slab();
        left.load_whole(stages + filled * Tile::kStageBytes);
        right.load_whole(stages + (filled * Tile::kStageBytes + Tile::kLeftBytes));
        commit_copies();
        filled = filled + 1 == kStages ? 0 : filled + 1;
        wait_products<1>(warp.products);
      }
    }
    if (slab >= 0) begin_slab();
    fill(slab + kAhead);
    if (slab >= 0) wait_products<1>(warp.products);
  }
  wait_products<0>(warp.products);
  settle_sums(warp.sums[0]);
}
