// Depthwise convolution over one or two spatial axes of images that lie channels last.
//
// A thread makes 16 outputs: of as many channels as are 16 bytes of the input, two or four columns side by side. Neighbouring
// threads of a block take neighbouring channels, then columns, then rows: so warps ask for whole sectors, and what the
// outputs of a block see together comes from L1 after the first time.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "vec.cuh"

constexpr int kDepthwiseLastThreads = 128;
constexpr int kLoadBytes = 16;
template <class T>
constexpr int kLoadLanes = kLoadBytes / int(sizeof(T));
template <class T>
constexpr int kOwnColumns = 16 / kLoadLanes<T>;  // of the outputs of a thread

// Sizes of such a convolution and of its tiles, which are what a block makes: `rows` rows of `by_groups` groups of
// columns, of `by_vectors` vectors of channels. Packed by launch_depthwise_last of gpuexec/ops/nn/conv_depthwise_last.py.
struct DepthwiseLast {
  i32 channels;
  i32 extents[2], counts[2], kernel[2], strides[2], dilations[2], begins[2];
  i32 rows;
  FastDiv32 by_vectors, by_groups;                            // of a tile
  FastDiv32 by_channel_tiles, by_column_tiles, by_row_tiles;  // tiles
  i64 x_batch, x_axis[2];
};

// The outputs of a thread: the first of them, and whether it has any.
struct DepthwisePlace {
  u32 image;
  int row, column, channel;
  bool is_inside;

  __device__ DepthwisePlace(const DepthwiseLast& sizes, u32 tile, u32 thread, int columns, int lanes) {
    u32 first_vector, first_group, first_row, vector, group;
    tile = sizes.by_channel_tiles.divide(tile, first_vector);
    tile = sizes.by_column_tiles.divide(tile, first_group);
    image = sizes.by_row_tiles.divide(tile, first_row);
    const int own_row = int(sizes.by_groups.divide(sizes.by_vectors.divide(thread, vector), group));
    row = int(first_row) * sizes.rows + own_row;
    column = int(first_group * sizes.by_groups.divisor + group) * columns;
    channel = int(first_vector * sizes.by_vectors.divisor + vector) * lanes;
    is_inside = own_row < sizes.rows && row < sizes.counts[0] && column < sizes.counts[1] && channel < sizes.channels;
  }
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

// Adds a row of Extent taps to the sums: each column is read once for all outputs that see it. `source` is the place of
// `column`, `step` is from one to the next, and `columns` are those inside.
template <int Extent, int Stride, class T, int Columns, int Lanes>
__device__ inline void add_row(const T* source, i64 step, int column, int columns, const T* w, int channels,
                               float (&sums)[Columns][Lanes]) {
  float taps[Extent][Lanes];
#pragma unroll
  for (int t = 0; t < Extent; ++t) read_floats(w + t * channels, taps[t]);
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
                                   const DepthwiseLast& sizes, float (&sums)[Columns][Lanes]) {
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

// Computes  y[n, window, c] = bias[c] + sum over taps t of w[t, c] * x[n, window + t, c]
// Shapes    x [batch, rows, columns, channels] by strides, channels dense; w [taps, channels]; bias [channels];
//           y [batch, windows, channels], dense
// Grid      one block per tile: x = ((image * row tiles + row tile) * column tiles + column tile) * channel tiles + channel
//           tile; of up to 128 threads: vectors * groups of columns * rows of a tile
// Needs     channels and strides of x multiples of 16 bytes of T; x, w, bias and y aligned to 16 bytes; bias may be null.
//           Extent > 0: a kernel of Extent columns without dilation along them, Stride that of columns; Extent 0
//           (and Stride 1): any
// Numerics  in float; order of taps, one fma each, zeros in the padding; then the bias; rounded once; then the epilogue
template <class T, class R, int Extent, int Stride, class... Epilogue>
__global__ void __launch_bounds__(kDepthwiseLastThreads, 4)
    conv_depthwise_last(const T* __restrict__ x, const T* __restrict__ w, const R* __restrict__ bias,
                        Stored<R, Epilogue...>* __restrict__ y, const __grid_constant__ DepthwiseLast sizes,
                        Epilogue... epilogue) {
  typedef Stored<R, Epilogue...> Y;
  constexpr int kOwn = kLoadLanes<T>, kColumns = kOwnColumns<T>, kFours = kOwn / 4;
  const DepthwisePlace place(sizes, blockIdx.x, threadIdx.x, kColumns, kOwn);
  wait_for_predecessors();
  launch_dependents();
  if (!place.is_inside) return;

  float sums[kColumns][kOwn] = {};
  const T* weights = w + place.channel;
  int row = place.row * sizes.strides[0] - sizes.begins[0];
  const int column = place.column * sizes.strides[1] - sizes.begins[1];
  const T* source = x + (place.image * sizes.x_batch + row * sizes.x_axis[0] + column * sizes.x_axis[1] + place.channel);
  const i64 row_step = sizes.dilations[0] * sizes.x_axis[0];
#pragma unroll 1
  for (int t = 0; t < sizes.kernel[0]; ++t) {
    const int columns = u32(row) < u32(sizes.extents[0]) ? sizes.extents[1] : 0;  // inside
    if constexpr (Extent > 0) {
      add_row<Extent, Stride>(source, sizes.x_axis[1], column, columns, weights, sizes.channels, sums);
    } else {
      add_any_row(source, sizes.x_axis[1], column, columns, weights, sizes, sums);
    }
    source += row_step;
    weights += sizes.kernel[1] * sizes.channels;
    row += sizes.dilations[0];
  }

  const i64 first = ((i64(place.image) * sizes.counts[0] + place.row) * sizes.counts[1] + place.column) * sizes.channels +
                    place.channel;
  float values[kColumns * kFours][4];
  i64 places[kColumns * kFours];
  int counts[kColumns * kFours];
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
    float addends[4] = {};
    if (bias) read_floats(bias + place.channel + 4 * four, addends);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      places[i * kFours + four] = first + i * sizes.channels + 4 * four;
      counts[i * kFours + four] = place.column + i < sizes.counts[1] ? 4 : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = sums[i][4 * four + j];
        values[i * kFours + four][j] = bias ? sum + addends[j] : sum;
      }
    }
  }
  const auto finish = finish_by<R>(epilogue...);
  finish.many(values, places, counts);
  constexpr int kAtOnce = kLoadLanes<Y> < kOwn ? kLoadLanes<Y> : kOwn;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (place.column + i >= sizes.counts[1]) break;
#pragma unroll
    for (int at = 0; at < kOwn; at += kAtOnce) {
      Vec<Y, kAtOnce> finished;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) finished.lanes[j] = cast<Y>(values[i * kFours + (at + j) / 4][(at + j) % 4]);
      store_vec(y + first + i64(i) * sizes.channels + at, finished);
    }
  }
}
