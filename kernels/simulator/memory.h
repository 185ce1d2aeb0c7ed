// Address lookup in device memory and loaded objects.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpuexec {

enum class MemoryState { kNone, kAlive, kFreed };

struct MemoryBlock {
  MemoryState state;
  uintptr_t first;
  size_t nbytes;
};

// The allocation that holds the address or, where none does, the one whose end or start lies within a page of it (so a
// slight overrun is told from a wild one).
MemoryBlock find_memory(uintptr_t address);

// Addresses [first, end) of a loaded shared object.
struct LoadedObject {
  uintptr_t first, end;
};

// The loaded object that the address belongs to; empty where it is in none.
LoadedObject find_object(uintptr_t address);

}  // namespace gpuexec
