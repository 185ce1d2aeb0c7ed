// Scheduling of the CUDA threads of a block on fibers.
//
// A fiber that finishes a thread takes the next fresh one without a switch: without barriers that is a plain loop.
#include "block.h"

#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

// Static thread-local storage of these two alone: that of libraries may lie elsewhere by now, and then none would load.
__thread gpuexec::Position gpuexec_position __attribute__((tls_model("initial-exec")));

namespace gpuexec {

__thread BlockRunner* current_runner __attribute__((tls_model("initial-exec")));

namespace {

constexpr int kBarriers = 16;  // named barriers per block (PTX ISA, bar.sync)

void enter_fiber() { current_runner->run_fiber(); }

unsigned lanes_of_warp(unsigned warp, unsigned threads) {
  unsigned left = threads - warp * kWarpSize;
  return left >= kWarpSize ? ~0u : (1u << left) - 1;
}

}  // namespace

BlockRunner::BlockRunner() : barriers_(kBarriers) {
  void* arena =
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  arena_ = arena == MAP_FAILED ? nullptr : static_cast<char*>(arena);
}

BlockRunner::~BlockRunner() {
  for (Fiber* fiber : fibers_) destroy_fiber(fiber);
  if (arena_) munmap(arena_, kArenaBytes);
}

void BlockRunner::begin_launch(const Launch& launch, Checker* checker, Counter* counter) {
  launch_ = &launch;
  checker_ = checker;
  counter_ = counter;
  if (checker && !checked_) checked_ = std::make_unique<CheckedBlock>(arena_, kArenaBytes);
  message.clear();
  fault_address = switches = shared_bytes = 0;
  is_early_ = false;
  if (idle_.size() != fibers_.size()) abandon_fibers();
  self_ = nullptr;
  const unsigned* dim = launch.block;
  if (memcmp(block_dim_, dim, sizeof block_dim_) != 0) {
    memcpy(block_dim_, dim, sizeof block_dim_);
    size_t count = size_t(dim[0]) * dim[1] * dim[2];
    threads_.resize(count);
    for (unsigned i = 0; i < count; i++) {
      threads_[i].linear = i;
      threads_[i].index = {i % dim[0], i / dim[0] % dim[1], i / dim[0] / dim[1]};
    }
    while (warps_.size() * kWarpSize < count) warps_.emplace_back(new Warp);
  }
  if (counter) {
    counted_.warps.resize(warps_.size());
    counted_.turns.resize(threads_.size());
  }
  order_.resize(threads_.size());
  unsigned count = unsigned(threads_.size());
  for (unsigned i = 0; i < count; i++) order_[i] = launch.order == kReverse ? count - 1 - i : i;
  enter();
}

// Makes this runner the one of the OS thread.
void BlockRunner::enter() {
  const unsigned *dim = launch_->block, *grid = launch_->grid;
  gpuexec_position.block_dim = {dim[0], dim[1], dim[2]};
  gpuexec_position.grid_dim = {grid[0], grid[1], grid[2]};
  gpuexec_position.block = {unsigned(block_ % grid[0]), unsigned(block_ / grid[0] % grid[1]),
                            unsigned(block_ / grid[0] / grid[1])};
  gpuexec_position.dynamic_shared = dynamic_shared_;
  current_runner = this;
}

// A failed launch leaves its threads where they stood.
void BlockRunner::abandon_fibers() {
  idle_ = fibers_;
  for (Thread& thread : threads_) {
    thread.copies.clear();
    thread.copy_group = 0;
  }
}

void BlockRunner::end_launch() {
  self_ = nullptr;
  counted_ = {};
  current_runner = nullptr;
}

bool BlockRunner::run_block(uint64_t block) {
  reset_block(block);
  if (!arena_ || !(starting_ = take_fiber())) {
    message = "the host has no memory left for stacks of CUDA threads";
    return false;
  }
  if (launch_->dynamic_shared_bytes) {
    static const char key = 0;
    dynamic_shared_ = shared_variable(&key, launch_->dynamic_shared_bytes, 128, "dynamic");
  }
  gpuexec_position.dynamic_shared = dynamic_shared_;
  if (failed_) return false;
  switches++;
  switch_context(main_, starting_->context);
  return advance();
}

bool BlockRunner::pass_grid_barrier() {
  enter();
  if (counter_) count_requests();
  run_on(at_grid_barrier_);
  return advance();
}

bool BlockRunner::pass_predecessors() {
  enter();
  is_early_ = false;
  run_on(waiting_for_predecessors_);
  return advance();
}

void BlockRunner::run_on(std::vector<unsigned>& waiting) {
  for (unsigned linear : waiting) wake(linear);
  waiting.clear();
  make_current(take_ready());
  switches++;
  switch_context(main_, self_->fiber->context);
}

// Looks at why no thread can go on.
bool BlockRunner::advance() {
  self_ = nullptr;
  if (shared_claimed_ > shared_bytes) shared_bytes = shared_claimed_;
  if (failed_) return false;
  if (is_waiting_for_predecessors()) return true;
  if (live_ && at_grid_barrier_.size() == live_) return true;
  return live_ ? explain_deadlock() : check_red_zones() && check_waited();
}

void BlockRunner::reset_block(uint64_t block) {
  unsigned count = unsigned(threads_.size());
  block_ = block;
  dynamic_shared_ = nullptr;
  enter();
  if (checker_) checked_->begin(uint32_t(block), count);
  at_grid_barrier_.clear();
  waiting_for_predecessors_.clear();
  has_waited_ = false;
  polls_ = 0;
  if (launch_->is_dependent) {
    for (Thread& thread : threads_) thread.has_waited = false;
  }
  started_ = ready_head_ = 0;
  live_ = count;
  failed_ = false;
  ready_.clear();
  shared_.clear();
  arena_top_ = shared_claimed_ = 0;
  for (unsigned i = 0; i * kWarpSize < count; i++) {
    Warp& warp = *warps_[i];
    warp.exists = warp.live = lanes_of_warp(i, count);
    warp.waiting = 0;
    warp.used = 0;
  }
  for (Barrier& barrier : barriers_) {
    barrier.waiting.clear();
    barrier.predicates = 0;
  }
  // By block, so that its order does not depend on which OS thread runs it. Never 0, where the generator would stay.
  random_ = (launch_->seed * 0x9e3779b97f4a7c15ull ^ (block + 1) * 0xd1342543de82ef95ull) | 1;
  if (launch_->order == kRandom) {
    for (unsigned i = count - 1; i > 0; i--) std::swap(order_[i], order_[random() % (i + 1)]);
  }
}

Fiber* BlockRunner::take_fiber() {
  Fiber* fiber;
  if (idle_.empty()) {
    fiber = create_fiber();
    if (!fiber) return nullptr;
    fibers_.push_back(fiber);
  } else {
    fiber = idle_.back();
    idle_.pop_back();
  }
  reset_fiber(fiber, enter_fiber);
  return fiber;
}

void BlockRunner::make_current(Thread& thread) {
  self_ = &thread;
  own_stack_ = uintptr_t(thread.fiber->stack);
  own_warp_ = uintptr_t(warps_[thread.linear / kWarpSize].get());
  thread.state = State::kRunning;
  gpuexec_position.thread = thread.index;
  gpuexec_position.linear = thread.linear;
  gpuexec_position.lane = thread.linear % kWarpSize;
}

void BlockRunner::wake(unsigned linear) {
  threads_[linear].state = State::kReady;
  ready_.push_back(linear);
}

// Fresh threads go first, so that each runs as far as it can; random order picks among all.
bool BlockRunner::prefers_ready() {
  size_t ready = ready_.size() - ready_head_, fresh = threads_.size() - started_;
  if (!ready || !fresh) return ready != 0;
  return has_random_turns() && random() % (ready + fresh) < ready;
}

Thread& BlockRunner::take_ready() {
  if (has_random_turns()) {
    std::swap(ready_[ready_head_], ready_[ready_head_ + random() % (ready_.size() - ready_head_)]);
  }
  Thread& thread = threads_[ready_[ready_head_++]];
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  }
  return thread;
}

