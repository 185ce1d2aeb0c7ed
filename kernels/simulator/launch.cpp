// Launch of a grid: blocks spread over OS threads, hardware faults of a kernel turned into errors.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include <ucontext.h>

#include "block.h"

namespace gpuexec {

namespace {

// Below this many CUDA threads a second OS thread costs more than it brings.
constexpr uint64_t kThreadsWorthHelp = 8192;
// A few blocks of a dependent launch begin early, as where a multiprocessor has room for them beside other work.
constexpr uint64_t kEarlyBlocks = 2, kEarlyThreads = 512;
constexpr size_t kIdleRunners = 8;
constexpr size_t kSignalStackBytes = 64 << 10;
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE};

// Runners keep their fibers' stacks; as many exist as launches were ever under way together.
std::mutex runners_mutex;
std::vector<std::unique_ptr<BlockRunner>>& idle_runners() {
  static auto* runners = new std::vector<std::unique_ptr<BlockRunner>>;  // never destroyed: spare threads may outlive main
  return *runners;
}

std::unique_ptr<BlockRunner> take_runner() {
  std::lock_guard<std::mutex> lock(runners_mutex);
  auto& idle = idle_runners();
  if (idle.empty()) return std::make_unique<BlockRunner>();
  std::unique_ptr<BlockRunner> runner = std::move(idle.back());
  idle.pop_back();
  return runner;
}

void give_back(std::unique_ptr<BlockRunner> runner) {
  std::lock_guard<std::mutex> lock(runners_mutex);
  if (idle_runners().size() < kIdleRunners) idle_runners().push_back(std::move(runner));
}

struct sigaction previous_actions[64];

const void* instruction_of(void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#else
  (void)context;
  return nullptr;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  BlockRunner* runner = current_runner;
  if (!runner || !runner->is_inside_kernel()) {
    // Not ours: the instruction runs again and faults for its owner.
    sigaction(signal, &previous_actions[signal], nullptr);
    return;
  }
  bool has_address = info->si_code != SI_KERNEL;  // x86 gives none for a misaligned vector
  runner->report_fault(signal, has_address, info->si_addr, instruction_of(context));
  siglongjmp(runner->escape, 1);
}

void install_fault_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int signal : kFaults) sigaction(signal, &action, &previous_actions[signal]);
}

// A fiber whose stack has overflown can't run a handler: it gets a stack of its own.
class SignalStack {
 public:
  SignalStack() {
    stack_t wanted{};
    wanted.ss_sp = memory_.get();
    wanted.ss_size = kSignalStackBytes;
    sigaltstack(&wanted, &previous_);
  }
  ~SignalStack() { sigaltstack(&previous_, nullptr); }

 private:
  std::unique_ptr<char[]> memory_{new char[kSignalStackBytes]};
  stack_t previous_{};
};

struct Grid {
  explicit Grid(Launch& of)
      : launch(of),
        blocks(uint64_t(of.grid[0]) * of.grid[1] * of.grid[2]),
        chunk(blocks / (8 * uint64_t(of.workers)) + 1) {}

  Launch& launch;
  Checker* checker = nullptr;
  Counter* counter = nullptr;
  const uint64_t blocks, chunk;  // an OS thread takes so many blocks at a time
  std::vector<uint64_t> order;   // empty: as numbered
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;

  uint64_t block_at(uint64_t i) const {
    return !order.empty() ? order[i] : launch.order == kReverse ? blocks - 1 - i : i;
  }
};

// Nothing here has a destructor, since a fault jumps out of it.
bool run_chunks(Grid& grid, BlockRunner& runner) {
  if (sigsetjmp(runner.escape, 1)) return false;
  for (;;) {
    uint64_t first = grid.next.fetch_add(grid.chunk);
    if (first >= grid.blocks || grid.failed) return true;
    for (uint64_t i = first; i < first + grid.chunk && i < grid.blocks; i++) {
      if (!runner.run_block(grid.block_at(i))) return false;
    }
  }
}

void begin(Grid& grid, BlockRunner& runner) {
  static thread_local SignalStack signal_stack;
  runner.begin_launch(grid.launch, grid.checker, grid.counter);
}

void end(Grid& grid, BlockRunner& runner, bool ok) {
  runner.end_launch();
  std::lock_guard<std::mutex> lock(grid.mutex);
  if (!ok && !grid.failed.exchange(true)) {
    snprintf(grid.launch.message, grid.launch.message_capacity, "%s", runner.message.c_str());
    grid.launch.fault_address = runner.fault_address;
  }
  grid.launch.switches += runner.switches;
  if (runner.shared_bytes > grid.launch.shared_bytes) grid.launch.shared_bytes = unsigned(runner.shared_bytes);
}

