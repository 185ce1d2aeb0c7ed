// Small kernels of each kind: elementwise, reduction, shared memory, half, templates.
#include <cuda_fp16.h>

extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

template <class T, int kOperation>
__global__ void __launch_bounds__(256) binary(const T* a, const T* b, T* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = kOperation == 0 ? T(a[i] + b[i]) : T(a[i] * b[i]);
}

extern "C" __global__ void block_sum(const float* __restrict__ x, float* out, int n) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < (int)(blockDim.x >> 5) ? part[lane] : 0.f;
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if (lane == 0) atomicAdd(out, sum);
  }
}

// One warp per row.
extern "C" __global__ void softmax_row(const float* x, float* y, int cols) {
  const float* row = x + (size_t)blockIdx.x * cols;
  float top = __int_as_float(0xff800000);
  for (int c = threadIdx.x; c < cols; c += 32) top = fmaxf(top, row[c]);
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
  float sum = 0;
  for (int c = threadIdx.x; c < cols; c += 32) sum += __expf(row[c] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  for (int c = threadIdx.x; c < cols; c += 32) y[(size_t)blockIdx.x * cols + c] = __expf(row[c] - top) / sum;
}

extern "C" __global__ void half_axpy(const __half* x, __half* y, float a, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half2 k = __half2half2(__float2half_rn(a));
  if (i < pairs) ((__half2*)y)[i] = __hfma2(k, ((const __half2*)x)[i], ((__half2*)y)[i]);
}

extern "C" __global__ void histogram(const unsigned char* x, int n, unsigned* counts) {
  extern __shared__ unsigned local[];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    if (local[i]) atomicAdd(&counts[i], local[i]);
  }
}

// C = A * B by double-buffered 32 x 32 tiles; 16 x 16 threads with 2 x 2 outputs each.
extern "C" __global__ void __launch_bounds__(256) gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float tile_a[2][32][33];
  __shared__ float tile_b[2][32][33];
  int tx = threadIdx.x, ty = threadIdx.y, row0 = blockIdx.y * 32, col0 = blockIdx.x * 32;
  float acc[2][2] = {};
  auto load = [&](int buffer, int k0) {
    for (int i = ty; i < 32; i += 16) {
      for (int j = tx; j < 32; j += 16) {
        tile_a[buffer][i][j] = row0 + i < m && k0 + j < k ? a[(size_t)(row0 + i) * k + k0 + j] : 0.f;
        tile_b[buffer][i][j] = k0 + i < k && col0 + j < n ? b[(size_t)(k0 + i) * n + col0 + j] : 0.f;
      }
    }
  };
  load(0, 0);
  __syncthreads();
  for (int k0 = 0, buffer = 0; k0 < k; k0 += 32, buffer ^= 1) {
    if (k0 + 32 < k) load(buffer ^ 1, k0 + 32);
    for (int i = 0; i < 32; i++) {
      for (int r = 0; r < 2; r++) {
        for (int s = 0; s < 2; s++) {
          acc[r][s] = fmaf(tile_a[buffer][ty + 16 * r][i], tile_b[buffer][i][tx + 16 * s], acc[r][s]);
        }
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < 2; r++) {
    for (int s = 0; s < 2; s++) {
      int row = row0 + ty + 16 * r, col = col0 + tx + 16 * s;
      if (row < m && col < n) c[(size_t)row * n + col] = acc[r][s];
    }
  }
}
