// Convolution and its transpose, texel by texel: each thread gathers what enters its outputs.
#include "../conv.cu"
#include "narrow.cuh"

__device__ inline i64 count_outputs(const ConvSizes& sizes) {
  return sizes.batch * i64(sizes.by_out_channels.divisor) * i64(sizes.by_outputs.divisor);
}

// What a thread of a convolution does, whatever form the weights have; `step` is that of NarrowWeights.
template <class T, class Weights>
__device__ inline void convolve_texel(const Texture<T>& x, const Weights& w, const Texture<T>& bias, const Surface<T>& y,
                                      const Windows& windows, const WindowStrides& strides, const ConvSizes& sizes,
                                      i64 step) {
  draw<T>(y, count_outputs(sizes), [&](i64 index) {
    Output output;
    output.find(sizes, index);
    int starts[3];
    split_index(u32(output.position), windows.by_counts, starts);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) starts[axis] = windows.start(starts[axis], axis);
    i64 image = output.n * strides.batch + output.group * sizes.group_ins * strides.channel;
    i64 weight = i64(output.channel) * sizes.group_ins * windows.taps();
    Acc<T> sum = Acc<T>(0);
    for (int c = 0; c < sizes.group_ins; ++c, image += strides.channel) {
      for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
        const int p0 = starts[0] + t0 * windows.dilations[0];
        for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
          const int p1 = starts[1] + t1 * windows.dilations[1];
          const bool is_row_inside = windows.is_inside(p0, 0) && windows.is_inside(p1, 1);
          for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++weight) {
            const int p2 = starts[2] + t2 * windows.dilations[2];
            if (!is_row_inside || !windows.is_inside(p2, 2)) continue;
            const Acc<T> value = w.at(weight, i64(output.channel) * step);
            sum = multiply_add(value, widen(x[image + strides.offset(p0, p1, p2)]), sum);
          }
        }
      }
    }
    if (bias) sum += widen(bias[i64(output.channel)]);
    return cast<T>(sum);
  });
}

// Computes  what conv_gemm and conv_direct compute
// Shapes    as conv_gemm
// Grid      one thread per texel of y
// Needs     w, bias, y dense; bias may be absent
// Numerics  as conv_direct, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_conv(
    const Texture<T> x, const Texture<T> w, const Texture<T> bias, const Surface<T> y,
    const __grid_constant__ Windows windows, const WindowStrides strides, const ConvSizes sizes) {
  convolve_texel<T>(x, PlainTexels<T>{w}, bias, y, windows, strides, sizes, 0);
}

// Computes  what conv_gemm_narrow and conv_direct_narrow compute
// Shapes    as conv_gemm_narrow
// Grid      one thread per texel of y
// Needs     as draw_conv; scale (of half weights) and zero may be absent
// Numerics  as draw_conv of the widened weights, bit for bit
template <class T, class W>
__global__ void __launch_bounds__(256, 1) draw_conv_narrow(
    const Texture<T> x, const Texture<W> w, const Texture<T> bias, const Surface<T> y,
    const __grid_constant__ Windows windows, const WindowStrides strides, const ConvSizes sizes, const Texture<T> scale,
    const Texture<i8> zero, i64 step) {
  convolve_texel<T>(x, NarrowTexels<T, W>{w, scale, zero}, bias, y, windows, strides, sizes, step);
}

// The same for its transpose.
template <class T, class Weights>
__device__ inline void gather_texel(const Texture<T>& x, const Weights& w, const Texture<T>& bias, const Surface<T>& y,
                                    const Windows& windows, const WindowStrides& strides, const ConvSizes& sizes,
                                    i64 step) {
  draw<T>(y, count_outputs(sizes), [&](i64 index) {
    Output output;
    output.find(sizes, index);
    int at[3];
    split_index(u32(output.position), windows.by_extents, at);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at[axis] += windows.begins[axis];
    const i64 first_in = output.group * sizes.group_ins, taps = windows.taps();
    const i64 channel_step = i64(sizes.by_group_outs.divisor) * taps;
    const i64 image = output.n * strides.batch + first_in * strides.channel;
    i64 weight = first_in * channel_step + output.member * taps;
    Acc<T> sum = Acc<T>(0);
    int q0 = 0, q1 = 0, q2 = 0;
    for (int t0 = 0; t0 < windows.kernel[0]; ++t0) {
      const bool is_hit0 = find_source(windows, 0, at[0], t0, q0);
      for (int t1 = 0; t1 < windows.kernel[1]; ++t1) {
        const bool is_hit1 = is_hit0 && find_source(windows, 1, at[1], t1, q1);
        for (int t2 = 0; t2 < windows.kernel[2]; ++t2, ++weight) {
          if (!is_hit1 || !find_source(windows, 2, at[2], t2, q2)) continue;
          const i64 source = image + strides.offset(q0, q1, q2);
          for (int c = 0; c < sizes.group_ins; ++c) {
            const Acc<T> value = w.at(weight + c * channel_step, output.member * step);
            sum = multiply_add(value, widen(x[source + c * strides.channel]), sum);
          }
        }
      }
    }
    if (bias) sum += widen(bias[i64(output.channel)]);
    return cast<T>(sum);
  });
}

// Computes  what conv_transpose computes
// Shapes    as conv_transpose
// Grid      one thread per texel of y
// Needs     w, bias, y dense; bias may be absent
// Numerics  as conv_transpose, bit for bit
template <class T>
__global__ void __launch_bounds__(256, 1) draw_conv_transpose(
    const Texture<T> x, const Texture<T> w, const Texture<T> bias, const Surface<T> y,
    const __grid_constant__ Windows windows, const WindowStrides strides, const ConvSizes sizes) {
  gather_texel<T>(x, PlainTexels<T>{w}, bias, y, windows, strides, sizes, 0);
}

// Computes  what conv_transpose_narrow computes
// Shapes    as conv_transpose_narrow
// Grid      one thread per texel of y
// Needs     as draw_conv_transpose; scale (of half weights) and zero may be absent
// Numerics  as draw_conv_transpose of the widened weights, bit for bit
template <class T, class W>
__global__ void __launch_bounds__(256, 1) draw_conv_transpose_narrow(
    const Texture<T> x, const Texture<W> w, const Texture<T> bias, const Surface<T> y,
    const __grid_constant__ Windows windows, const WindowStrides strides, const ConvSizes sizes, const Texture<T> scale,
    const Texture<i8> zero, i64 step) {
  gather_texel<T>(x, NarrowTexels<T, W>{w, scale, zero}, bias, y, windows, strides, sizes, step);
}
