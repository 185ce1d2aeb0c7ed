// Interface between compiled kernels, the simulator's runtime library and the host.
//
// A block of CUDA threads runs on one OS thread: each CUDA thread is a fiber that gives way at barriers and warp
// operations. Everything crossing this border has C linkage, so that kernels built by one compiler run on a runtime
// built by another.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct uint3 {
  unsigned x, y, z;
};

namespace gpuexec {

// Where in the kernel's source an operation was called.
struct Site {
  const char* file;
  int line;
};

// What the running CUDA thread sees of itself; one per OS thread, rewritten at each switch.
struct Position {
  uint3 thread, block, block_dim, grid_dim;
  unsigned linear, lane;
  void* dynamic_shared;
};

// Lanes that meet under one mask must have come for the same operation.
enum WarpOperation : int { kShuffle, kVote, kReduce, kMatch, kSync, kMatrix, kLoadMatrix };
constexpr unsigned kSlotBytes = 64;
constexpr unsigned kWarpSize = 32;

// What the lanes of a mask brought to a warp operation: slot i belongs to lane i if bit i of `present` is set.
struct Meeting {
  const unsigned char* slots;
  unsigned present;
};

// kind: P pointer, f float (half and bfloat16 included), i signed, u unsigned, b bool, s struct.
struct Parameter {
  char kind;
  unsigned nbytes;
};

enum Order : int { kForward, kReverse, kRandom };
typedef void (*Entry)(void** arguments);


// How a kernel touches memory, in check and count mode.
enum AccessFlags : unsigned { kRead = 0, kWrite = 1, kAtomic = 2, kPending = 4, kPlainRead = 8 };

// Bytes [first, end) that a launch may touch, of the pointer argument `argument`.
struct Range {
  uintptr_t first, end;
  int argument, is_written;
};

enum FindingKind : int {
  kRace,
  kOutOfBounds,
  kMisaligned,
  kUninitialised,
  kDivergentBarrier,
  kMissingWait,
  kUseAfterFree,
  kWarpOperation,
  kDeadlock,
  kFault,
};

// What check mode found. A place is an instruction's offset in the module (0: unknown), or a file and line.
struct Finding {
  int kind;
  unsigned flags, other_flags;
  uint32_t place, other_place;
  uint32_t block, thread, other_block, other_thread;
  int has_other, line, other_line;
  char file[64], other_file[64];
  char detail[192];
};

// Requests that warps made by one instruction, in count mode. Transactions are sectors of 32 bytes of device memory, or
// wavefronts of shared memory; `least` are as many as the bytes asked for fill.
struct Count {
  uint32_t place;  // the instruction's offset in the module
  unsigned flags, is_shared;
  unsigned nbytes;  // of a lane's access
  uint64_t requests, lanes, bytes, transactions, least;
};

// Arithmetic that count mode counts: multiply-adds of floats, doubles, halves, bytes, matrices; special functions.
enum Unit : int { kFfma, kDfma, kHfma, kDp4a, kMma, kMufu };

// Calls that warps made at one place. A call is `operations` of each lane: multiply-adds, or MUFU instructions.
struct OperationCount {
  uint32_t place;  // the instruction's offset in the module
  int unit;
  unsigned operations;
  uint64_t calls, lanes;
};

// What count mode counts of a launch. The fields after the capacities are results.
struct Counts {
  size_t l2_bytes;  // size of the modelled cache
  Count* rows;
  OperationCount* operations;
  int capacity, operation_capacity;
  int row_count, operation_count, missing_count;  // rows written; those there was no room for
  uint64_t l2_read_bytes, l2_written_bytes;      // between multiprocessors and the cache
  uint64_t dram_read_bytes, dram_written_bytes;  // between the cache and device memory
};

// Bytes [first, end) that a dependent launch must not use before its wait. `is_hidden`: what they hold can't be seen, since a
// launch before it may not have written them yet. `is_watched`: the launch writes them itself.
struct Withheld {
  uintptr_t first, end;
  int is_hidden, is_watched;
};

// One grid. The fields from `finding_count` to `shared_bytes` are results.
struct Launch {
  Entry entry;
  void** arguments;
  const Parameter* parameters;
  int parameter_count;
  unsigned grid[3], block[3];
  unsigned dynamic_shared_bytes, shared_limit_bytes;
  int order, workers;
  uint64_t seed;
  int is_cooperative;  // all blocks are under way together and may meet at a barrier of the grid
  int is_dependent;    // it begins before the launches it depends on are complete, and waits for them itself
  const Withheld* withheld;  // of a dependent launch
  int withheld_count;
  int is_checked;      // the module was compiled for check mode
  const Range* ranges;  // null: a kernel may touch all memory of the device
  int range_count;
  char* message;
  size_t message_capacity;
  Finding* findings;
  int finding_capacity;
  int finding_count;
  uintptr_t fault_address;
  uint64_t switches;
  unsigned shared_bytes;
  Counts* counts;  // null but in count mode
};

}  // namespace gpuexec

