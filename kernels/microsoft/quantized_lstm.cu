// Recurrent steps of an LSTM with 8-bit weights and dynamically quantised states.
// Before each product the state of a row is quantised by its own range.
#include "rational.cuh"
#include "requantize.cuh"
#include "rnn.cu"
#include "value_range.cuh"

// Packed by gpuexec/ops/microsoft/quantized_lstm.py.
struct QuantizedLstm {
  i64 steps, batch, hidden, directions;
  i64 reversed;      // bit d: direction d takes the last step first
  i64 input_forget;
  i64 quant_row;     // scales of a direction: 1, or one for each column
  i64 offset;        // of the weights: 128 for unsigned bytes
  double clip;       // bound of the inputs of gates; 0: not clipped
  Function functions[2 * 3];

  // Applies activation `place` of a direction to the clipped input of a gate.
  __device__ float gate(i64 direction, int place, float x) const {
    const float limit = float(clip);
    return apply(direction, place, clip > 0 ? Function::held(x, -limit, limit) : x);
  }

  __device__ float apply(i64 direction, int place, float x) const {
    const Function& function = functions[3 * direction + place];
    if (function.kind == kSigmoid) return rational_sigmoid(x);
    return function.kind == kTanh ? rational_tanh(x) : function(x);
  }
};

// Computes  for each step: gates = inputs + (h quantised by its range) @ weights * scales + bias; then c and h of an LSTM
// Shapes    inputs [directions, steps, batch, 4 * hidden], weights [directions, hidden, 4 * hidden], scales and zeros
//           [directions, quant_row], bias [directions, 2, 4 * hidden], lengths [batch], first_h, first_c, h, c and bytes
//           [directions, batch, hidden], peepholes [directions, 3, hidden], y [steps, directions, batch, hidden]; gates
//           stand as i, o, f, c
// Grid      one block of 256 per row of a direction, which takes all its units: x = direction * batch + row
// Needs     all dense; bias, lengths, first_h, first_c, peepholes and y may be null
// Numerics  products exact, scaled in float; each row of a step has its own scale and zero point; halves to even; sigmoid
//           and tanh as rational functions, within 4 ulp of 1
__global__ void __launch_bounds__(kBlockThreads)
    quantized_lstm(const float* __restrict__ inputs, const u8* __restrict__ weights, const float* __restrict__ scales,
                   const u8* __restrict__ zeros, const float* __restrict__ bias, const i32* __restrict__ lengths,
                   const float* __restrict__ first_h, const float* __restrict__ first_c,
                   const float* __restrict__ peepholes, u8* bytes, float* y, float* h, float* c,
                   const __grid_constant__ QuantizedLstm shape) {
  const i64 d = blockIdx.x / shape.batch, row = blockIdx.x % shape.batch;
  const i64 hidden = shape.hidden, columns = 4 * hidden, state = i64(blockIdx.x) * hidden;
  const bool is_reversed = shape.reversed >> d & 1;
  const i32 offset = i32(shape.offset);
  const i64 length = lengths ? i64(lengths[row]) : shape.steps;
  weights += d * hidden * columns;
  scales += d * shape.quant_row;
  zeros += d * shape.quant_row;
  bytes += state;
  h += state;
  c += state;
  // A thread has the same units in every step, so h and c need no barrier.
  for (i64 unit = threadIdx.x; unit < hidden; unit += kBlockThreads) {
    h[unit] = first_h ? first_h[state + unit] : 0.0f;
    c[unit] = first_c ? first_c[state + unit] : 0.0f;
  }
  for (i64 step = 0; step < shape.steps; ++step) {
    const i64 t = is_reversed ? shape.steps - 1 - step : step;
    float* out = y ? y + ((t * shape.directions + d) * shape.batch + row) * hidden : y;
    if (t >= length) {
      for (i64 unit = threadIdx.x; out && unit < hidden; unit += kBlockThreads) out[unit] = 0.0f;
      continue;
    }
    Range range = {0.0f, 0.0f};
    for (i64 unit = threadIdx.x; unit < hidden; unit += kBlockThreads) range.widen_to(h[unit]);
    range = fold_ranges(range);
    const float by = range.step();
    const i32 origin = range.origin() - 128;
    for (i64 unit = threadIdx.x; unit < hidden; unit += kBlockThreads) bytes[unit] = round_to_byte(h[unit] / by, origin, 128);
    __syncthreads();
    for (i64 unit = threadIdx.x; unit < hidden; unit += kBlockThreads) {
      i32 sums[4] = {0, 0, 0, 0}, zero[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) zero[g] = load_zero(zeros, shape.quant_row == 1 ? 0 : g * hidden + unit, offset);
      for (i64 k = 0; k < hidden; ++k) {
        const i32 value = centre(bytes[k], 128) - origin;
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          sums[g] = wrapping_add(sums[g], value * (centre(weights[k * columns + g * hidden + unit], offset) - zero[g]));
        }
      }
      const float* input = inputs + ((d * shape.steps + t) * shape.batch + row) * columns;
      float gates[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const i64 column = g * hidden + unit;
        gates[g] = float(sums[g]) * (by * scales[shape.quant_row == 1 ? 0 : column]) + input[column];
        if (bias) gates[g] += bias[2 * d * columns + column] + bias[(2 * d + 1) * columns + column];
      }
      const float before = c[unit];
      const float* peephole = peepholes ? peepholes + 3 * d * hidden + unit : peepholes;
      if (peephole) {
        gates[0] += peephole[0] * before;
        gates[2] += peephole[2 * hidden] * before;
      }
      const float entering = shape.gate(d, 0, gates[0]);
      const float kept = shape.input_forget ? 1.0f - entering : shape.gate(d, 0, gates[2]);
      const float cell = kept * before + entering * shape.gate(d, 1, gates[3]);
      if (peephole) gates[1] += peephole[hidden] * cell;
      const float made = shape.gate(d, 0, gates[1]) * shape.apply(d, 2, cell);
      c[unit] = cell;
      h[unit] = made;
      if (out) out[unit] = made;
    }
    // The barriers of the next fold come before the bytes are written again.
  }
}
