// C = A * B by 16 x 16 tiles, right with kBug = kNone. The lines of each bug are marked.
#include <cuda_pipeline.h>

enum Bug {
  kNone, kRaceInBlock, kRaceBetweenBlocks, kGlobalOverrun, kSharedOverrun, kMisaligned, kUninitialised, kDivergent,
  kMissingWait
};

constexpr int kTile = 16;

// Grid: one block per tile of C; with kRaceBetweenBlocks the tiles overlap by a column.
template <int kBug>
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[kTile][kTile + 1];
  __shared__ float right[kTile][kTile];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * kTile + ty;
  const int column = blockIdx.x * (kBug == kRaceBetweenBlocks ? kTile - 1 : kTile) + tx;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += kTile) {
    const bool has_left = row < m && k0 + tx < k;
    const bool has_right = k0 + ty < k && (kBug == kGlobalOverrun || column < n);
    if (kBug != kUninitialised || has_left) left[ty][tx] = has_left ? a[row * k + k0 + tx] : 0.f;  // RaceInBlock
    if (has_right) {
      __pipeline_memcpy_async(&right[ty][tx], &b[(k0 + ty) * n + column], 4);  // MissingWait RaceInBlock GlobalOverrun
    } else {
      right[ty][tx] = 0.f;  // RaceInBlock MissingWait
    }
    __pipeline_commit();
    if (kBug != kMissingWait) __pipeline_wait_prior(0);
    if (kBug != kDivergent) {
      __syncthreads();
    } else if (row < m) {
      __syncthreads();  // Divergent
    } else {
      __syncthreads();  // Divergent
    }
    if (kBug == kMisaligned) {
      for (int i = 0; i < kTile; i += 2) {
        float2 two = *reinterpret_cast<const float2*>(&left[ty][i]);  // Misaligned
        sum += two.x * right[i][tx] + two.y * right[i + 1][tx];
      }
    } else {
      const float* row_of_left = &left[0][0] + ty * (kTile + 1);
      const int last = kBug == kSharedOverrun ? kTile + 2 : kTile;
      for (int i = 0; i < last; i++) {
        const float l = row_of_left[i];                      // Uninitialised SharedOverrun RaceInBlock
        const float r = (&right[0][0])[(i % kTile) * kTile + tx];  // MissingWait RaceInBlock
        sum += l * r;
      }
    }
    if (kBug != kRaceInBlock) __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;  // RaceBetweenBlocks
}
