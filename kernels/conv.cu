// Convolution and its transpose over one to three spatial axes, with groups, strides, dilations and any padding.
#include "epilogue.cuh"
#include "narrow_loader.cuh"
#include "windows.cuh"

// What does not belong to the windows: channels of one group, outputs of one channel and of the whole tensor.
struct ConvSizes {
  FastDiv64 by_outputs;       // outputs of one channel
  FastDiv64 by_out_channels;  // all groups
  FastDiv32 by_group_outs;    // output channels of a group
  i32 group_ins;
  i64 batch;
};

// Loads patches of the input as the columns of a matrix [channel and tap, window]; zero in the padding.
template <class T>
struct PatchLoader {
  SlabPart part;
  const Windows& windows;
  const WindowStrides& strides;
  const T* image;   // this thread's image, at the first channel of the group
  i32 starts[3];    // where tap 0 of this thread's window lies
  i64 inner;        // 0 where this thread has no window

  __device__ PatchLoader(const T* x, i64 window, bool is_window, i64 inner, const ConvSizes& sizes,
                         const Windows& windows, const WindowStrides& strides, int thread)
      : part(SlabPart::along_x(thread)), windows(windows), strides(strides), inner(is_window ? inner : 0) {
    u64 rest;
    u64 n = sizes.by_outputs.divide(u64(window), rest);
    int coordinates[3];
    split_index(u32(rest), windows.by_counts, coordinates);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(coordinates[axis], axis);
    image = x + i64(n) * strides.batch;
  }

  __device__ void load(i64 k, Acc<T> (&values)[4]) const {
    u32 channel = u32(k) + u32(part.k);
    u32 t0, t1, t2;
    channel = windows.by_kernel[2].divide(channel, t2);
    channel = windows.by_kernel[1].divide(channel, t1);
    channel = windows.by_kernel[0].divide(channel, t0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int p0 = starts[0] + int(t0) * windows.dilations[0];
      int p1 = starts[1] + int(t1) * windows.dilations[1];
      int p2 = starts[2] + int(t2) * windows.dilations[2];
      bool is_inside = k + part.k + i < inner;
      is_inside = is_inside && windows.is_inside(p0, 0) && windows.is_inside(p1, 1) && windows.is_inside(p2, 2);
      values[i] = is_inside ? widen(image[channel * strides.channel + strides.offset(p0, p1, p2)]) : Acc<T>(0);
      if (++t2 == windows.by_kernel[2].divisor) {
        t2 = 0;
        if (++t1 == windows.by_kernel[1].divisor) {
          t1 = 0;
          if (++t0 == windows.by_kernel[0].divisor) {
            t0 = 0;
            ++channel;
          }
        }
      }
    }
  }
};

// The weights as they lie, dense.
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

