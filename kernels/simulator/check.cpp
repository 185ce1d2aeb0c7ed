// Check mode: bounds, alignment and races of the accesses of a kernel.
#include "check.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "memory.h"

namespace gpuexec {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kRecent = 1024;         // a power of two
constexpr size_t kMaxAccesses = 48u << 20;  // 1.5 GiB of them
constexpr int kLookBack = 48;            // accesses of a chain searched for an equal one

}  // namespace

Checker::Checker(Launch& launch) : launch_(launch), accesses_(1), recent_(kRecent) {
  const LoadedObject module = find_object(reinterpret_cast<uintptr_t>(launch.entry));
  module_ = module.first;
  module_end_ = module.end;
  for (int i = 0; i < launch.range_count; i++) {
    const Range& range = launch.ranges[i];
    if (range.first < range.end) {
      places_.push_back({range.first, range.end, range.is_written != 0, range.is_written != 0});
    }
  }
  // A range that another argument writes changes under those who read it.
  for (Place& place : places_) {
    for (const Place& other : places_) {
      if (other.is_written && other.first < place.end && place.first < other.end) place.is_tracked = true;
    }
  }
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.first < b.first; });
  places_.push_back({module.first, module.end, true, true});
  ignore(launch.arguments, size_t(launch.parameter_count) * sizeof(void*));
  for (int i = 0; i < launch.parameter_count; i++) ignore(launch.arguments[i], launch.parameters[i].nbytes);
}

Checker::~Checker() {
  for (auto& [page, cells] : pages_) munmap(cells, kPageBytes * sizeof(Cell));
}

const Checker::Place* Checker::find_place(uintptr_t address, size_t nbytes, bool is_write) {
  const Place* found = nullptr;
  auto holds = [&](const Place& place) { return address >= place.first && address + nbytes <= place.end; };
  if (last_place_ < places_.size() && holds(places_[last_place_]) && (places_[last_place_].is_written || !is_write)) {
    return &places_[last_place_];
  }
  for (size_t i = 0; i < places_.size(); i++) {
    if (!holds(places_[i])) continue;
    found = &places_[i];
    last_place_ = i;
    if (found->is_written || !is_write) break;
  }
  if (found || launch_.ranges) return found;
  MemoryBlock block = find_memory(address);
  if (block.state != MemoryState::kAlive || address + nbytes > block.first + block.nbytes) return nullptr;
  places_.push_back({block.first, block.first + block.nbytes, true, true});
  last_place_ = places_.size() - 1;
  return &places_.back();
}

Cell* Checker::cells_at(uintptr_t address) {
  uintptr_t page = address / kPageBytes;
  if (page != last_page_) {
    Cell*& cells = pages_[page];
    if (!cells) cells = static_cast<Cell*>(reserve(kPageBytes * sizeof(Cell)));
    if (!cells) return nullptr;
    last_page_ = page;
    last_cells_ = cells;
  }
  return last_cells_ + address % kPageBytes;
}

bool Checker::access(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags,
                     const void* pc) {
  bool is_shared = address >= block.arena && address < block.arena_end;
  bool is_write = flags & kWrite;
  if (is_shared) {
    if (!block.holds(address, nbytes)) return refuse(block, thread, address, nbytes, flags, pc);
  } else {
    for (auto [first, end] : ignored_) {
      if (address >= first && address < end) return true;
    }
    const Place* place = find_place(address, nbytes, is_write);
    if (!place || (is_write && !place->is_written)) return refuse(block, thread, address, nbytes, flags, pc);
    if (!place->is_tracked) return true;
  }
  if (flags & kAtomic) synchronize_by(block, thread, address, is_write);
  if (is_shared && !(is_write && !(flags & kAtomic))) check_initialised(block, thread, address, nbytes, flags, pc);
  Cell before{~0u, ~0u}, after{};
  for (size_t i = 0; i < nbytes; i++) {
    Cell* cell = is_shared ? block.cells + (address + i - block.arena) : cells_at(address + i);
    if (!cell) return true;
    if (*cell == before) {  // neighbouring bytes of the same history get the same new one
      *cell = after;
      continue;
    }
    before = *cell;
    touch(block, thread, *cell, flags, pc, address + i);
    after = *cell;
  }
  if (accesses_.size() > kMaxAccesses && !is_full_) {
    is_full_ = true;
    if (Finding* finding = report(kFault, block, thread)) {
      snprintf(finding->detail, sizeof finding->detail,
               "the launch makes more accesses than check mode remembers; check smaller shapes");
    }
  }
  return !is_full_;
}

void Checker::touch(CheckedBlock& block, unsigned thread, Cell& cell, unsigned flags, const void* pc,
                    uintptr_t address) {
  const bool is_atomic = flags & kAtomic, is_write = flags & kWrite;
  if (cell.write) {
    const Access& write = accesses_[cell.write];
    if (write.flags & kPending) {
      conflict(kMissingWait, block, thread, write, flags, pc, address);
    } else if (!is_ordered(block, thread, write)) {
      conflict(kRace, block, thread, write, flags, pc, address);
    }
  }
  unsigned wanted = is_write ? kPlainRead | kAtomic : kWrite;
  if (is_atomic) wanted = is_write ? unsigned(kPlainRead) : 0;
  for (uint32_t id = cell.since; id && (accesses_[id].chain_flags & wanted); id = accesses_[id].parent) {
    const Access& other = accesses_[id];
    if ((other.flags & wanted) && !is_ordered(block, thread, other)) {
      conflict(kRace, block, thread, other, flags, pc, address);
      break;
    }
  }
  if (is_write && !is_atomic) {
    cell = {note(block, thread, flags, pc, 0), 0};
  } else {
    cell.since = note_since(block, thread, is_atomic ? flags : kPlainRead, pc, cell.since);
  }
}

