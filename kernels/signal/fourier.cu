// DFT and STFT: Fourier transforms of the lines of a tensor, in double.
#include "index.cuh"

constexpr int kThreads = 256;
constexpr int kSharedPoints = 1024;  // of all lines of a block; longer lines lie in scratch memory
constexpr int kMaxStages = 32;

struct Complex {
  double re, im;
};

__device__ inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ inline void exchange(Complex*& a, Complex*& b) {
  Complex* const first = a;
  a = b;
  b = first;
}

__device__ inline Complex conjugate(Complex a) { return {a.re, -a.im}; }

// Packed by gpuexec/ops/signal/fourier_lines.py. Strides are in elements.
struct Fourier {
  i64 lines, lines_per_block;
  i64 length;          // of the transform
  i64 points;          // what stages work on: the length, or of a chirped one a power of two
  i64 samples;         // of a line of x that enter; beyond them are zeros
  i64 kept;            // of the result
  i64 x_step, x_part;  // along the line, and from real to imaginary; 0: x is real
  i64 y_step, y_parts;
  double scale;
  i32 is_inverse, is_hermitian, is_chirped, is_line_fast;
  i32 stages, unused;
  i32 radices[kMaxStages];
};

// Sample j of a line of x; of one half of a Hermitian spectrum, the whole.
template <class T>
__device__ inline Complex read_sample(const T* __restrict__ x, const T* __restrict__ window, const Fourier& plan, i64 j) {
  const bool is_mirrored = plan.is_hermitian && 2 * j > plan.length;
  const i64 at = is_mirrored ? plan.length - j : j;
  if (at >= plan.samples) return {0, 0};
  Complex value = {cast<double>(x[at * plan.x_step]), 0};
  if (plan.x_part) value.im = cast<double>(x[at * plan.x_step + plan.x_part]);
  if (plan.is_hermitian && (j == 0 || 2 * j == plan.length)) value.im = 0;  // this part is not used: the signal is real
  if (window) {
    const double weight = cast<double>(window[at]);
    value = {value.re * weight, value.im * weight};
  }
  return is_mirrored != bool(plan.is_inverse) ? conjugate(value) : value;
}

// One stage of Stockham's transform: `total` points of lines of `points`, in which runs of `run` are transformed already.
__device__ inline void run_stage(
    const Complex* from, Complex* to, const Complex* __restrict__ roots, u32 total, u32 points, u32 run, u32 radix) {
  const u32 step = points / (run * radix);  // from a root of run * radix to one of points
  const u32 reach = points / radix;
  if (radix == 4) {
    for (u32 i = threadIdx.x; i < total / 4; i += kThreads) {
      const u32 j = i % reach, k = j % run, line = i / reach * points;
      const Complex* source = from + line + j;
      const Complex a = source[0];
      const Complex b = source[reach] * roots[k * step];
      const Complex c = source[2 * reach] * roots[2 * k * step];
      const Complex d = source[3 * reach] * roots[3 * k * step];
      const Complex even = a + c, odd = a - c, sum = b + d, difference = b - d;
      const Complex turned = {difference.im, -difference.re};
      Complex* target = to + line + (j - k) * 4 + k;
      target[0] = even + sum;
      target[run] = odd + turned;
      target[2 * run] = even - sum;
      target[3 * run] = odd - turned;
    }
    return;
  }
  for (u32 i = threadIdx.x; i < total; i += kThreads) {  // one result of a butterfly per thread
    const u32 place = i % points, line = i - place;
    const u32 k = place % run, q = place / run % radix, j = place / (run * radix) * run + k;
    const u32 turn = (k + q * run) * step;
    Complex sum = from[line + j];
    u32 root = 0;
    for (u32 s = 1; s < radix; ++s) {
      root += turn;
      if (root >= points) root -= points;
      sum = sum + from[line + j + s * reach] * roots[root];
    }
    to[i] = sum;
  }
}

// Computes  y[line, k] = scale * sum over j of x[line, j] * window[j] * exp(-+ 2 pi i j k / length) for k < kept; of a
//           Hermitian spectrum the real part alone.
// Shapes    x, y by strides, walked by `lines` and along a line; window [samples]; roots [points]: exp(-2 pi i j /
//           points); chirp [length]: exp(-pi i j^2 / length); spectrum [points]: the transform of what a chirp is convolved
//           with; scratch [blocks, 2, points].
// Grid      blocks take lines_per_block lines at a time, until there are none.
// Needs     window may be null; chirp and spectrum unless is_chirped; scratch where lines don't fit in shared memory.
// Numerics  double throughout, one rounding; lengths with a large prime factor by convolution (Bluestein, 1970).
template <class T>
__global__ void __launch_bounds__(kThreads) fourier(
    const T* __restrict__ x, const T* __restrict__ window, T* __restrict__ y, const Complex* __restrict__ roots,
    const Complex* __restrict__ chirp, const Complex* __restrict__ spectrum, Complex* scratch,
    const __grid_constant__ Strided<kMaxRank, 2> lines, const __grid_constant__ Fourier plan) {
  __shared__ Complex shared[2 * kSharedPoints];
  const u32 points = u32(plan.points), room = points * u32(plan.lines_per_block);
  Complex* from = scratch ? scratch + i64(blockIdx.x) * 2 * points : shared;
  Complex* to = from + room;
  for (i64 first = blockIdx.x * plan.lines_per_block; first < plan.lines; first += gridDim.x * plan.lines_per_block) {
    const i64 left = plan.lines - first;
    const u32 count = u32(left < plan.lines_per_block ? left : plan.lines_per_block), total = count * points;
    for (u32 i = threadIdx.x; i < total; i += kThreads) {
      const u32 line = plan.is_line_fast ? i % count : i / points, j = plan.is_line_fast ? i / count : i % points;
      i64 starts[2];
      lines.locate(first + line, starts);
      Complex value = {0, 0};
      if (j < plan.length) value = read_sample(x + starts[0], window, plan, j);
      if (plan.is_chirped && j < plan.length) value = value * chirp[j];
      to[line * points + j] = value;  // not the buffer that the lines before are still read from
    }
    __syncthreads();
    exchange(from, to);
    for (int pass = 0; pass <= plan.is_chirped; ++pass) {
      u32 run = 1;
      for (int stage = 0; stage < plan.stages; ++stage) {
        const u32 radix = u32(plan.radices[stage]);
        run_stage(from, to, roots, total, points, run, radix);
        run *= radix;
        exchange(from, to);
        __syncthreads();
      }
      if (plan.is_chirped && pass == 0) {  // inverse by the forward transform: conjugate before and after
        for (u32 i = threadIdx.x; i < total; i += kThreads) from[i] = conjugate(from[i] * spectrum[i % points]);
        __syncthreads();
      }
    }
    const u32 kept = u32(plan.kept);
    for (u32 i = threadIdx.x; i < count * kept; i += kThreads) {
      const u32 line = plan.is_line_fast ? i % count : i / kept, k = plan.is_line_fast ? i / count : i % kept;
      i64 starts[2];
      lines.locate(first + line, starts);
      Complex value = from[line * points + k];
      if (plan.is_chirped) value = conjugate(value) * chirp[k];
      if (plan.is_inverse) value = conjugate(value);
      T* const target = y + starts[1] + k * plan.y_step;
      target[0] = cast<T>(value.re * plan.scale);
      if (plan.y_parts == 2) target[1] = cast<T>(value.im * plan.scale);
    }
  }
}
