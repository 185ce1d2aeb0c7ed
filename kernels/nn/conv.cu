// Convolution and its transpose over one to three spatial axes, with groups, strides, dilations and any padding.
#include "convolution.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "narrow_loader.cuh"

// Loads patches of the input as the columns of a matrix [channel and tap, window]; zero in the padding.
template <class T>
struct PatchLoader {
  SlabPart part;
  Patch<T> patch;

  __device__ PatchLoader(const T* x, const ConvTile& tile, const Windows& windows, const WindowStrides& strides)
      : part(SlabPart::along_x(threadIdx.x)), patch(x, tile.first_column + part.x, tile, windows, strides) {}

  __device__ void load(i64 k, Acc<T> (&values)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = Acc<T>(0);
    patch.template visit<4>(k + part.k, [&](int i, const T* source) {
      if (source) values[i] = widen(*source);
    });
  }
};

// Dense weights in the type of the product.
template <class T>
struct PlainWeights {
  const T* w;

  __device__ Acc<T> at(i64 place, i64) const { return widen(w[place]); }
  __device__ StridedLoader<T> loader(i64 group, i64 rows, i64 first_row, i64 inner) const {
    return {w + group * rows * inner, first_row, rows, inner, inner, 1, int(threadIdx.x)};
  }
};

// Narrow weights, widened while they are read; `step` is 1 where each output channel (of a group, if the convolution is
// transposed) has a scale, 0 where all share one.
template <class T, class W>
struct NarrowWeights {
  const W* w;
  Scales<T> scales;
  i64 step;

  __device__ Acc<T> at(i64 place, i64 channel) const { return widen_weight<T>(w[place], scales, channel * step); }
  __device__ NarrowLoader<T, W> loader(i64 group, i64 rows, i64 first_row, i64 inner) const {
    i64 first = group * rows * step;
    Scales<T> own = {scales.scale ? scales.scale + first : scales.scale, scales.zero ? scales.zero + first : scales.zero};
    return {w + group * rows * inner, own, first_row, rows, inner, inner, 1, step, 0, int(threadIdx.x)};
  }
};

// The work of a block of conv_gemm, for any form of the weights. Sizes stay in constant memory (__grid_constant__): the
// registers of a copy made sums of doubles spill on sm_90.
template <class T, class Weights, class Finish>
__device__ inline void convolve_block(const T* x, const Weights& w, const T* bias, T* y, const Windows& windows,
                                      const WindowStrides& strides, const ConvSizes& sizes, const Finish& finish) {
  const ConvTile tile(sizes, windows);
  auto left = w.loader(tile.group, tile.rows, tile.first_row, tile.inner);
  const PatchLoader<T> right(x, tile, windows, strides);
  Acc<T> sums[kSums][kSums];
  multiply_tile(left, right, tile.inner, tile.is_needed(), sums);
  const i64 outputs = i64(sizes.by_outputs.divisor);
  tile.visit_columns([&](int j, i64 n, i64 channel, int count, i64 position) {
    Acc<T> column[1][kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      column[0][i] = bias && i < count ? sums[i][j] + widen(bias[channel + i]) : sums[i][j];
    }
    const i64 place = (n * i64(sizes.by_out_channels.divisor) + channel) * outputs + position;
    finish.many(column, {place}, {count}, outputs);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i < count) y[place + i * outputs] = cast<T>(column[0][i]);
    }
  });
}