uint32_t Checker::note(const CheckedBlock& block, unsigned thread, unsigned flags, const void* pc, uint32_t parent) {
  Access access{block.number, thread, block.epoch, block.threads[thread].clock, generation_, offset_of(pc), parent,
                uint8_t(flags), uint8_t(flags | (parent ? accesses_[parent].chain_flags : 0))};
  uint64_t hash = (uint64_t(access.place) << 32 ^ parent) * 0x9e3779b97f4a7c15ull ^ access.thread * 0xd1342543de82ef95ull;
  uint32_t& recent = recent_[(hash >> 40) % kRecent];
  if (recent) {
    const Access& old = accesses_[recent];
    if (old.block == access.block && old.thread == access.thread && old.epoch == access.epoch &&
        old.clock == access.clock && old.generation == generation_ && old.place == access.place &&
        old.parent == parent && old.flags == access.flags) {
      return recent;
    }
  }
  accesses_.push_back(access);
  return recent = uint32_t(accesses_.size() - 1);
}

// Puts an access before a chain, without those that say nothing more: of a class, what happened before this one is
// before all that is after it.
uint32_t Checker::note_since(const CheckedBlock& block, unsigned thread, unsigned flags, const void* pc,
                             uint32_t chain) {
  uint32_t id = chain;
  for (int i = 0; id && i < kLookBack; i++, id = accesses_[id].parent) {
    const Access& old = accesses_[id];
    if (old.thread == thread && old.block == block.number && old.flags == flags && old.epoch == block.epoch &&
        old.clock == block.threads[thread].clock && old.generation == generation_) {
      return chain;
    }
  }
  while (chain && accesses_[chain].flags == flags && is_ordered(block, thread, accesses_[chain])) {
    chain = accesses_[chain].parent;
  }
  return note(block, thread, flags, pc, chain);
}

// A struct may be copied whole whose padding nobody wrote: of more than 8 bytes at once, half may be missing.
void Checker::check_initialised(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags,
                                const void* pc) {
  Cell* cells = block.cells + (address - block.arena);
  size_t missing = 0, first = nbytes;
  for (size_t i = 0; i < nbytes; i++) {
    if (cells[i].write) continue;
    missing++;
    first = std::min(first, i);
  }
  if (!missing || (nbytes > 8 && 2 * missing <= nbytes)) return;
  if (Finding* finding = report_at(kUninitialised, block, thread, flags, pc)) {
    describe_bytes(*finding, block, address + first);
  }
}

void Checker::conflict(FindingKind kind, CheckedBlock& block, unsigned thread, const Access& other, unsigned flags,
                       const void* pc, uintptr_t address) {
  if (Finding* finding = report_at(kind, block, thread, flags, pc, &other)) describe_bytes(*finding, block, address);
}

// An access to no memory of the kernel's.
bool Checker::refuse(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags,
                     const void* pc) {
  MemoryBlock memory = find_memory(address);
  FindingKind kind = memory.state == MemoryState::kFreed ? kUseAfterFree : kOutOfBounds;
  if (Finding* finding = report_at(kind, block, thread, flags, pc)) describe_bytes(*finding, block, address);
  // The access itself can't be prevented, but where the memory is the device's it harms nobody else.
  return memory.state == MemoryState::kAlive && address + nbytes <= memory.first + memory.nbytes;
}

void Checker::synchronize_by(CheckedBlock& block, unsigned thread, uintptr_t address, bool is_write) {
  CheckedThread& self = block.threads[thread];
  auto found = released_.find(address);
  if (found != released_.end()) join(self.learned, found->second);
  if (!is_write || (!self.released && !block.released)) return;
  std::shared_ptr<Knowledge>& released = released_[address];
  join(released, self.released);
  join(released, block.released);
}

void Checker::copy_begun(CheckedBlock& block, unsigned thread, uintptr_t destination, size_t nbytes, const void* pc) {
  for (size_t i = 0; i < nbytes; i++) {
    if (Cell* cell = copied_cell(block, destination + i)) {
      touch(block, thread, *cell, kWrite | kPending, pc, destination + i);
    }
  }
}

void Checker::copy_done(CheckedBlock& block, unsigned thread, uintptr_t destination, size_t nbytes, const void* pc) {
  for (size_t i = 0; i < nbytes; i++) {
    if (Cell* cell = copied_cell(block, destination + i)) *cell = {note(block, thread, kWrite, pc, 0), 0};
  }
}

Cell* Checker::copied_cell(CheckedBlock& block, uintptr_t address) {
  return block.holds(address, 1) ? block.cells + (address - block.arena) : nullptr;
}

}  // namespace gpuexec