// What a block of conv_gemm does, whatever form the weights have.
template <class T, class Weights, class Finish>
__device__ inline void convolve_block(const T* x, const Weights& w, const T* bias, T* y, const Windows& windows,
                                      const WindowStrides& strides, const ConvSizes& sizes, const Finish& finish) {
  typedef Acc<T> A;
  i64 outputs = i64(sizes.by_outputs.divisor);
  i64 columns = sizes.batch * outputs;
  i64 rows = sizes.by_group_outs.divisor;
  i64 inner = i64(sizes.group_ins) * windows.taps();
  i64 column_tiles = (columns + kTile - 1) / kTile;
  i64 row_tiles = (rows + kTile - 1) / kTile;
  i64 tile = blockIdx.x;
  i64 first_column = tile % column_tiles * kTile;
  tile /= column_tiles;
  i64 first_row = tile % row_tiles * kTile;
  i64 group = tile / row_tiles;

  auto left = w.loader(group, rows, first_row, inner);
  i64 window = first_column + SlabPart::along_x(threadIdx.x).x;
  const T* group_x = x + group * sizes.group_ins * strides.channel;
  PatchLoader<T> right(group_x, window, window < columns, inner, sizes, windows, strides, threadIdx.x);
  i64 row = first_row + sums_row(threadIdx.x);
  i64 column = first_column + sums_column(threadIdx.x);
  A sums[kSums][kSums];
  multiply_tile(left, right, inner, row < rows && column < columns, sums);

  u64 position;
  u64 n = sizes.by_outputs.divide(u64(column), position);
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
    if (column + j >= columns) break;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (row + i >= rows) continue;
      i64 channel = group * rows + row + i;
      A sum = bias ? sums[i][j] + widen(bias[channel]) : sums[i][j];
      i64 place = (i64(n) * i64(sizes.by_out_channels.divisor) + channel) * outputs + i64(position);
      y[place] = finish(sum, place);
    }
    if (++position == u64(outputs)) {
      position = 0;
      ++n;
    }
  }
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
              Windows windows, WindowStrides strides, ConvSizes sizes, Epilogue... epilogue) {
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
                     Windows windows, WindowStrides strides, ConvSizes sizes, const T* __restrict__ scale,
                     const i8* __restrict__ zero, i64 step, Epilogue... epilogue) {
  convolve_block(x, NarrowWeights<T, W>{w, {scale, zero}, step}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// The output that a thread makes. False where there is none.
struct Output {
  i64 n, group;
  u64 channel, position;  // position within the channel
  u32 member;             // channel within the group

  __device__ bool find(const ConvSizes& sizes, i64 index) {
    u64 plane = sizes.by_outputs.divide(u64(index), position);
    n = i64(sizes.by_out_channels.divide(plane, channel));
    if (n >= sizes.batch) return false;
    group = sizes.by_group_outs.divide(u32(channel), member);
    return true;
  }
};

// What a thread of conv_direct does, whatever form the weights have.
template <class T, class Weights, class Finish>
__device__ inline void convolve_output(const T* x, const Weights& w, const T* bias, T* y, const Windows& windows,
                                       const WindowStrides& strides, const ConvSizes& sizes, const Finish& finish) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Output output;
  if (!output.find(sizes, index)) return;
  int coordinates[3];
  split_index(u32(output.position), windows.by_counts, coordinates);
  int start0 = windows.start(coordinates[0], 0);
  int start1 = windows.start(coordinates[1], 1);
  int start2 = windows.start(coordinates[2], 2);
  const T* image = x + output.n * strides.batch + output.group * sizes.group_ins * strides.channel;
  i64 place = i64(output.channel) * sizes.group_ins * windows.taps();
  Acc<T> sum = Acc<T>(0);
  for (int c = 0; c < sizes.group_ins; ++c) {
    for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
      int p0 = start0 + t0 * windows.dilations[0];
      for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
        int p1 = start1 + t1 * windows.dilations[1];
        bool is_row_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1);
        const T* line = image + strides.offset(p0, p1, 0);
        for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++place) {
          int p2 = start2 + t2 * windows.dilations[2];
          if (!is_row_inside || !windows.is_inside(p2, 2)) continue;
          sum = multiply_add(w.at(place, i64(output.channel)), widen(line[p2 * strides.axis[2]]), sum);
        }
      }
    }
    image += strides.channel;
  }
  if (bias) sum += widen(bias[output.channel]);
  y[index] = finish(sum, index);
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
  convolve_output(x, PlainWeights<T>{w}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
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
  convolve_output(x, NarrowWeights<T, W>{w, {scale, zero}, step}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}

// Whether output position `at` (padding included) is tap `tap` of an input position along an axis, and of which.
__device__ inline bool find_source(const Windows& windows, int axis, int at, int tap, int& source) {
  int distance = at - tap * windows.dilations[axis];
  source = distance / windows.strides[axis];
  return distance >= 0 && source * windows.strides[axis] == distance && source < windows.counts[axis];
}

// What a thread of conv_transpose does, whatever form the weights have.
template <class T, class Weights, class Finish>
__device__ inline void gather_output(const T* x, const Weights& w, const T* bias, T* y, const Windows& windows,
                                     const WindowStrides& strides, const ConvSizes& sizes, const Finish& finish) {
  i64 index = i64(blockIdx.x) * 256 + threadIdx.x;
  Output output;
  if (!output.find(sizes, index)) return;
  int at[3];
  split_index(u32(output.position), windows.by_extents, at);
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) at[axis] += windows.begins[axis];
  i64 first_in = output.group * sizes.group_ins;
  i64 taps = windows.taps();
  i64 channel_step = i64(sizes.by_group_outs.divisor) * taps;
  const T* image = x + output.n * strides.batch + first_in * strides.channel;
  i64 place = first_in * channel_step + output.member * taps;
  Acc<T> sum = Acc<T>(0);
  int q0 = 0;
  int q1 = 0;
  int q2 = 0;
  for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
    bool is_hit0 = find_source(windows, 0, at[0], t0, q0);
    for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
      bool is_hit1 = is_hit0 && find_source(windows, 1, at[1], t1, q1);
      for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++place) {
        if (!is_hit1 || !find_source(windows, 2, at[2], t2, q2)) continue;
        const T* source = image + strides.offset(q0, q1, q2);
        for (int c = 0; c < sizes.group_ins; ++c) {
          sum = multiply_add(w.at(place + c * channel_step, output.member), widen(source[c * strides.channel]), sum);
        }
      }
    }
  }
  if (bias) sum += widen(bias[output.channel]);
  y[index] = finish(sum, index);
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
  gather_output(x, PlainWeights<T>{w}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
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
  gather_output(x, NarrowWeights<T, W>{w, {scale, zero}, step}, bias, y, windows, strides, sizes, finish_by<T>(epilogue...));
}
