"""The kernel that stores the numbers of a size in copies of argument blocks."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.devices.simulator.module import load_file
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.moving_arguments import STORE_SIZES
from gpuexec.ops.tensor.store_sizes import PLACE, make_store
from tests.ops.harness import LAUNCHES, TARGETS


@pytest.mark.parametrize("count", [1, 6, 256, 300])
def test_numbers_are_stored_by_their_widths(count: int) -> None:
    rng = np.random.default_rng(count)
    row = rng.integers(-(2**31), 2**31, 32)
    places, expected, at = np.zeros(count, PLACE), np.full(8 * count + 8, 0xA5, np.uint8), 0
    for place in places:
        width = int(rng.choice((4, 8)))
        at = -(-at // width) * width
        place["base"], place["at"] = rng.integers(0, 2**64, dtype=np.uint64), at
        place["entry"], place["width"] = rng.integers(0, 32), width
        number = int(row[place["entry"]]) + int(place["base"])
        expected[at : at + width] = np.frombuffer((number % 2**64).to_bytes(8, "little")[:width], np.uint8)
        at += width
    blocks = np.full_like(expected, 0xA5)
    launch = make_store(count, blocks.nbytes)
    kernel = load_file(STORE_SIZES.source, kernel_table()[STORE_SIZES.source], "check")[STORE_SIZES.expression]
    kernel.launch_arrays(launch.grid, launch.block, places.view(np.uint8), blocks, row.tobytes(), np.int32(count))
    np.testing.assert_array_equal(blocks, expected)


@pytest.mark.plans
def test_launch_is_of_a_listed_kernel() -> None:
    """No plan launches it: what a graph is launched with is not part of the plan."""
    LAUNCHES.extend((target.name, [make_store(8, 64)]) for target in TARGETS if not target.has_textures)
    assert STORE_SIZES.expression in kernel_table()[STORE_SIZES.source]
