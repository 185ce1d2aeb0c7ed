// Causal depthwise convolution along the last axis, whose first columns come from the state of the call before.
#include "dependent_launch.cuh"
#include "elementwise.cuh"
#include "gemm_simt.cuh"

// Packed by gpuexec/ops/nn/causal_conv.py. Strides in elements, along batch, channel, column; outputs are dense.
struct CausalConv {
  FastDiv64 row, channel;           // columns of a row of work: those of y, then those of the state; channels
  i64 count;                        // of work items
  i64 length, taps;
  i64 x_strides[3], past_strides[3];
  i64 is_silu;
};

// Computes  y[t] = f(bias + sum of weight[i] * past_and_x[t + i]), f(a) = a or a * sigmoid(a), and the last taps - 1 columns
//           of past_and_x, the state of the next call
// Shapes    x, y [batch, channels, length], past, state [batch, channels, taps - 1], weight [channels, taps], bias
//           [channels]
// Grid      one thread per column of y and of the state
// Needs     weight and bias dense; bias, past (zeros), y and state (not wanted) may be null
// Numerics  in float, taps in order, one rounding to T
template <class T>
__global__ void __launch_bounds__(kThreads) causal_conv(
    const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, const T* __restrict__ past,
    T* __restrict__ y, T* __restrict__ state, CausalConv shape) {
  typedef Acc<T> A;
  const i64 index = i64(blockIdx.x) * kThreads + threadIdx.x;
  u64 column, channel;
  const i64 row = i64(shape.row.divide(index, column)), batch = i64(shape.channel.divide(row, channel));
  const i64 carried = shape.taps - 1;
  x += batch * shape.x_strides[0] + i64(channel) * shape.x_strides[1];
  if (past != nullptr) past += batch * shape.past_strides[0] + i64(channel) * shape.past_strides[1];
  const auto at = [&](i64 place) {
    if (place >= carried) return widen(x[(place - carried) * shape.x_strides[2]]);
    return past == nullptr ? A(0) : widen(past[place * shape.past_strides[2]]);
  };
  wait_for_predecessors();
  launch_dependents();
  if (index >= shape.count) return;
  const i64 first = i64(column);
  if (first >= shape.length) {
    if (state != nullptr) state[row * carried + first - shape.length] = cast<T>(at(first));
    return;
  }
  if (y == nullptr) return;
  weight += i64(channel) * shape.taps;
  A sum = bias == nullptr ? A(0) : widen(bias[channel]);
  for (i64 tap = 0; tap < shape.taps; ++tap) sum = multiply_add(widen(weight[tap]), at(first + tap), sum);
  if (shape.is_silu) sum = sum / (A(1) + math::exp(-sum));
  y[row * shape.length + first] = cast<T>(sum);
}
