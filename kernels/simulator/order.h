// Happens-before order of accesses in check mode.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace gpuexec {

// An access, as later ones compare themselves with it. Those of one byte form a chain through `parent`; 0 ends it.
struct Access {
  uint32_t block, thread, epoch, clock;
  uint32_t generation;  // barriers of the grid before it
  uint32_t place;       // offset of the instruction in its module
  uint32_t parent;
  uint8_t flags, chain_flags;  // its own; those of all of its chain
};

struct Cell {
  uint32_t write, since;  // the last plain write; reads and atomics since, youngest first
  bool operator==(const Cell& other) const { return write == other.write && since == other.since; }
};

// What a CUDA thread has learned of other threads by fences and atomics.
struct Knowledge {
  std::unordered_map<uint32_t, uint32_t> blocks;   // all of a block's epochs before this one
  std::unordered_map<uint64_t, uint32_t> threads;  // a thread's accesses up to this clock
  bool covers(const Access& access) const;
  void join(const Knowledge& other);
};

// Adds what `from` knows to `into`, which others may share and which is copied therefore.
void join(std::shared_ptr<Knowledge>& into, const std::shared_ptr<Knowledge>& from);

// Memory of zeros whose pages are taken when touched; null when there is none.
void* reserve(size_t nbytes);

struct CheckedThread {
  uint32_t clock = 1;                   // ticks when others may learn of its accesses
  std::vector<uint32_t> seen;           // clocks of threads of the block it was ordered after; empty: none
  std::shared_ptr<Knowledge> learned;   // since the last barrier of the block
  std::shared_ptr<Knowledge> released;  // what its last fence lets others learn
};

struct CheckedVariable {
  uintptr_t first;
  size_t nbytes;
  const char* name;
};

// A block while it runs. Its shared memory has a cell per byte.
class CheckedBlock {
 public:
  CheckedBlock(const char* arena, size_t arena_bytes);
  ~CheckedBlock();
  CheckedBlock(const CheckedBlock&) = delete;

  void begin(uint32_t number, size_t threads);
  void claim(const void* variable, size_t nbytes, const char* name);
  void pass_barrier();
  // Orders all accesses so far of the threads named before all later ones of theirs.
  void order(const std::vector<unsigned>& threads);
  // Lets others learn what a thread knows now, by its later atomics.
  void fence(unsigned thread);
  // Whether an access of this launch, since the last barrier of the grid, is before what a thread does now.
  bool is_ordered(unsigned thread, const Access& before) const;

  bool holds(uintptr_t address, size_t nbytes) const {
    for (const CheckedVariable& variable : variables) {
      if (address >= variable.first && address + nbytes <= variable.first + variable.nbytes) return true;
    }
    return false;
  }

  uint32_t number = 0, epoch = 0;
  std::vector<CheckedThread> threads;
  std::vector<CheckedVariable> variables;
  std::shared_ptr<Knowledge> learned, released;  // as a thread's, by all of its threads before the last barrier
  const uintptr_t arena, arena_end;
  Cell* cells = nullptr;  // of the whole arena
};

}  // namespace gpuexec