void run_part(Grid& grid) {
  std::unique_ptr<BlockRunner> runner = take_runner();
  begin(grid, *runner);
  end(grid, *runner, run_chunks(grid, *runner));
  give_back(std::move(runner));
}

// Nothing here has a destructor, since a fault jumps out of it.
bool run_turn(BlockRunner& runner, bool is_first, uint64_t block) {
  if (sigsetjmp(runner.escape, 1)) return false;
  return is_first ? runner.run_block(block) : runner.pass_grid_barrier();
}

// All blocks by turns on this OS thread, from one barrier of the grid to the next.
void run_cooperative(Grid& grid) {
  std::vector<std::unique_ptr<BlockRunner>> runners;
  for (uint64_t i = 0; i < grid.blocks; i++) runners.push_back(take_runner());
  for (auto& runner : runners) begin(grid, *runner);
  BlockRunner* failed = nullptr;
  for (bool is_first = true, is_over = false; !failed && !is_over; is_first = false) {
    uint64_t waiting = 0;
    for (uint64_t i = 0; i < grid.blocks && !failed; i++) {
      if (!run_turn(*runners[i], is_first, grid.block_at(i))) failed = runners[i].get();
      waiting += runners[i]->is_at_grid_barrier();
    }
    is_over = !waiting;
    if (!failed && waiting && waiting < grid.blocks) {
      for (auto& runner : runners) {
        if (runner->is_at_grid_barrier()) failed = runner.get();
      }
      failed->explain_grid_deadlock();
    }
    if (grid.checker) grid.checker->pass_grid_barrier();
  }
  for (auto& runner : runners) end(grid, *runner, runner.get() != failed);
  for (auto& runner : runners) give_back(std::move(runner));
}

// Memory that a dependent launch finds as if the launches before it had written nothing: what they write is hidden, and
// what it writes is watched, until it may go on.
class WithheldMemory {
 public:
  explicit WithheldMemory(const Launch& launch) : launch_(launch) {
    for (int i = 0; i < launch.withheld_count; i++) kept_.push_back(copy(launch.withheld[i]));
    for (int i = 0; i < launch.withheld_count; i++) {
      const Withheld& each = launch.withheld[i];
      if (each.is_hidden) memset(reinterpret_cast<void*>(each.first), kHidden, each.end - each.first);
    }
    for (int i = 0; i < launch.withheld_count; i++) {
      watched_.push_back(launch.withheld[i].is_watched ? copy(launch.withheld[i]) : std::vector<char>());
    }
  }

  // Whether a watched byte has changed.
  bool has_changed() const {
    for (int i = 0; i < launch_.withheld_count; i++) {
      const Withheld& each = launch_.withheld[i];
      if (each.is_watched && memcmp(reinterpret_cast<void*>(each.first), watched_[i].data(), watched_[i].size())) {
        return true;
      }
    }
    return false;
  }

  void restore() const {
    for (int i = 0; i < launch_.withheld_count; i++) {
      memcpy(reinterpret_cast<void*>(launch_.withheld[i].first), kept_[i].data(), kept_[i].size());
    }
  }

 private:
  static constexpr int kHidden = 0xff;  // NaN in every float format, -1 in every integer

  static std::vector<char> copy(const Withheld& each) {
    return {reinterpret_cast<const char*>(each.first), reinterpret_cast<const char*>(each.end)};
  }

  const Launch& launch_;
  std::vector<std::vector<char>> kept_, watched_;
};

// Moves random blocks of a dependent launch to the front of the order; returns how many: those that begin early.
uint64_t choose_early(Grid& grid) {
  const Launch& launch = grid.launch;
  uint64_t random = (launch.seed + 1) * 0x9e3779b97f4a7c15ull | 1;
  const auto next = [&random](uint64_t below) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random % below;
  };
  const uint64_t threads = uint64_t(launch.block[0]) * launch.block[1] * launch.block[2];
  uint64_t most = kEarlyThreads / threads + 1;
  if (most > kEarlyBlocks) most = kEarlyBlocks;
  if (most > grid.blocks) most = grid.blocks;
  if (grid.order.empty()) {
    std::vector<uint64_t> order(grid.blocks);
    for (uint64_t i = 0; i < grid.blocks; i++) order[i] = grid.block_at(i);
    grid.order = std::move(order);
  }
  const uint64_t count = 1 + next(most);
  for (uint64_t i = 0; i < count; i++) std::swap(grid.order[i], grid.order[i + next(grid.blocks - i)]);
  return count;
}

