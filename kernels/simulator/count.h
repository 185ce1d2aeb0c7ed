// Count mode: memory requests and arithmetic of warps, counted by instruction.
//
// A thread's accesses by one instruction are numbered from the last point at which all lanes of its warp were together
// (a barrier, or a warp operation of all live lanes). Lanes of a warp whose access has the same number form one request,
// as in lockstep. Where lanes skip an access in some trips of a loop, those numbers pair trips that the device runs one
// after the other: then requests come out as too few and too full.
//
// Arithmetic goes by the same numbers, so at one instruction a warp has issued as often as the lane that came most often.
// Counted are calls: of fused multiply-adds, of special functions (operations.h), and what says so by GPUEXEC_ISSUE.
//
// Threads take turns after few accesses, so a request is complete and counted soon after its first lane came: what is
// remembered does not grow with the launch.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace gpuexec {

// A cache of whole lines, the least recently used of which makes room. Lines are filled and written back by sectors.
class CacheModel {
 public:
  explicit CacheModel(size_t nbytes);
  void access(uintptr_t sector, bool is_read, bool is_write);
  // Writes back what is left.
  void flush();

  uint64_t sectors_read = 0, sectors_written = 0;  // by the cache, from and to device memory

 private:
  struct Line {
    uintptr_t number;
    uint32_t older, younger;
    uint8_t valid, dirty;  // a bit per sector
  };
  Line& find(uintptr_t number);
  uint32_t take_line();
  void make_youngest(uint32_t index);

  const size_t capacity_;
  std::vector<Line> lines_;
  std::unordered_map<uintptr_t, uint32_t> index_;
  uint32_t oldest_ = 0, youngest_ = 0;
};

// What the lanes of a warp ask for at once.
struct Request {
  uintptr_t addresses[kWarpSize];
  uint32_t lanes;   // that access something
  uint32_t passed;  // lanes that came, with an access or without
  uint64_t order;   // of its opening, within its warp
};

// All requests of a grid. Blocks run on one OS thread.
class Counter {
 public:
  explicit Counter(Launch& launch);
  // Whether an access says nothing of memory: launch arguments and constants of the module.
  bool is_ignored(uintptr_t address) const;
  // Returns the number of the instruction's row for accesses of `nbytes`, at most 16.
  uint32_t find_row(const void* pc, size_t nbytes, unsigned flags, bool is_shared);
  void count(uint32_t row, const Request& request);
  // Returns the number of the place's row of operations.
  uint32_t find_operations(const void* pc, int unit, unsigned operations) {
    const auto& recent = recent_operations_[uintptr_t(pc) * 0x9e3779b97f4a7c15ull >> 40 & (kRecentOperations - 1)];
    return recent.first == pc ? recent.second : look_up_operations(pc, unit, operations);
  }
  void count_calls(uint32_t row, uint64_t calls, uint64_t lanes) {
    operations_[row].calls += calls;
    operations_[row].lanes += lanes;
  }
  // Hands the figures over to the launch.
  void finish();

 private:
  struct Span {
    uintptr_t first, end;
  };

  static constexpr size_t kRecentOperations = 1024;  // a power of two

  uint32_t look_up_operations(const void* pc, int unit, unsigned operations);
  void count_global(Count& row, uintptr_t* addresses, unsigned count);
  void count_shared(Count& row, const Request& request);

  Launch& launch_;
  std::vector<Span> ignored_;
  uintptr_t module_;
  std::vector<Count> rows_;
  std::unordered_map<uint64_t, uint32_t> numbers_;  // of rows, by instruction and kind
  std::vector<std::pair<uint64_t, uint32_t>> recent_;
  std::vector<OperationCount> operations_;
  std::unordered_map<const void*, uint32_t> operation_numbers_;  // of rows, by instruction
  std::vector<std::pair<const void*, uint32_t>> recent_operations_;
  CacheModel l2_;
  uint64_t l2_sectors_read_ = 0, l2_sectors_written_ = 0;
};

// The requests under way of a warp, and its calls since its lanes were together.
class CountedWarp {
 public:
  void access(Counter& counter, uint32_t row, unsigned lane, uintptr_t address, bool is_made, uint32_t live);
  void call(uint32_t row, unsigned lane) {
    if (row >= calls_.size()) calls_.resize(row + 1);
    Calls& calls = calls_[row];
    if (!calls.is_used) called_.push_back(row);
    calls.is_used = true;
    calls.of_lane[lane]++;
  }
  // Counts all that is under way: the lanes are together.
  void close(Counter& counter);

 private:
  struct Queue {
    std::vector<uint32_t> open;  // requests from number `first` on, those before `head` are closed
    size_t head = 0;
    uint64_t first = 0;
    uint64_t next[kWarpSize] = {};  // number of each lane's next access
    bool is_used = false;           // since the lanes were together
  };

  struct Calls {
    uint32_t of_lane[kWarpSize] = {};
    bool is_used = false;  // since the lanes were together
  };

  void close_first(Counter& counter, uint32_t row);
  void close_older(Counter& counter, uint64_t order);

  std::vector<Queue> queues_;  // by row
  std::vector<Calls> calls_;  // by row of operations
  std::vector<uint32_t> called_;
  std::vector<Request> requests_;
  std::vector<uint32_t> free_;
  size_t open_ = 0;
  uint64_t opened_ = 0;
};

// A block while it runs.
struct CountedBlock {
  std::vector<CountedWarp> warps;
  std::vector<uint32_t> turns;  // accesses of each thread since it last gave way
};

}  // namespace gpuexec
