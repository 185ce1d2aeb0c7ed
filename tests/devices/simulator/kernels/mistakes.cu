// Kernels that each break one rule. The tests name the lines, so these stay where they are.
extern "C" __global__ void divergent_barrier(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    y[threadIdx.x] = 0;
    __syncthreads();
  }
}

extern "C" __global__ void deadlock(int* y) {
  if (threadIdx.x == 0) {
    y[0] = __shfl_sync(0xffffffffu, 1, 0);
  } else {
    __syncthreads();
  }
}

extern "C" __global__ void exited_lane(float* y) {
  if (threadIdx.x == 3) return;
  y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.f, 0);
}

extern "C" __global__ void lane_outside_mask(int* y) { y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }

extern "C" __global__ void different_operations(int* y) {
  if (threadIdx.x & 1) {
    y[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
  } else {
    y[threadIdx.x] = __any_sync(0xffffffffu, 1);
  }
}

extern "C" __global__ void missing_barrier(const float* x, float* y) {
  __shared__ float s[128];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[(threadIdx.x + 1) & 127];
}

extern "C" __global__ void shared_overrun(float* y) {
  __shared__ float row[32];
  row[threadIdx.x + 1] = 1.f;
  __syncthreads();
  y[threadIdx.x] = row[threadIdx.x];
}

extern "C" __global__ void read_unwritten_shared(float* y) {
  __shared__ float s[32];
  y[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void too_much_shared(float* y) {
  __shared__ float big[60000];
  big[threadIdx.x] = 1.f;
  y[threadIdx.x] = big[threadIdx.x];
}

extern "C" __global__ void divide(const int* x, int* y, int by) { y[threadIdx.x] = x[threadIdx.x] / by; }

extern "C" __global__ void trap_at(int thread) {
  if (threadIdx.x == thread) __trap();
}

extern "C" __global__ void store(int* y, int index, int value) { y[index] = value; }

extern "C" __global__ void many_masks(int* y) {
  unsigned lane = threadIdx.x, mask = 3u << (lane & ~1u);
  y[lane] = __shfl_xor_sync(mask, int(lane), 1);
}

extern "C" __global__ void trap_with_copy_under_way(const int* x, int* y) {
  gpuexec_copy_async(y, x, sizeof(int), sizeof(int));
  __trap();
}

__device__ int descend(int depth) {
  volatile char frame[4096];
  frame[depth & 4095] = char(depth);
  return depth == 0 ? 0 : descend(depth - 1) + frame[depth & 4095];
}

extern "C" __global__ void overflow_stack(int* y, int depth) { y[0] = descend(depth); }

extern "C" __global__ void load_shared_as_global(float* y) {
  __shared__ float s[32];
  s[threadIdx.x] = 1.f;
  y[threadIdx.x] = __ldg(s + threadIdx.x);
}

extern "C" __global__ void store_shared_as_global(float* y) {
  __shared__ float s[32];
  __stcs(s + threadIdx.x, 1.f);
  y[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void copy_shared_as_global(float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = 1.f;
  gpuexec_copy_async(s + 32 + threadIdx.x, s + threadIdx.x, sizeof(float), sizeof(float));
  gpuexec_copy_commit();
  gpuexec_copy_wait(0);
  y[threadIdx.x] = s[32 + threadIdx.x];
}
