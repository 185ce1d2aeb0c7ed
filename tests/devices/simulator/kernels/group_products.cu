// Products of a group of warps over two slabs that pass through one place of shared memory, with a mistake each.
#include "wgmma.cuh"

enum Mistake { kNone, kNoFence, kNoWait, kReadEarly, kTornRow };

// Computes  y = a[0] @ b[0]' + a[1] @ b[1]'
// Shapes    a, b [2, 64, 64] in the order of wgmma.cuh; y [128, 32]: the sums of each thread
// Grid      one block of 128 threads
template <int Bug>
__global__ void __launch_bounds__(128) multiply_slabs(const half* a, const half* b, float* y) {
  __shared__ __align__(1024) u8 held[2 * 64 * 128];
  const SharedAddress place = find_shared_address(held);
  GroupProducts products;
  float sums[8][4] = {};
  for (int slab = 0; slab < 2; ++slab) {
    for (int i = threadIdx.x; i < 512; i += 128) {
      copy_async_vector(place + i * 16, a + slab * 4096 + i * 8);
      copy_async_vector(place + 64 * 128 + i * 16, b + slab * 4096 + i * 8);
    }
    commit_copies();
    wait_copies<0>();
    if (Bug != kNoFence) fence_for_group(products);
    __syncthreads();
    begin_products(products);
    for (int step = 0; step < 4; ++step) {
      const GroupOperand left(place + (Bug == kTornRow ? 8 : 0), 8192), right(place + 64 * 128, 8192);
      multiply_group<half, false, false>(products, sums, left.after(step * 32), right.after(step * 32));
    }
    commit_products(products);
    if (Bug == kReadEarly && slab == 1) break;
    if (Bug != kNoWait || slab == 1) wait_products<0>(products);
    __syncthreads();
  }
  for (int i = 0; i < 32; ++i) y[threadIdx.x * 32 + i] = sums[i / 4][i % 4];
}
