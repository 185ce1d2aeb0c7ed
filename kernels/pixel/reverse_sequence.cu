// ReverseSequence, texel by texel.
#include "index.cuh"
#include "texture.cuh"

// Computes: y[.. t ..] = x[.. lengths[b] - 1 - t ..] where t < lengths[b], else x[.. t ..]; b along the batch axis.
// Shapes: x, y [rows, columns, inner] dense, of `count` elements; time and batch are rows and columns, or the reverse.
// Grid: one thread per texel of y.
// Needs: elements of sizeof(T) bytes.
// Numerics: none, bits are kept; a length beyond the extents counts as the nearest within them.
template <class T>
__global__ void __launch_bounds__(kDrawThreads) draw_reverse_sequence(
    const Texture<T> x, const Texture<i64> lengths, const Surface<T> y, i64 count, i64 rows, const FastDiv64 columns,
    const FastDiv64 inner, int is_time_first) {
  const i64 most = is_time_first ? rows : i64(columns.divisor);
  const i64 step = is_time_first ? i64(columns.divisor * inner.divisor) : i64(inner.divisor);
  draw<T>(y, count, [&](i64 index) {
    u64 within, column;
    const u64 row = columns.divide(inner.divide(u64(index), within), column);
    const i64 time = i64(is_time_first ? row : column);
    const i64 given = lengths[i64(is_time_first ? column : row)], length = given < most ? given : most;
    return x[time < length ? index + (length - 1 - 2 * time) * step : index];
  });
}
