// Optimizers of ai.onnx.preview.training: one update of Adagrad, Adam and Momentum on a tensor.
#include "types.cuh"

constexpr int kThreads = 256;

__device__ inline float root_of(float x) { return sqrtf(x); }
__device__ inline double root_of(double x) { return sqrt(x); }

// Packed by gpuexec/ops/nn/training.py.
struct Step {
  i64 count;
  i64 is_rate_wide;  // whether the rate is a double
  double norm;       // coefficient of the regularisation added to the gradient
  double a, b, c, d; // further attributes of the optimizer
};

__device__ inline double read_rate(const void* __restrict__ rate, const Step& step) {
  return step.is_rate_wide ? *static_cast<const double*>(rate) : double(*static_cast<const float*>(rate));
}

// Computes  h' = h + g'^2, x' = x - rate / (1 + updates * decay) * g' / (sqrt(h') + epsilon), with g' = norm * x + g
// Shapes    all [count] dense; rate and updates one element
// Grid      one thread per element
// Needs     a: decay, b: epsilon; x' may be x, h' may be h
// Numerics  the rate in double, the rest in T
template <class T>
__global__ void __launch_bounds__(kThreads) adagrad(
    const void* __restrict__ rate, const i64* __restrict__ updates, const T* x, const T* __restrict__ g, const T* h,
    T* new_x, T* new_h, Step step) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= step.count) return;
  const T adjusted = T(read_rate(rate, step) / (1 + double(*updates) * step.a));
  const T slope = T(step.norm) * x[i] + g[i];
  const T squares = h[i] + slope * slope;
  new_x[i] = x[i] - adjusted * slope / (root_of(squares) + T(step.b));
  new_h[i] = squares;
}

// Computes  v' = alpha * v + (1 - alpha) * g', h' = beta * h + (1 - beta) * g'^2,
//           x' = (1 - post) * (x - r * v' / (sqrt(h') + epsilon)), with g' = norm * x + g and r the rate, times
//           sqrt(1 - beta^updates) / (1 - alpha^updates) after the first update; post: the last number
// Shapes    all [count] dense; rate and updates one element
// Grid      one thread per element
// Needs     a: alpha, b: beta, c: epsilon, d: post; x', v', h' may be x, v, h
// Numerics  the rate in double, the rest in T
template <class T>
__global__ void __launch_bounds__(kThreads) adam(
    const void* __restrict__ rate, const i64* __restrict__ updates, const T* x, const T* __restrict__ g, const T* v,
    const T* h, T* new_x, T* new_v, T* new_h, Step step) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= step.count) return;
  double adjusted = read_rate(rate, step);
  if (*updates > 0) adjusted *= sqrt(1 - pow(step.b, double(*updates))) / (1 - pow(step.a, double(*updates)));
  const T slope = T(step.norm) * x[i] + g[i];
  const T momentum = T(step.a) * v[i] + T(1 - step.a) * slope;
  const T squares = T(step.b) * h[i] + T(1 - step.b) * (slope * slope);
  new_x[i] = T(1 - step.d) * (x[i] - T(adjusted) * (momentum / (root_of(squares) + T(step.c))));
  new_v[i] = momentum;
  new_h[i] = squares;
}

// Computes  v' = alpha * v + beta' * g', x' = x - rate * v', or x - rate * (g' + alpha * v') of Nesterov's; with g' = norm * x
//           + g and beta' 1 in the first update, beta later
// Shapes    all [count] dense; rate and updates one element
// Grid      one thread per element
// Needs     a: alpha, b: beta, c: whether it is Nesterov's; x' may be x, v' may be v
// Numerics  in T
template <class T>
__global__ void __launch_bounds__(kThreads) momentum(
    const void* __restrict__ rate, const i64* __restrict__ updates, const T* x, const T* __restrict__ g, const T* v,
    T* new_x, T* new_v, Step step) {
  const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= step.count) return;
  const T slope = T(step.norm) * x[i] + g[i];
  const T velocity = T(step.a) * v[i] + T(*updates > 0 ? step.b : 1) * slope;
  const T direction = step.c != 0 ? slope + T(step.a) * velocity : velocity;
  new_x[i] = x[i] - T(read_rate(rate, step)) * direction;
  new_v[i] = velocity;
}
