// Barriers of a block and operations of a warp.
//
// Stricter than the hardware, so that what passes here is portable: a mask must not name a lane that has exited (lanes
// a short last warp never had are fine), and all lanes of a mask must come to the same operation at the same place.
#pragma once
#include <string.h>

#include "runtime.h"

#define GPUEXEC_SITE gpuexec::Site site = {__builtin_FILE(), __builtin_LINE()}

static inline void __syncthreads(GPUEXEC_SITE) { gpuexec_barrier(0, 0, 0, site); }
static inline int __syncthreads_count(int predicate, GPUEXEC_SITE) {
  return gpuexec_barrier(0, 0, predicate != 0, site);
}
static inline int __syncthreads_or(int predicate, GPUEXEC_SITE) {
  return gpuexec_barrier(0, 0, predicate != 0, site) != 0;
}
static inline int __syncthreads_and(int predicate, GPUEXEC_SITE) {
  return gpuexec_barrier(0, 0, predicate == 0, site) == 0;
}

namespace gpuexec {

// Calls visit(value) for each lane that came, in lane order.
template <class T, class Visit>
static inline void for_each_lane(const Meeting& meeting, Visit visit) {
  for (unsigned left = meeting.present; left; left &= left - 1) {
    T value;
    unsigned lane = __builtin_ctz(left);
    memcpy(&value, meeting.slots + lane * kSlotBytes, sizeof value);
    visit(value, lane);
  }
}

// The value of lane `source`; all bits set when that lane does not take part, which hardware leaves undefined.
template <class T>
static inline T read_lane(const Meeting& meeting, unsigned source) {
  T value;
  if (source < kWarpSize && (meeting.present >> source & 1)) {
    memcpy(&value, meeting.slots + source * kSlotBytes, sizeof value);
  } else {
    memset(&value, 0xff, sizeof value);
  }
  return value;
}

template <class T>
static inline T shuffle(unsigned mask, T value, unsigned source, Site site) {
  static_assert(sizeof(T) <= kSlotBytes, "a lane brings at most 64 bytes to a warp operation");
  return read_lane<T>(gpuexec_meet(mask, &value, sizeof value, kShuffle, site), source);
}

template <class T, class Fold>
static inline T reduce(unsigned mask, T value, Fold fold, Site site) {
  bool is_first = true;
  T result = value;
  for_each_lane<T>(gpuexec_meet(mask, &value, sizeof value, kReduce, site), [&](T other, unsigned) {
    result = is_first ? other : fold(result, other);
    is_first = false;
  });
  return result;
}

}  // namespace gpuexec

static inline void __syncwarp(unsigned mask = ~0u, GPUEXEC_SITE) {
  char nothing = 0;
  gpuexec_meet(mask, &nothing, 1, gpuexec::kSync, site);
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, GPUEXEC_SITE) {
  unsigned lane = gpuexec_position.lane, segment = lane & ~unsigned(width - 1);
  return gpuexec::shuffle(mask, value, segment | (unsigned(source) & unsigned(width - 1)), site);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, GPUEXEC_SITE) {
  unsigned lane = gpuexec_position.lane, source = lane ^ unsigned(bits);
  if (source >= (lane & ~unsigned(width - 1)) + unsigned(width)) source = lane;
  return gpuexec::shuffle(mask, value, source, site);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, GPUEXEC_SITE) {
  unsigned lane = gpuexec_position.lane, within = lane & unsigned(width - 1);
  return gpuexec::shuffle(mask, value, within + delta < unsigned(width) ? lane + delta : lane, site);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, GPUEXEC_SITE) {
  unsigned lane = gpuexec_position.lane, within = lane & unsigned(width - 1);
  return gpuexec::shuffle(mask, value, within >= delta ? lane - delta : lane, site);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, GPUEXEC_SITE) {
  unsigned result = 0;
  int vote = predicate != 0;
  gpuexec::for_each_lane<int>(gpuexec_meet(mask, &vote, sizeof vote, gpuexec::kVote, site),
                              [&](int other, unsigned lane) { result |= unsigned(other) << lane; });
  return result;
}
static inline int __any_sync(unsigned mask, int predicate, GPUEXEC_SITE) {
  return __ballot_sync(mask, predicate, site) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, GPUEXEC_SITE) {
  return __ballot_sync(mask, !predicate, site) == 0;
}

template <class T>
static inline unsigned __match_any_sync(unsigned mask, T value, GPUEXEC_SITE) {
  unsigned result = 0;
  gpuexec::for_each_lane<T>(
      gpuexec_meet(mask, &value, sizeof value, gpuexec::kMatch, site),
      [&](T other, unsigned lane) { result |= unsigned(!memcmp(&other, &value, sizeof value)) << lane; });
  return result;
}
template <class T>
static inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, GPUEXEC_SITE) {
  bool is_equal = true;
  gpuexec::Meeting meeting = gpuexec_meet(mask, &value, sizeof value, gpuexec::kMatch, site);
  gpuexec::for_each_lane<T>(meeting, [&](T other, unsigned) { is_equal &= !memcmp(&other, &value, sizeof value); });
  *predicate = is_equal;
  return is_equal ? meeting.present : 0;
}

#define GPUEXEC_REDUCE(NAME, T, EXPRESSION)                         \
  static inline T NAME(unsigned mask, T value, GPUEXEC_SITE) {      \
    return gpuexec::reduce(                                         \
        mask, value, [](T a, T b) { return T(EXPRESSION); }, site); \
  }
GPUEXEC_REDUCE(__reduce_add_sync, unsigned, a + b)
GPUEXEC_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
GPUEXEC_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
GPUEXEC_REDUCE(__reduce_add_sync, int, unsigned(a) + unsigned(b))
GPUEXEC_REDUCE(__reduce_min_sync, int, a < b ? a : b)
GPUEXEC_REDUCE(__reduce_max_sync, int, a > b ? a : b)
GPUEXEC_REDUCE(__reduce_and_sync, unsigned, a& b)
GPUEXEC_REDUCE(__reduce_or_sync, unsigned, a | b)
GPUEXEC_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef GPUEXEC_REDUCE
