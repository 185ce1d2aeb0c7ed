// Depthwise convolution over one or two spatial axes: each group of channels has one input channel.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "vec.cuh"

constexpr int kDepthwiseThreads = 256;
constexpr int kDepthwisePatch = 4096;    // elements of the inputs under a tile, with padding
constexpr int kDepthwiseOutputs = 2112;  // elements of a tile of outputs, with what aligns its segments
constexpr int kDepthwiseWeights = 512;   // taps of a tile's channels
constexpr int kAlignedColumns = 8;       // reads of a row begin at a multiple of this

// Sizes of a depthwise convolution and of its tiles. A tile is `channels` outputs x `rows` x `columns`; the last ones
// may reach beyond the output. With several channels it has all their rows and columns. Its inputs stand in shared
// memory as [plane][patch_rows][pitch], its outputs as in memory: those of whole rows as one segment, else each row as
// one. Packed by launch_depthwise of gpuexec/ops/nn/conv_depthwise.py.
struct Depthwise {
  i32 out_channels;
  FastDiv32 by_multiplier;  // output channels of a group
  i32 extents[2], counts[2], kernel[2], strides[2], dilations[2], begins[2];
  i32 channels, rows, columns;
  i32 patch_rows, patch_columns, pitch, half_pitch;
  i32 has_row_segments, segment_pitch, has_ranges;  // ranges: the inputs of a tile lie one after another
  FastDiv32 by_column_tiles, by_row_tiles, by_channel_tiles;  // tiles
  FastDiv32 by_columns, by_row_groups;                        // outputs of a tile
  FastDiv32 by_loads, by_patch_rows;                          // reads of a row, rows of a patch
  FastDiv32 by_width, by_height;                              // of a plane of inputs
  FastDiv32 by_quads;                                         // groups of four outputs in a segment
  i64 x_batch, x_channel, x_axis[2];
};

// The tile of a block.
struct DepthwiseTile {
  u32 image, first_channel, first_row, first_column;
  int channels, rows, columns;  // inside the output
  u32 first_plane;              // channels of the input
  int planes;

  __device__ DepthwiseTile(const Depthwise& sizes, u32 tile) {
    tile = sizes.by_column_tiles.divide(tile, first_column);
    tile = sizes.by_row_tiles.divide(tile, first_row);
    image = sizes.by_channel_tiles.divide(tile, first_channel);
    first_column *= sizes.columns;
    first_row *= sizes.rows;
    first_channel *= sizes.channels;
    channels = least(sizes.channels, sizes.out_channels - int(first_channel));
    rows = least(sizes.rows, sizes.counts[0] - int(first_row));
    columns = least(sizes.columns, sizes.counts[1] - int(first_column));
    first_plane = sizes.by_multiplier.divide(first_channel);
    planes = int(sizes.by_multiplier.divide(first_channel + channels - 1) - first_plane) + 1;
  }

  static __device__ int least(int a, int b) { return a < b ? a : b; }
};

// Where a column of a patch stands in its row: with a stride of 2 even columns come first, so that neighbouring outputs
// read neighbouring words.
template <int Stride>
__device__ inline int patch_column(const Depthwise& sizes, int column) {
  return Stride == 2 ? (column & 1) * sizes.half_pitch + (column >> 1) : column;
}

// Inputs under a tile, on their way into a patch that is zero before.
template <int Stride>
struct PatchWriter {
  const Depthwise& sizes;
  float* patch;
  int row_start, column_start;  // of the patch in its plane

  __device__ PatchWriter(const Depthwise& sizes, const DepthwiseTile& tile, float* patch) : sizes(sizes), patch(patch) {
    row_start = int(tile.first_row) * sizes.strides[0] - sizes.begins[0];
    column_start = int(tile.first_column) * sizes.strides[1] - sizes.begins[1];
  }
  __device__ void write(u32 plane, int row, int column, float value) const {
    row -= row_start;
    column -= column_start;
    if (u32(row) < u32(sizes.patch_rows) && u32(column) < u32(sizes.patch_columns)) {
      patch[(plane * sizes.patch_rows + row) * sizes.pitch + patch_column<Stride>(sizes, column)] = value;
    }
  }

