// Images with few or odd channels as convolutions on tensor cores read them: channels last, padded to eights.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "vec.cuh"

constexpr int kPadThreads = 256;
constexpr int kPadChannels = 8;

// Packed by gpuexec/ops/nn/conv_mma.py. Extents are of three spatial axes (fewer: 1 in front).
struct PaddedImage {
  FastDiv32 by_positions, by_eights, by_axes[2];  // positions of an image, eights of its channels, its last two axes
  i32 count, channels;                            // vectors of all images; channels of the source
  i64 x_batch, x_channel, x_axis[3];
};

// Computes  y[n, position, c] = x[n, position, c], 0 from the last channel on
// Shapes    x [n, channels, spatial] by strides; y [n, spatial, eights of channels], dense
// Grid      one thread per eight channels of a position: x = ((n * eights + eight) * positions + position) / 256
// Needs     y aligned to 8 elements
// Numerics  rounded to T
template <class S, class T>
__global__ void __launch_bounds__(kPadThreads, 4)
    pad_channels(const S* __restrict__ x, T* __restrict__ y, const __grid_constant__ PaddedImage sizes) {
  const i32 vector = i32(blockIdx.x) * kPadThreads + i32(threadIdx.x);
  u32 position, eight, middle, last;
  const u32 image = sizes.by_eights.divide(sizes.by_positions.divide(u32(vector), position), eight);
  const u32 first = sizes.by_axes[0].divide(sizes.by_axes[1].divide(position, last), middle);
  const S* source = x + (image * sizes.x_batch + first * sizes.x_axis[0] + middle * sizes.x_axis[1] +
                         last * sizes.x_axis[2]);
  wait_for_predecessors();
  launch_dependents();
  if (vector >= sizes.count) return;
  Vec<T, kPadChannels> made;
#pragma unroll
  for (int i = 0; i < kPadChannels; ++i) {
    const int channel = int(eight) * kPadChannels + i;
    made.lanes[i] = channel < sizes.channels ? cast<T>(widen(source[channel * sizes.x_channel])) : cast<T>(0.0f);
  }
  const i64 line = (i64(image) * sizes.by_positions.divisor + position) * sizes.by_eights.divisor + eight;
  store_vec(y + line * kPadChannels, made);
}