void BlockRunner::give_way() {
  Fiber* here = self_->fiber;
  Context* next = &main_;
  if (prefers_ready()) {
    make_current(take_ready());
    if (self_->fiber == here) return;
    next = &self_->fiber->context;
  } else if (started_ < threads_.size()) {
    starting_ = take_fiber();
    if (!starting_) fail("the host has no memory left for stacks of CUDA threads", self_->site);
    next = &starting_->context;
  }
  switches++;
  switch_context(here->context, *next);
}

void BlockRunner::run_fiber() {
  Fiber* fiber = starting_;
  while (started_ < threads_.size() && !prefers_ready()) {
    Thread& thread = threads_[order_[started_++]];
    thread.fiber = fiber;
    make_current(thread);
    launch_->entry(launch_->arguments);
    exit_thread();
  }
  // Whoever takes this fiber from the idle ones rewrites its stack, which happens only after it was left below:
  // a ready thread has a fiber already, and a fresh one is not started here.
  idle_.push_back(fiber);
  Context* next = &main_;
  if (ready_head_ < ready_.size()) {
    make_current(take_ready());
    next = &self_->fiber->context;
  }
  switches++;
  switch_context(abandoned_, *next);
}

void BlockRunner::exit_thread() {
  if (!self_->copies.empty()) finish_copies(self_->copy_group + 1);
  self_->copy_group = 0;
  self_->state = State::kExited;
  live_--;
  Warp& warp = *warps_[self_->linear / kWarpSize];
  unsigned bit = 1u << (self_->linear % kWarpSize);
  warp.live &= ~bit;
  if (counter_ && !warp.live) counted_.warps[self_->linear / kWarpSize].close(*counter_);
  for (int i = 0; warp.waiting && i < warp.used; i++) {
    const Rendezvous& rendezvous = warp.rendezvous[i];
    if (rendezvous.arrived && (rendezvous.mask & bit)) {
      fail("the mask of this warp operation names lane " + std::to_string(self_->linear % kWarpSize) +
               ", which has exited",
           rendezvous.site, kWarpOperation);
    }
  }
  Barrier& all = barriers_[0];
  if (!all.threads && !all.waiting.empty() && all.waiting.size() == live_) {
    order_together(all);
    release_barrier(all);
  }
}

void BlockRunner::abandon_launch() {
  failed_ = true;
  switch_context(abandoned_, main_);
  __builtin_unreachable();
}

uint64_t BlockRunner::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

}  // namespace gpuexec
