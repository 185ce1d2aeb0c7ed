// Count mode: sectors, wavefronts and cache traffic of requests.
#include "count.h"

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace gpuexec {

namespace {

constexpr unsigned kSectorBytes = 32, kSectorsPerLine = 4;
constexpr unsigned kBanks = 32, kWordBytes = 4;
constexpr size_t kRecentRows = 1024;  // a power of two
constexpr size_t kMaxOpen = 2048;    // requests of a warp under way, 600 KB of them
constexpr uint32_t kNone = ~0u;

// Calls visit(number) for each unit of `size` bytes that the accesses touch, once and in order. Addresses are sorted.
template <class Visit>
void for_each_unit(const uintptr_t* addresses, unsigned count, size_t nbytes, unsigned size, Visit visit) {
  uintptr_t next = 0;
  for (unsigned i = 0; i < count; i++) {
    uintptr_t unit = std::max(next, addresses[i] / size), end = (addresses[i] + nbytes - 1) / size + 1;
    for (; unit < end; unit++) visit(unit);
    next = std::max(next, end);
  }
}

void sort(uintptr_t* addresses, unsigned count) {
  if (!std::is_sorted(addresses, addresses + count)) std::sort(addresses, addresses + count);
}

unsigned gather(const Request& request, unsigned first, unsigned lanes, uintptr_t* addresses) {
  unsigned count = 0;
  for (unsigned lane = first; lane < first + lanes; lane++) {
    if (request.lanes >> lane & 1) addresses[count++] = request.addresses[lane];
  }
  sort(addresses, count);
  return count;
}

uint64_t count_bytes(const uintptr_t* addresses, unsigned count, size_t nbytes) {
  uint64_t total = count ? nbytes : 0;
  for (unsigned i = 1; i < count; i++) total += std::min(uint64_t(nbytes), uint64_t(addresses[i] - addresses[i - 1]));
  return total;
}

}  // namespace

CacheModel::CacheModel(size_t nbytes) : capacity_(std::max(nbytes / (kSectorBytes * kSectorsPerLine), size_t(1))) {}

void CacheModel::access(uintptr_t sector, bool is_read, bool is_write) {
  Line& line = find(sector / kSectorsPerLine);
  const uint8_t bit = uint8_t(1u << sector % kSectorsPerLine);
  if (is_read && !(line.valid & bit)) sectors_read++;
  line.valid |= bit;
  if (is_write) line.dirty |= bit;
}

CacheModel::Line& CacheModel::find(uintptr_t number) {
  if (!lines_.empty() && lines_[youngest_].number == number) return lines_[youngest_];
  auto [place, is_new] = index_.try_emplace(number, 0);
  if (is_new) {
    place->second = take_line();
    lines_[place->second] = {number, kNone, kNone, 0, 0};
    if (lines_.size() == 1) oldest_ = youngest_ = 0;
    else {
      lines_[youngest_].younger = place->second;
      lines_[place->second].older = youngest_;
      youngest_ = place->second;
    }
  } else {
    make_youngest(place->second);
  }
  return lines_[youngest_];
}

// Returns a line out of the order: a new one, or the oldest.
uint32_t CacheModel::take_line() {
  if (lines_.size() < capacity_) {
    lines_.emplace_back();
    return uint32_t(lines_.size() - 1);
  }
  uint32_t taken = oldest_;
  Line& line = lines_[taken];
  sectors_written += unsigned(__builtin_popcount(line.dirty));
  index_.erase(line.number);
  oldest_ = line.younger;
  if (oldest_ != kNone) lines_[oldest_].older = kNone;
  return taken;
}

void CacheModel::make_youngest(uint32_t index) {
  Line& line = lines_[index];
  if (index == oldest_) oldest_ = line.younger;
  else lines_[line.older].younger = line.younger;
  lines_[line.younger].older = line.older;
  line.older = youngest_;
  line.younger = kNone;
  lines_[youngest_].younger = index;
  youngest_ = index;
}

void CacheModel::flush() {
  for (Line& line : lines_) {
    sectors_written += unsigned(__builtin_popcount(line.dirty));
    line.dirty = 0;
  }
}

Counter::Counter(Launch& launch)
    : launch_(launch),
      recent_(kRecentRows, {0, kNone}),
      recent_operations_(kRecentOperations, {nullptr, kNone}),
      l2_(launch.counts->l2_bytes) {
  LoadedObject module = find_object(reinterpret_cast<uintptr_t>(launch.entry));
  module_ = module.first;
  ignored_.push_back({module.first, module.end});
  auto ignore = [this](const void* first, size_t nbytes) {
    ignored_.push_back({uintptr_t(first), uintptr_t(first) + nbytes});
  };
  ignore(launch.arguments, size_t(launch.parameter_count) * sizeof(void*));
  for (int i = 0; i < launch.parameter_count; i++) ignore(launch.arguments[i], launch.parameters[i].nbytes);
}

bool Counter::is_ignored(uintptr_t address) const {
  for (const Span& span : ignored_) {
    if (address >= span.first && address < span.end) return true;
  }
  return false;
}

uint32_t Counter::find_row(const void* pc, size_t nbytes, unsigned flags, bool is_shared) {
  const uint32_t place = uint32_t(uintptr_t(pc) - module_);
  const uint64_t key = uint64_t(place) << 16 | uint64_t(nbytes) << 8 | flags << 1 | unsigned(is_shared);
  auto& recent = recent_[(key * 0x9e3779b97f4a7c15ull >> 40) % kRecentRows];
  if (recent.second != kNone && recent.first == key) return recent.second;
  auto [found, is_new] = numbers_.try_emplace(key, uint32_t(rows_.size()));
  if (is_new) rows_.push_back({place, flags, unsigned(is_shared), unsigned(nbytes), 0, 0, 0, 0, 0});
  recent = {key, found->second};
  return found->second;
}

// A place has one unit and number of operations: each call in a kernel returns to an address of its own.
uint32_t Counter::look_up_operations(const void* pc, int unit, unsigned operations) {
  auto [found, is_new] = operation_numbers_.try_emplace(pc, uint32_t(operations_.size()));
  if (is_new) operations_.push_back({uint32_t(uintptr_t(pc) - module_), unit, operations, 0, 0});
  recent_operations_[uintptr_t(pc) * 0x9e3779b97f4a7c15ull >> 40 & (kRecentOperations - 1)] = {pc, found->second};
  return found->second;
}

void Counter::count(uint32_t number, const Request& request) {
  if (!request.lanes) return;
  Count& row = rows_[number];
  uintptr_t addresses[kWarpSize];
  const unsigned count = gather(request, 0, kWarpSize, addresses);
  row.requests++;
  row.lanes += count;
  row.bytes += count_bytes(addresses, count, row.nbytes);
  if (row.is_shared) count_shared(row, request);
  else count_global(row, addresses, count);
}

void Counter::count_global(Count& row, uintptr_t* addresses, unsigned count) {
  const bool is_write = row.flags & kWrite, is_read = !is_write || (row.flags & kAtomic);
  uint64_t sectors = 0;
  for_each_unit(addresses, count, row.nbytes, kSectorBytes, [&](uintptr_t sector) {
    sectors++;
    l2_.access(sector, is_read, is_write);
  });
  row.transactions += sectors;
  row.least += (count_bytes(addresses, count, row.nbytes) + kSectorBytes - 1) / kSectorBytes;
  l2_sectors_read_ += is_read ? sectors : 0;
  l2_sectors_written_ += is_write ? sectors : 0;
}

// A bank gives one word in a wavefront, to as many lanes as want it. Accesses of 8 bytes go by halves of the warp, those
// of 16 by quarters.
void Counter::count_shared(Count& row, const Request& request) {
  const unsigned lanes = row.nbytes <= 4 ? kWarpSize : row.nbytes <= 8 ? kWarpSize / 2 : kWarpSize / 4;
  for (unsigned first = 0; first < kWarpSize; first += lanes) {
    uintptr_t addresses[kWarpSize];
    const unsigned count = gather(request, first, lanes, addresses);
    if (!count) continue;
    unsigned words[kBanks] = {}, total = 0, most = 0;
    for_each_unit(addresses, count, row.nbytes, kWordBytes, [&](uintptr_t word) {
      total++;
      most = std::max(most, ++words[word % kBanks]);
    });
    row.transactions += most;
    row.least += (total + kBanks - 1) / kBanks;
  }
}

void Counter::finish() {
  l2_.flush();
  Counts& counts = *launch_.counts;
  counts.row_count = int(std::min(rows_.size(), size_t(counts.capacity)));
  counts.operation_count = int(std::min(operations_.size(), size_t(counts.operation_capacity)));
  counts.missing_count = int(rows_.size() + operations_.size()) - counts.row_count - counts.operation_count;
  std::copy_n(rows_.begin(), counts.row_count, counts.rows);
  std::copy_n(operations_.begin(), counts.operation_count, counts.operations);
  counts.l2_read_bytes = l2_sectors_read_ * kSectorBytes;
  counts.l2_written_bytes = l2_sectors_written_ * kSectorBytes;
  counts.dram_read_bytes = l2_.sectors_read * kSectorBytes;
  counts.dram_written_bytes = l2_.sectors_written * kSectorBytes;
}

void CountedWarp::access(Counter& counter, uint32_t row, unsigned lane, uintptr_t address, bool is_made,
                         uint32_t live) {
  if (row >= queues_.size()) queues_.resize(row + 1);
  Queue& queue = queues_[row];
  const uint32_t bit = 1u << lane;
  const uint64_t number = queue.next[lane]++;
  queue.is_used = true;
  if (number < queue.first) {  // the others' request was too long ago: a request of its own
    Request alone{};
    alone.addresses[lane] = address;
    alone.lanes = is_made ? bit : 0;
    counter.count(row, alone);
    return;
  }
  while (number - queue.first >= queue.open.size() - queue.head) {
    if (open_ == kMaxOpen) close_older(counter, opened_ - kMaxOpen / 2);
    if (free_.empty()) {
      free_.push_back(uint32_t(requests_.size()));
      requests_.emplace_back();
    }
    queue.open.push_back(free_.back());
    free_.pop_back();
    requests_[queue.open.back()].lanes = requests_[queue.open.back()].passed = 0;
    requests_[queue.open.back()].order = opened_++;
    open_++;
  }
  Request& request = requests_[queue.open[queue.head + (number - queue.first)]];
  request.passed |= bit;
  if (is_made) {
    request.lanes |= bit;
    request.addresses[lane] = address;
  }
  // A lane comes to its requests in order, so none is complete before an older one.
  while (queue.head < queue.open.size() && !(live & ~requests_[queue.open[queue.head]].passed)) {
    close_first(counter, row);
  }
}

void CountedWarp::close_first(Counter& counter, uint32_t row) {
  Queue& queue = queues_[row];
  const uint32_t index = queue.open[queue.head++];
  counter.count(row, requests_[index]);
  free_.push_back(index);
  queue.first++;
  open_--;
  if (queue.head == queue.open.size()) {
    queue.open.clear();
    queue.head = 0;
  } else if (queue.head >= kMaxOpen) {
    queue.open.erase(queue.open.begin(), queue.open.begin() + ptrdiff_t(queue.head));
    queue.head = 0;
  }
}

// Counts what lanes have left open for so long that no other comes to it: these wait, or took another way.
void CountedWarp::close_older(Counter& counter, uint64_t order) {
  for (uint32_t row = 0; row < queues_.size(); row++) {
    const Queue& queue = queues_[row];
    while (queue.head < queue.open.size() && requests_[queue.open[queue.head]].order < order) close_first(counter, row);
  }
}

void CountedWarp::close(Counter& counter) {
  for (uint32_t row = 0; row < queues_.size(); row++) {
    Queue& queue = queues_[row];
    if (!queue.is_used) continue;
    while (queue.head < queue.open.size()) close_first(counter, row);
    queue.first = 0;
    queue.is_used = false;
    memset(queue.next, 0, sizeof queue.next);
  }
  for (const uint32_t row : called_) {
    uint64_t most = 0, lanes = 0;
    for (const uint32_t calls : calls_[row].of_lane) {
      most = std::max<uint64_t>(most, calls);
      lanes += calls;
    }
    counter.count_calls(row, most, lanes);
    calls_[row] = {};
  }
  called_.clear();
}

}  // namespace gpuexec
