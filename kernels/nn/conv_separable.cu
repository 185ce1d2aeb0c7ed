// Depthwise convolution and the product over its channels behind it, as one launch on tensor cores (sm_80 and up).
//
// Images are of half or bf16 and lie channels last. A block makes a tile of the product, as one of mma_gemm does. Slabs of its left operand are not copied: threads compute
// them as conv_depthwise_last does, finish them, and store them where a copy would be. So each tile of columns computes
// them anew, and each slice of the inner extent has its own channels.
#include "dependent_launch.cuh"
#include "depthwise_last.cuh"
#include "mma_product.cuh"

// Windows of a depthwise convolution, and output positions along rows and columns. Packed by _join of
// gpuexec/ops/nn/conv_separable.py.
struct DepthwisePositions : DepthwiseWindows {
  FastDiv32 by_rows, by_columns;
};

template <class Rows, class Tile, int Lines, int Shift>
struct DepthwiseLoader;

// The left operand of the product as a block sees it: output positions of the depthwise convolution by its channels.
template <class T, class F, int Extent, class Steps>
struct DepthwiseRows {
  template <class Tile, int Lines, Lie kLie, int Shift>
  using Loader = DepthwiseLoader<DepthwiseRows, Tile, Lines, Shift>;
  typedef T Element;
  typedef F Sum;
  static constexpr bool kIsAlwaysWide = true;
  static constexpr int kExtent = Extent;

  const T* x;
  const T* taps;
  const F* bias;
  const DepthwisePositions& positions;
  const Steps& steps;
  int lines, inner, first_line;
  u8* ring;
};
template <class T, class F, int Extent, class Steps>
constexpr bool kIsComputed<DepthwiseRows<T, F, Extent, Steps>> = true;

// Computes slabs of the left operand. A thread has a chunk of channels at a few positions, whose taps it reads once. It keeps
// nothing from slab to slab.
template <class Rows, class Tile, int Lines, int Shift>
struct DepthwiseLoader {
  typedef typename Rows::Element T;
  typedef SlabPart<T, Tile, Lines, Lie::kAlongK, Shift> Part;
  static constexpr int kPlaces = Part::kPasses, kOwn = kChunkElements<T>, kFours = kOwn / 4;
  const Rows& rows;
  SharedAddress stages;

  __device__ explicit DepthwiseLoader(const Rows& rows) : rows(rows), stages(find_shared_address(rows.ring)) {}

  // Computes a slab that has `depth` channels inside, or more than fit; zeros behind them.
  __device__ void load(SharedAddress slab, int depth) {
    const Part part(forget(threadIdx.x));
    const int channel = rows.inner - depth + part.chunk * kOwn;
    float values[kPlaces * kFours][4] = {};
    if (channel < rows.inner) sum(part, channel, values);
    u8* const bytes = rows.ring + (slab - stages);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      Vec<T, kOwn> chunk;
#pragma unroll
      for (int lane = 0; lane < kOwn; ++lane) chunk.lanes[lane] = cast<T>(values[i * kFours + lane / 4][lane % 4]);
      store_vec(reinterpret_cast<T*>(bytes + part.place(i)), chunk);
    }
  }

  __device__ void sum(const Part& part, int channel, float (&values)[kPlaces * kFours][4]) const {
    const DepthwisePositions& positions = rows.positions;
    DepthwiseWindow<T> windows[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const int line = rows.first_line + part.row + i * Part::kPassRows;
      u32 row, column;
      const u32 image = positions.by_rows.divide(positions.by_columns.divide(u32(line), column), row);
      windows[i] = DepthwiseWindow<T>(rows.x, positions, image, int(row), int(column), channel);
      if (line >= rows.lines) windows[i].row = positions.extents[0];  // nothing is inside
    }
    float sums[kPlaces][1][kOwn] = {};
    add_windows<Rows::kExtent, 1>(windows, rows.taps + channel, positions, sums);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) add_bias(rows.bias, channel, sums[i], values + i * kFours);
    const i64 indices[kPlaces * kFours] = {};  // which steps without operands don't ask for
    const int counts[kPlaces * kFours] = {};
    finish_by<typename Rows::Sum>(rows.steps).many(values, indices, counts);
  }
};

// Computes  y[position, o] = bias[o] + sum over channels c of w[o, c] * steps(first_bias[c] + sum over taps t of taps[t, c] *
//           x[position + t, c])
// Shapes    x [batch, rows, columns, channels] by strides, channels dense; taps [taps, channels]; first_bias [channels];
//           w [out channels, channels] by rows; bias [out channels]; y [batch * windows, out channels] by strides;
//           scratch [tiles, slices, tile rows * tile columns]; counters [tiles]
// Grid      as mma_gemm, over output positions and output channels, with Tile::kRingBytes of dynamic shared memory
// Needs     sm_80. As conv_depthwise_last, of which F is R, for windows of any stride, and mma_gemm, of which a is what that
//           makes: of T, both operands along k and wide, and no batches
// Numerics  as conv_depthwise_last with the epilogue Steps, rounded to T; then as mma_gemm
template <class Steps, class T, class F, class R, class Tile, int Extent, class... Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads > 128 ? 1 : Tile::kBlocksAtOnce)
    conv_separable(const T* __restrict__ x, const T* __restrict__ w, const R* __restrict__ bias,
                   Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
                   unsigned* counters, const T* __restrict__ taps, const F* __restrict__ first_bias,
                   const __grid_constant__ DepthwisePositions positions, const __grid_constant__ Steps steps,
                   Epilogue... epilogue) {
  static_assert(kIsSame<typename Steps::Stored, T>, "what is multiplied is what the depthwise convolution stores");
  extern __shared__ __align__(1024) u8 ring[];
  wait_for_predecessors();
  ProductTile<T, Tile, Lie::kAlongK, Lie::kAlongK> warp;
  const MmaPlace<Tile> place(gemm, blockIdx.x);
  const MmaSlabs slabs(gemm.inner, Tile::kSlabBytes / int(sizeof(T)), blockIdx.y, gridDim.y);
  const DepthwiseRows<T, F, Extent, Steps> left = {x, taps, first_bias, positions, steps, gemm.rows, gemm.inner,
                                                             place.first_row, ring};
  const WideOperand<T> right(w, gemm.b_column, gemm.columns, gemm.inner, place.first_column, slabs.first * slabs.depth);
  sum_slabs(warp, left, right, slabs, ring);
  launch_dependents();
  store_product<R>(warp, gemm, bias, y, scratch, counters, ring, epilogue...);
}
