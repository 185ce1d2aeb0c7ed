// Einsum, texel by texel: each thread sums the products of its elements.
#include "../linalg/einsum.cu"
#include "texture.cuh"

// Computes  what `contract` computes.
// Shapes    as `contract`; y dense, in the order of the rows.
// Grid      one thread per texel of y.
// Needs     b may be absent; terms may be 0.
// Numerics  as `contract` of one lane.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) draw_contract(
    const Texture<T> a, const Texture<T> b, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 3> kept,
    const __grid_constant__ Strided<kMaxRank, 2> reduced, int, int) {
  typedef Acc<T> A;
  draw<T>(y, kept.count, [&](i64 row) {
    i64 start[3], offsets[2];
    kept.locate(row, start);
    A sum = A(0);
    for (i64 term = 0; term < reduced.count; ++term) {
      reduced.locate(term, offsets);
      const A value = widen(a[start[0] + offsets[0]]);
      sum = wrapping_add(sum, b ? wrapping_mul(value, widen(b[start[1] + offsets[1]])) : value);
    }
    return cast<T>(sum);
  });
}
