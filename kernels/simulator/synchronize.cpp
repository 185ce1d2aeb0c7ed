// Synchronisation in a block: barriers, warp operations, shared memory, asynchronous copies.
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "block.h"

namespace gpuexec {

namespace {

constexpr unsigned char kPoison = 0xff;  // NaN in every float format, -1 in every integer
constexpr unsigned char kRedZone = 0xfb;
constexpr size_t kRedZoneBytes = 64;
constexpr size_t kCheckedGapBytes = 64 << 10;  // between variables in check mode, so that a far overrun hits no other
constexpr uint32_t kTurnAccesses = 64;          // of a thread in count mode before it gives way to the other lanes

constexpr uint64_t kMostPolls = 1 << 24;        // of a block that waits for others: some seconds

// The width of the accesses that the device copies so many bytes by.
size_t access_nbytes(size_t nbytes) {
  size_t width = 16;
  while (nbytes % width) width /= 2;
  return width;
}

bool is_same(const Site& a, const Site& b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

std::string name(const Site& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

}  // namespace

int BlockRunner::wait_at_barrier(int id, unsigned threads, int predicate, Site site) {
  Barrier& barrier = barriers_[id];
  if (barrier.waiting.empty()) {
    barrier.site = site;
    barrier.threads = threads;
  } else if (!is_same(barrier.site, site)) {
    fail("divergent barrier: other threads of the block wait at " + name(barrier.site), site, kDivergentBarrier,
         &threads_[barrier.waiting[0]]);
  }
  barrier.waiting.push_back(self_->linear);
  barrier.predicates += predicate;
  self_->state = State::kAtBarrier;
  self_->barrier = id;
  self_->site = site;
  if (barrier.waiting.size() == (threads ? threads : live_)) {
    order_together(barrier);
    if (launch_->order != kRandom) {  // the last one carries on without a switch
      barrier.waiting.pop_back();
      release_barrier(barrier);
      self_->state = State::kRunning;
      return barrier.result;
    }
    release_barrier(barrier);
  }
  give_way();
  return barrier.result;
}

// A barrier of all orders more cheaply than one of some.
void BlockRunner::order_together(const Barrier& barrier) {
  if (launch_->is_dependent) share_wait(barrier.waiting);
  if (counter_) count_requests(barrier);
  if (!checker_) return;
  if (barrier.waiting.size() == live_) checked_->pass_barrier();
  else checked_->order(barrier.waiting);
}

void BlockRunner::wait_at_grid_barrier(Site site) {
  if (!launch_->is_cooperative) fail("a barrier of the grid needs a cooperative launch", site, kDeadlock);
  self_->state = State::kAtGridBarrier;
  self_->site = site;
  at_grid_barrier_.push_back(self_->linear);
  give_way();
}

// Blocks under way together run on OS threads of their own; in check and count mode there are none.
void BlockRunner::wait_for_blocks(Site site) {
  if (checker_ || counter_ || ++polls_ > kMostPolls) fail("waits for a block that has not begun", site, kDeadlock);
  std::this_thread::yield();
}

void BlockRunner::wait_for_predecessors(Site site) {
  has_waited_ = true;
  if (is_early_) {
    self_->state = State::kAtDependency;
    self_->site = site;
    waiting_for_predecessors_.push_back(self_->linear);
    give_way();
  }
  self_->has_waited = true;
}

// Threads that meet one which has waited for predecessors come after these, too.
void BlockRunner::share_wait(const std::vector<unsigned>& threads) {
  bool has_waited = false;
  for (unsigned linear : threads) has_waited |= threads_[linear].has_waited;
  if (!has_waited) return;
  for (unsigned linear : threads) threads_[linear].has_waited = true;
}

// What comes after a dependent launch waits for it alone: if it did not wait itself, it would be no proof that those before
// it are complete.
bool BlockRunner::check_waited() {
  if (!launch_->is_dependent || has_waited_) return true;
  const uint3& block = gpuexec_position.block;
  const char* reason = "a dependent launch must wait for the launches before it, and no thread of the block did";
  char text[200];
  snprintf(text, sizeof text, "%s (block %u,%u,%u)", reason, block.x, block.y, block.z);
  message = text;
  report(kMissingWait, reason, Site{nullptr, 0}, 0);
  return false;
}

void BlockRunner::release_barrier(Barrier& barrier) {
  barrier.result = barrier.predicates;
  barrier.predicates = 0;
  for (unsigned linear : barrier.waiting) wake(linear);
  barrier.waiting.clear();
}

Meeting BlockRunner::meet(unsigned mask, const void* value, size_t nbytes, int operation, Site site) {
  unsigned lane = self_->linear % kWarpSize, bit = 1u << lane;
  Warp& warp = *warps_[self_->linear / kWarpSize];
  if (!(mask & bit)) fail("the mask of this warp operation lacks the calling lane " + std::to_string(lane), site,
                           kWarpOperation);
  unsigned needed = mask & warp.exists;
  if (unsigned exited = needed & ~warp.live) {
    fail("the mask of this warp operation names lane " + std::to_string(__builtin_ctz(exited)) + ", which has exited",
         site, kWarpOperation);
  }
  Rendezvous& rendezvous = find_rendezvous(warp, mask);
  if (!rendezvous.arrived) {
    rendezvous.operation = operation;
    rendezvous.site = site;
  } else if (rendezvous.operation != operation || (operation != kSync && !is_same(rendezvous.site, site))) {
    fail("lanes of one mask meet in different warp operations, the others at " + name(rendezvous.site), site,
         kWarpOperation);
  }
  unsigned char(*slots)[kSlotBytes] = warp.slots[&rendezvous - warp.rendezvous][rendezvous.phase & 1];
  memcpy(slots[lane], value, nbytes);
  rendezvous.arrived |= bit;
  self_->site = site;
  if (rendezvous.arrived == needed) {
    warp.waiting &= ~rendezvous.arrived;
    rendezvous.arrived = 0;
    rendezvous.phase++;
    bool carries_on = launch_->order != kRandom;
    rendezvous.unread = carries_on ? needed & ~bit : needed;
    unsigned base = self_->linear & ~(kWarpSize - 1);
    if (counter_ && !(warp.live & ~needed)) counted_.warps[base / kWarpSize].close(*counter_);
    if ((checker_ || launch_->is_dependent) && operation == kSync) {
      std::vector<unsigned> lanes;
      for (unsigned left = needed; left; left &= left - 1) lanes.push_back(base + __builtin_ctz(left));
      if (checker_) checked_->order(lanes);
      if (launch_->is_dependent) share_wait(lanes);
    }
    for (unsigned left = rendezvous.unread; left; left &= left - 1) wake(base + __builtin_ctz(left));
    if (carries_on) return {slots[0], needed};
  } else {
    warp.waiting |= bit;
    self_->state = State::kAtMeeting;
    self_->mask = mask;
  }
  give_way();
  rendezvous.unread &= ~bit;
  return {slots[0], needed};
}

Rendezvous& BlockRunner::find_rendezvous(Warp& warp, unsigned mask) {
  Rendezvous* free = nullptr;
  for (int i = 0; i < warp.used; i++) {
    Rendezvous& rendezvous = warp.rendezvous[i];
    if (rendezvous.mask == mask) return rendezvous;
    if (!rendezvous.arrived && !rendezvous.unread) free = &rendezvous;
  }
  if (!free) free = &warp.rendezvous[warp.used++];
  *free = Rendezvous();
  free->mask = mask;
  return *free;
}

void* BlockRunner::shared_variable(const void* key, size_t nbytes, size_t alignment, const char* name) {
  for (const SharedVariable& variable : shared_) {
    if (variable.key == key) return arena_ + variable.offset;
  }
  size_t offset = (arena_top_ + alignment - 1) / alignment * alignment;
  shared_claimed_ = (shared_claimed_ + alignment - 1) / alignment * alignment + nbytes;
  if (shared_claimed_ > launch_->shared_limit_bytes || offset + nbytes + kRedZoneBytes > kArenaBytes) {
    std::string reason = "shared memory of " + std::to_string(shared_claimed_) + " bytes ('" + name +
                         "' included) exceeds the limit of " + std::to_string(launch_->shared_limit_bytes);
    if (self_) fail(reason, Site{nullptr, 0});
    failed_ = true;
    message = reason;
    return nullptr;
  }
  memset(arena_ + offset, kPoison, nbytes);
  memset(arena_ + offset + nbytes, kRedZone, kRedZoneBytes);
  arena_top_ = offset + nbytes + (checker_ ? kCheckedGapBytes : kRedZoneBytes);
  if (checker_) checked_->claim(arena_ + offset, nbytes, name);
  shared_.push_back({key, offset, nbytes, name});
  return arena_ + offset;
}

// Finds stray writes just past the end of a shared variable, once the block is over.
bool BlockRunner::check_red_zones() {
  for (const SharedVariable& variable : shared_) {
    const char* zone = arena_ + variable.offset + variable.nbytes;
    for (size_t i = 0; i < kRedZoneBytes; i++) {
      if (static_cast<unsigned char>(zone[i]) == kRedZone) continue;
      const uint3& block = gpuexec_position.block;
      char text[300];
      snprintf(text, sizeof text, "shared '%s' of %zu bytes was written at byte %zu, past its end (block %u,%u,%u)",
               variable.name, variable.nbytes, variable.nbytes + i, block.x, block.y, block.z);
      message = text;
      report(kOutOfBounds, text, Site{nullptr, 0}, 0);
      return false;
    }
  }
  return true;
}

// Bytes of an asynchronous copy, most of which are of a size that is one instruction or two.
inline void copy_bytes(void* destination, const void* source, size_t nbytes) {
  if (nbytes == 16) memcpy(destination, source, 16);
  else if (nbytes == 4) memcpy(destination, source, 4);
  else memcpy(destination, source, nbytes);
}

inline void fill_bytes(void* destination, int value, size_t nbytes) {
  if (nbytes == 16) memset(destination, value, 16);
  else if (nbytes == 4) memset(destination, value, 4);
  else memset(destination, value, nbytes);
}

void BlockRunner::begin_copy(void* destination, const void* source, size_t nbytes, size_t source_nbytes,
                             const void* place) {
  if (checker_) {
    note_access(source, source_nbytes, kRead, place);
    checker_->copy_begun(*checked_, self_->linear, uintptr_t(destination), nbytes, place);
  }
  if (counter_) {
    count_made(uintptr_t(source), nbytes, kRead, place, source_nbytes > 0);
    count_made(uintptr_t(destination), nbytes, kWrite, place, true);
  }
  if (nbytes > kMostCopied || source_nbytes > nbytes) {
    message = "an asynchronous copy takes 4, 8 or 16 bytes, of which the last may be filled with zeros";
    abandon_launch();
  }
  if (is_shared(uintptr_t(destination))) fill_bytes(destination, kPoison, nbytes);
  self_->copies.push_back({static_cast<char*>(destination), source, unsigned(nbytes), unsigned(source_nbytes),
                           self_->copy_group, place, {}});
  // A copy reads its source at any time up to its wait. One that begins before the wait for predecessors reads at once: what
  // they write comes too late for it.
  if (launch_->is_dependent && !self_->has_waited) {
    PendingCopy& copy = self_->copies.back();
    copy_bytes(copy.content, source, source_nbytes);
    copy.source = nullptr;
  }
}

// Copies that are waited for together come in any order.
void BlockRunner::finish_copies(int before_group) {
  std::vector<PendingCopy>& copies = self_->copies;
  size_t done = 0;
  while (done < copies.size() && copies[done].group < before_group) done++;
  for (size_t i = 0; i < done; i++) {
    const size_t other = i + (uint64_t(uint32_t(random())) * (done - i) >> 32);
    const PendingCopy copy = copies[other];
    copies[other] = copies[i];
    copy_bytes(copy.destination, copy.source ? copy.source : copy.content, copy.source_nbytes);
    if (copy.source_nbytes < copy.nbytes) {
      memset(copy.destination + copy.source_nbytes, 0, copy.nbytes - copy.source_nbytes);
    }
    if (checker_) {
      if (copy.source) note_access(copy.source, copy.source_nbytes, kRead, copy.place);
      checker_->copy_done(*checked_, self_->linear, uintptr_t(copy.destination), copy.nbytes, copy.place);
    }
  }
  copies.erase(copies.begin(), copies.begin() + ptrdiff_t(done));
}

// Accesses to what is the simulator's own say nothing of the kernel: what a thread sees of itself, warp operations.
inline bool BlockRunner::is_own(uintptr_t address) const {
  return address - uintptr_t(&gpuexec_position) < sizeof gpuexec_position || address - own_warp_ < sizeof(Warp);
}

void BlockRunner::note_access(const void* address, size_t nbytes, unsigned flags, const void* place) {
  const uintptr_t at = uintptr_t(address);
  if (!nbytes || is_own(at)) return;
  if (is_before_wait(at, nbytes, flags)) {
    checker_->report_fault(kMissingWait, *checked_, self_->linear, static_cast<const char*>(place) - 1,
                           flags & kWrite ? "writes before it waits for the launches that this one depends on"
                                          : "reads what a launch writes that this one depends on, before it waits",
                           flags);
  }
  if (!checker_->access(*checked_, self_->linear, at, nbytes, flags, place)) {
    message = "check mode stopped the launch";
    abandon_launch();
  }
}

// Whether a thread touches what launches write that may still be under way, or writes memory at all, before its wait.
bool BlockRunner::is_before_wait(uintptr_t address, size_t nbytes, unsigned flags) const {
  if (!launch_->is_dependent || self_->has_waited || address - uintptr_t(arena_) < kArenaBytes) return false;
  for (int i = 0; i < launch_->withheld_count; i++) {
    const Withheld& each = launch_->withheld[i];
    if (address < each.end && each.first < address + nbytes && (each.is_hidden || flags & kWrite)) return true;
  }
  return false;
}

void BlockRunner::note_fence() { checked_->fence(self_->linear); }

// What an atomic instruction's host body reads first is no access of its own.
void BlockRunner::count_access(const void* address, size_t nbytes, unsigned flags, const void* place) {
  const uintptr_t at = uintptr_t(address);
  if (!nbytes || is_own(at) || (flags & (kAtomic | kWrite)) == kAtomic || counter_->is_ignored(at)) return;
  const size_t width = access_nbytes(nbytes);
  for (size_t offset = 0; offset < nbytes; offset += width) count_made(at + offset, width, flags, place, true);
  if (flags & kAtomic || ++counted_.turns[self_->linear] < kTurnAccesses) return;
  counted_.turns[self_->linear] = 0;
  wake(self_->linear);
  give_way();
}

// `is_made`: whether the lane accesses anything, or comes to the instruction alone.
void BlockRunner::count_made(uintptr_t address, size_t nbytes, unsigned flags, const void* place, bool is_made) {
  const unsigned warp = self_->linear / kWarpSize;
  const uint32_t row = counter_->find_row(place, nbytes, flags, is_shared(address));
  counted_.warps[warp].access(*counter_, row, self_->linear % kWarpSize, address, is_made, warps_[warp]->live);
}

inline void BlockRunner::count_operations(int unit, unsigned operations, const void* place) {
  const uint32_t row = counter_->find_operations(place, unit, operations);
  counted_.warps[self_->linear / kWarpSize].call(row, self_->linear % kWarpSize);
}

// Counts the requests of all warps whose lanes a barrier brings together.
void BlockRunner::count_requests(const Barrier& barrier) {
  std::vector<uint32_t> waiting(counted_.warps.size());
  for (unsigned linear : barrier.waiting) waiting[linear / kWarpSize] |= 1u << linear % kWarpSize;
  for (size_t i = 0; i < waiting.size(); i++) {
    if (waiting[i] && !(warps_[i]->live & ~waiting[i])) counted_.warps[i].close(*counter_);
  }
}

void BlockRunner::count_requests() {
  for (CountedWarp& warp : counted_.warps) warp.close(*counter_);
}

}  // namespace gpuexec

using gpuexec::current_runner;

int gpuexec_barrier(int id, unsigned threads, int predicate, gpuexec::Site site) {
  return current_runner->wait_at_barrier(id, threads, predicate, site);
}

gpuexec::Meeting gpuexec_meet(unsigned mask, const void* value, size_t nbytes, int operation, gpuexec::Site site) {
  return current_runner->meet(mask, value, nbytes, operation, site);
}

void* gpuexec_shared(const void* key, size_t nbytes, size_t alignment, const char* name) {
  return current_runner->shared_variable(key, nbytes, alignment, name);
}

void gpuexec_copy_async(void* destination, const void* source, size_t nbytes, size_t source_nbytes) {
  if (source_nbytes && current_runner->is_shared(uintptr_t(source))) {
    current_runner->fail("an asynchronous copy of shared memory: it copies from device memory alone", {nullptr, 0});
  }
  current_runner->begin_copy(destination, source, nbytes, source_nbytes, __builtin_return_address(0));
}

void gpuexec_copy_commit() { current_runner->self().copy_group++; }

void gpuexec_copy_wait(int keep) { current_runner->finish_copies(current_runner->self().copy_group - keep); }

void gpuexec_wait_for_predecessors(gpuexec::Site site) { current_runner->wait_for_predecessors(site); }

void gpuexec_grid_barrier(gpuexec::Site site) { current_runner->wait_at_grid_barrier(site); }

void gpuexec_wait_for_blocks(gpuexec::Site site) { current_runner->wait_for_blocks(site); }

// Static code of a module runs outside of kernels too.
void gpuexec_access(const void* address, size_t nbytes, unsigned flags, const void* place) {
  gpuexec::BlockRunner* const runner = current_runner;
  if (!runner || runner->is_on_stack(address)) return;
  if (runner->is_checking()) runner->note_access(address, nbytes, flags, place);
  else if (runner->is_counting()) runner->count_access(address, nbytes, flags, place);
}

void gpuexec_count_operations(int unit, unsigned operations, const void* place) {
  if (current_runner && current_runner->is_counting()) current_runner->count_operations(unit, operations, place);
}

void gpuexec_fence() {
  if (current_runner && current_runner->is_checking()) current_runner->note_fence();
}

void gpuexec_misuse(int kind, const char* file, int line, const char* what) {
  if (!current_runner || !current_runner->is_checking()) return;
  const char* reason = kind == gpuexec::kMisaligned ? "an access that needs the alignment of " : "an index beyond ";
  current_runner->fail(std::string(reason) + what, {file, line}, gpuexec::FindingKind(kind));
}

void gpuexec_fail(const char* message, gpuexec::Site site) { current_runner->fail(message, site); }

void gpuexec_expect_global(const void* address, gpuexec::Site site) {
  if (current_runner && current_runner->is_shared(uintptr_t(address))) {
    current_runner->fail("an instruction for device memory alone is given an address of shared memory", site);
  }
}
