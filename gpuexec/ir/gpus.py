"""GPUs by architecture: multiprocessors, clocks, lanes, bandwidths, latencies and limits of one device of each.

Each architecture has many devices; the one that stands here is what plans divide their work for and what predictions
are made for. It is known by the architecture's name alone, never by the device at hand: so a graph computes the same
bits on every device of an architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuexec.ir.geometry import ceil_div, round_up

_KIB, _MIB = 1 << 10, 1 << 20
_WARP = 32
_REACHED_DRAM = 0.9
# Registers are given to threads by eights (CUDA C++ programming guide, technical specifications).
_REGISTER_STEP = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: what decides how long a kernel takes, and how many of its blocks a multiprocessor holds.

    Attributes:
        name: What its maker calls it.
        multiprocessors: How many it has.
        clock_hertz: Of its multiprocessors: the boost clock of its data sheet, or what is kept of it under load.
        fp32_lanes: Fused multiply-adds of floats that a multiprocessor begins in a clock.
        fp64_lanes: The same of doubles.
        integer_lanes: The same of integers: of 32 bits, or the products of four bytes added up at once (dp4a).
        dram_bytes_per_second: Of device memory, by its data sheet; reached are nine tenths at best.
        l2_bytes_per_second: Between L2 and all multiprocessors, as measured by reading.
        l2_nbytes: The size of L2.
        l2_latency_cycles: Of a load that L2 answers.
        dram_latency_cycles: Of a load that device memory answers.
        threads: The most that a multiprocessor holds.
        blocks: The same of blocks.
        registers: Of a multiprocessor, 32 bits each.
        shared_nbytes: Shared memory of a multiprocessor.
        matrix_products: Multiply-adds of halves into floats that tensor cores begin in a clock of a multiprocessor by
            mma.sync.
        shared_nbytes_per_block: What the driver takes of it for each block.
        group_products: As matrix_products by wgmma; 0 where there is none.
    """

    name: str
    multiprocessors: int
    clock_hertz: float
    fp32_lanes: int
    fp64_lanes: int
    integer_lanes: int
    dram_bytes_per_second: float
    l2_bytes_per_second: float
    l2_nbytes: int
    l2_latency_cycles: int
    dram_latency_cycles: int
    threads: int
    blocks: int
    shared_nbytes: int
    matrix_products: int
    shared_nbytes_per_block: int = _KIB
    registers: int = 65536
    group_products: int = 0

    @property
    def float_rate(self) -> float:
        """Operations on floats in a second; a multiply-add is two."""
        return 2 * self.multiprocessors * self.fp32_lanes * self.clock_hertz

    @property
    def matrix_rate(self) -> float:
        """The same of halves on tensor cores."""
        return 2 * self.multiprocessors * self.matrix_products * self.clock_hertz

    @property
    def group_rate(self) -> float:
        """The same by groups of warps."""
        return 2 * self.multiprocessors * self.group_products * self.clock_hertz

    def find_bandwidth(self, nbytes: int) -> float:
        """Return the bytes a second at which a working set of so many is read and written: that of L2 where it fits."""
        return self.l2_bytes_per_second if nbytes <= self.l2_nbytes else _REACHED_DRAM * self.dram_bytes_per_second

    def count_blocks(self, threads: int, registers: int, shared_nbytes: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds at once; 0 where not even one fits.

        Args:
            threads: Of a block.
            registers: Of a thread.
            shared_nbytes: Of a block, static and dynamic.
        """
        of_block = ceil_div(threads, _WARP) * _WARP * round_up(max(registers, 1), _REGISTER_STEP)
        shared = shared_nbytes + self.shared_nbytes_per_block
        by_shared = self.shared_nbytes // shared if shared else self.blocks
        return min(self.threads // threads, self.registers // of_block, by_shared, self.blocks)


# Multiprocessors, clocks and bandwidths of device memory are those of the data sheets and architecture whitepapers of
# NVIDIA. Lanes, threads, blocks and shared memory: CUDA C++ programming guide 13, technical specifications and
# arithmetic throughput per compute capability. Bandwidths and latencies of L2 and latencies of device memory were
# measured by others where a source stands; where none does they are estimates from the nearest relative.
#
# Integers: multiply-adds and dp4a take the pipe of half of the FP32 lanes from sm_86 on, and all 64 of sm_75 and 80
# (the guide's throughput of 32-bit integer multiply-adds; pipes by forums.developer.nvidia.com, topic 302018). For
# sm_100 and later no figure of dp4a is known here: it is taken to be the same, though the whitepaper of the GeForce
# 5090 doubles other arithmetic of integers.
#
# Tensor cores: the dense rates of the data sheets, for sums in float, by multiprocessors and boost clock: 65, 312, 125
# and 42.5 TFLOPS of T4, A100, A10 and Orin, 165 and 210 of the GeForce 4090 and 5090; of the GB10 an eighth of its
# 1 PFLOPS of sparse fp4. On an A100 mma.sync reaches that rate (Sun et al., arXiv 2206.02874), on an H100 62.9 % of
# 2048 on average (Luo et al., arXiv 2402.13499), all of which wgmma has. For sm_100, 103 and 110 no measurement of
# mma.sync is known here: they are taken to be an H100.
_GPUS = {
    # T4: Jia, Maggioni, Smith, Scarpazza, arXiv 1903.07486 (L2 of 1.27 TB/s, 188 cycles).
    75: Gpu("T4", 40, 1.59e9, 64, 2, 64, 320e9, 1.27e12, 4 * _MIB, 188, 500, 1024, 16, 64 * _KIB, 512, 0),
    # A100 SXM of 80 GB: latencies by Luo et al., arXiv 2402.13499. L2 gives 5120 bytes a clock by the whitepaper, of
    # which about 4 TB/s are reached.
    80: Gpu("A100 SXM", 108, 1.41e9, 64, 32, 64, 2.039e12, 4.0e12, 40 * _MIB, 262, 466, 2048, 32, 164 * _KIB, 1024),
    86: Gpu("A10", 72, 1.695e9, 128, 2, 64, 600e9, 2.0e12, 6 * _MIB, 250, 500, 1536, 16, 100 * _KIB, 512),
    87: Gpu("Jetson AGX Orin", 16, 1.3e9, 128, 2, 64, 204.8e9, 0.6e12, 4 * _MIB, 250, 600, 1536, 16, 164 * _KIB, 1024),
    # RTX 4090: latencies by Luo et al. (as above).
    89: Gpu("RTX 4090", 128, 2.52e9, 128, 2, 64, 1.008e12, 5.0e12, 72 * _MIB, 273, 542, 1536, 24, 100 * _KIB, 256),
    # H100 SXM: 1.98 GHz by its data sheet, of which arithmetic leaves less. Latencies by Luo et al. (as above); L2 of
    # 5.5 to 7 TB/s by chipsandcheese.com, "Nvidia's H100: Funny L2, and Tons of Bandwidth" (2023), on the PCIe card. A
    # product by wgmma in tiles of 128 x 256 draws 7.1 TB/s at the 610 TFLOPS that it reaches (Shankhdhar,
    # "Outperforming cuBLAS on H100: a Worklog", 2024).
    90: Gpu(
        "H100 SXM",
        132,
        1.755e9,
        128,
        64,
        64,
        3.35e12,
        7.1e12,
        50 * _MIB,
        263,
        479,
        2048,
        32,
        228 * _KIB,
        1288,
        group_products=2048,
    ),
    # B200: L2 answers within 150 ns in its own partition by chipsandcheese.com, "Nvidia's B200: Keeping the CUDA
    # Juggernaut Rolling" (2025).
    100: Gpu("B200", 148, 1.965e9, 128, 64, 64, 8.0e12, 10.0e12, 126 * _MIB, 300, 700, 2048, 32, 228 * _KIB, 1288),
    103: Gpu("B300", 148, 1.92e9, 128, 2, 64, 8.0e12, 10.0e12, 126 * _MIB, 300, 700, 2048, 32, 228 * _KIB, 1288),
    110: Gpu("Jetson T5000", 20, 1.57e9, 128, 2, 64, 273e9, 0.8e12, 32 * _MIB, 300, 700, 1536, 24, 228 * _KIB, 1288),
    120: Gpu("RTX 5090", 170, 2.41e9, 128, 2, 64, 1.792e12, 6.0e12, 96 * _MIB, 300, 600, 1536, 24, 100 * _KIB, 256),
    121: Gpu("GB10", 48, 2.4e9, 128, 2, 64, 273e9, 1.5e12, 24 * _MIB, 300, 700, 1536, 24, 100 * _KIB, 512),
}


def find_gpu(architecture: int) -> Gpu:
    """Return the device that stands for an architecture, such as 90.

    For one that is not in the table, it is that of the one before it; of all older ones, the first.
    """
    known = [each for each in _GPUS if each <= architecture]
    return _GPUS[max(known, default=min(_GPUS))]


def find_gpu_named(name: str) -> Gpu | None:
    """Return the device of the table that a driver calls so, such as ``"NVIDIA H100 80GB HBM3"``; None: it has none."""
    words = set(re.split(r"\W+", name))
    for gpu in _GPUS.values():
        # The rest of a name is the maker, the slot or the memory.
        numbered = [word for word in gpu.name.split() if any(map(str.isdigit, word))]
        if numbered and words.issuperset(numbered):
            return gpu
    return None
