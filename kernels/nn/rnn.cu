// Recurrent layers: all steps of LSTM, GRU and RNN in one launch.
//
// The products of the inputs with their weights are made before, for all steps at once. What is left is a product of the
// state with the recurrent weights, whose rows are the units: a block takes a *slice* of units for a *tile* of rows of the
// batch, and neighbouring threads share the terms of a unit's sum, which are neighbours in memory. Small layers have a
// block for each tile, which takes all slices, so it reads only its own results. In larger ones the slices are distributed
// among a few blocks, which synchronise at a barrier of the grid after every step.
#include "elementwise.cuh"
#include "gemm_simt.cuh"
#include "grid.cuh"

constexpr int kMaxGates = 4;
constexpr int kPartials = kThreads + 32;  // of a gate and row: units of a slice and one of padding for each part

// Rows of a tile; half as many of doubles, which take twice the room.
template <class A>
constexpr int kRows = 16 / int(sizeof(A));

// CELLS of gpuexec/ops/nn/rnn_launch.py and _FUNCTIONS of rnn_host.py, in their order.
enum Cell { kRnn, kGru, kLstm };
enum FunctionKind {
  kSigmoid, kTanh, kRelu, kAffine, kLeakyRelu, kThresholdedRelu, kScaledTanh, kHardSigmoid, kElu, kSoftsign, kSoftplus
};

struct Function {
  i64 kind;
  double alpha, beta;

  // Not inlined: a layer's kernel applies it in eight places.
  template <class A>
  static __device__ __noinline__ A apply(i64 kind, A a, A b, A x) {
    switch (kind) {
      case kSigmoid: return A(1) / (A(1) + math::exp(-x));
      case kTanh: return math::tanh(x);
      case kRelu: return x < A(0) ? A(0) : x;
      case kAffine: return a * x + b;
      case kLeakyRelu: return x < A(0) ? a * x : x;
      case kThresholdedRelu: return x >= a ? x : A(0);
      case kScaledTanh: return a * math::tanh(b * x);
      case kHardSigmoid: return held(a * x + b, A(0), A(1));
      case kElu: return x < A(0) ? a * math::expm1(x) : x;
      case kSoftsign: return x / (A(1) + math::fabs(x));
      default: return (x < A(0) ? A(0) : x) + math::log1p(math::exp(-math::fabs(x)));
    }
  }

  template <class A>
  __device__ A operator()(A x) const { return apply(kind, A(alpha), A(beta), x); }

  // x within bounds; NaN stays.
  template <class A>
  static __device__ A held(A x, A low, A high) { return x < low ? low : x > high ? high : x; }
};

// Packed by gpuexec/ops/nn/rnn_launch.py. Strides in elements; units lie dense everywhere.
struct Recurrence {
  i64 steps, batch, hidden, directions, gates;
  i64 input_strides[3], output_strides[3];  // direction, step, row
  i64 initial_strides[2], last_strides[2];  // direction, row
  i64 cell, reversed, input_forget;         // bit d of reversed: direction d takes the last step first
  i64 is_linear;                            // GRU: the reset gate is applied behind the product, not before it
  i64 log_units;                            // of a slice
  double clip;                              // bound of the inputs of gates; 0: not clipped
  Function functions[2 * 3];                // of each direction as many as it has

  __device__ i64 units() const { return i64(1) << log_units; }
  __device__ i64 slices() const { return (hidden + units() - 1) >> log_units; }
  __device__ bool has_two_phases() const { return cell == kGru && !is_linear; }

  // Applies the activation `place` of a direction to the clipped input of a gate.
  template <class A>
  __device__ A gate(i64 direction, int place, A x) const {
    const A limit = A(clip);
    return function(direction, place)(clip > 0 ? Function::held(x, -limit, limit) : x);
  }

  __device__ const Function& function(i64 direction, int place) const {
    const int count = cell == kLstm ? 3 : cell == kGru ? 2 : 1;
    return functions[direction * count + place];
  }
};

