// Compiler hooks of -fsanitize=thread,alignment,bounds.
// They are linked into each module of check or count mode, hidden, so that no other library of the process resolves to
// these names.
#include "runtime.h"

#define HOOK extern "C" __attribute__((visibility("hidden"), used))
#define PC __builtin_return_address(0)

#define PLAIN(N)                                                                                  \
  HOOK void __tsan_read##N(void* p) { gpuexec_access(p, N, gpuexec::kRead, PC); }                 \
  HOOK void __tsan_write##N(void* p) { gpuexec_access(p, N, gpuexec::kWrite, PC); }               \
  HOOK void __tsan_unaligned_read##N(void* p) { gpuexec_access(p, N, gpuexec::kRead, PC); }       \
  HOOK void __tsan_unaligned_write##N(void* p) { gpuexec_access(p, N, gpuexec::kWrite, PC); }     \
  HOOK void __tsan_volatile_read##N(void* p) { gpuexec_access(p, N, gpuexec::kRead, PC); }        \
  HOOK void __tsan_volatile_write##N(void* p) { gpuexec_access(p, N, gpuexec::kWrite, PC); }      \
  HOOK void __tsan_unaligned_volatile_read##N(void* p) { gpuexec_access(p, N, gpuexec::kRead, PC); } \
  HOOK void __tsan_unaligned_volatile_write##N(void* p) { gpuexec_access(p, N, gpuexec::kWrite, PC); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

HOOK void __tsan_read_range(void* p, size_t n) { gpuexec_access(p, n, gpuexec::kRead, PC); }
HOOK void __tsan_write_range(void* p, size_t n) { gpuexec_access(p, n, gpuexec::kWrite, PC); }
HOOK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  gpuexec_access(from, n, gpuexec::kRead, PC);
  gpuexec_access(to, n, gpuexec::kWrite, PC);
  return __builtin_memcpy(to, from, n);
}
HOOK void* __tsan_memmove(void* to, const void* from, size_t n) {
  gpuexec_access(from, n, gpuexec::kRead, PC);
  gpuexec_access(to, n, gpuexec::kWrite, PC);
  return __builtin_memmove(to, from, n);
}
HOOK void* __tsan_memset(void* to, int value, size_t n) {
  gpuexec_access(to, n, gpuexec::kWrite, PC);
  return __builtin_memset(to, value, n);
}
HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_vptr_read(void**) {}
HOOK void __tsan_vptr_update(void** p, void* value) { *p = value; }

// Orders are ignored: all are done as the strongest, and what orders accesses is the kernel's fences.
#define NOTE(FLAGS) gpuexec_access((const void*)p, sizeof(T), (FLAGS) | gpuexec::kAtomic, PC)
#define FETCH(BITS, NAME)                                                        \
  HOOK a##BITS __tsan_atomic##BITS##_##NAME(volatile a##BITS* p, a##BITS v, int) { \
    typedef a##BITS T;                                                           \
    NOTE(gpuexec::kWrite);                                                       \
    return __atomic_##NAME(p, v, __ATOMIC_SEQ_CST);                              \
  }
#define EXCHANGE(BITS, NAME)                                                                                \
  HOOK int __tsan_atomic##BITS##_compare_exchange_##NAME(volatile a##BITS* p, a##BITS* expected, a##BITS v, int, int) { \
    typedef a##BITS T;                                                                                      \
    NOTE(gpuexec::kWrite);                                                                                  \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
  }
#define ATOMICS(BITS, TYPE)                                                              \
  typedef TYPE a##BITS;                                                                  \
  FETCH(BITS, fetch_add)                                                                 \
  FETCH(BITS, fetch_sub)                                                                 \
  FETCH(BITS, fetch_and)                                                                 \
  FETCH(BITS, fetch_or)                                                                  \
  FETCH(BITS, fetch_xor)                                                                 \
  FETCH(BITS, fetch_nand)                                                                \
  EXCHANGE(BITS, strong)                                                                 \
  EXCHANGE(BITS, weak)                                                                   \
  HOOK a##BITS __tsan_atomic##BITS##_compare_exchange_val(volatile a##BITS* p, a##BITS expected, a##BITS v, int, int) { \
    typedef a##BITS T;                                                                   \
    NOTE(gpuexec::kWrite);                                                               \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                     \
  }                                                                                      \
  HOOK a##BITS __tsan_atomic##BITS##_exchange(volatile a##BITS* p, a##BITS v, int) {     \
    typedef a##BITS T;                                                                   \
    NOTE(gpuexec::kWrite);                                                               \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                  \
  }                                                                                      \
  HOOK a##BITS __tsan_atomic##BITS##_load(const volatile a##BITS* p, int) {              \
    typedef a##BITS T;                                                                   \
    NOTE(gpuexec::kRead);                                                                \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                         \
  }                                                                                      \
  HOOK void __tsan_atomic##BITS##_store(volatile a##BITS* p, a##BITS v, int) {           \
    typedef a##BITS T;                                                                   \
    NOTE(gpuexec::kWrite);                                                               \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                            \
  }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long)

HOOK void __tsan_atomic_thread_fence(int) { gpuexec_fence(); }
HOOK void __tsan_atomic_signal_fence(int) {}

// The records of the undefined-behaviour sanitizer, as GCC and clang lay them out.
namespace {
struct Location {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];  // with quotes
};
struct Mismatch {
  Location location;
  const Type* type;
  unsigned char log_alignment, check_kind;
};
struct OutOfBounds {
  Location location;
  const Type *array, *index;
};
}  // namespace

HOOK void __ubsan_handle_type_mismatch_v1(Mismatch* data, uintptr_t) {
  gpuexec_misuse(gpuexec::kMisaligned, data->location.file, int(data->location.line), data->type->name);
}
HOOK void __ubsan_handle_type_mismatch_v1_abort(Mismatch* data, uintptr_t) {
  gpuexec_misuse(gpuexec::kMisaligned, data->location.file, int(data->location.line), data->type->name);
}
HOOK void __ubsan_handle_out_of_bounds(OutOfBounds* data, uintptr_t) {
  gpuexec_misuse(gpuexec::kOutOfBounds, data->location.file, int(data->location.line), data->array->name);
}
HOOK void __ubsan_handle_out_of_bounds_abort(OutOfBounds* data, uintptr_t) {
  gpuexec_misuse(gpuexec::kOutOfBounds, data->location.file, int(data->location.line), data->array->name);
}
