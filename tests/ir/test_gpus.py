"""GPUs by architecture."""

from __future__ import annotations

import pytest

from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.target import Target

ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)


@pytest.mark.parametrize(
    ("architecture", "name"), [(70, "T4"), (75, "T4"), (79, "T4"), (90, "H100 SXM"), (999, "GB10")]
)
def test_an_unknown_architecture_is_the_one_before_it(architecture: int, name: str) -> None:
    assert find_gpu(architecture).name == name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_multiprocessor_holds_the_largest_block_of_its_target(architecture: int) -> None:
    gpu, target = find_gpu(architecture), Target.named(f"sm_{architecture}")
    assert gpu.count_blocks(target.max_threads_per_block, 64, target.shared_bytes_per_block) == 1
    assert gpu.multiprocessors >= target.multiprocessors


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integers_take_lanes_that_floats_have_too(architecture: int) -> None:
    gpu = find_gpu(architecture)
    assert 0 < gpu.integer_lanes <= gpu.fp32_lanes


@pytest.mark.parametrize(
    ("threads", "registers", "shared_nbytes", "blocks"),
    [
        (256, 32, 0, 8),  # by threads
        (32, 16, 0, 32),  # by blocks
        (256, 113, 0, 2),  # by registers, 120 of which are given
        (100, 255, 0, 2),  # of whole warps
        (64, 32, 75 * 1024, 3),  # by shared memory, with a KiB that the driver takes
        (1024, 128, 0, 0),
    ],
)
def test_blocks_of_a_multiprocessor(threads: int, registers: int, shared_nbytes: int, blocks: int) -> None:
    assert find_gpu(90).count_blocks(threads, registers, shared_nbytes) == blocks
