// Windows of signals, texel by texel.
#include "../signal/signal_window.cu"
#include "texture.cuh"

// Computes  what `cosine_window` computes.
// Shapes    y [count] dense.
// Grid      one thread per texel of y.
// Needs     nothing.
// Numerics  as `cosine_window`, bit for bit.
template <class T>
__global__ void __launch_bounds__(kThreads) draw_cosine_window(
    const Surface<T> y, i64 count, i64 period, double a0, double a1, double a2) {
  draw<T>(y, count, [&](i64 i) { return cast<T>(sum_cosines(i, period, a0, a1, a2)); });
}
