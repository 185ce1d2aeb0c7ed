"""Layout of bytes in a texture, and rectangles of copies."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuexec.devices.kernels.kernel_source import find_source
from gpuexec.devices.pixel.extents import MAX_ROWS, ROW_BYTES, TEXEL_BYTES, TEXELS_PER_ROW, find_extents, split_range
from gpuexec.errors import OutOfMemoryError
from gpuexec.ops.lib import pixel


@given(st.integers(0, 3 * ROW_BYTES), st.integers(0, 3 * ROW_BYTES + 40))
def test_rectangles_hold_each_byte_once_and_in_order(offset: int, nbytes: int) -> None:
    covered = np.zeros(0, np.int64)
    for part in split_range(offset, nbytes):
        rows = (part.row + np.arange(part.rows))[:, None] * ROW_BYTES
        places = rows + part.column * TEXEL_BYTES + np.arange(part.columns * TEXEL_BYTES)
        assert part.column + part.columns <= TEXELS_PER_ROW
        assert part.start == covered.size
        assert part.is_whole == (part.nbytes == places.size)
        covered = np.concatenate([covered, places.reshape(-1)[part.skipped : part.skipped + part.nbytes]])
    np.testing.assert_array_equal(covered, np.arange(offset, offset + nbytes))


def test_few_rectangles_serve_any_length() -> None:
    assert len(list(split_range(3, 40 * ROW_BYTES + 7))) == 4  # an edge, a part of a row, rows, an edge
    (rows,) = split_range(2 * ROW_BYTES, 5 * ROW_BYTES)
    assert (rows.column, rows.row, rows.columns, rows.rows) == (0, 2, TEXELS_PER_ROW, 5)


@pytest.mark.parametrize(
    ("nbytes", "extents"),
    [(0, (1, 1)), (1, (1, 1)), (17, (2, 1)), (ROW_BYTES, (TEXELS_PER_ROW, 1)), (ROW_BYTES + 1, (TEXELS_PER_ROW, 2))],
)
def test_texture_is_as_small_as_its_bytes_allow(nbytes: int, extents: tuple[int, int]) -> None:
    assert find_extents(nbytes, "device") == extents


def test_texture_beyond_the_largest_is_refused_with_both_sizes() -> None:
    largest = MAX_ROWS * ROW_BYTES
    assert find_extents(largest, "device") == (TEXELS_PER_ROW, MAX_ROWS)
    with pytest.raises(OutOfMemoryError, match=f"device: {largest + 1} bytes exceed what one texture holds, {largest}"):
        find_extents(largest + 1, "device")


def test_kernels_count_texels_alike() -> None:
    text = find_source("pixel/texture.cuh").read_text()
    constants = dict(re.findall(r"constexpr \w+ (k\w+) = (\d+);", text))
    assert {int(constants["kTexelBytes"]), pixel.TEXEL_BYTES} == {TEXEL_BYTES}
    assert int(constants["kTexelsPerRow"]) == TEXELS_PER_ROW
    assert int(constants["kDrawThreads"]) == pixel.THREADS
