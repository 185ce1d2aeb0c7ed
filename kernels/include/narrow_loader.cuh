// Narrow weights as an operand of a matrix product.
#pragma once
#include "gemm_simt.cuh"
#include "narrow.cuh"

// Loads from a matrix of narrow weights by strides; zero beyond its extents. Scales have strides of their own, 0 along an
// axis they don't vary over.
template <class T, class W>
struct NarrowLoader {
  StridedLoader<W> weights;
  SlabPart part;
  Scales<T> scales;
  i64 scale_first, scale_step, scale_k_step;

  __device__ NarrowLoader(const W* matrix, const Scales<T>& scales, i64 origin, i64 x_extent, i64 inner, i64 x_stride,
                          i64 k_stride, i64 scale_x_stride, i64 scale_k_stride, int thread)
      : weights(matrix, origin, x_extent, inner, x_stride, k_stride, thread), part(weights.part), scales(scales) {
    scale_first = (origin + part.x) * scale_x_stride + part.k * scale_k_stride;
    scale_step = part.dx * scale_x_stride + part.dk * scale_k_stride;
    scale_k_step = scale_k_stride;
  }

  __device__ void load(i64 k, Acc<T> (&values)[4]) const {
    const W* source = weights.first + k * weights.k_step;
    i64 place = scale_first + k * scale_k_step;
    int k_left = int(weights.k_extent - k < kSlab ? weights.k_extent - k : kSlab);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bool is_inside = i * part.dx < weights.extent && i * part.dk < k_left;
      values[i] = is_inside ? widen_weight<T>(source[i * weights.step], scales, place + i * scale_step) : Acc<T>(0);
    }
  }
};