#pragma GCC visibility push(default)
extern "C" {
extern __thread gpuexec::Position gpuexec_position __attribute__((tls_model("initial-exec")));

// Waits for `threads` threads (0: all that have not exited) at barrier `id`; returns the sum of their predicates.
int gpuexec_barrier(int id, unsigned threads, int predicate, gpuexec::Site site);
// Leaves up to kSlotBytes in the caller's slot and waits for every lane of the mask. The slots hold until the caller's
// next operation.
gpuexec::Meeting gpuexec_meet(unsigned mask, const void* value, size_t nbytes, int operation, gpuexec::Site site);
// Returns the block's copy of the shared variable called `key`; poisoned when the first thread asks.
void* gpuexec_shared(const void* key, size_t nbytes, size_t alignment, const char* name);
// An asynchronous copy reads and writes nothing before it is waited for: shared memory that it goes to is poison until
// then, so a missing wait or a buffer that is read still gives wrong numbers. But one that begins before the wait for
// predecessors reads its source at once, which has not what they write. Copies waited for together come in any order.
// Bytes past `source_nbytes` are zero. `keep` is the number of youngest committed groups that may stay under way.
void gpuexec_copy_async(void* destination, const void* source, size_t nbytes, size_t source_nbytes);
void gpuexec_copy_commit();
void gpuexec_copy_wait(int keep);
// Waits for every thread of a cooperative grid.
void gpuexec_grid_barrier(gpuexec::Site site);
// Gives way to other blocks, one of which is to end the caller's loop.
void gpuexec_wait_for_blocks(gpuexec::Site site);
// Waits until the launches that a dependent one comes after are complete.
void gpuexec_wait_for_predecessors(gpuexec::Site site);
// What the compiler calls in a module built for check or count mode: before an access, at arithmetic that is counted,
// at a fence, at code that is wrong by itself.
// Outside of kernels they do nothing.
void gpuexec_access(const void* address, size_t nbytes, unsigned flags, const void* pc);
void gpuexec_count_operations(int unit, unsigned operations, const void* pc);
void gpuexec_fence();
void gpuexec_misuse(int kind, const char* file, int line, const char* what);
[[noreturn]] void gpuexec_fail(const char* message, gpuexec::Site site);
// Fails at what an instruction for device memory alone is given of shared memory: on a GPU it is no address of that.
void gpuexec_expect_global(const void* address, gpuexec::Site site);

// Runs a grid to its end. Returns 0, or 1 with the reason in `message`.
int gpuexec_launch(gpuexec::Launch* launch);
// Returns a copy of the arguments, to be freed by gpuexec_free_arguments, or null when no memory is left.
void** gpuexec_copy_arguments(void* const* arguments, const gpuexec::Parameter* parameters, int count);
void gpuexec_free_arguments(void** arguments);

// Memory of the device: aligned to 256 bytes, full of 0xcd, its end within 256 bytes of addresses that stay inaccessible
// for 8 GiB. Null when none is left. Released memory stays inaccessible and its address unused for a long while, so that
// late uses fault.
void* gpuexec_allocate(size_t nbytes);
void gpuexec_release(void* address);
void gpuexec_fill(void* address, const void* pattern, size_t pattern_bytes, size_t count);
}
#pragma GCC visibility pop
