// Normalisation of rows: LayerNormalization, RMSNormalization, InstanceNormalization, GroupNormalization.
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "reduce.cuh"

// The second number of __launch_bounds__ keeps ptxas from spilling held elements for more blocks at a time.
template <class A>
constexpr int kHeld = sizeof(A) > 4 ? 8 : 16;  // elements that a lane keeps in registers
constexpr int kHeldShort = 4;                  // of short rows, which it always does

// Sources of rows: a dense tensor, or the sum of two tensors and a bias; `row` returns a row to be indexed by column.
template <class T>
struct DenseRows {
  const T* __restrict__ x;

  __device__ const T* row(i64 row, i64 columns) const { return x + row * columns; }
};

template <class T>
struct SummedRow {
  const T* __restrict__ x;
  const T* __restrict__ skip;
  const T* __restrict__ bias;

  __device__ auto operator[](i64 column) const {
    auto sum = widen(x[column]);
    if (skip != nullptr) sum += widen(skip[column]);
    if (bias != nullptr) sum += widen(bias[column]);
    return sum;
  }
};

template <class T>
struct SummedRows {
  const T* __restrict__ x;
  const T* __restrict__ skip;  // its rows repeat after a period; may be null
  const T* __restrict__ bias;  // a row; may be null
  FastDiv64 skip_period;

  __device__ SummedRow<T> row(i64 row, i64 columns) const {
    u64 skip_row;
    skip_period.divide(row, skip_row);
    return {x + row * columns, skip == nullptr ? skip : skip + i64(skip_row) * columns, bias};
  }
};

// A row in registers: visit(f) calls f(column, value) for the columns of this lane, in order.
template <int Held, class Source, class A>
struct HeldRow {
  A values[Held];
  i64 lane;
  int lanes, own;

  __device__ HeldRow(const Source& x, const Team& team, i64 end)
      : lane(team.lane),
        lanes(team.lanes),
        own(end > team.lane ? int(end - team.lane + team.lanes - 1) / team.lanes : 0) {
#pragma unroll
    for (int i = 0; i < Held; ++i) values[i] = i < own ? cast<A>(x[lane + i * lanes]) : A(0);
  }

  template <class F>
  __device__ void visit(F f) const {
#pragma unroll
    for (int i = 0; i < Held; ++i) {
      if (i >= own) break;
      f(lane + i * lanes, values[i]);
    }
  }

  // Calls f(column, values, count, i) for groups of N columns, `lanes` apart, the first of them the lane's i-th; values from
  // `count` on are not of the row.
  template <int N, class F>
  __device__ void visit_groups(F f) const {
#pragma unroll
    for (int i = 0; i < Held; i += N) {
      if (i >= own) break;
      A group[1][N];
#pragma unroll
      for (int k = 0; k < N; ++k) group[0][k] = values[i + k];
      f(lane + i * lanes, group, own - i, i);
    }
  }

  // Numbers of the lane's columns, all asked for at once: find(column) is one.
  struct Beside {
    A numbers[Held];

    template <class Find>
    __device__ Beside(const HeldRow& row, const Find& find) {
#pragma unroll
      for (int i = 0; i < Held; ++i) numbers[i] = i < row.own ? find(row.lane + i * row.lanes) : A(0);
    }
    template <class Find>
    __device__ A get(int i, i64, const Find&) const { return numbers[i]; }
  };
};

// The same for a row too long for registers: read anew at each visit.
template <class Source, class A>
struct StreamedRow {
  Source x;
  i64 lane, end;
  int lanes;

  __device__ StreamedRow(const Source& x, const Team& team, i64 end)
      : x(x), lane(team.lane), end(end), lanes(team.lanes) {}

  template <class F>
  __device__ void visit(F f) const {
    for (i64 column = lane; column < end; column += lanes) f(column, cast<A>(x[column]));
  }

  template <int N, class F>
  __device__ void visit_groups(F f) const {
    for (i64 column = lane; column < end; column += N * lanes) {
      const int count = N == 1 ? 1 : int((end - column + lanes - 1) / lanes);
      A group[1][N];
#pragma unroll
      for (int k = 0; k < N; ++k) group[0][k] = k < count ? cast<A>(x[column + k * lanes]) : A(0);
      f(column, group, count, 0);
    }
  }

