// Fibers: stacks of their own on one OS thread, switched by hand.
#pragma once
#include <cstddef>

#if defined(__x86_64__) && !defined(GPUEXEC_UCONTEXT)
#define GPUEXEC_ASM_FIBERS 1
#else
#include <ucontext.h>
#endif

namespace gpuexec {

// Ample for kernels, whose local arrays live in registers; pages are touched only when used. A guard page ends it.
constexpr size_t kStackBytes = 128 << 10;

#ifdef GPUEXEC_ASM_FIBERS
struct Context {
  void* stack_pointer = nullptr;
};
#else
struct Context {
  ucontext_t state;
};
#endif

struct Fiber {
  Context context;
  char* stack = nullptr;
  char* mapping = nullptr;  // the guard and the stack
};

// Returns null when no memory is left.
Fiber* create_fiber();
void destroy_fiber(Fiber* fiber);

// Whether an address lies in the guard below the fiber's stack.
bool is_overflow(const Fiber* fiber, const void* address);

// Makes the next switch to `fiber` call `entry` on an empty stack; whatever the stack held is dropped.
// Never reset the fiber that is running.
void reset_fiber(Fiber* fiber, void (*entry)());

// Saves the running context in `from` and continues `to`. Returns when somebody switches back to `from`.
void switch_context(Context& from, Context& to);

}  // namespace gpuexec
