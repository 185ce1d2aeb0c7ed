// Products of a group of four warps on tensor cores while its warps go on: wgmma, sm_90a alone.
//
// A group multiplies 64 lines of one matrix by 64 or 256 lines of another, 16 numbers of the inner extent at a time. Both lie
// in shared memory as rows of 128 bytes, aligned to 1024 together: chunk c of 16 bytes of row r stands where chunk c ^ r % 8
// would. Rows are lines, 64 numbers of each (along k), or there are 64 lines in each row, which is one of k (across); 64
// lines more are so many bytes further on. Each wrapper is one instruction but for its descriptors (PTX ISA 9.0, section
// 9.7.15). In plain mode host bodies multiply where an instruction is issued, and add where it is waited for: sums that are
// read too early lack it. What is read must stand there from the one to the other, which check mode watches.
#pragma once
#include "mma.cuh"

constexpr int kGroupThreads = 128, kGroupLines = 64, kGroupRowBytes = 128, kGroupAlignment = 1024;

// Where a group's operand begins: its first line at the first k that is multiplied; it is so many bytes to 64 lines more. On
// the device the low half of its matrix descriptor: address and bytes, both in sixteens.
class GroupOperand {
 public:
#ifdef GPUEXEC_SIM
  __device__ GroupOperand(SharedAddress address, int apart) : address(address), apart(apart) {}
  __device__ GroupOperand after(int nbytes) const { return {address + nbytes, apart}; }

  SharedAddress address;
  int apart;
#else
  __device__ GroupOperand(SharedAddress address, int apart) : low_((address & 0x3ffff) >> 4 | u32(apart) >> 4 << 16) {}
  __device__ GroupOperand after(int nbytes) const { return GroupOperand(low_ + u32(nbytes >> 4)); }

  // With the bytes to eight rows more, and that chunks are in the order of 128 bytes.
  __device__ u64 describe() const { return u64(low_) | u64(kGroupAlignment >> 4 | 1 << 30) << 32; }

 private:
  __device__ explicit GroupOperand(u32 low) : low_(low) {}
  u32 low_;
#endif
};

#ifdef GPUEXEC_SIM
// Products of a thread that are not waited for.
class GroupProducts {
 public:
  // Bytes of shared memory have been made visible to tensor cores.
  void fence() { is_fenced_ = true; }

  void begin(GPUEXEC_SITE) {
    if (!is_fenced_) gpuexec_fail("wgmma reads what no fence.proxy.async stands behind", site);
    is_fenced_ = false;
  }

  template <class T, int Columns, bool IsLeftAcross, bool IsRightAcross>
  void multiply(float (&sums)[Columns / 8][4], GroupOperand left, GroupOperand right, gpuexec::Site site) {
    static_assert(Columns / 2 <= kMostSums, "sums of a thread");
    if (count_ == kMostProducts) gpuexec_fail("more products of a group are under way than the simulator holds", site);
    Product& product = products_[count_++];
    product.commit = commits_;
    product.to = &sums[0][0];
    product.sums = Columns / 2;
    product.left = left;
    product.right = right;
    product.is_left_across = IsLeftAcross;
    product.is_right_across = IsRightAcross;
    product.seen = touch(product);
    compute<T>(product);
  }

  void commit() { ++commits_; }

  // Adds what all commits but the youngest `keep` hold.
  void wait(int keep, gpuexec::Site site) {
    int taken = 0;
    while (taken < count_ && products_[taken].commit < commits_ - keep) {
      Product& product = products_[taken++];
#ifndef GPUEXEC_COUNT
      if (touch(product) != product.seen) gpuexec_fail("wgmma reads what was written before it was waited for", site);
#endif
      for (int i = 0; i < product.sums; ++i) product.to[i] = float(product.to[i] + product.added[i]);
    }
    for (int i = taken; i < count_; ++i) products_[i - taken] = products_[i];
    count_ -= taken;
  }

