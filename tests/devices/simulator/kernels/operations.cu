// Kernels whose arithmetic is known by hand.
#include <cuda_fp16.h>

// [rows, inner] @ [inner, columns] by tiles of 8 x 32, a thread a sum. Threads beyond the edge multiply too.
extern "C" __global__ void multiply_tile(const float* a, const float* b, float* y, int rows, int columns, int inner) {
  const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  const bool is_inside = row < rows && column < columns;
  float sum = 0.0f;
  for (int k = 0; k < inner; ++k) {
    const float left = is_inside ? a[row * inner + k] : 0.0f, right = is_inside ? b[k * columns + column] : 0.0f;
    sum = fmaf(left, right, sum);  // product
  }
  if (is_inside) y[row * columns + column] = sum;
}

// Lane i goes i + 1 times through the loop.
extern "C" __global__ void sum_triangle(const float* x, float* y) {
  float sum = 0.0f;
  for (int i = 0; i <= int(threadIdx.x); ++i) sum = fmaf(x[i], 2.0f, sum);  // triangle
  y[threadIdx.x] = sum;
}

// Half of the warp goes one way, half the other.
extern "C" __global__ void take_sides(const float* x, float* y) {
  float value = x[threadIdx.x];
  if (threadIdx.x < 16) value = fmaf(value, value, 1.0f);  // left
  else value = __fmaf_rn(value, 3.0f, value);              // right
  y[threadIdx.x] = value;
}

extern "C" __global__ void exponentials(const float* x, float* y, int n) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[i]);  // exponential
  y[threadIdx.x] = sum;
}

extern "C" __global__ void functions(const float* x, float* y) {
  const float value = x[threadIdx.x];
  float sum = sqrtf(value);                            // sqrtf
  sum += rsqrtf(value);                                // rsqrtf
  sum += tanhf(value);                                 // tanhf
  sum += exp(value + 1.0f);                            // overload
  sum += __expf(value);                                // __expf
  sum += __logf(value);                                // __logf
  sum += __tanf(value);                                // __tanf
  sum += powf(value, 1.5f);                            // powf
  sum += __fdividef(1.0f, value);                      // __fdividef
  sum += logf(value) + sinf(value);                    // none
  sum += float(exp(double(value)));                    // double
  y[threadIdx.x] = sum;
}

extern "C" __global__ void units(const float* x, const int* bytes, float* y) {
  const float value = x[threadIdx.x];
  double wide = fma(double(value), 2.0, 1.0);                                       // double
  int dot = __dp4a(bytes[threadIdx.x], 0x01010101, 0);                              // bytes
  __half2 pair = __hfma2(__floats2half2_rn(value, value), __floats2half2_rn(2, 2),  // half
                         __floats2half2_rn(1, 1));
  float plain = value * 2.0f + 1.0f;                                                // operators
  y[threadIdx.x] = float(wide) + float(dot) + __low2float(pair) + plain;
}

// A wrapper of an instruction of the matrix units, of 16 x 8 x 16: 64 of its multiply-adds for each lane.
static __device__ __forceinline__ float multiply_matrices(float a, float b) {
  GPUEXEC_ISSUE(kMma, 16 * 8 * 16 / 32);
  return a * b;
}

extern "C" __global__ void matrices(const float* x, float* y) {
  float sum = 0.0f;
  for (int i = 0; i < 3; ++i) sum += multiply_matrices(x[threadIdx.x], sum);  // matrices
  y[threadIdx.x] = sum;
}

// The first lane alone, while the others wait.
extern "C" __global__ void one_lane(const float* x, float* y, int n) {
  float sum = 0.0f;
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; i++) sum = fmaf(x[i], x[i], sum);  // alone
  }
  __syncthreads();
  y[threadIdx.x] = fmaf(sum, 2.0f, 1.0f);  // together
}
