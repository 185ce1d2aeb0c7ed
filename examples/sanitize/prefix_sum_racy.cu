// A prefix sum with a mistake: a thread adds to its place while its neighbour may still be reading it. On a GPU the
// result is right most of the time, since a block of one warp runs in step. Try:
//
//   gpuexec sanitize examples/sanitize/prefix_sum_racy.cu --grid 4 --block 128
//     --arg 'float[512]=random' --arg 'float[512]=zeros' --arg int=512
extern "C" __global__ void prefix_sum(const float* x, float* y, int n) {
  __shared__ float sums[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  for (int distance = 1; distance < blockDim.x; distance *= 2) {
    if (threadIdx.x >= distance) sums[threadIdx.x] += sums[threadIdx.x - distance];
    __syncthreads();
  }
  if (i < n) y[i] = sums[threadIdx.x];
}
