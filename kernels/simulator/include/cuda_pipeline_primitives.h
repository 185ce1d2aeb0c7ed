// Asynchronous copies to shared memory by CUDA's pipeline primitives: cp.async and its groups.
#pragma once

GPUEXEC_INLINE void __pipeline_memcpy_async(void* destination, const void* source, size_t nbytes, size_t zfill = 0) {
  gpuexec_copy_async(destination, source, nbytes, nbytes - zfill);
}
GPUEXEC_INLINE void __pipeline_commit() { gpuexec_copy_commit(); }
GPUEXEC_INLINE void __pipeline_wait_prior(int keep) { gpuexec_copy_wait(keep); }
