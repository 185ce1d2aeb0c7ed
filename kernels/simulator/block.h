// Execution of one block of CUDA threads at a time on the calling OS thread.
#pragma once
#include <csetjmp>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "count.h"
#include "fibers.h"
#include "runtime.h"

namespace gpuexec {

// The most shared memory of any architecture, and room for red zones. Pages are touched only when used.
constexpr size_t kArenaBytes = 16 << 20;

enum class State : uint8_t { kReady, kRunning, kAtBarrier, kAtMeeting, kAtGridBarrier, kAtDependency, kExited };

constexpr size_t kMostCopied = 16;  // bytes of an asynchronous copy

struct PendingCopy {
  char* destination;
  const void* source;  // null where it was read at once, into `content`
  unsigned nbytes, source_nbytes;
  int group;
  const void* place;
  char content[kMostCopied];
};

struct Thread {
  State state = State::kExited;
  uint3 index{};
  unsigned linear = 0;
  Fiber* fiber = nullptr;
  Site site{};         // of the operation it waits in
  int barrier = 0;     // the barrier it waits at
  unsigned mask = 0;   // the mask of the warp operation it waits in
  bool has_waited = false;  // for predecessors, or met a thread that has
  int copy_group = 0;  // asynchronous copies committed so far
  std::vector<PendingCopy> copies;
};

// Lanes of one mask on their way through one warp operation after the other.
struct Rendezvous {
  unsigned mask = 0;
  unsigned arrived = 0;  // lanes waiting for the others
  unsigned unread = 0;   // lanes that were set free and have not looked at the slots yet
  unsigned phase = 0;    // a fast lane may come to the next operation while a slow one still reads: two sets of slots
  int operation = 0;
  Site site{};
};

// A lane is under way in at most one rendezvous, so there are never more than lanes.
struct Warp {
  unsigned exists = 0, live = 0;
  unsigned waiting = 0;  // lanes in any of the rendezvous
  int used = 0;          // rendezvous that have had a mask in this block
  Rendezvous rendezvous[kWarpSize];
  alignas(16) unsigned char slots[kWarpSize][2][kWarpSize][kSlotBytes];
};

struct Barrier {
  unsigned threads = 0;  // 0: all that have not exited
  int predicates = 0, result = 0;
  Site site{};
  std::vector<unsigned> waiting;
};

struct SharedVariable {
  const void* key;
  size_t offset, nbytes;
  const char* name;
};

class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;

  // `checker` is null but in check mode, `counter` but in count mode.
  void begin_launch(const Launch& launch, Checker* checker, Counter* counter);
  // Runs a block to its end, or until all of its threads wait at a barrier of the grid. Returns false when the kernel
  // broke a rule; `message` says which.
  bool run_block(uint64_t block);
  // Runs a block on that waited at a barrier of the grid, which all of the grid have come to.
  bool pass_grid_barrier();
  bool is_at_grid_barrier() const { return !at_grid_barrier_.empty(); }
  // Lets the next block begin before the launches that its own depends on are complete: run_block returns once nothing but
  // waits for them is left to do.
  void begin_early() { is_early_ = true; }
  bool is_waiting_for_predecessors() const { return !waiting_for_predecessors_.empty(); }
  // Runs on a block that waits for predecessors, which are complete now.
  bool pass_predecessors();
  // Says that other blocks have ended and will not come to the barrier of the grid.
  void explain_grid_deadlock();
  // Says that memory of a dependent launch was written before its wait.
  void explain_early_write();
  void end_launch();

