// Convolution and its transpose, texel by texel: each thread gathers the inputs of its outputs.
#include "../nn/conv.cu"
#include "narrow.cuh"

__device__ inline i64 count_outputs(const ConvSizes& sizes) {
  return sizes.batch * i64(sizes.by_out_channels.divisor) * i64(sizes.by_outputs.divisor);
}

// The work of a thread, for any form of the weights; `step` is that of NarrowWeights.
template <class Walk, class T, class Weights>
__device__ inline void make_texel(const Texture<T>& x, const Weights& w, const Texture<T>& bias, const Surface<T>& y,
                                  const Windows& windows, const WindowStrides& strides, const ConvSizes& sizes,
                                  i64 step) {
  draw<T>(y, count_outputs(sizes), [&](i64 index) {
    Output output;
    output.find(sizes, index);
    Acc<T> sum = Acc<T>(0);
    Walk::visit(i64(0), output, windows, strides, sizes, [&](i64 place, i64 source) {
      sum = multiply_add(w.at(place, Walk::scale_of(output) * step), widen(x[source]), sum);
    });
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
  make_texel<PlainWalk, T>(x, PlainTexels<T>{w}, bias, y, windows, strides, sizes, 0);
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
  make_texel<PlainWalk, T>(x, NarrowTexels<T, W>{w, scale, zero}, bias, y, windows, strides, sizes, step);
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
  make_texel<TransposedWalk, T>(x, PlainTexels<T>{w}, bias, y, windows, strides, sizes, 0);
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
  make_texel<TransposedWalk, T>(x, NarrowTexels<T, W>{w, scale, zero}, bias, y, windows, strides, sizes, step);
}
