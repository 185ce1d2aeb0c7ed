// Count mode's functions of libm: each is counted at the line that calls it, and then computed by libm.
// The linker puts them in the place of those (--wrap). They are linked into each module of count mode, hidden.
#include "operations.h"

#include <math.h>

#include "runtime.h"

#define HOOK extern "C" __attribute__((visibility("hidden"), used))
#define PC __builtin_return_address(0)

HOOK void gpuexec_issue(int unit, unsigned operations) { gpuexec_count_operations(unit, operations, PC); }

#define ONE(NAME, COUNT)                                     \
  extern "C" float __real_##NAME(float);                     \
  HOOK float __wrap_##NAME(float x) {                        \
    gpuexec_count_operations(gpuexec::kMufu, COUNT, PC);     \
    return __real_##NAME(x);                                 \
  }
#define TWO(NAME, COUNT)                                     \
  extern "C" float __real_##NAME(float, float);              \
  HOOK float __wrap_##NAME(float x, float y) {               \
    gpuexec_count_operations(gpuexec::kMufu, COUNT, PC);     \
    return __real_##NAME(x, y);                              \
  }
GPUEXEC_SPECIAL_FUNCTIONS(ONE, TWO)

#define FUSED(T, NAME, UNIT)                                 \
  extern "C" T __real_##NAME(T, T, T);                       \
  HOOK T __wrap_##NAME(T a, T b, T c) {                      \
    gpuexec_count_operations(gpuexec::UNIT, 1, PC);          \
    return __real_##NAME(a, b, c);                           \
  }
GPUEXEC_MULTIPLY_ADDS(FUSED)
