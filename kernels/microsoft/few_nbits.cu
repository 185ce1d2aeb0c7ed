// Matrix products of up to four rows of float with weights of 2, 4 or 8 bits in blocks.
//
// Codes are read as by mma_few_nbits.cu, 32 of a column for a lane, and widened two at a time; sums are the lane's own.
#include "coded_columns.cuh"
#include "dependent_launch.cuh"
#include "mma_few.cuh"

template <int Bits, int Rows>
struct FloatCodes : CodedColumns<Bits> {
  typedef CodedColumns<Bits> Codes;
  typedef CodePairs<half, Bits> Widen;
  static constexpr int kSums = Codes::kSums, kOwn = Codes::kOwn, kStep = Codes::kStep, kTogether = 2;
  static constexpr int kPairs = Widen::kPairs, kCodes = 2 * kPairs;  // of a word
  using Codes::inner, Codes::k;

  struct Words : Codes::Words {
    float scales[kSums];
  };

  const float* scales[kSums];

  __device__ FloatCodes(const PackedPointers<float>& source, const PackedShape& shape, const SimtGemm& gemm,
                        int first_column, int lane, int k)
      : Codes(source, shape, gemm, first_column, lane, k) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      scales[i] = opaque(source.scales + Codes::find_column(gemm, first_column + 8 * i + lane / 4) * shape.blocks);
    }
  }

  // Loads a step from here on. Behind the last k scales are 0, and codes meet zeros.
  __device__ void load(Words& words, int step) const {
    Codes::load(words, step);
    const int block = this->find_k(k, step) >> this->block_shift;
    const bool is_there = k + step * kStep < inner;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float scale = __ldg(scales[i] + block);
      words.scales[i] = is_there ? scale : 0.0f;
    }
  }

  __device__ void advance() { Codes::advance(kTogether); }

  // Adds the products of a step with rows of `a`; beyond the last row it reads the last.
  __device__ void multiply(const Words& words, const float* a, const SimtGemm& gemm, int step,
                           float (&sums)[kSums][4]) const {
    float blocks[kSums][Rows] = {};
    u32 zeros[kSums];
    this->find_zeros(words, zeros);
#pragma unroll
    for (int word = 0; word < Bits; ++word) {
      const int first = k + step * kStep + word * kCodes;
      float numbers[Rows][kCodes];
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const float* const from = a + (row < gemm.rows ? row : gemm.rows - 1) * gemm.a_row + first;
#pragma unroll
        for (int four = 0; four < kCodes; four += 4) {
          Vec<float, 4> loaded = {};
          if (first + four < inner) loaded = load_vec<4>(from + four);
#pragma unroll
          for (int i = 0; i < 4; ++i) numbers[row][four + i] = loaded.lanes[i];
        }
      }
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const Widen widen_codes(zeros[i], this->mask);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const u32 two = widen_codes.widen_apart(words.word(i, word), pair);
          const float low = widen(reinterpret<half>(u16(two))), high = widen(reinterpret<half>(u16(two >> 16)));
#pragma unroll
          for (int row = 0; row < Rows; ++row) {
            blocks[i][row] = fmaf(numbers[row][pair], low, blocks[i][row]);
            blocks[i][row] = fmaf(numbers[row][pair + kPairs], high, blocks[i][row]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) sums[i][row] = fmaf(blocks[i][row], words.scales[i], sums[i][row]);
    }
  }

  // Adds up what the lanes of a column have, and stores it in rows that are `pitch` apart.
  static __device__ void store(float* partial, int pitch, int lane, int rows, float (&sums)[kSums][4]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        float sum = sums[i][row];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0 && row < rows) partial[row * pitch + 8 * i + lane / 4] = sum;
      }
    }
  }
};

// Computes  y = a @ w + c, where w[k, n] is (q - zero) * scale, of the code q at n * shape.row + k and its block along k
// Shapes    as mma_nbits, a of at most Rows rows; scratch [blocks, slices, rows * columns of a block]; counters [blocks]
// Grid      as mma_few_nbits
// Needs     what mma_nbits needs, of float. Rows is 1, 2 or 4. scratch and counters may be null with one slice
// Numerics  q - zero exact; products summed in float by fused multiply-adds for 32 k; these sums times their scale, each by
//           one; lanes, warps and slices in order; then c and the epilogue
template <int Bits, int Rows, class... Epilogue>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_nbits(const float* __restrict__ a, const u8* __restrict__ weights, const float* __restrict__ c,
              Stored<float, Epilogue...>* __restrict__ y, const __grid_constant__ SimtGemm gemm, float* scratch,
              unsigned* counters, const float* __restrict__ scales, const u8* __restrict__ zeros,
              const __grid_constant__ PackedShape shape, Epilogue... epilogue) {
  typedef FloatCodes<Bits, Rows> Columns;
  typedef FewBlock<Columns> Block;
  __shared__ alignas(16) typename Block::Partials partials;
  Block block(gemm);
  const FewRowsPlace place(gemm, block.block_columns, kFewRows);
  const PackedPointers<float> source = {weights, scales, zeros, nullptr, nullptr};
  Columns columns(source, shape, gemm, block.find_column(place), block.lane, block.find_k());
  wait_for_predecessors();
  launch_dependents();
  typename Columns::Words words[Columns::kTogether];
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < Columns::kTogether; ++i) {
      if (block.step + i < block.step_end) columns.load(words[i], i);
    }
  };
  load();
#pragma unroll 1
  while (block.step < block.step_end) {
#pragma unroll
    for (int i = 0; i < Columns::kTogether; ++i) {
      if (block.step + i >= block.step_end) break;
      columns.multiply(words[i], a, gemm, i, block.sums);
    }
    block.step += Columns::kTogether;
    columns.advance();
    load();
  }
  block.finish(partials, place, gemm, c, y, scratch, counters, finish_by<float>(epilogue...));
}