// Computes  y[n, o, window] = bias[o] + sum over channels c of o's group and taps t of w[o, c, t] * x[n, c, window + t]
// Shapes    x [batch, channels, spatial] by strides, w [out channels, group_ins, taps], bias [out channels], y dense
// Grid      one block of 256 per 64 output channels of a group x 64 windows (of all images in one row):
//           x = (group * row tiles + row tile) * column tiles + column tile
// Needs     w, bias, y dense; group_ins * taps < 2^31; bias may be null
// Numerics  half and bf16 in float, rounded once; order channel, then tap, one fma each; then the bias; then the
//           epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 2)
    conv_gemm(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
              const __grid_constant__ Windows windows, const __grid_constant__ WindowStrides strides,
              const __grid_constant__ ConvSizes sizes, Epilogue... epilogue) {
  wait_for_predecessors();
  launch_dependents();
  convolve_block(x, PlainWeights<T>{w}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// Computes  what conv_gemm computes, w narrow: value (w - zero) * scale, rounded to T
// Shapes    as conv_gemm; scale and zero [out channels], or one element
// Grid      as conv_gemm
// Needs     all but x dense; bias, scale (of half weights) and zero may be null
// Numerics  as conv_gemm of the widened weights, to the bit
template <class T, class W, class... Epilogue>
__global__ void __launch_bounds__(256, 2)
    conv_gemm_narrow(const T* __restrict__ x, const W* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                     const __grid_constant__ Windows windows, const __grid_constant__ WindowStrides strides,
                     const __grid_constant__ ConvSizes sizes, const T* __restrict__ scale,
                     const i8* __restrict__ zero, i64 step, Epilogue... epilogue) {
  const NarrowWeights<T, W> weights = {w, {scale, zero}, step};
  wait_for_predecessors();
  launch_dependents();
  convolve_block(x, weights, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// The work of a thread of conv_direct or conv_transpose, for any form of the weights.
template <class Walk, class T, class Weights, class Finish>
__device__ inline void make_output(const T* x, const Weights& w, const T* bias, T* y, const Windows& windows,
                                   const WindowStrides& strides, const ConvSizes& sizes, const Finish& finish) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Output output;
  if (!output.find(sizes, index)) return;
  Acc<T> sum = Acc<T>(0);
  Walk::visit(x, output, windows, strides, sizes, [&](i64 place, const T* source) {
    sum = multiply_add(w.at(place, Walk::scale_of(output)), widen(*source), sum);
  });
  if (bias) sum += widen(bias[output.channel]);
  store_finished(finish, y, index, sum);
}

// Computes  what conv_gemm computes, for groups of one input or one output channel
// Shapes    as conv_gemm
// Grid      one thread per output: x = output / 256
// Needs     w, bias, y dense; bias may be null
// Numerics  half and bf16 in float, rounded once; order channel, then tap, one fma each, taps in the padding left out;
//           then the bias; then the epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    conv_direct(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                Windows windows, WindowStrides strides, ConvSizes sizes, Epilogue... epilogue) {
  wait_for_predecessors();
  launch_dependents();
  make_output<PlainWalk>(x, PlainWeights<T>{w}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// Computes  what conv_direct computes, w narrow: value (w - zero) * scale, rounded to T
// Shapes    as conv_gemm_narrow
// Grid      as conv_direct
// Needs     as conv_gemm_narrow
// Numerics  as conv_direct of the widened weights, to the bit
template <class T, class W, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    conv_direct_narrow(const T* __restrict__ x, const W* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                       Windows windows, WindowStrides strides, ConvSizes sizes, const T* __restrict__ scale,
                       const i8* __restrict__ zero, i64 step, Epilogue... epilogue) {
  const NarrowWeights<T, W> weights = {w, {scale, zero}, step};
  wait_for_predecessors();
  launch_dependents();
  make_output<PlainWalk>(x, weights, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// Computes  y[n, o, p] = bias[o] + sum over taps t and channels c of o's group of w[c, o, t] * x[n, c, q],
//           q * stride + t * dilation - begin = p; the windows run over y, one for each position of x
// Shapes    x [batch, channels, counts] by strides, w [channels, group outs, taps], bias [out channels],
//           y [batch, out channels, extents] dense
// Grid      one thread per output: x = output / 256
// Needs     w, bias, y dense; bias may be null
// Numerics  half and bf16 in float, rounded once; order tap, then channel, one fma each; then the bias; then the
//           epilogue
template <class T, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    conv_transpose(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                   Windows windows, WindowStrides strides, ConvSizes sizes, Epilogue... epilogue) {
  wait_for_predecessors();
  launch_dependents();
  make_output<TransposedWalk>(x, PlainWeights<T>{w}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// Computes  what conv_transpose computes, w narrow: value (w - zero) * scale, rounded to T
// Shapes    as conv_transpose; scale and zero [group outs], or one element
// Grid      as conv_transpose
// Needs     all but x dense; bias, scale (of half weights) and zero may be null
// Numerics  as conv_transpose of the widened weights, to the bit
template <class T, class W, class... Epilogue>
__global__ void __launch_bounds__(256, 1)
    conv_transpose_narrow(const T* __restrict__ x, const W* __restrict__ w, const T* __restrict__ bias,
                          T* __restrict__ y, Windows windows, WindowStrides strides, ConvSizes sizes,
                          const T* __restrict__ scale, const i8* __restrict__ zero, i64 step, Epilogue... epilogue) {
  const NarrowWeights<T, W> weights = {w, {scale, zero}, step};
  wait_for_predecessors();
  launch_dependents();
  make_output<TransposedWalk>(x, weights, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}
