// Kernels whose memory requests are known by hand.
#include <cuda_pipeline.h>

extern "C" __global__ void copy(const float* x, float* y, int stride, int offset) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float value = x[i * stride + offset];  // copy reads
  y[i] = value;                          // copy writes
}

extern "C" __global__ void copy_vectors(const float4* x, float4* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 value = x[i];
  value.x += 1.0f;
  y[i] = value;
}

extern "C" __global__ void sum_of_vector(const float4* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 value = x[i];
  y[i] = value.x + value.y + value.z + value.w;
}

template <int Columns>
__global__ void transpose(const float* x, float* y) {
  __shared__ float tile[32][Columns];
  for (int row = threadIdx.y; row < 32; row += blockDim.y) {
    tile[row][threadIdx.x] = x[row * 32 + threadIdx.x];  // rows
  }
  __syncthreads();
  for (int row = threadIdx.y; row < 32; row += blockDim.y) {
    y[row * 32 + threadIdx.x] = tile[threadIdx.x][row];  // columns
  }
}

template <class T>
__global__ void shared_stride(T* y, int stride) {
  __shared__ T held[1024];
  T zero = T();
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) held[i] = zero;
  __syncthreads();
  y[threadIdx.x] = held[threadIdx.x * stride];  // strided
}

template <class T>
__global__ void global_broadcast(const T* x, T* y) {
  T value = x[blockIdx.x];  // broadcast
  y[threadIdx.x] = value;
}

template <class T>
__global__ void count_up(T* out, int by) {
  atomicAdd(&out[threadIdx.x * by], T(1));
}

extern "C" __global__ void count_up_shared(int* out) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, 1);  // shared
  __syncthreads();
  if (threadIdx.x == 0) *out = total;
}

extern "C" __global__ void ragged(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];  // ragged
}

extern "C" __global__ void two_on_a_line(const float* x, const float* z, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + z[threadIdx.x * 2];  // two
}

extern "C" __global__ void one_lane_alone(const float* x, float* y, int n) {
  float sum = 0.0f;
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; i++) sum += x[i];  // alone
  }
  __syncthreads();
  y[threadIdx.x] = sum + x[threadIdx.x];  // together
}

extern "C" __global__ void half_alone(const float* x, float* y, int n) {
  float sum = 0.0f;
  if (threadIdx.x < 16) {
    for (int i = 0; i < n; i++) sum += x[i * 16 + threadIdx.x];  // half
  }
  __syncwarp();
  y[threadIdx.x] = sum;
}

// Lanes of a full warp take part in each trip to a shuffle, half of them in each access before it.
extern "C" __global__ void by_turns(const float* x, float* y, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; i++) {
    if ((threadIdx.x + i) % 2) sum += x[i * 32 + threadIdx.x];  // turns
    sum = __shfl_xor_sync(~0u, sum, 1);
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void staged(const float4* x, float4* y, int n) {
  __shared__ float4 held[32];
  __pipeline_memcpy_async(&held[threadIdx.x], &x[threadIdx.x], 16, threadIdx.x < n ? 0 : 16);  // staged
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
  y[threadIdx.x] = held[threadIdx.x];
}

extern "C" __global__ void read_again(const float* x, float* y, int n, int times) {
  float sum = 0.0f;
  for (int k = 0; k < times; k++) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  }
  y[threadIdx.x] = sum;
}

__constant__ float weights[4] = {1.0f, 2.0f, 3.0f, 4.0f};

// Neither constants, arguments, local arrays nor what a shuffle carries is memory that is counted.
extern "C" __global__ void uncounted(float* y, int n) {
  float local[8];
  for (int i = 0; i < 8; i++) local[(i * n) & 7] = weights[i & 3] + float(i);
  y[threadIdx.x] = __shfl_sync(~0u, local[threadIdx.x & 7], 0);
}

extern "C" __global__ void two_blocks_meet(const float* x, float* y) {
  float sum = 0.0f;
  for (int i = 0; i < 4; i++) {
    if ((threadIdx.x + i) % 2) sum += x[blockIdx.x * 32 + threadIdx.x];  // grid
    gpuexec_grid_barrier({"count.cu", 0});
  }
  y[blockIdx.x * 32 + threadIdx.x] = sum;
}
