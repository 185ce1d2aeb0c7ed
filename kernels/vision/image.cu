// Conversion of images to tensors and back, in any order of axes and channels.
#include "index.cuh"

constexpr int kMaxChannels = 16;

// Packed by gpuexec/ops/vision/image.py. Strides are in elements, in the order [n, h, w, c].
struct ImageWalk {
  i64 count;  // pixels of the result, in all images
  FastDiv64 width, height;
  i64 from[4], to[4];
  i32 row_taps, column_taps;
  i32 columns;  // where the table of columns begins, behind that of rows
  i32 channels;
  i32 sources[kMaxChannels];  // -1: the channel is `fill`
  float scale[kMaxChannels], bias[kMaxChannels], fill[kMaxChannels];
};

// Integers round to nearest even and saturate; NaN gives 0.
template <class To>
__device__ inline To finish_pixel(float value) {
  if constexpr (!kIsInteger<To>) {
    return cast<To>(value);
  } else {
    float rounded = rintf(value);
    constexpr float kLargest = float(To(~To(0)));
    if (!(rounded > 0.0f)) return To(0);
    return rounded >= kLargest ? To(~To(0)) : To(rounded);
  }
}

// Computes  y[n, h, w, c] = (the weighted sum of x at the taps of row h and column w, channel sources[c]) * scale[c]
//           + bias[c], or fill[c]
// Shapes    x and y by strides; positions and weights: a table [rows of y, row_taps], then one [columns of y, column_taps]
// Grid      one thread per pixel of y, for all its channels: x = pixels / 256
// Needs     positions that lie inside x
// Numerics  in float, products and sums rounded apart, columns before rows, taps in order; rounded to To once
template <class From, class To>
__global__ void __launch_bounds__(256, 1)
    transform_image(const From* __restrict__ x, const i32* __restrict__ positions, const float* __restrict__ weights,
                    To* __restrict__ y, const __grid_constant__ ImageWalk walk) {
  i64 pixel = i64(blockIdx.x) * 256 + threadIdx.x;
  if (pixel >= walk.count) return;
  u64 row, column;
  u64 image = walk.height.divide(walk.width.divide(u64(pixel), column), row);
  int first_row = int(row) * walk.row_taps, first_column = walk.columns + int(column) * walk.column_taps;
  i64 target = i64(image) * walk.to[0] + i64(row) * walk.to[1] + i64(column) * walk.to[2];
  for (int channel = 0; channel < walk.channels; ++channel, target += walk.to[3]) {
    int source = walk.sources[channel];
    if (source < 0) {
      y[target] = finish_pixel<To>(walk.fill[channel]);
      continue;
    }
    i64 base = i64(image) * walk.from[0] + source * walk.from[3];
    float sum = 0.0f;
    for (int row_tap = 0; row_tap < walk.row_taps; ++row_tap) {
      i64 line = base + positions[first_row + row_tap] * walk.from[1];
      float part = 0.0f;
      for (int tap = 0; tap < walk.column_taps; ++tap) {
        float value = cast<float>(x[line + positions[first_column + tap] * walk.from[2]]) * weights[first_column + tap];
        part = tap == 0 ? value : part + value;
      }
      part = part * weights[first_row + row_tap];
      sum = row_tap == 0 ? part : sum + part;
    }
    y[target] = finish_pixel<To>(sum * walk.scale[channel] + walk.bias[channel]);
  }
}