 private:
  static constexpr int kMostSums = 128, kMostProducts = 8, kSteps = 16;
  struct Product {
    int commit = 0;
    float* to = nullptr;
    int sums = 0;
    GroupOperand left{nullptr, 0}, right{nullptr, 0};
    bool is_left_across = false, is_right_across = false;
    u64 seen = 0;  // a sum over the bytes that were there at first
    double added[kMostSums];
  };

  static const u8* find(const GroupOperand& operand, bool is_across, int line, int k) {
    const int offset = int(reinterpret_cast<uintptr_t>(operand.address) % kGroupRowBytes);
    const int row = is_across ? k : line, place = offset + 2 * (is_across ? line % kGroupLines : k);
    const u8* const base = operand.address - offset + (is_across ? line / kGroupLines * operand.apart : 0);
    return base + row * kGroupRowBytes + (place ^ row % 8 * 16);
  }

  // Tells check and count mode what the group reads, each thread its share, by vectors of 16 bytes. Returns a sum of them.
  static u64 touch(const Product& product) {
#ifdef GPUEXEC_CHECK
    const int thread = threadIdx.x % kGroupThreads;
    return touch(product.left, product.is_left_across, kGroupLines, thread) +
           3 * touch(product.right, product.is_right_across, product.sums * 2, thread);
#else
    return 0;
#endif
  }
  __attribute__((no_sanitize("thread"))) static u64 touch(const GroupOperand& operand, bool is_across, int lines,
                                                          int thread) {
    u64 seen = 0;
    for (int i = thread; i < lines * 2; i += kGroupThreads) {
      const u8* const chunk = is_across ? find(operand, true, i % 8 * 8 + i / 128 * 64, i / 8 % 16)
                                        : find(operand, false, i / 16 * 8 + i % 8, i / 8 % 2 * 8);
      gpuexec_access(chunk, 16, gpuexec::kRead, __builtin_return_address(0));
      const u64* const words = reinterpret_cast<const u64*>(chunk);
      seen = seen * 31 + words[0] * 7 + words[1];
    }
    return seen;
  }

  template <class T>
  __attribute__((no_sanitize("thread"), noinline)) static void compute(Product& product) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
    double left[2][kSteps];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kSteps; ++k) {
        left[half][k] = decode<T>(find(product.left, product.is_left_across, warp * 16 + lane / 4 + half * 8, k));
      }
    }
    for (int i = 0; i < product.sums; i += 4) {
      for (int e = 0; e < 2; ++e) {
        double added[2] = {};
        for (int k = 0; k < kSteps; ++k) {
          const double right = decode<T>(find(product.right, product.is_right_across, i * 2 + lane % 4 * 2 + e, k));
          for (int half = 0; half < 2; ++half) added[half] += left[half][k] * right;
        }
        for (int half = 0; half < 2; ++half) product.added[i + half * 2 + e] = added[half];
      }
    }
  }
  template <class T>
  __attribute__((no_sanitize("thread"))) static double decode(const u8* bytes) {
    const u32 word = bytes[0] | bytes[1] << 8;
    return Select<kIsSame<T, half>, HalfWord, BfloatWord>::type::decode(word, 0);
  }

  Product products_[kMostProducts];
  int count_ = 0, commits_ = 0;
  bool is_fenced_ = false;
};

// Makes bytes of shared memory, which other threads have written before a barrier, visible to tensor cores.
__device__ inline void fence_for_group(GroupProducts& products) { products.fence(); }
// Goes before the first product of sums that were written otherwise, and of what a fence has made visible.
__device__ inline void begin_products(GroupProducts& products, GPUEXEC_SITE) { products.begin(site); }
__device__ inline void commit_products(GroupProducts& products) { products.commit(); }
template <int Keep>
__device__ inline void wait_products(GroupProducts& products, GPUEXEC_SITE) {
  products.wait(Keep, site);
}
template <class T, bool IsLeftAcross, bool IsRightAcross, int Fours>
__device__ inline void multiply_group(GroupProducts& products, float (&sums)[Fours][4], GroupOperand left, GroupOperand right,
                                      GPUEXEC_SITE) {
  if (reinterpret_cast<uintptr_t>(left.address) % 32 || reinterpret_cast<uintptr_t>(right.address) % 32) {
    gpuexec_fail("wgmma expects operands that begin at 16 numbers of a row", site);
  }
  GPUEXEC_ISSUE(kMma, kGroupLines * Fours * 8 * 16 / kGroupThreads);
  products.multiply<T, Fours * 8, IsLeftAcross, IsRightAcross>(sums, left, right, site);
}
#else
struct GroupProducts {};