// Nothing here has a destructor, since a fault jumps out of it.
bool run_early(BlockRunner& runner, bool is_first, uint64_t block) {
  if (sigsetjmp(runner.escape, 1)) return false;
  return is_first ? runner.run_block(block) : runner.pass_predecessors();
}

// Runs some blocks of a dependent launch while those before it count as under way, up to their waits, and then to their end.
void run_early_blocks(Grid& grid) {
  const uint64_t count = choose_early(grid);
  std::vector<std::unique_ptr<BlockRunner>> runners;
  for (uint64_t i = 0; i < count; i++) runners.push_back(take_runner());
  for (auto& runner : runners) begin(grid, *runner);
  BlockRunner* failed = nullptr;
  const WithheldMemory memory(grid.launch);
  for (uint64_t i = 0; i < count && !failed; i++) {
    runners[i]->begin_early();
    if (!run_early(*runners[i], true, grid.block_at(i))) failed = runners[i].get();
  }
  const bool has_changed = memory.has_changed();
  memory.restore();
  if (!failed && has_changed) {
    failed = runners[0].get();
    failed->explain_early_write();
  }
  for (uint64_t i = 0; i < count && !failed; i++) {
    if (runners[i]->is_waiting_for_predecessors() && !run_early(*runners[i], false, 0)) failed = runners[i].get();
  }
  for (auto& runner : runners) end(grid, *runner, runner.get() != failed);
  for (auto& runner : runners) give_back(std::move(runner));
  grid.next = count;
}

// OS threads that help with one large grid at a time. A launch waits for those alone that joined it.
class SpareThreads {
 public:
  // Returns false when they are busy with another grid.
  bool offer(Grid& grid, int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (grid_) return false;
    grid_ = &grid;
    places_ = count;
    try {
      for (; started_ < count; started_++) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // No further thread can be made: the existing ones suffice, or the caller alone.
    }
    wake_.notify_all();
    return true;
  }

  // Withdraws the grid and waits for the threads that joined it.
  void retract() {
    std::unique_lock<std::mutex> lock(mutex_);
    places_ = 0;
    done_.wait(lock, [this] { return working_ == 0; });
    grid_ = nullptr;
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return places_ > 0; });
      places_--;
      working_++;
      Grid& grid = *grid_;
      lock.unlock();
      run_part(grid);
      lock.lock();
      working_--;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Grid* grid_ = nullptr;
  int places_ = 0, working_ = 0, started_ = 0;
};

SpareThreads& spare_threads() {
  static auto* all = new SpareThreads;  // never destroyed: its threads run until the process ends
  return *all;
}

void shuffle(std::vector<uint64_t>& order, uint64_t seed) {
  uint64_t random = seed * 2654435761u + 88172645463325252ull;
  for (size_t i = order.size() - 1; i > 0; i--) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    std::swap(order[i], order[random % (i + 1)]);
  }
}

}  // namespace
}  // namespace gpuexec

int gpuexec_launch(gpuexec::Launch* launch) {
  using namespace gpuexec;
  static std::once_flag installed;
  std::call_once(installed, install_fault_handler);
  launch->fault_address = launch->switches = launch->shared_bytes = launch->finding_count = 0;
  Grid grid(*launch);
  std::unique_ptr<Checker> checker;
  if (launch->is_checked) checker = std::make_unique<Checker>(*launch);
  grid.checker = checker.get();
  std::unique_ptr<Counter> counter;
  if (launch->counts) counter = std::make_unique<Counter>(*launch);
  grid.counter = counter.get();
  if (launch->order == kRandom && grid.blocks > 1) {
    grid.order.resize(grid.blocks);
    std::iota(grid.order.begin(), grid.order.end(), uint64_t(0));
    shuffle(grid.order, launch->seed);
  }
  if (launch->is_cooperative) {
    run_cooperative(grid);
    if (counter) counter->finish();
    return grid.failed || launch->finding_count ? 1 : 0;
  }
  if (launch->is_dependent) run_early_blocks(grid);
  uint64_t threads = uint64_t(launch->block[0]) * launch->block[1] * launch->block[2];
  int extra = launch->workers - 1;
  if (uint64_t(extra) >= grid.blocks) extra = int(grid.blocks) - 1;
  const bool is_worth_help = threads * grid.blocks >= kThreadsWorthHelp && !checker && !counter;
  bool helped = extra > 0 && is_worth_help && spare_threads().offer(grid, extra);
  run_part(grid);
  if (helped) spare_threads().retract();
  if (counter) counter->finish();
  return grid.failed || launch->finding_count ? 1 : 0;
}
