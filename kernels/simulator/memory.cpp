// Device memory, and copies of launch arguments.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "memory.h"
#include "runtime.h"

namespace gpuexec {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kPage = 64 << 10;  // a multiple of every page size in use
constexpr unsigned char kPoison = 0xcd;
constexpr size_t kRemembered = 4096;  // released blocks whose addresses stay unused

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// A guard, the pages with the block at their very end, and a guard.
struct Mapping {
  char* start;
  size_t nbytes;
  uintptr_t block;
  size_t block_nbytes;
};

Mapping mapping_of(void* address, size_t nbytes) {
  size_t used = round_up(nbytes + !nbytes, kAlignment), pages = round_up(used, kPage);
  return {static_cast<char*>(address) + used - pages - kPage, pages + 2 * kPage, uintptr_t(address), nbytes};
}

std::mutex blocks_mutex;
std::map<uintptr_t, size_t>& alive() {
  static auto* all = new std::map<uintptr_t, size_t>;
  return *all;
}
std::deque<Mapping>& released() {
  static auto* all = new std::deque<Mapping>;
  return *all;
}

}  // namespace

MemoryBlock find_memory(uintptr_t address) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  // Guards keep blocks so far apart that at most one is near.
  auto after = alive().upper_bound(address);
  if (after != alive().end() && after->first - address < kPage) {
    return {MemoryState::kAlive, after->first, after->second};
  }
  if (after != alive().begin() && address < (--after)->first + after->second + kPage) {
    return {MemoryState::kAlive, after->first, after->second};
  }
  for (const Mapping& mapping : released()) {
    if (address - uintptr_t(mapping.start) < mapping.nbytes) {
      return {MemoryState::kFreed, mapping.block, mapping.block_nbytes};
    }
  }
  return {MemoryState::kNone, 0, 0};
}

}  // namespace gpuexec

using namespace gpuexec;

void* gpuexec_allocate(size_t nbytes) {
  size_t used = round_up(nbytes + !nbytes, kAlignment), pages = round_up(used, kPage);
  void* start = mmap(nullptr, pages + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(start) + kPage;
  if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(start, pages + 2 * kPage);
    return nullptr;
  }
  char* address = first + pages - used;
  memset(address, kPoison, used);
  std::lock_guard<std::mutex> lock(blocks_mutex);
  alive()[uintptr_t(address)] = nbytes;
  return address;
}

void gpuexec_release(void* address, size_t nbytes) {
  Mapping mapping = mapping_of(address, nbytes);
  madvise(mapping.start, mapping.nbytes, MADV_DONTNEED);  // the bytes go back to the host now
  mprotect(mapping.start, mapping.nbytes, PROT_NONE);
  std::lock_guard<std::mutex> lock(blocks_mutex);
  alive().erase(uintptr_t(address));
  released().push_back(mapping);
  if (released().size() > kRemembered) {
    munmap(released().front().start, released().front().nbytes);
    released().pop_front();
  }
}

void gpuexec_fill(void* address, const void* pattern, size_t pattern_bytes, size_t count) {
  char* to = static_cast<char*>(address);
  if (pattern_bytes == 1) {
    memset(to, *static_cast<const unsigned char*>(pattern), count);
    return;
  }
  for (size_t i = 0; i < count; i++) memcpy(to + i * pattern_bytes, pattern, pattern_bytes);
}

void** gpuexec_copy_arguments(void* const* arguments, const Parameter* parameters, int count) {
  constexpr size_t kStep = 16;  // the strictest alignment a parameter may have
  size_t total = round_up(size_t(count + !count) * sizeof(void*), kStep);
  for (int i = 0; i < count; i++) total += round_up(parameters[i].nbytes, kStep);
  void** copy = static_cast<void**>(malloc(total));
  if (!copy) return nullptr;
  char* end = reinterpret_cast<char*>(copy) + round_up(size_t(count + !count) * sizeof(void*), kStep);
  for (int i = 0; i < count; i++) {
    copy[i] = memcpy(end, arguments[i], parameters[i].nbytes);
    end += round_up(parameters[i].nbytes, kStep);
  }
  return copy;
}

void gpuexec_free_arguments(void** arguments) { free(arguments); }