  struct Beside {
    template <class Find>
    __device__ Beside(const StreamedRow&, const Find&) {}
    template <class Find>
    __device__ A get(int, i64 column, const Find& find) const { return find(column); }
  };
};

template <int Held, class A, class Source>
__device__ inline HeldRow<Held, Source, A> hold_row(const Source& x, const Team& team, i64 end) {
  return HeldRow<Held, Source, A>(x, team, end);
}

template <class A, class Source>
__device__ inline StreamedRow<Source, A> stream_row(const Source& x, const Team& team, i64 end) {
  return StreamedRow<Source, A>(x, team, end);
}

// Index of the scale and bias of an element: (row % row_period) * stride + column / column_group.
// Packed by gpuexec/ops/nn/norm.py.
struct Affine {
  FastDiv64 row_period, column_group;
  i64 scale_stride, bias_stride;
  i64 has_bias;  // without it `bias` is not read
};

// Normalises a row into y; `report` is called with its mean and inverse deviation.
template <class Row, class V, class Y, class A, class F, class Finish>
__device__ inline void normalize_row(
    const Row& row, const Team& team, A* shared, const V* scale, const V* bias, Y* y, i64 columns, const Affine& affine,
    A epsilon, bool is_centered, F report, const Finish& finish) {
  u64 parameters_row;
  affine.row_period.divide(team.row, parameters_row);
  scale += i64(parameters_row) * affine.scale_stride;
  bias += i64(parameters_row) * affine.bias_stride;
  const auto find_scale = [&](i64 column) { return cast<A>(scale[affine.column_group.divide(column)]); };
  const auto find_bias = [&](i64 column) {
    return affine.has_bias ? cast<A>(bias[affine.column_group.divide(column)]) : A(0);
  };
  const typename Row::Beside scales(row, find_scale), biases(row, find_bias);
  A center = A(0);
  if (is_centered) {
    row.visit([&](i64, A x) { center += x; });
    center = team.fold(center, shared, add<A>) / A(columns);
  }
  A squares = A(0);
  row.visit([&](i64, A x) { squares += (x - center) * (x - center); });
  squares = team.fold(squares, shared, add<A>);
  const A inverse = A(1) / root_of(squares / A(columns) + epsilon);
  report(center, inverse);
  const i64 first = team.row * columns;
  constexpr int kGroup = Finish::kGroup;
  row.template visit_groups<kGroup>([&](i64 column, A (&values)[1][kGroup], int count, int i) {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if (k >= count) break;
      const i64 at = column + k * team.lanes;
      A result = (values[0][k] - center) * inverse * scales.get(i + k, at, find_scale);
      if (affine.has_bias) result += biases.get(i + k, at, find_bias);
      values[0][k] = result;
    }
    finish.many(values, {first + column}, {count}, team.lanes);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if (k < count) y[first + column + k * team.lanes] = cast<Y>(values[0][k]);
    }
  });
}

// Normalises a row, held in registers if it fits; short rows do. `keep` is called with the place and value of each element.
template <class A, bool kAreShort = false, class Rows, class V, class Y, class F, class Keep, class Finish>
__device__ inline void normalize(
    const Rows& x, const V* scale, const V* bias, Y* y, i64 rows, i64 columns, int lanes, const Affine& affine,
    double epsilon, bool is_centered, F report, Keep keep, const Finish& finish) {
  __shared__ A shared[kBlockThreads];
  const Team team(lanes, 1);
  const bool is_live = team.row < rows;
  const i64 end = is_live ? columns : 0, first = team.row * columns;
  const auto report_live = [&](A mean, A inverse) {
    if (is_live && team.lane == 0) report(team.row, mean, inverse);
  };
  const auto normalize_as = [&](const auto& row) {
    row.visit([&](i64 column, A value) { keep(first + column, value); });
    normalize_row(row, team, shared, scale, bias, y, columns, affine, A(epsilon), is_centered, report_live, finish);
  };
  const auto source = x.row(is_live ? team.row : 0, columns);
  constexpr int kOwn = kAreShort ? kHeldShort : kHeld<A>;
  if (kAreShort || columns <= i64(kOwn) * lanes) {
    normalize_as(hold_row<kOwn, A>(source, team, end));
  } else {
    normalize_as(stream_row<A>(source, team, end));
  }
}

