// One thread per element over arrays of arguments: what each intrinsic answers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class To, class From>
__global__ void convert(const From* x, To* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = To(x[i]);
}

template <class T>
__global__ void arithmetic(const T* a, const T* b, T* sum, T* product, T* quotient, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  sum[i] = a[i] + b[i];
  product[i] = a[i] * b[i];
  quotient[i] = a[i] / b[i];
}

template <class T>
__global__ void fused(const T* a, const T* b, const T* c, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hfma(a[i], b[i], c[i]);
}

extern "C" __global__ void high_products(const unsigned* a, const unsigned* b, unsigned* y, const unsigned long long* c,
                                         const unsigned long long* d, unsigned long long* z) {
  int i = threadIdx.x;
  y[i] = __umulhi(a[i], b[i]);
  z[i] = __umul64hi(c[i], d[i]);
}

extern "C" __global__ void saturating(const double* x, int* i, unsigned* u, long long* l, float* s, int n) {
  int t = threadIdx.x;
  if (t >= n) return;
  i[t] = __double2int_rz(x[t]);
  u[t] = __double2uint_rn(x[t]);
  l[t] = __double2ll_rd(x[t]);
  s[t] = __saturatef(float(x[t]));
}

extern "C" __global__ void bits(const unsigned* x, int* popcount, int* leading, int* first, unsigned* reversed) {
  int i = threadIdx.x;
  popcount[i] = __popc(x[i]);
  leading[i] = __clz(int(x[i]));
  first[i] = __ffs(int(x[i]));
  reversed[i] = __brev(x[i]);
}

// One warp: everything lanes can say to each other. rows of 32: see the test.
extern "C" __global__ void converse(const int* x, int* y) {
  int lane = threadIdx.x, v = x[lane], row = 0;
  auto put = [&](int value) { y[32 * row++ + lane] = value; };
  put(__shfl_sync(~0u, v, 5));
  put(__shfl_sync(~0u, v, 1, 8));
  put(__shfl_xor_sync(~0u, v, 3));
  put(__shfl_xor_sync(~0u, v, 9, 8));
  put(__shfl_up_sync(~0u, v, 2));
  put(__shfl_down_sync(~0u, v, 4, 16));
  put(int(__ballot_sync(~0u, v > 10)));
  put(__any_sync(~0u, v == x[7]));
  put(__all_sync(~0u, v >= 0));
  put(__reduce_add_sync(~0u, v));
  put(__reduce_max_sync(~0u, v));
  put(int(__reduce_xor_sync(~0u, unsigned(v))));
  put(int(__match_any_sync(~0u, v & 3)));
  unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  put(__reduce_add_sync(half, v));
  put(__syncthreads_count(v & 1));
}

// A lane that goes on to another mask must not disturb those that have yet to read.
extern "C" __global__ void hurry(int* y) {
  int lane = threadIdx.x, sum = __reduce_add_sync(~0u, lane);
  y[lane] = sum + __shfl_sync(1u << lane, 1000, lane);
}

extern "C" __global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d, __half* h) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], t);
  atomicMax(&i[1], t);
  atomicMin(&i[2], -t);
  atomicOr(&u[0], 1u << (t & 31));
  atomicInc(&u[1], 9u);
  atomicAdd(&l[0], (unsigned long long)t);
  atomicAdd(&f[0], 1.0f);
  atomicAdd(&d[0], 0.5);
  if (t < 64) atomicAdd(&h[0], __half(1.0f));
  for (int old = i[3], seen; (seen = atomicCAS(&i[3], old, old + 2)) != old; old = seen) {
  }
}

struct Row {
  long long stride;
  int size;
  short kind;
};
extern "C" __global__ void take(const float* p, float f, double d, int i, unsigned char u, bool b, Row s, __half h,
                                __nv_bfloat16 g, double* y) {
  y[0] = p[0] + f + d + i + u + b;
  y[1] = double(s.stride) + s.size + s.kind;
  y[2] = float(h) + float(g);
}

// Alignment and size of the vector types, as CUDA documents them.
extern "C" __global__ void layouts(int* y) {
  int row = 0;
  auto put = [&](size_t size, size_t alignment) {
    y[row++] = int(size);
    y[row++] = int(alignment);
  };
  put(sizeof(char4), alignof(char4));
  put(sizeof(short3), alignof(short3));
  put(sizeof(int2), alignof(int2));
  put(sizeof(float3), alignof(float3));
  put(sizeof(float4), alignof(float4));
  put(sizeof(double2), alignof(double2));
  put(sizeof(double4), alignof(double4));
  put(sizeof(longlong2), alignof(longlong2));
  put(sizeof(ulonglong4), alignof(ulonglong4));
  put(sizeof(__half2), alignof(__half2));
  put(sizeof(uint3), alignof(uint3));
}

extern "C" __global__ void blocks_seen(unsigned* y) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomicAdd(&y[block * blockDim.x * blockDim.y * blockDim.z + thread], 1u + blockIdx.z * 100 + threadIdx.z);
}