  // Reads element by element, rows from an aligned one on.
  template <class T>
  __device__ void read_elements(const T* __restrict__ x, int planes) const {
    const int first = column_start < 0 ? 0 : column_start & -kAlignedColumns;
    const int loads = planes * sizes.patch_rows * int(sizes.by_loads.divisor);
#pragma unroll 4
    for (int load = threadIdx.x; load < loads; load += kDepthwiseThreads) {
      u32 column, row;
      const u32 plane = sizes.by_patch_rows.divide(sizes.by_loads.divide(u32(load), column), row);
      const int at_row = row_start + int(row), at_column = first + int(column);
      if (u32(at_row) >= u32(sizes.extents[0]) || at_column >= sizes.extents[1]) continue;
      const T* source = x + (plane * sizes.x_channel + at_row * sizes.x_axis[0] + at_column * sizes.x_axis[1]);
      write(plane, at_row, at_column, widen(*source));
    }
  }

  // Reads whole rows that lie one after another, of one plane or all rows of several, four elements at a time.
  template <class T>
  __device__ void read_range(const T* __restrict__ x, i64 place, int planes) const {
    int first_row = 0, last_row = planes * sizes.extents[0];
    if (planes == 1) {
      first_row = row_start < 0 ? 0 : row_start;
      last_row = DepthwiseTile::least(last_row, row_start + sizes.patch_rows);
    }
    const int length = (last_row - first_row) * sizes.extents[1];
    place += i64(first_row) * sizes.extents[1];
    const int shift = int(place & 3);
    x += place - shift;
#pragma unroll 2
    for (int at = 4 * int(threadIdx.x) - shift; at < length; at += 4 * kDepthwiseThreads) {
      const T* source = x + (at + shift);
      const int skipped = at < 0 ? -at : 0;  // of the first four
      Vec<T, 4> values;
      if (skipped == 0 && at + 4 <= length) {
        values = load_vec<4>(source);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) values.lanes[i] = source[u32(at + i) < u32(length) ? i : skipped];
      }
      u32 column, row;
      u32 plane = sizes.by_height.divide(sizes.by_width.divide(u32(at + skipped), column), row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (u32(at + i) >= u32(length)) continue;
        write(plane, first_row + int(row), int(column), widen(values.lanes[i]));
        if (++column == sizes.by_width.divisor) {
          column = 0;
          if (++row == sizes.by_height.divisor) {
            row = 0;
            ++plane;
          }
        }
      }
    }
  }
};

// The sums of `Rows` outputs one below another for a kernel of Extent x Extent taps, each tap of the input read once.
template <int Extent, int Stride, int Rows>
__device__ inline void sum_taps(const float* source, const float* weights, const Depthwise& sizes,
                                float (&sums)[Rows]) {
  float w[Extent][Extent];
#pragma unroll
  for (int i = 0; i < Extent * Extent; ++i) w[i / Extent][i % Extent] = weights[i];
#pragma unroll
  for (int row = 0; row < (Rows - 1) * Stride + Extent; ++row) {
    float values[Extent];
#pragma unroll
    for (int t = 0; t < Extent; ++t) values[t] = source[patch_column<Stride>(sizes, t)];
    source += sizes.pitch;
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const int tap_row = row - i * Stride;
      if (tap_row < 0 || tap_row >= Extent) continue;
#pragma unroll
      for (int t = 0; t < Extent; ++t) sums[i] = fmaf(w[tap_row][t], values[t], sums[i]);
    }
  }
}

// The sum of one output for any kernel and dilation.
__device__ inline void sum_any_taps(const float* source, const float* weights, const Depthwise& sizes, float& sum) {
  for (int t0 = 0; t0 < sizes.kernel[0]; ++t0) {
    const float* value = source + t0 * sizes.dilations[0] * sizes.pitch;
    for (int t1 = 0; t1 < sizes.kernel[1]; ++t1) {
      sum = fmaf(*weights++, *value, sum);
      value += sizes.dilations[1];
    }
  }
}