__device__ __forceinline__ void fence_for_group(GroupProducts&) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void begin_products(GroupProducts&) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products(GroupProducts&) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Keep>
__device__ __forceinline__ void wait_products(GroupProducts&) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Keep) : "memory");
}

#define GPUEXEC_GROUP_FOUR(I) "+f"(sums[I][0]), "+f"(sums[I][1]), "+f"(sums[I][2]), "+f"(sums[I][3])
#define GPUEXEC_GROUP_EIGHT(I) \
  GPUEXEC_GROUP_FOUR(I), GPUEXEC_GROUP_FOUR(I + 1), GPUEXEC_GROUP_FOUR(I + 2), GPUEXEC_GROUP_FOUR(I + 3), \
      GPUEXEC_GROUP_FOUR(I + 4), GPUEXEC_GROUP_FOUR(I + 5), GPUEXEC_GROUP_FOUR(I + 6), GPUEXEC_GROUP_FOUR(I + 7)
#define GPUEXEC_GROUP_64(TYPE)                                                                                       \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                           \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "                  \
               "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, %34, %35;" \
               : GPUEXEC_GROUP_EIGHT(0)                                                                              \
               : "l"(left.describe()), "l"(right.describe()), "n"(int(IsLeftAcross)), "n"(int(IsRightAcross)))
#define GPUEXEC_GROUP_256(TYPE)                                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                    \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "            \
               "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "              \
               "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "              \
               "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "              \
               "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "              \
               "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "              \
               "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "            \
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "          \
               "%126, %127}, %128, %129, 1, 1, 1, %130, %131;"                                                 \
               : GPUEXEC_GROUP_EIGHT(0), GPUEXEC_GROUP_EIGHT(8),                                               \
                 GPUEXEC_GROUP_EIGHT(16), GPUEXEC_GROUP_EIGHT(24)                                              \
               : "l"(left.describe()), "l"(right.describe()), "n"(int(IsLeftAcross)), "n"(int(IsRightAcross)))

// sums (64 x 8 * Fours) += left (64 x 16) * right (16 x 8 * Fours), of half or bf16. Warp w of the group holds rows from
// 16 * w on, as mma_half leaves them, columns by eights. Nobody reads the sums before they are waited for.
template <class T, bool IsLeftAcross, bool IsRightAcross, int Fours>
__device__ __forceinline__ void multiply_group(GroupProducts&, float (&sums)[Fours][4], GroupOperand left, GroupOperand right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(Fours == 8 || Fours == 32, "64 or 256 columns");
  if constexpr (Fours == 8) {
    if constexpr (kIsSame<T, half>) GPUEXEC_GROUP_64("f16");
    else GPUEXEC_GROUP_64("bf16");
  } else {
    if constexpr (kIsSame<T, half>) GPUEXEC_GROUP_256("f16");
    else GPUEXEC_GROUP_256("bf16");
  }
#else
  __trap();  // plans for other architectures have no such kernel
#endif
}
#undef GPUEXEC_GROUP_FOUR
#undef GPUEXEC_GROUP_EIGHT
#undef GPUEXEC_GROUP_64
#undef GPUEXEC_GROUP_256
#endif

// Keeps what reads sums behind the wait for them, of which they say nothing.
template <int Fours>
__device__ __forceinline__ void settle_sums(float (&sums)[Fours][4]) {
#ifndef GPUEXEC_SIM
#pragma unroll
  for (int i = 0; i < Fours; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[i][e])::"memory");
  }
#endif
}