// What a layer reads and writes; absent ones are null.
template <class T>
struct Layer {
  const Acc<T>* __restrict__ inputs;  // products of the inputs, [direction, step, row, gates * hidden] by strides
  const T* __restrict__ weights;      // [directions, gates, hidden, hidden], a row for each unit
  const T* __restrict__ bias;         // [directions, 2, gates * hidden]
  const i32* __restrict__ lengths;    // [batch]
  const T* __restrict__ first_h;
  const T* __restrict__ first_c;
  const T* __restrict__ peepholes;  // [directions, 3, hidden]
  T* __restrict__ y;
  T* __restrict__ last_h;
  T* __restrict__ last_c;
  Acc<T>* scratch;  // four planes [directions, batch, hidden]: h before and after a step, c or z, and r * h
  unsigned* barrier;
};

// The part of a layer that a block works on at a time: a slice of units, of one direction, for a tile of rows.
struct Piece {
  i64 direction, unit, row;
};

// A block's run over all steps. With a barrier, blocks share the slices of all tiles; else a block has all slices of a
// tile.
template <class T>
struct Run {
  typedef Acc<T> A;
  static constexpr int kTileRows = kRows<A>;
  const Recurrence& shape;
  const Layer<T>& layer;
  A* partial;  // shared: [kMaxGates, kTileRows, kPartials]

  __device__ void operator()() const {
    const i64 plane = shape.directions * shape.batch * shape.hidden;
    A* const cells = layer.scratch + 2 * plane;
    A* const resets = layer.scratch + 3 * plane;
    visit_pairs([&](const Piece& piece, int, int, i64 row, i64 unit) {
      const i64 at = locate(piece.direction, row, unit);
      const i64 from = piece.direction * shape.initial_strides[0] + row * shape.initial_strides[1] + unit;
      layer.scratch[at] = layer.first_h == nullptr ? A(0) : widen(layer.first_h[from]);
      if (shape.cell == kLstm) cells[at] = layer.first_c == nullptr ? A(0) : widen(layer.first_c[from]);
    });
    meet();
    for (i64 step = 0; step < shape.steps; ++step) {
      const A* before = layer.scratch + (step & 1) * plane;
      A* after = layer.scratch + ((step & 1) ^ 1) * plane;
      if (shape.has_two_phases()) {
        multiply(before, 0, 2, [&](const Piece& piece, int place, int at_unit, i64 row, i64 unit) {
          const i64 d = piece.direction, t = time_of(d, step), at = locate(d, row, unit);
          cells[at] = shape.gate(d, 0, entering(d, t, row, unit, 0) + sum_of(place, at_unit, 0));
          resets[at] = shape.gate(d, 0, entering(d, t, row, unit, 1) + sum_of(place, at_unit, 1)) * before[at];
        });
        meet();
        multiply(resets, 2, 1, [&](const Piece& piece, int place, int at_unit, i64 row, i64 unit) {
          const i64 d = piece.direction, t = time_of(d, step), at = locate(d, row, unit);
          const A candidate = shape.gate(d, 1, entering(d, t, row, unit, 2) + sum_of(place, at_unit, 0));
          finish(d, t, row, unit, before, after, (A(1) - cells[at]) * candidate + cells[at] * before[at]);
        });
      } else {
        multiply(before, 0, int(shape.gates), [&](const Piece& piece, int place, int at_unit, i64 row, i64 unit) {
          const i64 d = piece.direction, t = time_of(d, step);
          const A h = next(d, t, row, unit, place, at_unit, before[locate(d, row, unit)], cells);
          finish(d, t, row, unit, before, after, h);
        });
      }
      meet();
    }
    const A* last = layer.scratch + (shape.steps & 1) * plane;
    visit_pairs([&](const Piece& piece, int, int, i64 row, i64 unit) {
      const i64 at = locate(piece.direction, row, unit);
      const i64 to = piece.direction * shape.last_strides[0] + row * shape.last_strides[1] + unit;
      if (layer.last_h != nullptr) layer.last_h[to] = cast<T>(last[at]);
      if (layer.last_c != nullptr) layer.last_c[to] = cast<T>(cells[at]);
    });
  }

 private:
  __device__ bool is_shared() const { return layer.barrier != nullptr; }

  // Waits until all that a block reads in the next phase is written.
  __device__ void meet() const {
    if (is_shared()) grid_sync(layer.barrier);
    else __syncthreads();
  }

  __device__ i64 locate(i64 direction, i64 row, i64 unit) const {
    return (direction * shape.batch + row) * shape.hidden + unit;
  }

