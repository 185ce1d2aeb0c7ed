// One block of one or two warps each: what orders accesses of CUDA threads, and what does not. The tests name the lines.
#include <cuda_fp16.h>

// Filled when the module is loaded: accesses outside of any launch.
struct Table {
  int rows[4];
  Table() {
    for (volatile int i = 0; i < 4; i = i + 1) rows[i] = i + 1;
  }
};
static Table table;
__device__ int counted;

// A mask orders its own lanes and no others.
template <int kLanes>
__global__ void hand_over(int* out) {
  __shared__ int slots[32];
  const int lane = threadIdx.x;
  slots[lane] = lane;
  const unsigned mask = kLanes == 32 ? 0xffffffffu : 0xffffu << (lane & 16);
  __syncwarp(mask);
  out[lane] = slots[lane ^ 16];  // 16 lanes: race
}

extern "C" __global__ void shuffle_orders_nothing(int* out) {
  __shared__ int slots[32];
  slots[threadIdx.x] = threadIdx.x;
  const int other = __shfl_xor_sync(~0u, int(threadIdx.x), 1);
  out[threadIdx.x] = slots[other];
}

extern "C" __global__ void atomics_together(int* out) {
  atomicAdd(&out[0], 1);
  atomicMax(&out[1], int(threadIdx.x));
}

extern "C" __global__ void atomic_beside_plain(int* out) {
  if (threadIdx.x < 32) atomicAdd(&out[0], 1);
  else if (threadIdx.x == 32) out[0] = 5;
}

extern "C" __global__ void read_beside_atomics(int* out) {
  if (threadIdx.x < 32) atomicAdd(&out[0], 2);
  else if (threadIdx.x == 32) out[1] = out[0];
}

// Thread 1 reads, then 30 others, then thread 1 writes.
extern "C" __global__ void write_after_many_reads(int* out) {
  __shared__ int one;
  if (threadIdx.x == 0) one = 7;
  __syncthreads();
  out[threadIdx.x] = one;
  __syncwarp(threadIdx.x < 31 ? 0x7fffffffu : 0x80000000u);
  if (threadIdx.x == 1) one = 8;
}

extern "C" __global__ void neighbouring_bytes(unsigned char* out) {
  out[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x ^ 1] = 2;
}

struct Padded {
  char letter;
  double number;
};

extern "C" __global__ void copies_padding(double* out) {
  __shared__ Padded rows[32];
  rows[threadIdx.x].letter = 'a';
  rows[threadIdx.x].number = threadIdx.x;
  __syncthreads();
  Padded row = rows[threadIdx.x ^ 1];
  Padded* volatile there = &row;
  out[threadIdx.x] = there->number + there->letter;
}

extern "C" __global__ void local_array(float* out, int n) {
  float held[4] = {};
  for (int i = 0; i < n; i++) held[i & 7] += i;
  out[threadIdx.x] = held[0] + held[3];
}

struct Counted {
  int count;
  float values[4];

  __device__ void add(int i) { values[i & 7] += i; }
};

extern "C" __global__ void array_of_a_struct(float* out, int n) {
  Counted counted = {};
  for (int i = 0; i < n; i++) counted.add(i);
  out[threadIdx.x] = counted.values[0] + counted.values[3];
}

extern "C" __global__ void module_data(int* out) {
  out[threadIdx.x] = table.rows[threadIdx.x & 3];
  atomicAdd(&counted, 1);
}

extern "C" __global__ void writes_all(const int* x, int* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void two_mistakes(int* out) {
  __shared__ int a[128];
  __shared__ int b[128];
  out[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] += b[threadIdx.x];
}

extern "C" __global__ void adds_halves(__half* x, __half* out) {
  out[0] += x[threadIdx.x];
}