// Computes  y[n, o, window] = bias[o] + sum over taps t of w[o, t] * x[n, o / multiplier, window + t]
// Shapes    x [batch, channels, rows, columns] by strides, w [out channels, taps], bias [out channels], y dense
// Grid      one block of 256 per tile: x = ((image * channel tiles + channel tile) * row tiles + row tile) * column
//           tiles + column tile
// Needs     w, bias, y dense, y aligned to 16 bytes; bias may be null. Extent > 0: a kernel of Extent x Extent without
//           dilation, both strides Stride; Extent 0 (and Stride 1): any. Where has_ranges: tiles of
//           whole rows, planes of x dense (and those of a tile one after another), x aligned to four elements. Tiles as
//           the constants above allow
// Numerics  half and bf16 in float, rounded once; order of taps, one fma each, zeros in the padding; then the bias;
//           then the epilogue
template <class T, int Extent, int Stride, class... Epilogue>
__global__ void __launch_bounds__(kDepthwiseThreads, 3)
    conv_depthwise(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y,
                   const __grid_constant__ Depthwise sizes, Epilogue... epilogue) {
  constexpr int kRows = Extent ? 4 : 1;  // outputs that a thread makes at once
  __shared__ alignas(16) float patch[kDepthwisePatch];
  __shared__ alignas(16) float outputs[kDepthwiseOutputs];
  __shared__ float weights[kDepthwiseWeights];
  const DepthwiseTile tile(sizes, blockIdx.x);
  const int taps = sizes.kernel[0] * sizes.kernel[1];
  const Vec<float, 4> zeros = {};
  for (int i = threadIdx.x; 4 * i < tile.planes * sizes.patch_rows * sizes.pitch; i += kDepthwiseThreads) {
    store_vec(patch + 4 * i, zeros);
  }
  wait_for_predecessors();
  launch_dependents();
  for (int i = threadIdx.x; i < tile.channels * taps; i += kDepthwiseThreads) {
    weights[i] = widen(w[i64(tile.first_channel) * taps + i]);
  }
  __syncthreads();
  const PatchWriter<Stride> writer(sizes, tile, patch);
  const i64 first_input = tile.image * sizes.x_batch + tile.first_plane * sizes.x_channel;
  if (sizes.has_ranges) {
    writer.read_range(x, first_input, tile.planes);
  } else {
    writer.read_elements(x + first_input, tile.planes);
  }
  __syncthreads();

  const i64 first = ((i64(tile.image) * sizes.out_channels + tile.first_channel) * sizes.counts[0] + tile.first_row) *
                        sizes.counts[1] + tile.first_column;
  const auto segment_start = [&](int segment) { return first + i64(segment) * sizes.counts[1]; };
  const int items = tile.channels * int(sizes.by_row_groups.divisor) * sizes.columns;
  for (int item = threadIdx.x; item < items; item += kDepthwiseThreads) {
    u32 column, group;
    const int channel = int(sizes.by_row_groups.divide(sizes.by_columns.divide(u32(item), column), group));
    if (int(column) >= tile.columns) continue;
    const int first_row = int(group) * kRows;
    const int plane = int(sizes.by_multiplier.divide(tile.first_channel + channel) - tile.first_plane);
    const float* source = patch + (plane * sizes.patch_rows + first_row * sizes.strides[0]) * sizes.pitch;
    float sums[kRows] = {};
    if constexpr (Extent > 0) {
      sum_taps<Extent, Stride>(source + column, weights + channel * taps, sizes, sums);
    } else {
      sum_any_taps(source + column * sizes.strides[1], weights + channel * taps, sizes, sums[0]);
    }
    const float addend = bias ? widen(bias[tile.first_channel + channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i;
      if (row >= tile.rows) break;
      const int place = sizes.has_row_segments ? row * sizes.segment_pitch + int(segment_start(row) & 3)
                                               : (channel * tile.rows + row) * sizes.columns + int(first & 3);
      outputs[place + int(column)] = bias ? sums[i] + addend : sums[i];
    }
  }
  __syncthreads();

  const auto finish = finish_by<T>(epilogue...);
  const int length = sizes.has_row_segments ? tile.columns : tile.channels * tile.rows * sizes.columns;
  const int quads = (sizes.has_row_segments ? tile.rows : 1) * int(sizes.by_quads.divisor);
  for (int quad = threadIdx.x; quad < quads; quad += kDepthwiseThreads) {
    u32 part;
    const int segment = int(sizes.by_quads.divide(u32(quad), part));
    const i64 start = segment_start(segment);
    const int shift = int(start & 3);
    const int within = 4 * int(part) - shift;  // of the segment; its first four may begin before it
    if (within >= length) continue;
    const float* source = outputs + segment * sizes.segment_pitch + 4 * int(part);
    if (within >= 0 && within + 4 <= length) {
      float values[1][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) values[0][j] = source[j];
      finish.many(values, {start + within}, {4});
      Vec<T, 4> finished;
#pragma unroll
      for (int j = 0; j < 4; ++j) finished.lanes[j] = cast<T>(values[0][j]);
      store_vec(y + start + within, finished);
      continue;
    }
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
      if (u32(within + j) < u32(length)) store_finished(finish, y, start + within + j, source[j]);
    }
  }
}
