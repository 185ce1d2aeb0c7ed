// How the host finds and calls the kernels of a module: one row per instantiation, with its parameters as C++ knows them.
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
template <class T> struct Kind { static constexpr char value = __is_enum(T) ? 'i' : 's'; };
template <class T> struct Kind<T*> { static constexpr char value = 'P'; };
template <class T> struct Kind<const T> : Kind<T> {};
template <> struct Kind<bool> { static constexpr char value = 'b'; };
template <> struct Kind<float> { static constexpr char value = 'f'; };
template <> struct Kind<double> { static constexpr char value = 'f'; };
template <> struct Kind<__half> { static constexpr char value = 'f'; };
template <> struct Kind<__nv_bfloat16> { static constexpr char value = 'f'; };
template <> struct Kind<char> { static constexpr char value = char(-1) < 0 ? 'i' : 'u'; };
template <> struct Kind<signed char> { static constexpr char value = 'i'; };
template <> struct Kind<short> { static constexpr char value = 'i'; };
template <> struct Kind<int> { static constexpr char value = 'i'; };
template <> struct Kind<long> { static constexpr char value = 'i'; };
template <> struct Kind<long long> { static constexpr char value = 'i'; };
template <> struct Kind<unsigned char> { static constexpr char value = 'u'; };
template <> struct Kind<unsigned short> { static constexpr char value = 'u'; };
template <> struct Kind<unsigned> { static constexpr char value = 'u'; };
template <> struct Kind<unsigned long> { static constexpr char value = 'u'; };
template <> struct Kind<unsigned long long> { static constexpr char value = 'u'; };

template <size_t... I> struct Indices {};
template <size_t N, size_t... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I> struct MakeIndices<0, I...> { using type = Indices<I...>; };

template <class... A, size_t... I>
static inline __attribute__((always_inline)) void call(void (*kernel)(A...), void** arguments, Indices<I...>) {
  kernel(*static_cast<const A*>(arguments[I])...);
}

template <auto kKernel> struct Invoke;
template <class... A, void (*kKernel)(A...)>
struct Invoke<kKernel> {
  static constexpr Parameter parameters[] = {{Kind<A>::value, sizeof(A)}..., {0, 0}};
  static void run(void** arguments) { call(kKernel, arguments, typename MakeIndices<sizeof...(A)>::type()); }
  static constexpr Row row = {run, parameters, sizeof...(A)};
};

}  // namespace gpuexec
