// Epilogues: operators on elements that a kernel applies to its results before it stores them.
//
// A kernel with a pack `class... Epilogue` as its last template parameters takes an `epilogue` pack as its last parameters
// and makes `const auto finish = finish_by<T>(epilogue...)` of it. `finish.many(values, indices, counts)` turns groups of
// neighbouring sums, in place, into values of which `cast<Y>(value)` is stored in an output of type
// `Y = Stored<T, Epilogue...>`. Without an epilogue sums stay as they are, and Y is T. With one, the pack is a type that
// gpuexec/ops/elementwise/epilogue.py generates, which has the places of operands and numbers, then pointers to operands and
// to further outputs, which `many` stores. Each step is rounded to its type, as a store and a load would: so results are
// bit-identical to those of separate kernels.
#pragma once
#include "region.cuh"

// The type of what a kernel of this epilogue stores, whose sums are finished as T.
template <class T, class... Epilogue>
struct StoredType {
  typedef T Type;
};
template <class T, class Steps, class... Pointers>
struct StoredType<T, Steps, Pointers...> {
  typedef typename Steps::Stored Type;
};
template <class T, class... Epilogue>
using Stored = typename StoredType<T, Epilogue...>::Type;

constexpr int kLanes = 4;  // neighbours in a group

// Element i of the output goes with element (i / inner) % extent of an operand. Elements of the output are counted as they
// lie: where it is rows with gaps between them, gaps count. Of outputs that reach over less than 2^31 elements.
struct OperandPlace {
  FastDiv32 by_inner, by_extent;

  // Finds an element, and the place of `index` among the `inner` ones that share it.
  __device__ u32 find(u32 index, u32& place) const {
    u32 element;
    by_extent.divide(by_inner.divide(index, place), element);
    return element;
  }

  // Of what has rows of another pitch: those of the output are `inner` elements apart, those of the operand `extent`. Finds
  // an element, and its place in the row.
  __device__ u32 shift(u32 index, u32& place) const {
    const u32 row = by_inner.divide(index, place);
    return row * by_extent.divisor + place;
  }
};

template <int N, class X>
__device__ inline bool is_aligned(const X* place) {
  return reinterpret_cast<u64>(place) % (N * sizeof(X)) == 0;
}

// In place of the stride of lanes: neighbours, in groups of kLanes that are whole or absent and begin at multiples of kLanes,
// where steps say that `are_whole`. Then all that goes with them is read and stored as vectors, and nothing is asked.
struct WholeLanes {};

// Whether what lies as the output does has a vector for each whole group.
template <class X>
__device__ inline bool is_same_whole(const X* operand) {
  return is_aligned<kLanes>(operand);
}
// The same of what is found by a place: as read_row, read_shared and read_pitched do.
template <class X>
__device__ inline bool is_row_whole(const X* operand, const OperandPlace& place) {
  return is_aligned<kLanes>(operand) && place.by_extent.divisor % kLanes == 0;
}
template <class X>
__device__ inline bool is_shared_whole(const X*, const OperandPlace& place) {
  return place.by_inner.divisor % kLanes == 0;
}
template <class X>
__device__ inline bool is_pitched_whole(const X* operand, const OperandPlace& place) {
  return is_row_whole(operand, place) && place.by_inner.divisor % kLanes == 0;
}

// Reads the first `count` lanes of a group.
template <class X, int N>
__device__ inline void read_lanes(const X* source, int count, i64 stride, X (&lanes)[N]) {
  if (N > 1 && count == N && stride == 1 && is_aligned<N>(source)) {
    const Vec<X, N> vector = load_vec<N>(source);
#pragma unroll
    for (int lane = 0; lane < N; ++lane) lanes[lane] = vector.lanes[lane];
  } else {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      if (lane < count) lanes[lane] = source[lane * stride];
    }
  }
}

template <class X, int N>
__device__ inline void read_lanes(const X* source, int count, WholeLanes, X (&lanes)[N]) {
  if (count <= 0) return;
  const Vec<X, N> vector = load_vec<N>(source);
#pragma unroll
  for (int lane = 0; lane < N; ++lane) lanes[lane] = vector.lanes[lane];
}

