// A tensor-core GEMM through wrappers: what needs inline PTX on the device has a host body here.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// D (16 x 8) += A (16 x 16) * B (16 x 8), each lane holding its fragments (PTX ISA, mma.m16n8k16).
template <class T>
__device__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  struct Fragments {
    unsigned a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  gpuexec::Meeting warp = gpuexec_meet(~0u, &mine, sizeof mine, gpuexec::kMatrix, {__FILE__, __LINE__});
  auto element = [](unsigned pair, unsigned i) { return float(T::from_bits((unsigned short)(pair >> 16 * i))); };
  unsigned group = gpuexec_position.lane >> 2, within = gpuexec_position.lane & 3;
  for (int i = 0; i < 4; i++) {
    unsigned row = group + (i >= 2 ? 8 : 0), col = within * 2 + (i & 1);
    for (unsigned k = 0; k < 16; k++) {
      Fragments left = gpuexec::read_lane<Fragments>(warp, (row & 7) * 4 + (k & 7) / 2);
      Fragments right = gpuexec::read_lane<Fragments>(warp, col * 4 + (k & 7) / 2);
      d[i] = fmaf(element(left.a[(k >= 8 ? 2 : 0) + (row >= 8)], k & 1), element(right.b[k >= 8], k & 1), d[i]);
    }
  }
}

// Four 8 x 8 tiles of 16-bit elements; lane i names row i % 8 of tile i / 8 (PTX ISA, ldmatrix.x4).
__device__ void load_matrices(unsigned (&r)[4], const void* row) {
  gpuexec::Meeting warp = gpuexec_meet(~0u, &row, sizeof row, gpuexec::kLoadMatrix, {__FILE__, __LINE__});
  unsigned lane = gpuexec_position.lane;
  for (unsigned i = 0; i < 4; i++) r[i] = gpuexec::read_lane<const unsigned*>(warp, i * 8 + lane / 4)[lane % 4];
}

// C (f32) = A (row-major) * B^T (n x k, row-major): one warp per 16 x 8 tile, A through shared memory in two stages.
// kWait is the number of stages that may stay under way: 1 is right, 2 forgets to wait.
template <class T, int kWait>
__global__ void tensor_gemm(const T* a, const T* b, float* c, int n, int k) {
  __shared__ __align__(16) T tile[2][16][16 + 8];
  int lane = threadIdx.x, row0 = blockIdx.y * 16, col0 = blockIdx.x * 8, group = lane >> 2, within = lane & 3;
  float d[4] = {0, 0, 0, 0};
  auto fetch = [&](int stage, int k0) {
    int row = lane >> 1, half = (lane & 1) * 8;
    gpuexec_copy_async(&tile[stage][row][half], a + (size_t)(row0 + row) * k + k0 + half, 16, 16);
    gpuexec_copy_commit();
  };
  fetch(0, 0);
  for (int k0 = 0, stage = 0; k0 < k; k0 += 16, stage ^= 1) {
    if (k0 + 16 < k) fetch(stage ^ 1, k0 + 16);
    gpuexec_copy_wait(k0 + 16 < k ? kWait : kWait - 1);
    __syncwarp();
    unsigned fa[4], fb[2];
    load_matrices(fa, &tile[stage][lane & 15][(lane >> 4) * 8]);
    const T* from = b + (size_t)(col0 + group) * k + k0 + within * 2;
    fb[0] = *(const unsigned*)from;
    fb[1] = *(const unsigned*)(from + 8);
    multiply_add<T>(d, fa, fb);
    __syncwarp();
  }
  float* out = c + (size_t)(row0 + group) * n + col0 + within * 2;
  out[0] = d[0];
  out[1] = d[1];
  out[8 * (size_t)n] = d[2];
  out[8 * (size_t)n + 1] = d[3];
}