// Computes y = (x - mean) / sqrt(variance + epsilon) * scale + bias over each row; mean is 0 unless is_centered.
// Shapes   x, y [rows, columns] dense; scale, bias as `affine` says.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics in A (float; double where T or V is), mean before variance, one rounding, then the epilogue; rows of up to
//          16 * lanes columns (doubles 8 * lanes) are read once, longer ones three times.
template <class T, class V, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 1) normalize_rows(
    const T* __restrict__ x, const V* __restrict__ scale, const V* __restrict__ bias,
    Stored<V, Epilogue...>* __restrict__ y, i64 rows, i64 columns, int lanes, Affine affine, double epsilon, int is_centered,
    Epilogue... epilogue) {
  typedef typename Select<kIsSame<T, double> || kIsSame<V, double>, double, float>::type A;
  wait_for_predecessors();
  launch_dependents();
  normalize<A>(DenseRows<T>{x}, scale, bias, y, rows, columns, lanes, affine, epsilon, is_centered,
               [](i64, A, A) {}, [](i64, A) {}, finish_by<V>(epilogue...));
}

// Computes what normalize_rows does.
// Shapes   as normalize_rows.
// Grid     256 / lanes rows per block.
// Needs    rows of up to 4 * lanes columns.
// Numerics those of normalize_rows, to the bit.
template <class T, class V, class... Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 1) normalize_short_rows(
    const T* __restrict__ x, const V* __restrict__ scale, const V* __restrict__ bias,
    Stored<V, Epilogue...>* __restrict__ y, i64 rows, i64 columns, int lanes, Affine affine, double epsilon, int is_centered,
    Epilogue... epilogue) {
  typedef typename Select<kIsSame<T, double> || kIsSame<V, double>, double, float>::type A;
  wait_for_predecessors();
  launch_dependents();
  normalize<A, true>(DenseRows<T>{x}, scale, bias, y, rows, columns, lanes, affine, epsilon, is_centered,
                     [](i64, A, A) {}, [](i64, A) {}, finish_by<V>(epilogue...));
}

// Computes what normalize_rows does, and mean and 1 / sqrt(variance + epsilon) of each row.
// Shapes   as normalize_rows; mean, inverse_deviation [rows].
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics as normalize_rows; the statistics are rounded to U.
template <class T, class U>
__global__ void __launch_bounds__(kBlockThreads, 1) normalize_and_measure_rows(
    const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ bias, T* __restrict__ y,
    U* __restrict__ mean, U* __restrict__ inverse_deviation, i64 rows, i64 columns, int lanes, Affine affine,
    double epsilon) {
  typedef Acc<T> A;
  wait_for_predecessors();
  launch_dependents();
  normalize<A>(DenseRows<T>{x}, scale, bias, y, rows, columns, lanes, affine, epsilon, true,
               [=](i64 row, A center, A inverse) {
                 mean[row] = cast<U>(center);
                 inverse_deviation[row] = cast<U>(inverse);
               },
               [](i64, A) {}, finish_by<T>());
}

// Computes what normalize_rows does of x + skip + row_bias; that sum, and mean and 1 / sqrt(variance + epsilon), too.
// Shapes   x, y, sum [rows, columns] dense, skip [skip_period's divisor, columns] dense or null, row_bias [columns] or
//          null; scale, bias as `affine` says; mean, inverse_deviation [rows]; they and sum may be null.
// Grid     256 / lanes rows per block.
// Needs    nothing of alignment.
// Numerics as normalize_rows; the sum is not rounded on its way into y.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 1) normalize_summed_rows(
    const T* __restrict__ x, const T* __restrict__ skip, const T* __restrict__ row_bias, const T* __restrict__ scale,
    const T* __restrict__ bias, T* __restrict__ y, float* __restrict__ mean, float* __restrict__ inverse_deviation,
    T* __restrict__ sum, i64 rows, i64 columns, int lanes, FastDiv64 skip_period, Affine affine, double epsilon,
    int is_centered) {
  typedef Acc<T> A;
  wait_for_predecessors();
  launch_dependents();
  normalize<A>(SummedRows<T>{x, skip, row_bias, skip_period}, scale, bias, y, rows, columns, lanes, affine, epsilon,
               is_centered,
               [=](i64 row, A center, A inverse) {
                 if (mean != nullptr) mean[row] = center;
                 if (inverse_deviation != nullptr) inverse_deviation[row] = inverse;
               },
               [=](i64 at, A value) {
                 if (sum != nullptr) sum[at] = cast<T>(value);
               },
               finish_by<T>());
}
