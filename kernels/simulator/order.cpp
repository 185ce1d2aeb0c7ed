// Vector clocks of CUDA threads, and their synchronisation.
#include "order.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace gpuexec {

namespace {
uint64_t key_of(uint32_t block, uint32_t thread) { return uint64_t(block) << 32 | thread; }
}  // namespace

void* reserve(size_t nbytes) {
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool Knowledge::covers(const Access& access) const {
  auto block = blocks.find(access.block);
  if (block != blocks.end() && access.epoch < block->second) return true;
  auto thread = threads.find(key_of(access.block, access.thread));
  return thread != threads.end() && access.clock <= thread->second;
}

void Knowledge::join(const Knowledge& other) {
  for (auto& [block, epoch] : other.blocks) blocks[block] = std::max(blocks[block], epoch);
  for (auto& [thread, clock] : other.threads) threads[thread] = std::max(threads[thread], clock);
}

void join(std::shared_ptr<Knowledge>& into, const std::shared_ptr<Knowledge>& from) {
  if (!from || from == into) return;
  into = into ? std::make_shared<Knowledge>(*into) : std::make_shared<Knowledge>();
  into->join(*from);
}

CheckedBlock::CheckedBlock(const char* arena, size_t arena_bytes)
    : arena(uintptr_t(arena)),
      arena_end(uintptr_t(arena) + arena_bytes),
      cells(static_cast<Cell*>(reserve(arena_bytes * sizeof(Cell)))) {}

CheckedBlock::~CheckedBlock() {
  if (cells) munmap(cells, (arena_end - arena) * sizeof(Cell));
}

void CheckedBlock::begin(uint32_t block, size_t count) {
  number = block;
  epoch = 0;
  for (const CheckedVariable& variable : variables) {
    memset(static_cast<void*>(cells + (variable.first - arena)), 0, variable.nbytes * sizeof(Cell));
  }
  variables.clear();
  threads.assign(count, CheckedThread());
  learned.reset();
  released.reset();
}

void CheckedBlock::claim(const void* variable, size_t nbytes, const char* name) {
  variables.push_back({uintptr_t(variable), nbytes, name});
}

void CheckedBlock::pass_barrier() {
  epoch++;
  for (CheckedThread& thread : threads) {
    thread.seen.clear();  // superseded by the epoch
    join(learned, thread.learned);
    join(released, thread.released);
    thread.learned.reset();
    thread.released.reset();
  }
}

void CheckedBlock::order(const std::vector<unsigned>& together) {
  std::vector<uint32_t> joined(threads.size());
  std::shared_ptr<Knowledge> all;
  for (unsigned each : together) {
    const CheckedThread& thread = threads[each];
    for (size_t i = 0; i < thread.seen.size(); i++) joined[i] = std::max(joined[i], thread.seen[i]);
    joined[each] = std::max(joined[each], thread.clock);
    join(all, thread.learned);
  }
  for (unsigned each : together) {
    threads[each].seen = joined;
    threads[each].clock++;
    threads[each].learned = all;
  }
}

void CheckedBlock::fence(unsigned thread) {
  CheckedThread& self = threads[thread];
  auto snapshot = std::make_shared<Knowledge>();
  if (learned) snapshot->join(*learned);
  if (self.learned) snapshot->join(*self.learned);
  snapshot->blocks[number] = epoch;
  for (size_t i = 0; i < self.seen.size(); i++) {
    if (self.seen[i]) snapshot->threads[key_of(number, uint32_t(i))] = self.seen[i];
  }
  snapshot->threads[key_of(number, thread)] = self.clock++;
  self.released = snapshot;
}

bool CheckedBlock::is_ordered(unsigned thread, const Access& before) const {
  const CheckedThread& self = threads[thread];
  if (before.block == number) {
    if (before.thread == thread || before.epoch < epoch) return true;
    return before.thread < self.seen.size() && self.seen[before.thread] >= before.clock;
  }
  return (learned && learned->covers(before)) || (self.learned && self.learned->covers(before));
}

}  // namespace gpuexec