  __device__ i64 time_of(i64 direction, i64 step) const {
    return shape.reversed >> direction & 1 ? shape.steps - 1 - step : step;
  }

  // Calls f(piece) for each piece of this block, in the same order every time.
  template <class F>
  __device__ void visit(F f) const {
    const i64 slices = shape.slices(), tiles = (shape.batch + kTileRows - 1) / kTileRows;
    if (tiles == 0) return;
    const i64 own = blockIdx.x / tiles * slices;
    const i64 end = is_shared() ? shape.directions * slices : own + slices;
    for (i64 slice = is_shared() ? i64(blockIdx.x) : own; slice < end; slice += is_shared() ? gridDim.x : 1) {
      const i64 first = is_shared() ? 0 : blockIdx.x % tiles, past = is_shared() ? tiles : first + 1;
      for (i64 tile = first; tile < past; ++tile) {
        f(Piece{slice / slices, (slice % slices) << shape.log_units, tile * kTileRows});
      }
    }
  }

  // Calls f(piece, place of the row, place of the unit, row, unit) for each row and unit of a piece, one per thread.
  template <class F>
  __device__ void visit_pairs(const Piece& piece, F f) const {
    for (int pair = threadIdx.x; pair < kTileRows << shape.log_units; pair += kThreads) {
      const int place = pair >> shape.log_units, at_unit = pair & int(shape.units() - 1);
      const i64 row = piece.row + place, unit = piece.unit + at_unit;
      if (row < shape.batch && unit < shape.hidden) f(piece, place, at_unit, row, unit);
    }
  }

  template <class F>
  __device__ void visit_pairs(F f) const {
    visit([&](const Piece& piece) { visit_pairs(piece, f); });
  }

