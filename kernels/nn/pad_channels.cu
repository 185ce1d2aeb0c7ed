// Images with few or odd channels as convolutions on tensor cores read them: channels last, padded to 16 bytes.
#include "dependent_launch.cuh"
#include "index.cuh"
#include "vec.cuh"

constexpr int kPadThreads = 256;
template <class T>
constexpr int kPadChannels = 16 / int(sizeof(T));

// Packed by gpuexec/ops/nn/conv_mma.py. Extents are of three spatial axes (fewer: 1 in front).
struct PaddedImage {
  FastDiv32 by_positions, by_chunks, by_axes[2];  // positions of an image, vectors of its channels, its last two axes
  i32 count, channels;                            // vectors of all images; channels of the source
  i64 x_batch, x_channel, x_axis[3];
};

// Computes  y[n, position, c] = x[n, position, c], 0 from the last channel on
// Shapes    x [n, channels, spatial] by strides; y [n, spatial, vectors of channels], dense
// Grid      one thread per vector of 16 bytes: x = ((n * vectors + vector) * positions + position) / 256
// Needs     y aligned to 16 bytes
// Numerics  rounded to T
template <class S, class T>
__global__ void __launch_bounds__(kPadThreads, 4)
    pad_channels(const S* __restrict__ x, T* __restrict__ y, const __grid_constant__ PaddedImage sizes) {
  const i32 vector = i32(blockIdx.x) * kPadThreads + i32(threadIdx.x);
  u32 position, chunk, middle, last;
  const u32 image = sizes.by_chunks.divide(sizes.by_positions.divide(u32(vector), position), chunk);
  const u32 first = sizes.by_axes[0].divide(sizes.by_axes[1].divide(position, last), middle);
  const S* source = x + (image * sizes.x_batch + first * sizes.x_axis[0] + middle * sizes.x_axis[1] +
                         last * sizes.x_axis[2]);
  wait_for_predecessors();
  launch_dependents();
  if (vector >= sizes.count) return;
  Vec<T, kPadChannels<T>> made;
#pragma unroll
  for (int i = 0; i < kPadChannels<T>; ++i) {
    const int channel = int(chunk) * kPadChannels<T> + i;
    made.lanes[i] = channel < sizes.channels ? cast<T>(widen(source[channel * sizes.x_channel])) : cast<T>(0.0f);
  }
  const i64 line = (i64(image) * sizes.by_positions.divisor + position) * sizes.by_chunks.divisor + chunk;
  store_vec(y + line * kPadChannels<T>, made);
}
