// Trilu, texel by texel.
#include "index.cuh"
#include "texture.cuh"

// Computes: y[..., i, j] = x[..., i, j] where j - i >= k (is_upper) or j - i <= k, else 0.
// Shapes: x, y [..., rows, columns]; x of any strides, y dense; k one element, absent for 0.
// Grid: one thread per texel of y.
// Needs: elements of sizeof(T) bytes.
// Numerics: none, bits are kept; zero is all bits 0.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_trilu(
    const Texture<T> x, const Texture<i64> k, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 2> walk,
    const FastDiv64 rows, const FastDiv64 columns, i32 is_upper) {
  const i64 diagonal = k ? k[0] : 0;
  draw<T>(y, walk.count, [&](i64 index) {
    u64 column, row;
    rows.divide(columns.divide(u64(index), column), row);
    const i64 distance = i64(column) - i64(row);
    i64 offsets[2];
    walk.locate(index, offsets);
    return (is_upper ? distance >= diagonal : distance <= diagonal) ? x[offsets[0]] : T(0);
  });
}