  // Multiplies rows of `source` by the weights of some gates, and calls f for each pair while its sums are available.
  template <class F>
  __device__ void multiply(const A* source, int first, int count, F f) const {
    const int parts = kThreads >> shape.log_units, part = threadIdx.x & (parts - 1), own = threadIdx.x / parts;
    visit([&](const Piece& piece) {
      const i64 unit = piece.unit + own, plane = shape.hidden * shape.hidden;
      const T* weights = layer.weights + (piece.direction * shape.gates + first) * plane + unit * shape.hidden;
      const A* rows = source + locate(piece.direction, piece.row, 0);
      const i64 live = shape.batch - piece.row;
      A sums[kMaxGates][kTileRows];
#pragma unroll
      for (int g = 0; g < kMaxGates; ++g) {
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) sums[g][r] = A(0);
      }
      const i64 terms = unit < shape.hidden ? shape.hidden : 0;
      for (i64 k = part; k < terms; k += parts) {
        A state[kTileRows];
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) state[r] = r < live ? rows[r * shape.hidden + k] : A(0);
#pragma unroll
        for (int g = 0; g < kMaxGates; ++g) {
          if (g >= count) continue;
          const A weight = widen(weights[g * plane + k]);
#pragma unroll
          for (int r = 0; r < kTileRows; ++r) sums[g][r] = multiply_add(weight, state[r], sums[g][r]);
        }
      }
#pragma unroll
      for (int g = 0; g < kMaxGates; ++g) {
        if (g >= count) continue;
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) partial[(g * kTileRows + r) * kPartials + part * pitch() + own] = sums[g][r];
      }
      __syncthreads();
      visit_pairs(piece, f);
      __syncthreads();
    });
  }

  // The product of a pair for the gate `g` of those multiplied: its parts in order.
  __device__ A sum_of(int place, int at_unit, int g) const {
    A sum = A(0);
    const A* own = partial + (g * kTileRows + place) * kPartials + at_unit;
    for (int part = 0; part < kThreads >> shape.log_units; ++part) sum += own[part * pitch()];
    return sum;
  }

  // From a part of the sums to the next: threads that write, or read, at the same time meet different banks.
  __device__ int pitch() const { return int(shape.units()) + 1; }

  __device__ A bias_of(i64 direction, i64 unit, int gate, int which) const {
    if (layer.bias == nullptr) return A(0);
    return widen(layer.bias[((direction * 2 + which) * shape.gates + gate) * shape.hidden + unit]);
  }

  // The contribution of a step's input to a gate, biases included.
  __device__ A entering(i64 direction, i64 t, i64 row, i64 unit, int gate) const {
    return input(direction, t, row, unit, gate) + (bias_of(direction, unit, gate, 0) + bias_of(direction, unit, gate, 1));
  }

  __device__ A input(i64 direction, i64 t, i64 row, i64 unit, int gate) const {
    return layer.inputs[direction * shape.input_strides[0] + t * shape.input_strides[1] +
                        row * shape.input_strides[2] + gate * shape.hidden + unit];
  }

  // The state after a step, of layers that multiply once; that of an LSTM's cell is written at once.
  __device__ A next(i64 d, i64 t, i64 row, i64 unit, int place, int at_unit, A before, A* cells) const {
    const auto gate_of = [&](int gate) { return entering(d, t, row, unit, gate) + sum_of(place, at_unit, gate); };
    if (shape.cell == kRnn) return shape.gate(d, 0, gate_of(0));
    if (shape.cell == kGru) {
      const A z = shape.gate(d, 0, gate_of(0)), r = shape.gate(d, 0, gate_of(1));
      const A inner = r * (sum_of(place, at_unit, 2) + bias_of(d, unit, 2, 1));
      const A candidate = shape.gate(d, 1, inner + (input(d, t, row, unit, 2) + bias_of(d, unit, 2, 0)));
      return (A(1) - z) * candidate + z * before;
    }
    const i64 at = locate(d, row, unit);
    const auto peep = [&](int which) { return widen(layer.peepholes[(d * 3 + which) * shape.hidden + unit]); };
    const bool has_peepholes = layer.peepholes != nullptr;
    A i = gate_of(0), o = gate_of(1), f = gate_of(2), c = cells[at];
    if (has_peepholes) {
      i += peep(0) * c;
      f += peep(2) * c;
    }
    i = shape.gate(d, 0, i);
    f = shape.input_forget ? A(1) - i : shape.gate(d, 0, f);
    c = f * c + i * shape.gate(d, 1, gate_of(3));
    if (has_peepholes) o += peep(1) * c;
    if (is_valid(t, row)) cells[at] = c;
    return shape.gate(d, 0, o) * shape.function(d, 2)(c);
  }

  __device__ bool is_valid(i64 t, i64 row) const { return layer.lengths == nullptr || t < layer.lengths[row]; }

  // Writes the state after a step: beyond its length a sequence keeps what it has, and its output is 0.
  __device__ void finish(i64 d, i64 t, i64 row, i64 unit, const A* before, A* after, A h) const {
    const i64 at = locate(d, row, unit);
    const bool counts = is_valid(t, row);
    after[at] = counts ? h : before[at];
    if (layer.y == nullptr) return;
    const i64 to = d * shape.output_strides[0] + t * shape.output_strides[1] + row * shape.output_strides[2] + unit;
    layer.y[to] = counts ? cast<T>(h) : cast<T>(A(0));
  }
};

// Computes  the steps of an RNN, GRU or LSTM layer: Y, the last h and the last c
// Shapes    as Layer says; Y, last and first states by the strides of `shape`
// Grid      without a barrier one block per direction and tile of 4 rows of the batch (2 of doubles): x = direction *
//           tiles + tile; with one, few blocks, cooperative, among which slices of units are distributed in turn
// Needs     units dense; barrier one word that is 0 before; all but inputs, weights and scratch may be null
// Numerics  states and sums in the accumulator, outputs rounded once; a sum's terms are distributed among threads in turn,
//           and their sums added in order
template <class T>
__global__ void __launch_bounds__(kThreads, 2) recur(
    const Acc<T>* __restrict__ inputs, const T* __restrict__ weights, const T* __restrict__ bias,
    const i32* __restrict__ lengths, const T* __restrict__ first_h, const T* __restrict__ first_c,
    const T* __restrict__ peepholes, T* __restrict__ y, T* __restrict__ last_h, T* __restrict__ last_c,
    Acc<T>* scratch, unsigned* barrier, Recurrence shape) {
  __shared__ Acc<T> partial[kMaxGates * kRows<Acc<T>> * kPartials];
  const Layer<T> layer{inputs, weights, bias,   lengths, first_h, first_c, peepholes,
                       y,      last_h,  last_c, scratch, barrier};
  Run<T>{shape, layer, partial}();
}
