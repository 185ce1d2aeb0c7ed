// Messages and findings of rules broken by a kernel.
#include <csignal>
#include <cstdio>
#include <utility>

#include "block.h"

namespace gpuexec {

void BlockRunner::fail(const std::string& reason, Site site, FindingKind kind, const Thread* other) {
  const uint3& block = gpuexec_position.block;
  char where[120];
  snprintf(where, sizeof where, " (thread %u of block %u,%u,%u)", self_ ? self_->linear : 0, block.x, block.y, block.z);
  message = (site.file ? site.file + (":" + std::to_string(site.line)) + ": " : "") + reason + where;
  report(kind, reason, site, self_ ? self_->linear : 0, other);
  abandon_launch();
}

void BlockRunner::report(FindingKind kind, const std::string& reason, Site site, unsigned thread, const Thread* other) {
  Finding* finding = checker_ ? checker_->report(kind, *checked_, thread) : nullptr;
  if (!finding) return;
  snprintf(finding->detail, sizeof finding->detail, "%s", reason.c_str());
  if (site.file) {
    snprintf(finding->file, sizeof finding->file, "%s", site.file);
    finding->line = site.line;
  }
  if (other) {
    finding->has_other = 1;
    finding->other_block = uint32_t(block_);
    finding->other_thread = other->linear;
    snprintf(finding->other_file, sizeof finding->other_file, "%s", other->site.file);
    finding->other_line = other->site.line;
  }
}

void BlockRunner::report_fault(int signal, bool has_address, void* address, const void* place) {
  const uint3& block = gpuexec_position.block;
  char what[80] = "misaligned address";
  FindingKind kind = kMisaligned;
  if (signal == SIGFPE) {
    snprintf(what, sizeof what, "integer division by zero or overflow");
    kind = kFault;
  } else if (has_address && is_overflow(self_->fiber, address)) {
    snprintf(what, sizeof what, "the stack of %zu KiB has overflown", kStackBytes >> 10);
    kind = kFault;
  } else if (has_address) {
    snprintf(what, sizeof what, "illegal address 0x%llx", (unsigned long long)address);
    fault_address = reinterpret_cast<uintptr_t>(address);
    kind = kOutOfBounds;
  }
  char text[200];
  snprintf(text, sizeof text, "%s (thread %u of block %u,%u,%u)", what, self_->linear, block.x, block.y, block.z);
  message = text;
  if (checker_) checker_->report_fault(kind, *checked_, self_->linear, place, what);
}

bool BlockRunner::explain_deadlock() {
  const uint3& block = gpuexec_position.block;
  char text[200];
  snprintf(text, sizeof text, "deadlock in block %u,%u,%u: %u of %zu threads wait for ever", block.x, block.y, block.z,
           live_, threads_.size());
  message = text;
  std::vector<std::pair<std::string, unsigned>> places;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kExited) continue;
    std::string place = describe(thread);
    if (places.empty() || places.back().first != place) places.push_back({place, 0});
    places.back().second++;
  }
  for (size_t i = 0; i < places.size() && i < 6; i++) {
    message += "; " + std::to_string(places[i].second) + " " + places[i].first;
  }
  const Thread *at_barrier = nullptr, *elsewhere = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kAtBarrier) at_barrier = &thread;
    else if (thread.state != State::kExited) elsewhere = &thread;
  }
  const Thread* first = at_barrier ? at_barrier : elsewhere;
  report(at_barrier ? kDivergentBarrier : kDeadlock, message, first->site, first->linear,
         first == elsewhere ? nullptr : elsewhere);
  return false;
}

void BlockRunner::explain_grid_deadlock() {
  const Thread& thread = threads_[at_grid_barrier_[0]];
  message = std::string(thread.site.file) + ":" + std::to_string(thread.site.line) +
            ": blocks of the grid wait here for others that have ended";
  report(kDivergentBarrier, "blocks of the grid wait for others that have ended", thread.site, thread.linear);
}

void BlockRunner::explain_early_write() {
  message = "a dependent launch wrote memory before it waited for the launches before it";
  report(kMissingWait, message, Site{nullptr, 0}, 0);
}

std::string BlockRunner::describe(const Thread& thread) const {
  char mask[40] = "";
  if (thread.state == State::kAtMeeting) snprintf(mask, sizeof mask, " with mask 0x%08x", thread.mask);
  std::string place = thread.state == State::kAtMeeting       ? "in the warp operation at "
                      : thread.state == State::kAtDependency  ? "in the wait for predecessors at "
                      : thread.state == State::kAtGridBarrier ? "in the barrier of the grid at "
                                                              : "in the barrier at ";
  return place + thread.site.file + ":" + std::to_string(thread.site.line) + mask;
}

}  // namespace gpuexec
