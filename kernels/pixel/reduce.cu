// Reductions, texel by texel: each thread walks the terms of its elements, by the operations of ../reduce/reduce.cu.
#include "../reduce/reduce.cu"
#include "texture.cuh"

// Folds the terms [first, end) of the row at `start`, in order.
template <class Op, class T>
__device__ inline typename Op::Partial fold_terms(
    const Texture<T>& x, i64 start, const Strided<kMaxRank, 1>& walk, i64 first, i64 end) {
  typename Op::Partial partial = Op::identity();
  for (i64 term = first; term < end; ++term) {
    i64 offset[1];
    walk.locate(term, offset);
    partial = Op::merge(partial, Op::lift(x[start + offset[0]]));
  }
  return partial;
}

__device__ inline i64 start_of(const Strided<kMaxRank, 1>& kept, i64 row) {
  i64 start[1];
  kept.locate(row, start);
  return start[0];
}

// Computes y[row] = finish(fold of x over the reduced axes).
// Shapes   x any strides, walked by `kept` (a row each) and `reduced` (the terms of a row); y [rows] dense.
// Grid     one thread per texel of y.
// Needs    nothing; terms may be 0 (the identity is finished).
// Numerics partial in Acc<T>, from the first term on; one rounding.
template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads) draw_reduce(
    const Texture<T> x, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 1> kept,
    const __grid_constant__ Strided<kMaxRank, 1> reduced, int, int, int finish) {
  draw<T>(y, kept.count, [&](i64 row) {
    return Op::finish(fold_terms<Op>(x, start_of(kept, row), reduced, 0, reduced.count), finish, reduced.count);
  });
}

// Computes y[row] = (sum of |x|^power over the reduced axes)^(1 / power).
// Shapes   x any strides, walked by `kept` (a row each) and `reduced` (the terms of a row); y [rows] dense.
// Grid     one thread per texel of y.
// Needs    nothing.
// Numerics powers and sum in Acc<T>, from the first term on; one rounding.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) draw_lp_norm(
    const Texture<T> x, const Surface<T> y, const __grid_constant__ Strided<kMaxRank, 1> kept,
    const __grid_constant__ Strided<kMaxRank, 1> reduced, int, int, float power) {
  typedef Acc<T> A;
  draw<T>(y, kept.count, [&](i64 row) {
    const i64 start = start_of(kept, row);
    A total = A(0);
    for (i64 term = 0; term < reduced.count; ++term) {
      i64 offset[1];
      reduced.locate(term, offset);
      total += power_of(magnitude_of(widen(x[start + offset[0]])), A(power));
    }
    return cast<T>(power_of(total, A(1) / A(power)));
  });
}

// Computes partials[chunk] = fold of the terms [chunk * length, (chunk + 1) * length): the first half of a reduction to
//          one value.
// Shapes   x any strides, walked by `reduced`; partials [chunks] dense.
// Grid     one thread per texel of partials.
// Needs    partials of up to 8 bytes.
// Numerics as draw_reduce.
template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads) draw_reduce_chunks(
    const Texture<T> x, const Surface<typename Op::Partial> partials,
    const __grid_constant__ Strided<kMaxRank, 1> reduced, i64 length) {
  const i64 chunks = reduced.count > 0 ? (reduced.count + length - 1) / length : 1;
  draw<typename Op::Partial>(partials, chunks, [&](i64 chunk) {
    const i64 first = chunk * length, end = first + length < reduced.count ? first + length : reduced.count;
    return fold_terms<Op>(x, 0, reduced, first, end);
  });
}

// Computes y[0] = finish(fold of the partials): the second half.
// Shapes   partials [chunks], y [1].
// Grid     one thread per texel of y.
// Needs    partials of up to 8 bytes.
// Numerics from the first partial on; one rounding.
template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads, 1) draw_reduce_partials(
    const Texture<typename Op::Partial> partials, const Surface<T> y, i64 chunks, i64 terms, int finish) {
  draw<T>(y, 1, [&](i64) {
    typename Op::Partial partial = Op::identity();
    for (i64 chunk = 0; chunk < chunks; ++chunk) partial = Op::merge(partial, partials[chunk]);
    return Op::finish(partial, finish, terms);
  });
}

// Computes y[row] = place of the extremum of x along the reduced axis.
// Shapes   x any strides, walked by `kept` and `reduced`; y [rows] dense.
// Grid     one thread per texel of y.
// Needs    at least one term.
// Numerics exact: compares in T (half in float), -0 equals 0, a NaN wins.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) draw_find_extremum(
    const Texture<T> x, const Surface<i64> y, const __grid_constant__ Strided<kMaxRank, 1> kept,
    const __grid_constant__ Strided<kMaxRank, 1> reduced, int, int, int is_minimum, int is_last_wanted) {
  typedef Placed<Acc<T>> Candidate;
  draw<i64>(y, kept.count, [&](i64 row) {
    const i64 start = start_of(kept, row);
    Candidate best = {Acc<T>(0), -1};
    for (i64 term = 0; term < reduced.count; ++term) {
      i64 offset[1];
      reduced.locate(term, offset);
      const Candidate next = {widen(x[start + offset[0]]), term};
      if (wins(next, best, is_minimum, is_last_wanted)) best = next;
    }
    return best.place;
  });
}