// Stores the first `count` lanes of a group.
template <class X, int N>
__device__ inline void write_lanes(X* target, int count, i64 stride, const X (&lanes)[N]) {
  if (N > 1 && count == N && stride == 1 && is_aligned<N>(target)) {
    Vec<X, N> vector;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) vector.lanes[lane] = lanes[lane];
    store_vec(target, vector);
  } else {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      if (lane < count) target[lane * stride] = lanes[lane];
    }
  }
}

template <class X, int N>
__device__ inline void write_lanes(X* target, int count, WholeLanes, const X (&lanes)[N]) {
  if (count <= 0) return;
  Vec<X, N> vector;
#pragma unroll
  for (int lane = 0; lane < N; ++lane) vector.lanes[lane] = lanes[lane];
  store_vec(target, vector);
}

// Reads what goes with groups of an operand that lies as the output does.
template <class X, int Groups, int N, class Stride>
__device__ inline void read_same(const X* operand, const i64 (&indices)[Groups], const int (&counts)[Groups],
                                 Stride stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) read_lanes(operand + indices[group], counts[group], stride, lanes[group]);
}

// The same of an operand of the output's last extents: element i goes with element i % extent.
template <class X, int Groups, int N>
__device__ inline void read_row(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                const int (&counts)[Groups], i64 stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    if (counts[group] <= 0) continue;
    u32 at;
    place.by_extent.divide(u32(indices[group]), at);
    if (N == 1 || (stride == 1 && at + counts[group] <= place.by_extent.divisor)) {
      read_lanes(operand + at, counts[group], 1, lanes[group]);
      continue;
    }
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      if (lane >= counts[group]) continue;
      place.by_extent.divide(u32(indices[group] + lane * stride), at);
      lanes[group][lane] = operand[at];
    }
  }
}

template <class X, int Groups, int N>
__device__ inline void read_row(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                const int (&counts)[Groups], WholeLanes stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    u32 at;
    place.by_extent.divide(u32(indices[group]), at);
    read_lanes(operand + at, counts[group], stride, lanes[group]);
  }
}

// The same of an operand whose elements each go with `inner` neighbours.
template <class X, int Groups, int N>
__device__ inline void read_shared(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                   const int (&counts)[Groups], i64 stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    if (counts[group] <= 0) continue;
    u32 among;
    const u32 at = place.find(u32(indices[group]), among);
    const bool is_shared = N == 1 || (stride == 1 && among + counts[group] <= place.by_inner.divisor);
    const X first = operand[at];
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      lanes[group][lane] = first;
      if (!is_shared && lane > 0 && lane < counts[group]) {
        lanes[group][lane] = operand[place.find(u32(indices[group] + lane * stride), among)];
      }
    }
  }
}

template <class X, int Groups, int N>
__device__ inline void read_shared(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                   const int (&counts)[Groups], WholeLanes, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    if (counts[group] <= 0) continue;
    u32 among;
    const X all = operand[place.find(u32(indices[group]), among)];
#pragma unroll
    for (int lane = 0; lane < N; ++lane) lanes[group][lane] = all;
  }
}

// The same of an operand that has as many elements as the output, in rows of another pitch.
template <class X, int Groups, int N>
__device__ inline void read_pitched(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                    const int (&counts)[Groups], i64 stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    if (counts[group] <= 0) continue;
    u32 among;
    const u32 at = place.shift(u32(indices[group]), among);
    if (N == 1 || (stride == 1 && among + counts[group] <= place.by_inner.divisor)) {
      read_lanes(operand + at, counts[group], 1, lanes[group]);
      continue;
    }
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      if (lane < counts[group]) lanes[group][lane] = operand[place.shift(u32(indices[group] + lane * stride), among)];
    }
  }
}

template <class X, int Groups, int N>
__device__ inline void read_pitched(const X* operand, const OperandPlace& place, const i64 (&indices)[Groups],
                                    const int (&counts)[Groups], WholeLanes stride, X (&lanes)[Groups][N]) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    u32 among;
    read_lanes(operand + place.shift(u32(indices[group]), among), counts[group], stride, lanes[group]);
  }
}

