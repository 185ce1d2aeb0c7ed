// Programmatic dependent launch: the wait of a kernel that begins early, and the signal to the next one.
//
// A kernel that calls wait_for_predecessors() in its own body may begin before the launches that it depends on are complete;
// the host reads that from the source. Where helpers work out addresses and read, the kernel gives them a lambda that waits:
// so the call stands in its body, and comes in between. All of a kernel's blocks must call it, before they read or write any
// memory that a launch writes; what no launch ever writes (weights) may be fetched beforehand. Launched in any other way, and
// before sm_90, both calls do nothing (PTX ISA, griddepcontrol).
#pragma once

#ifdef GPUEXEC_SIM
__device__ inline void wait_for_predecessors(GPUEXEC_SITE) { gpuexec_wait_for_predecessors(site); }

// Who depends on this launch begins as early as any order of blocks allows, and sees nothing of it before its own wait.
__device__ inline void launch_dependents() {}
#else
// Waits until the launches that this one depends on are complete and what they wrote is visible.
__device__ inline void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the launches that depend on this one begin once all of its blocks have called this or ended. Called behind the wait,
// so that no more than two launches of a chain are under way together.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif
