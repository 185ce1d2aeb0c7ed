// Conversion of images to tensors and back, texel by texel; the tables are textures too.
#include "../vision/image.cu"
#include "texture.cuh"

// Computes  what transform_image computes
// Shapes    x by strides, y dense as [n, h, w, c] or [n, c, h, w]; positions and weights as transform_image
// Grid      one thread per texel of y
// Needs     positions that lie inside x
// Numerics  as transform_image, bit for bit
template <class From, class To>
__global__ void __launch_bounds__(256, 1) draw_transform_image(
    const Texture<From> x, const Texture<i32> positions, const Texture<float> weights, const Surface<To> y,
    const __grid_constant__ ImageWalk walk) {
  const bool is_channel_last = walk.to[3] == 1;
  draw<To>(y, walk.count * walk.channels, [&](i64 index) {
    u64 row, column;
    u64 rest = is_channel_last ? u64(index) / u32(walk.channels) : u64(index);
    rest = walk.height.divide(walk.width.divide(rest, column), row);
    const int channel = int((is_channel_last ? u64(index) : rest) % u32(walk.channels));
    const i64 image = i64(is_channel_last ? rest : rest / u32(walk.channels));
    const int source = walk.sources[channel];
    if (source < 0) return finish_pixel<To>(walk.fill[channel]);
    const int first_row = int(row) * walk.row_taps, first_column = walk.columns + int(column) * walk.column_taps;
    const i64 base = image * walk.from[0] + source * walk.from[3];
    float sum = 0.0f;
    for (int row_tap = 0; row_tap < walk.row_taps; ++row_tap) {
      const i64 line = base + positions[first_row + row_tap] * walk.from[1];
      float part = 0.0f;
      for (int tap = 0; tap < walk.column_taps; ++tap) {
        const float weight = weights[first_column + tap];
        const float value = cast<float>(x[line + positions[first_column + tap] * walk.from[2]]) * weight;
        part = tap == 0 ? value : part + value;
      }
      part = part * weights[first_row + row_tap];
      sum = row_tap == 0 ? part : sum + part;
    }
    return finish_pixel<To>(sum * walk.scale[channel] + walk.bias[channel]);
  });
}
