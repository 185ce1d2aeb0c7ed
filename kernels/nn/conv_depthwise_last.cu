// Depthwise convolution over one or two spatial axes of images that lie channels last.
//
// A thread makes 16 outputs: of as many channels as are 16 bytes of the input, two or four columns side by side. Neighbouring
// threads of a block take neighbouring channels, then columns, then rows: so warps ask for whole sectors, and what the
// outputs of a block see together comes from L1 after the first time.
#include "dependent_launch.cuh"
#include "depthwise_last.cuh"

constexpr int kDepthwiseLastThreads = 128;
template <class T>
constexpr int kOwnColumns = 16 / kLoadLanes<T>;  // of the outputs of a thread

// Sizes of such a convolution and of its tiles, which are what a block makes: `rows` rows of `by_groups` groups of
// columns, of `by_vectors` vectors of channels. Packed by launch_depthwise_last of gpuexec/ops/nn/conv_depthwise_last.py.
struct DepthwiseLast : DepthwiseWindows {
  i32 rows;
  FastDiv32 by_vectors, by_groups;                            // of a tile
  FastDiv32 by_channel_tiles, by_column_tiles, by_row_tiles;  // tiles
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

  float sums[1][kColumns][kOwn] = {};
  DepthwiseWindow<T> windows[1] = {{x, sizes, place.image, place.row, place.column, place.channel}};
  add_windows<Extent, Stride>(windows, w + place.channel, sizes, sums);

  const i64 first = ((i64(place.image) * sizes.counts[0] + place.row) * sizes.counts[1] + place.column) * sizes.channels +
                    place.channel;
  float values[kColumns * kFours][4];
  i64 places[kColumns * kFours];
  int counts[kColumns * kFours];
  add_bias(bias, place.channel, sums[0], values);
#pragma unroll
  for (int i = 0; i < kColumns * kFours; ++i) {
    places[i] = first + i / kFours * sizes.channels + i % kFours * 4;
    counts[i] = place.column + i / kFours < sizes.counts[1] ? 4 : 0;
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
