// Table of a module's kernel instances, by which the host finds and calls them.
#pragma once
#include <stddef.h>

#include "half.h"

namespace gpuexec {

struct Row {
  void (*run)(void** arguments);
  const Parameter* parameters;
  int count;
};

// Spelled with compiler built-ins: <type_traits> would cost more time to parse than most kernels.
template <class T>
struct Kind {
  static constexpr char value = __is_enum(T) ? 'i' : 's';
};
template <class T>
struct Kind<T*> {
  static constexpr char value = 'P';
};
template <class T>
struct Kind<const T> : Kind<T> {};
#define GPUEXEC_KIND(T, LETTER)              \
  template <>                                \
  struct Kind<T> {                           \
    static constexpr char value = (LETTER);  \
  };
GPUEXEC_KIND(bool, 'b')
GPUEXEC_KIND(float, 'f')
GPUEXEC_KIND(double, 'f')
GPUEXEC_KIND(__half, 'f')
GPUEXEC_KIND(__nv_bfloat16, 'f')
GPUEXEC_KIND(char, char(-1) < 0 ? 'i' : 'u')
GPUEXEC_KIND(signed char, 'i')
GPUEXEC_KIND(short, 'i')
GPUEXEC_KIND(int, 'i')
GPUEXEC_KIND(long, 'i')
GPUEXEC_KIND(long long, 'i')
GPUEXEC_KIND(unsigned char, 'u')
GPUEXEC_KIND(unsigned short, 'u')
GPUEXEC_KIND(unsigned, 'u')
GPUEXEC_KIND(unsigned long, 'u')
GPUEXEC_KIND(unsigned long long, 'u')
#undef GPUEXEC_KIND

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <class... A, size_t... I>
static inline __attribute__((always_inline)) void call(void (*kernel)(A...), void** arguments, Indices<I...>) {
  kernel(*static_cast<const A*>(arguments[I])...);
}

template <auto kKernel>
struct Invoke;
template <class... A, void (*kKernel)(A...)>
struct Invoke<kKernel> {
  static constexpr Parameter parameters[] = {{Kind<A>::value, sizeof(A)}..., {0, 0}};
  static void run(void** arguments) { call(kKernel, arguments, typename MakeIndices<sizeof...(A)>::type()); }
  static constexpr Row row = {run, parameters, sizeof...(A)};
};

}  // namespace gpuexec
