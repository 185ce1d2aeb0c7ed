// Check mode: checks of every load and store of a kernel for bounds and races.
// Each access is held against the memory it may touch and against unordered accesses of other CUDA threads.
//
// A byte remembers its last plain write, and every read and atomic access since that a later access could conflict with.
// Order comes from barriers of the block, __syncwarp (its mask alone), barriers of the grid, and a fence before an atomic
// whose location another thread then accesses atomically. Warp shuffles and votes order nothing, as on the device.
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "order.h"

namespace gpuexec {

// All accesses of a grid. Blocks may run one after the other or, in a cooperative launch, by turns on one OS thread.
class Checker {
 public:
  explicit Checker(Launch& launch);
  ~Checker();
  Checker(const Checker&) = delete;

  // Memory that is the simulator's own.
  void ignore(const void* first, size_t nbytes) { ignored_.push_back({uintptr_t(first), uintptr_t(first) + nbytes}); }
  // Returns false when the access can't be let happen: the launch must be abandoned.
  bool access(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags, const void* pc);
  void pass_grid_barrier() { generation_++; }
  void copy_begun(CheckedBlock& block, unsigned thread, uintptr_t destination, size_t nbytes, const void* pc);
  void copy_done(CheckedBlock& block, unsigned thread, uintptr_t destination, size_t nbytes, const void* pc);
  // Adds a finding; null where there is one of the same kind at the same places, or no room.
  Finding* report(FindingKind kind, const CheckedBlock& block, unsigned thread);
  void report_fault(FindingKind kind, const CheckedBlock& block, unsigned thread, const void* pc, const char* reason,
                    unsigned flags = 0);

 private:
  struct Place {  // bytes a kernel may touch
    uintptr_t first, end;
    bool is_tracked, is_written;  // what nobody writes in this launch needs no tracking
  };
  struct Span {
    uintptr_t first, end;
  };

  const Place* find_place(uintptr_t address, size_t nbytes, bool is_write);
  bool refuse(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags, const void* pc);
  Cell* cells_at(uintptr_t address);
  static Cell* copied_cell(CheckedBlock& block, uintptr_t address);
  bool is_ordered(const CheckedBlock& block, unsigned thread, const Access& before) const {
    return before.generation != generation_ || block.is_ordered(thread, before);
  }
  void check_initialised(CheckedBlock& block, unsigned thread, uintptr_t address, size_t nbytes, unsigned flags,
                         const void* pc);
  void touch(CheckedBlock& block, unsigned thread, Cell& cell, unsigned flags, const void* pc, uintptr_t address);
  void conflict(FindingKind kind, CheckedBlock& block, unsigned thread, const Access& other, unsigned flags,
                const void* pc, uintptr_t address);
  void synchronize_by(CheckedBlock& block, unsigned thread, uintptr_t address, bool is_write);
  uint32_t note(const CheckedBlock& block, unsigned thread, unsigned flags, const void* pc, uint32_t parent);
  uint32_t note_since(const CheckedBlock& block, unsigned thread, unsigned flags, const void* pc, uint32_t chain);
  uint32_t offset_of(const void* pc) const { return uint32_t(uintptr_t(pc) - module_); }
  Finding* report_at(FindingKind kind, const CheckedBlock& block, unsigned thread, unsigned flags, const void* pc,
                     const Access* other = nullptr);
  Finding* add(const Finding& finding);
  void describe_bytes(Finding& finding, const CheckedBlock& block, uintptr_t address);

  Launch& launch_;
  uintptr_t module_ = 0, module_end_ = 0;
  uint32_t generation_ = 0;
  bool is_full_ = false;
  std::vector<Access> accesses_;  // the first stands for none
  std::vector<uint32_t> recent_;  // accesses just made, by hash: a loop makes the same one again and again
  std::vector<Place> places_;
  size_t last_place_ = 0;
  std::vector<Span> ignored_;
  std::unordered_map<uintptr_t, Cell*> pages_;
  uintptr_t last_page_ = 0;
  Cell* last_cells_ = nullptr;
  std::unordered_map<uintptr_t, std::shared_ptr<Knowledge>> released_;  // by address of an atomic
};

}  // namespace gpuexec