  // Called on fibers, by the C functions of runtime.h.
  int wait_at_barrier(int id, unsigned threads, int predicate, Site site);
  void wait_at_grid_barrier(Site site);
  void wait_for_blocks(Site site);
  void wait_for_predecessors(Site site);
  Meeting meet(unsigned mask, const void* value, size_t nbytes, int operation, Site site);
  void* shared_variable(const void* key, size_t nbytes, size_t alignment, const char* name);
  bool is_shared(uintptr_t address) const { return address - uintptr_t(arena_) < kArenaBytes; }
  [[noreturn]] void fail(const std::string& reason, Site site, FindingKind kind = kFault, const Thread* other = nullptr);
  void run_fiber();
  Thread& self() { return *self_; }
  void begin_copy(void* destination, const void* source, size_t nbytes, size_t source_nbytes, const void* place);
  void finish_copies(int before_group);
  void note_access(const void* address, size_t nbytes, unsigned flags, const void* place);
  void note_fence();
  // Whether it is memory of the thread itself: what a thread does there says nothing of a kernel, and is most of what it does.
  bool is_on_stack(const void* address) const { return uintptr_t(address) - own_stack_ < kStackBytes; }
  bool is_checking() const { return checker_ != nullptr && self_ != nullptr; }
  void count_access(const void* address, size_t nbytes, unsigned flags, const void* place);
  void count_operations(int unit, unsigned operations, const void* place);
  bool is_counting() const { return counter_ != nullptr && self_ != nullptr; }

  // Called by the signal handler: whether a CUDA thread is running, and where to jump to abandon the launch.
  bool is_inside_kernel() const { return self_ != nullptr; }
  void report_fault(int signal, bool has_address, void* address, const void* place);
  sigjmp_buf escape;

  std::string message;
  uintptr_t fault_address = 0;
  uint64_t switches = 0;
  size_t shared_bytes = 0;

 private:
  void abandon_fibers();
  bool advance();
  void enter();
  [[noreturn]] void abandon_launch();
  void report(FindingKind kind, const std::string& reason, Site site, unsigned thread, const Thread* other = nullptr);
  void run_on(std::vector<unsigned>& waiting);
  void share_wait(const std::vector<unsigned>& threads);
  bool check_waited();
  bool is_before_wait(uintptr_t address, size_t nbytes, unsigned flags) const;
  void order_together(const Barrier& barrier);
  void count_requests(const Barrier& barrier);
  void count_requests();
  void count_made(uintptr_t address, size_t nbytes, unsigned flags, const void* place, bool is_made);
  bool is_own(uintptr_t address) const;
  void reset_block(uint64_t block);
  void make_current(Thread& thread);
  Fiber* take_fiber();
  Thread& take_ready();
  bool prefers_ready();
  // In count mode threads start in random order, and then take equal turns, for lanes to stay together.
  bool has_random_turns() const { return launch_->order == kRandom && !counter_; }
  void wake(unsigned linear);
  void give_way();
  void leave_fiber();
  void exit_thread();
  void release_barrier(Barrier& barrier);
  Rendezvous& find_rendezvous(Warp& warp, unsigned mask);
  bool check_red_zones();
  bool explain_deadlock();
  std::string describe(const Thread& thread) const;
  uint64_t random();

  const Launch* launch_ = nullptr;
  Checker* checker_ = nullptr;
  std::unique_ptr<CheckedBlock> checked_;
  Counter* counter_ = nullptr;
  CountedBlock counted_;
  uint64_t block_ = 0;
  void* dynamic_shared_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<unsigned> order_;  // in which fresh threads start
  size_t started_ = 0;
  std::vector<unsigned> ready_;
  size_t ready_head_ = 0;
  unsigned live_ = 0;
  Thread* self_ = nullptr;
  uintptr_t own_stack_ = 0, own_warp_ = 0;  // of the thread that runs
  bool failed_ = false;
  Context main_{}, abandoned_{};
  Fiber* starting_ = nullptr;
  std::vector<Fiber*> fibers_, idle_;
  std::vector<Barrier> barriers_;
  std::vector<unsigned> at_grid_barrier_, waiting_for_predecessors_;
  bool is_early_ = false;      // launches that this one depends on are not complete
  bool has_waited_ = false;    // some thread of the block has waited for them
  uint64_t polls_ = 0;         // of other blocks, by this one
  char* arena_ = nullptr;
  size_t arena_top_ = 0, shared_claimed_ = 0;
  std::vector<SharedVariable> shared_;
  unsigned block_dim_[3] = {0, 0, 0};
  uint64_t random_ = 1;
};

// The runner of the launch under way on this OS thread, or null. Every access of check mode asks for it: by an offset, as it is
// found here, and not by a call.
extern __thread BlockRunner* current_runner __attribute__((tls_model("initial-exec")));

}  // namespace gpuexec
