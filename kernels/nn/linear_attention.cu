// Linear attention: a running state matrix of keys and values per head.
//
// Columns of the state are independent, so a block takes 16 of them for all steps, each with 16 threads that share its
// rows. Up to 256 rows stay in registers, more in scratch memory, of which each thread reads only what it wrote.
#include "gemm_simt.cuh"
#include "reduce.cuh"
#include "softmax_state.cuh"

constexpr int kLanes = 16;                       // threads of a column
constexpr int kColumns = kBlockThreads / kLanes;  // of a block
constexpr int kOwnRows = 16;                     // of a thread, where they stay in registers

// Type of a state: none, then those of FLOATS of gpuexec/ops/nn/linear_attention.py, in their order.
enum StateKind { kNoState, kFloatState, kHalfState, kBf16State };

// Packed by gpuexec/ops/nn/linear_attention.py. Strides in elements, along batch and step; heads lie dense, as do outputs.
struct LinearAttention {
  i64 steps, heads, group, rows, columns, tiles;  // heads of keys; query heads per head of keys; tiles of columns
  i64 q_strides[2], k_strides[2], v_strides[2], decay_strides[2], beta_strides[2];
  i64 decay_width;  // numbers per head: 1, or one for each row
  i64 beta_head;    // from a head to the next: 1, or 0 where all share one
  i64 past_kind, present_kind;
  double scale;

  static __device__ float read(const u8* state, i64 kind, i64 at) {
    switch (kind) {
      case kNoState: return 0.0f;
      case kFloatState: return reinterpret_cast<const float*>(state)[at];
      case kHalfState: return widen(reinterpret_cast<const half*>(state)[at]);
      default: return widen(reinterpret_cast<const bf16*>(state)[at]);
    }
  }

  static __device__ void write(u8* state, i64 kind, i64 at, float value) {
    switch (kind) {
      case kNoState: return;
      case kFloatState: reinterpret_cast<float*>(state)[at] = value; return;
      case kHalfState: reinterpret_cast<half*>(state)[at] = cast<half>(value); return;
      default: reinterpret_cast<bf16*>(state)[at] = cast<bf16>(value); return;
    }
  }
};

// The sum over the lanes of a column, the same in all of them.
__device__ inline float sum_lanes(float value) {
#pragma unroll
  for (int bits = kLanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kWholeWarp, value, bits, kLanes);
  return value;
}

// A thread's rows of one column of the state: row lane, lane + 16, ...
template <bool kInRegisters>
struct Rows {
  float own[kInRegisters ? kOwnRows : 1];
  float* memory;  // of the column, its rows `stride` elements apart
  i64 stride, rows;
  int lane;

  // Calls f(row, element) for each of them, which f may change.
  template <class F>
  __device__ void visit(F f) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const i64 row = lane + i * kLanes;
        if (row < rows) f(row, own[i]);
      }
    } else {
      for (i64 row = lane; row < rows; row += kLanes) f(row, memory[row * stride]);
    }
  }
};

template <class T, bool kInRegisters>
__device__ inline void attend_linearly(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const u8* __restrict__ past,
    const T* __restrict__ decay, const T* __restrict__ beta, T* __restrict__ y, u8* __restrict__ present,
    float* scratch, const LinearAttention& shape) {
  const int lane = threadIdx.x % kLanes;
  const i64 pair = blockIdx.x / shape.tiles, batch = pair / shape.heads, head = pair % shape.heads;
  const i64 column = blockIdx.x % shape.tiles * kColumns + threadIdx.x / kLanes;
  const bool is_inside = column < shape.columns;
  const i64 first = pair * shape.rows * shape.columns + column;  // of the column, in states and scratch
  Rows<kInRegisters> state;
  state.memory = scratch + first;
  state.stride = shape.columns;
  state.rows = is_inside ? shape.rows : 0;
  state.lane = lane;
  state.visit([&](i64 row, float& s) { s = shape.read(past, shape.past_kind, first + row * shape.columns); });
  const i64 query_heads = shape.heads * shape.group;
  for (i64 step = 0; step < shape.steps; ++step) {
    const T* key = k + batch * shape.k_strides[0] + step * shape.k_strides[1] + head * shape.rows;
    const T* rate = nullptr;
    if (decay != nullptr) {
      rate = decay + batch * shape.decay_strides[0] + step * shape.decay_strides[1] + head * shape.decay_width;
    }
    float value = 0.0f;
    if (is_inside) {
      value = widen(v[batch * shape.v_strides[0] + step * shape.v_strides[1] + head * shape.columns + column]);
    }
    if (rate != nullptr) {
      if (shape.decay_width == 1) {
        const float kept = exp_of(widen(rate[0]));
        state.visit([&](i64, float& s) { s *= kept; });
      } else {
        state.visit([&](i64 row, float& s) { s *= exp_of(widen(rate[row])); });
      }
    }
    if (beta != nullptr) {  // subtracts the value that the state has for the key already
      float known = 0.0f;
      state.visit([&](i64 row, float& s) { known = multiply_add(s, widen(key[row]), known); });
      known = sum_lanes(known);
      value -= known;
      value *= widen(beta[batch * shape.beta_strides[0] + step * shape.beta_strides[1] + head * shape.beta_head]);
    }
    state.visit([&](i64 row, float& s) { s = multiply_add(widen(key[row]), value, s); });
    if (y == nullptr) continue;
    for (i64 member = 0; member < shape.group; ++member) {
      const i64 query_head = head * shape.group + member;
      const T* query = q + batch * shape.q_strides[0] + step * shape.q_strides[1] + query_head * shape.rows;
      float sum = 0.0f;
      state.visit([&](i64 row, float& s) { sum = multiply_add(widen(query[row]), s, sum); });
      sum = sum_lanes(sum);
      const i64 to = ((batch * shape.steps + step) * query_heads + query_head) * shape.columns + column;
      if (is_inside && lane == 0) y[to] = cast<T>(float(shape.scale) * sum);
    }
  }
  state.visit([&](i64 row, float& s) { shape.write(present, shape.present_kind, first + row * shape.columns, s); });
}

// Computes  for each step: state *= exp(decay); state += k (x) beta * (v - state' k), or k (x) v without beta;
//           y = scale * state' q
// Shapes    q [batch, steps, heads * group * rows], k [.., heads * rows], v [.., heads * columns], decay [.., heads] or
//           [.., heads * rows], beta [.., heads] or [.., 1], states [batch, heads, rows, columns]
// Grid      one block per 16 columns of a head of a batch: x = (batch * heads + head) * tiles + tile
// Needs     states dense; decay, beta, past, y and present may be null; scratch as large as the state beyond 256 rows
// Numerics  in float, outputs rounded once; a thread sums every 16th row in order, then the lanes in a fixed tree
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 2) linear_attention(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const u8* __restrict__ past,
    const T* __restrict__ decay, const T* __restrict__ beta, T* __restrict__ y, u8* __restrict__ present,
    float* scratch, LinearAttention shape) {
  if (shape.rows <= kOwnRows * kLanes) {
    attend_linearly<T, true>(q, k, v, past, decay, beta, y, present, scratch, shape);
  } else {
    attend_linearly<T, false>(q, k, v, past, decay, beta, y, present, scratch, shape);
  }
}
