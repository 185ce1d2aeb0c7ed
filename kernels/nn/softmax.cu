// Softmax, LogSoftmax and Hardmax along one axis of a dense tensor.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "softmax_state.cuh"

// The second number of __launch_bounds__ keeps ptxas from spilling held elements for more blocks at a time.
constexpr int kHeld = 16;      // elements that a lane keeps in registers
constexpr int kHeldShort = 4;  // of short rows, which it always does

// What is computed of a row; kGuarded is 0 where kPlain would be NaN.
enum SoftmaxForm { kPlain, kLog, kGuarded };

// Maps the rows of a block: in registers where they fit, as short ones do. Waits before it reads.
template <bool kAreShort, class T, class Wait, class... Epilogue>
__device__ inline void map_rows(const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, i64 rows, i64 columns,
                                i64 inner, int lanes, int lane_stride, int form, const Wait& wait,
                                const Epilogue&... epilogue) {
  typedef Acc<T> A;
  constexpr int kOwn = kAreShort ? kHeldShort : kHeld;
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, lane_stride);
  const bool is_log = form == kLog;
  const i64 end = team.row < rows ? columns : 0;
  const i64 start = end > 0 ? row_start(team.row, columns, inner) : 0;
  x += start;
  const auto finish = finish_by<T>(epilogue...);
  wait();

  if (kAreShort || columns <= i64(kOwn) * lanes) {
    const int own = end > team.lane ? int(end - team.lane + lanes - 1) / lanes : 0;
    const i64 step = lanes * inner;
    const T* source = x + team.lane * inner;
    i64 place = start + team.lane * inner;
    A held[kOwn];
    A largest = limits<A>::negative_inf();
#pragma unroll
    for (int i = 0; i < kOwn; ++i, source += step) {
      held[i] = i < own ? widen(*source) : limits<A>::negative_inf();
      largest = max_keeping_nan(held[i], largest);
    }
    largest = team.fold(largest, shared, max_keeping_nan<A>);
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i >= own) break;
      held[i] -= largest;
      const A power = exp_of(held[i]);
      sum += power;
      if (!is_log) held[i] = power;
    }
    sum = team.fold(sum, shared, add<A>);
    const A log_sum = is_log ? log_of(sum) : A(0);
    const bool is_zero = form == kGuarded && sum != sum;
#pragma unroll
    for (int i = 0; i < kOwn; ++i, place += step) {
      if (i >= own) break;
      store_made(finish, y, place, cast<T>(is_zero ? A(0) : is_log ? held[i] - log_sum : held[i] / sum));
    }
    return;
  }
  if constexpr (!kAreShort) {
    typedef SoftmaxState<A> State;
    __shared__ State shared_states[kBlockThreads];
    State state = State::empty();
    for (i64 column = team.lane; column < end; column += lanes) {
      state = State::merge(state, State::of(widen(x[column * inner])));
    }
    state = team.fold(state, shared_states, State::merge);
    const A sum = state.strict_sum();
    const A log_sum = is_log ? log_of(sum) : A(0);
    const bool is_zero = form == kGuarded && sum != sum;
    for (i64 column = team.lane; column < end; column += lanes) {
      const A shifted = widen(x[column * inner]) - state.largest;
      const T made = cast<T>(is_zero ? A(0) : is_log ? shifted - log_sum : exp_of(shifted) / sum);
      store_made(finish, y, start + column * inner, made);
    }
  }
}

// Computes y = exp(x - max) / sum(exp(x - max)) along the columns, or its logarithm x - max - log(sum).
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics in Acc<T>, one rounding; rows of up to 16 * lanes columns in registers (one read), longer ones by running
//          sums (two reads). A row whose maximum is not finite gives NaN, guarded 0.
template <class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 1) softmax(
    const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, i64 rows, i64 columns, i64 inner, int lanes,
    int lane_stride, int form, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  map_rows<false>(x, y, rows, columns, inner, lanes, lane_stride, form, wait, epilogue...);
}

// Computes what softmax does.
// Shapes   as softmax.
// Grid     256 / lanes rows per block.
// Needs    rows of up to 4 * lanes columns.
// Numerics those of softmax, to the bit.
template <class T, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 1) softmax_short(
    const T* __restrict__ x, Stored<T, Epilogue...>* __restrict__ y, i64 rows, i64 columns, i64 inner, int lanes,
    int lane_stride, int form, Epilogue... epilogue) {
  const auto wait = [] {
    wait_for_predecessors();
    launch_dependents();
  };
  map_rows<true>(x, y, rows, columns, inner, lanes, lane_stride, form, wait, epilogue...);
}

// Computes y = 1 at the first maximum of the columns, 0 elsewhere.
// Shapes   x, y [rows / inner, columns, inner] dense.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics exact; a NaN counts as the maximum.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) hardmax(
    const T* __restrict__ x, T* __restrict__ y, i64 rows, i64 columns, i64 inner, int lanes, int lane_stride) {
  typedef Placed<Acc<T>> Candidate;
  __shared__ Candidate shared[kBlockThreads];
  const auto merge = [](Candidate a, Candidate b) { return wins(b, a, false, false) ? b : a; };
  const Team team(lanes, lane_stride);
  const i64 end = team.row < rows ? columns : 0;
  const i64 start = end > 0 ? row_start(team.row, columns, inner) : 0;
  wait_for_predecessors();
  launch_dependents();
  Candidate best = {Acc<T>(0), -1};
  for (i64 column = team.lane; column < end; column += lanes) {
    best = merge(best, Candidate{widen(x[start + column * inner]), column});
  }
  best = team.fold(best, shared, merge);
  for (i64 column = team.lane; column < end; column += lanes) {
    y[start + column * inner] = cast<T>(column == best.place ? 1.0f : 0.0f);
  }
}
