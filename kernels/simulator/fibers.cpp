// Fibers: creation of stacks and switches between them.
#include "fibers.h"

#include <sys/mman.h>

#include <atomic>

namespace gpuexec {

namespace {
constexpr size_t kGuardBytes = 64 << 10;  // a multiple of every page size in use
// Stacks begin so many bytes apart within a period: as far apart as pages, they would all lie in the same few lines of a
// cache, and threads that take turns would push each other's out.
constexpr size_t kShiftBytes = 9 * 64, kPeriodBytes = 32 << 10;
constexpr size_t kMappingBytes = kGuardBytes + kPeriodBytes + kStackBytes;
}  // namespace

Fiber* create_fiber() {
  static std::atomic<size_t> created{0};
  void* mapping =
      mmap(nullptr, kMappingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  mprotect(mapping, kGuardBytes, PROT_NONE);
  Fiber* fiber = new Fiber;
  fiber->mapping = static_cast<char*>(mapping);
  fiber->stack = fiber->mapping + kGuardBytes + created++ * kShiftBytes % kPeriodBytes;
  return fiber;
}

void destroy_fiber(Fiber* fiber) {
  munmap(fiber->mapping, kMappingBytes);
  delete fiber;
}

bool is_overflow(const Fiber* fiber, const void* address) {
  const char* at = static_cast<const char*>(address);
  return at >= fiber->mapping && at < fiber->stack;
}

#ifdef GPUEXEC_ASM_FIBERS

// The six registers that the System V ABI asks a callee to keep, then the return address.
extern "C" void gpuexec_switch(void** save, void* stack_pointer);
asm(R"(
.text
.globl gpuexec_switch
.hidden gpuexec_switch
.type gpuexec_switch,@function
gpuexec_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gpuexec_switch,.-gpuexec_switch
)");

void reset_fiber(Fiber* fiber, void (*entry)()) {
  void** top = reinterpret_cast<void**>(fiber->stack + kStackBytes);
  // A function starts with rsp = 8 mod 16, as after a call; SSE code crashes otherwise.
  *--top = nullptr;
  *--top = nullptr;
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fiber->context.stack_pointer = top;
}

void switch_context(Context& from, Context& to) { gpuexec_switch(&from.stack_pointer, to.stack_pointer); }

#else

void reset_fiber(Fiber* fiber, void (*entry)()) {
  ucontext_t& state = fiber->context.state;
  getcontext(&state);
  state.uc_stack.ss_sp = fiber->stack;
  state.uc_stack.ss_size = kStackBytes;
  state.uc_link = nullptr;
  makecontext(&state, entry, 0);
}

void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#endif

}  // namespace gpuexec
