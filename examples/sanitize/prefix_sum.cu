// The prefix sum of prefix_sum_racy.cu, mended: all have read before any adds.
//
//   gpuexec sanitize examples/sanitize/prefix_sum.cu --grid 4 --block 128
//     --arg 'float[512]=random' --arg 'float[512]=zeros' --arg int=512
extern "C" __global__ void prefix_sum(const float* x, float* y, int n) {
  __shared__ float sums[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  for (int distance = 1; distance < blockDim.x; distance *= 2) {
    const float before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0.f;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  if (i < n) y[i] = sums[threadIdx.x];
}
