// Findings of check mode.
#include <cstdio>

#include "check.h"
#include "memory.h"

namespace gpuexec {

namespace {
constexpr uintptr_t kNearNullBytes = 4096;
}

Finding* Checker::report(FindingKind kind, const CheckedBlock& block, unsigned thread) {
  Finding finding{};
  finding.kind = kind;
  finding.block = block.number;
  finding.thread = thread;
  return add(finding);
}

void Checker::report_fault(FindingKind kind, const CheckedBlock& block, unsigned thread, const void* pc,
                           const char* reason, unsigned flags) {
  const bool is_own = uintptr_t(pc) >= module_ && uintptr_t(pc) < module_end_;
  const void* after = is_own ? static_cast<const char*>(pc) + 1 : reinterpret_cast<const void*>(module_);
  if (Finding* finding = report_at(kind, block, thread, flags, after)) {
    snprintf(finding->detail, sizeof finding->detail, "%s", reason);
  }
}

Finding* Checker::report_at(FindingKind kind, const CheckedBlock& block, unsigned thread, unsigned flags,
                            const void* pc, const Access* other) {
  Finding finding{};
  finding.kind = kind;
  finding.block = block.number;
  finding.thread = thread;
  finding.flags = flags;
  finding.place = offset_of(pc);
  if (other) {
    finding.has_other = 1;
    finding.other_block = other->block;
    finding.other_thread = other->thread;
    finding.other_flags = other->flags;
    finding.other_place = other->place;
  }
  return add(finding);
}

Finding* Checker::add(const Finding& finding) {
  for (int i = 0; i < launch_.finding_count; i++) {
    const Finding& old = launch_.findings[i];
    if (old.kind == finding.kind && old.place == finding.place && old.other_place == finding.other_place &&
        finding.place) {
      return nullptr;
    }
  }
  if (launch_.finding_count == launch_.finding_capacity) {
    is_full_ = true;
    return nullptr;
  }
  return &(launch_.findings[launch_.finding_count++] = finding);
}

// Which bytes of what: a shared variable, an argument, an allocation.
void Checker::describe_bytes(Finding& finding, const CheckedBlock& block, uintptr_t address) {
  char* text = finding.detail;
  const size_t room = sizeof finding.detail;
  if (address >= block.arena && address < block.arena_end) {
    const CheckedVariable* near = nullptr;
    for (const CheckedVariable& variable : block.variables) {
      if (variable.first <= address && (!near || variable.first > near->first)) near = &variable;
    }
    if (near) snprintf(text, room, "byte %zu of shared '%s' of %zu", address - near->first, near->name, near->nbytes);
    return;
  }
  MemoryBlock memory = find_memory(address);
  int argument = -1;
  uintptr_t start = 0, end = 0;
  bool is_inside = false;
  for (int i = 0; i < launch_.parameter_count; i++) {  // the argument that starts closest below, or holds the byte
    if (launch_.parameters[i].kind != 'P') continue;
    uintptr_t pointer = *static_cast<uintptr_t*>(launch_.arguments[i]);
    uintptr_t last = 0;
    for (int k = 0; k < launch_.range_count; k++) {
      const Range& range = launch_.ranges[k];
      if (range.argument != i) continue;
      last = range.end;
      if (range.first < pointer) pointer = range.first;
    }
    const bool is_same_block = pointer >= memory.first && pointer < memory.first + memory.nbytes + !memory.nbytes;
    if (!last && memory.state != MemoryState::kNone && is_same_block) last = memory.first + memory.nbytes;
    if (!last || !pointer) continue;
    const bool holds = pointer <= address && address < last;
    const bool is_near = pointer <= address && (!is_inside || holds);
    if (is_near && (argument < 0 || (holds && !is_inside) || pointer > start)) {
      argument = i;
      start = pointer;
      end = last;
      is_inside = holds;
    }
  }
  const char* freed = memory.state == MemoryState::kFreed ? ", which was freed" : "";
  if (argument >= 0) {
    snprintf(text, room, "byte %zu of argument %d of %zu%s", address - start, argument, end - start, freed);
  } else if (memory.state != MemoryState::kNone) {
    snprintf(text, room, "byte %zd of an allocation of %zu%s", ptrdiff_t(address - memory.first), memory.nbytes, freed);
  } else if (address >= module_ && address < module_end_) {
    snprintf(text, room, "a variable of the module");
  } else if (address < kNearNullBytes) {
    snprintf(text, room, "byte %zu from a null pointer", size_t(address));
  } else {
    snprintf(text, room, "address 0x%zx, in no memory of the kernel", size_t(address));
  }
}

}  // namespace gpuexec