// Stores the first `count` lanes of a group in a further output, whose rows have another pitch.
template <class X, int N>
__device__ inline void write_pitched(X* target, const OperandPlace& place, i64 index, int count, i64 stride,
                                     const X (&lanes)[N]) {
  if (count <= 0) return;
  u32 among;
  const u32 at = place.shift(u32(index), among);
  if (N == 1 || (stride == 1 && among + count <= place.by_inner.divisor)) {
    write_lanes(target + at, count, 1, lanes);
    return;
  }
#pragma unroll
  for (int lane = 0; lane < N; ++lane) {
    if (lane < count) target[place.shift(u32(index + lane * stride), among)] = lanes[lane];
  }
}

template <class X, int N>
__device__ inline void write_pitched(X* target, const OperandPlace& place, i64 index, int count, WholeLanes stride,
                                     const X (&lanes)[N]) {
  u32 among;
  write_lanes(target + place.shift(u32(index), among), count, stride, lanes);
}

// Leaves sums as they are.
struct Unfinished {
  static constexpr int kGroup = 1;  // elements that are best finished together
  static constexpr bool kHasAddend = true;  // a kernel may add a tensor of its own
  static constexpr bool kReadsEach = true;

  template <int Groups, int N, class A, class Stride = i64>
  __device__ void many(A (&)[Groups][N], const i64 (&)[Groups], const int (&)[Groups], Stride = {}) const {}

  __device__ bool are_whole() const { return true; }

  __device__ i64 where(i64 index) const { return index; }
};

// Applies steps to groups of elements of the output: lane k of a group is element indices[group] + k * stride, and the first
// counts[group] lanes are stored. A kernel that counts elements as if they were dense stores them where `where` says: it may
// be a window with gaps between rows, whose width and pitch are multiples of the vectors that are stored.
template <class Steps, class Give>
struct Finishing {
  static constexpr int kGroup = kLanes;
  static constexpr bool kHasAddend = Steps::kHasAddend;  // whether the kernel may be given what it adds in front of them
  static constexpr bool kReadsEach = Steps::kReadsEach;  // whether an operand has an element for each of the output
  const Steps& steps;
  Give give;  // calls what it is given with the pointers

  __device__ i64 where(i64 index) const { return steps.where(index); }

  // Whether groups may be finished with WholeLanes in place of a stride.
  __device__ bool are_whole() const {
    return give([&](auto... pointers) { return steps.are_whole(pointers...); });
  }

  template <int Groups, int N, class A>
  __device__ void many(A (&values)[Groups][N], const i64 (&indices)[Groups], const int (&counts)[Groups]) const {
    many(values, indices, counts, i64(1));
  }
  template <int Groups, int N, class A, class Stride>
  __device__ void many(A (&values)[Groups][N], const i64 (&indices)[Groups], const int (&counts)[Groups],
                       Stride stride) const {
    give([&](auto... pointers) { steps.finish(values, indices, counts, stride, pointers...); });
  }
};

template <class Steps, class Give>
__device__ inline Finishing<Steps, Give> make_finishing(const Steps& steps, Give give) {
  return {steps, give};
}

template <class T>
__device__ inline Unfinished finish_by() {
  return {};
}

template <class T, class Steps, class... Pointers>
__device__ inline auto finish_by(const Steps& steps, Pointers... pointers) {
  return make_finishing(steps, [pointers...](const auto& use) { return use(pointers...); });
}

// What takes the place of steps in front of others where there are none.
template <class F>
struct NoSteps {
  typedef F Stored;
  static constexpr bool kHasAddend = true, kReadsEach = false;
  u64 unused;

  template <class Values, class Indices, class Counts>
  __device__ void finish(Values&, const Indices&, const Counts&, i64) const {}
};

// Finishes one sum, and stores it.
template <class Y, class A, class Finish>
__device__ inline void store_finished(const Finish& finish, Y* y, i64 index, A sum) {
  A values[1][1] = {{sum}};
  finish.many(values, {index}, {1});
  y[finish.where(index)] = cast<Y>(values[0][0]);
}

// Stores a result as it is, or finished.
template <class T>
__device__ inline void store_made(const Unfinished&, T* y, i64 index, T made) {
  y[index] = made;
}

template <class Steps, class Give, class Y, class T>
__device__ inline void store_made(const Finishing<Steps, Give>& finish, Y* y, i64 index, T made) {
  store_finished(finish, y, index, widen(made));
}
