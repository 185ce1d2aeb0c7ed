// Sums of depthwise convolutions over one or two spatial axes of images that lie channels last: windows, reads, taps.
//
// A thread sums 16 bytes of channels for windows side by side, or at several places. Terms are added in the order of taps.
#pragma once
#include "epilogue.cuh"
#include "index.cuh"
#include "vec.cuh"

constexpr int kLoadBytes = 16;
template <class T>
constexpr int kLoadLanes = kLoadBytes / int(sizeof(T));

// Sizes of such a convolution. Strides are in elements. Packed by pack_windows of gpuexec/ops/nn/conv_depthwise_last.py.
struct DepthwiseWindows {
  i32 channels;
  i32 extents[2], counts[2], kernel[2], strides[2], dilations[2], begins[2];
  i64 x_batch, x_axis[2];
};

// Reads a vector as floats.
template <class T, int Lanes>
__device__ inline void read_floats(const T* source, float (&to)[Lanes]) {
  const Vec<T, Lanes> vector = load_vec<Lanes>(source);
#pragma unroll
  for (int lane = 0; lane < Lanes; ++lane) to[lane] = widen(vector.lanes[lane]);
}

// Reads a vector of the input as floats, or the zeros of the padding. It is whole words that are zero or read: lanes of
// 16 bits would each be chosen by itself.
template <class T, int Lanes>
__device__ inline void read_padded(const T* source, bool is_inside, float (&to)[Lanes]) {
  union Pun {
    Vec<u32, 4> words;
    Vec<T, Lanes> vector;
    __device__ Pun() : words{} {}
  } read;
  if (is_inside) read.words = load_vec<4>(reinterpret_cast<const u32*>(source));
#pragma unroll
  for (int lane = 0; lane < Lanes; ++lane) to[lane] = widen(read.vector.lanes[lane]);
}

// Reads a row of Extent taps.
template <int Extent, class T, int Lanes>
__device__ inline void read_taps(const T* w, int channels, float (&taps)[Extent][Lanes]) {
#pragma unroll
  for (int t = 0; t < Extent; ++t) read_floats(w + t * channels, taps[t]);
}

// Adds a row of Extent taps to the sums: each column is read once for all outputs that see it. `source` is the place of
// `column`, `step` is from one to the next, and `columns` are those inside.
template <int Extent, int Stride, class T, int Columns, int Lanes>
__device__ inline void add_row(const T* source, i64 step, int column, int columns, const float (&taps)[Extent][Lanes],
                               float (&sums)[Columns][Lanes]) {
#pragma unroll
  for (int c = 0; c < (Columns - 1) * Stride + Extent; ++c) {
    float values[Lanes];
    read_padded(source, u32(column + c) < u32(columns), values);
    source += step;
#pragma unroll
    for (int i = 0; i < Columns; ++i) {
      const int t = c - i * Stride;
      if (t < 0 || t >= Extent) continue;
#pragma unroll
      for (int lane = 0; lane < Lanes; ++lane) sums[i][lane] = fmaf(taps[t][lane], values[lane], sums[i][lane]);
    }
  }
}

// Adds a row of taps of any number, stride and dilation.
template <class T, int Columns, int Lanes>
__device__ inline void add_any_row(const T* source, i64 step, int column, int columns, const T* w,
                                   const DepthwiseWindows& sizes, float (&sums)[Columns][Lanes]) {
  const i64 output_step = step * sizes.strides[1], tap_step = step * sizes.dilations[1];
#pragma unroll 1
  for (int t = 0; t < sizes.kernel[1]; ++t) {
    float tap[Lanes];
    read_floats(w, tap);
    const T* own = source;
#pragma unroll
    for (int i = 0; i < Columns; ++i) {
      float values[Lanes];
      read_padded(own, u32(column + i * sizes.strides[1]) < u32(columns), values);
      own += output_step;
#pragma unroll
      for (int lane = 0; lane < Lanes; ++lane) sums[i][lane] = fmaf(tap[lane], values[lane], sums[i][lane]);
    }
    w += sizes.channels;
    source += tap_step;
    column += sizes.dilations[1];
  }
}

// The first of a thread's windows side by side: where its tap 0 lies.
template <class T>
struct DepthwiseWindow {
  const T* source;
  int row, column;

  __device__ DepthwiseWindow() {}
  // Of an output of an image, from a channel on.
  __device__ DepthwiseWindow(const T* x, const DepthwiseWindows& sizes, u32 image, int output_row, int output_column,
                             int channel)
      : row(output_row * sizes.strides[0] - sizes.begins[0]), column(output_column * sizes.strides[1] - sizes.begins[1]) {
    source = x + (image * sizes.x_batch + row * sizes.x_axis[0] + column * sizes.x_axis[1] + channel);
  }
};

// Adds all taps to the sums of windows at several places, for each of so many columns side by side. `w` are the taps of the
// thread's channels. Extent and Stride: see conv_depthwise_last.
template <int Extent, int Stride, class T, int Places, int Columns, int Lanes>
__device__ inline void add_windows(DepthwiseWindow<T> (&windows)[Places], const T* w, const DepthwiseWindows& sizes,
                                   float (&sums)[Places][Columns][Lanes]) {
  const i64 row_step = sizes.dilations[0] * sizes.x_axis[0];
#pragma unroll 1
  for (int t = 0; t < sizes.kernel[0]; ++t) {
    [[maybe_unused]] float taps[Extent > 0 ? Extent : 1][Lanes];
    if constexpr (Extent > 0) read_taps(w, sizes.channels, taps);
#pragma unroll
    for (int place = 0; place < Places; ++place) {
      DepthwiseWindow<T>& window = windows[place];
      const int columns = u32(window.row) < u32(sizes.extents[0]) ? sizes.extents[1] : 0;  // inside
      if constexpr (Extent > 0) {
        add_row<Extent, Stride>(window.source, sizes.x_axis[1], window.column, columns, taps, sums[place]);
      } else {
        add_any_row(window.source, sizes.x_axis[1], window.column, columns, w, sizes, sums[place]);
      }
      window.source += row_step;
      window.row += sizes.dilations[0];
    }
    w += sizes.kernel[1] * sizes.channels;
  }
}

// Adds the bias, which may be null, of channels from `channel` on, and lays sums out in fours: those of column i from
// i * Lanes / 4 on.
template <class R, int Columns, int Lanes>
__device__ inline void add_bias(const R* bias, int channel, const float (&sums)[Columns][Lanes], float (*values)[4]) {
#pragma unroll
  for (int four = 0; four < Lanes / 4; ++four) {
    float addends[4] = {};
    if (bias) read_floats(bias + channel + 4 * four, addends);
#pragma unroll
    for (int i = 0; i < Columns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i][4 * four + j];
        values[i * (Lanes / 4) + four][j] = bias ? sum + addends[j] : sum;
      }
    }
  }
}
