// Device memory, and copies of launch arguments.
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
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
// What a kernel reaches by an index of 32 bits from a block's end faults, and is nobody else's memory. Addresses cost
// nothing; where the process may not have as many as it likes (ulimit -v), they are left to others, such as the stacks
// of threads, and what lies near faults still.
constexpr size_t kFar = size_t(8) << 30;
constexpr unsigned char kUnwritten = 0xcd;
constexpr size_t kRemembered = 1024;  // released blocks whose addresses stay unused

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// A guard of a page, the pages with the block at their very end, and the guard behind.
struct Mapping {
  char* start;
  size_t pages_nbytes, behind_nbytes;
  size_t block_nbytes;

  static Mapping of(size_t nbytes, size_t behind_nbytes) {
    return {nullptr, round_up(used(nbytes), kPage), behind_nbytes, nbytes};
  }
  static size_t used(size_t nbytes) { return round_up(nbytes + !nbytes, kAlignment); }
  size_t nbytes() const { return kPage + pages_nbytes + behind_nbytes; }
  char* pages() const { return start + kPage; }
  char* block() const { return pages() + pages_nbytes - used(block_nbytes); }
};

bool find_addresses(Mapping& mapping) {
  void* start =
      mmap(nullptr, mapping.nbytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mapping.start = start == MAP_FAILED ? nullptr : static_cast<char*>(start);
  return mapping.start;
}

size_t guard_nbytes() {
  rlimit limit;
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? kPage : kFar;
}

std::mutex blocks_mutex;
std::map<uintptr_t, Mapping>& alive() {
  static auto* all = new std::map<uintptr_t, Mapping>;
  return *all;
}
std::deque<Mapping>& released() {
  static auto* all = new std::deque<Mapping>;
  return *all;
}

struct ObjectSearch {
  uintptr_t address;
  LoadedObject found;
};

int visit_object(dl_phdr_info* info, size_t, void* data) {
  ObjectSearch& search = *static_cast<ObjectSearch*>(data);
  uintptr_t first = ~uintptr_t(0), end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    first = std::min(first, uintptr_t(info->dlpi_addr + header.p_vaddr));
    end = std::max(end, uintptr_t(info->dlpi_addr + header.p_vaddr + header.p_memsz));
  }
  if (search.address < first || search.address >= end) return 0;
  search.found = {first, end};
  return 1;
}

}  // namespace

MemoryBlock find_memory(uintptr_t address) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  // Guards keep blocks so far apart that at most one is near.
  auto after = alive().upper_bound(address);
  if (after != alive().end() && after->first - address < kPage) {
    return {MemoryState::kAlive, after->first, after->second.block_nbytes};
  }
  if (after != alive().begin() && address < (--after)->first + after->second.block_nbytes + kPage) {
    return {MemoryState::kAlive, after->first, after->second.block_nbytes};
  }
  for (const Mapping& mapping : released()) {
    if (address - uintptr_t(mapping.start) < 2 * kPage + mapping.pages_nbytes) {
      return {MemoryState::kFreed, uintptr_t(mapping.block()), mapping.block_nbytes};
    }
  }
  return {MemoryState::kNone, 0, 0};
}

LoadedObject find_object(uintptr_t address) {
  ObjectSearch search{address, {0, 0}};
  dl_iterate_phdr(visit_object, &search);
  return search.found;
}

}  // namespace gpuexec

using namespace gpuexec;

void* gpuexec_allocate(size_t nbytes) {
  Mapping mapping = Mapping::of(nbytes, guard_nbytes());
  if (!find_addresses(mapping)) {
    mapping.behind_nbytes = kPage;
    if (!find_addresses(mapping)) return nullptr;
  }
  if (mprotect(mapping.pages(), mapping.pages_nbytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping.start, mapping.nbytes());
    return nullptr;
  }
  char* address = mapping.block();
  memset(address, kUnwritten, Mapping::used(nbytes));
  std::lock_guard<std::mutex> lock(blocks_mutex);
  alive().emplace(uintptr_t(address), mapping);
  return address;
}

void gpuexec_release(void* address) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  auto found = alive().find(uintptr_t(address));
  Mapping mapping = found->second;
  alive().erase(found);
  madvise(mapping.pages(), mapping.pages_nbytes, MADV_DONTNEED);  // the bytes go back to the host now
  mprotect(mapping.pages(), mapping.pages_nbytes, PROT_NONE);
  released().push_back(mapping);
  if (released().size() > kRemembered) {
    munmap(released().front().start, released().front().nbytes());
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
