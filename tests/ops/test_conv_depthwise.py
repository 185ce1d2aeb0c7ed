"""Depthwise convolution: random shapes to the bit, tiles at the edges of what their kernel allows, and its requests."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn import conv_depthwise
from tests.ops.test_conv_simt import RUNS, CheckingEmitter, Given, check, count, integers, make


@pytest.mark.parametrize("seed", range(2 * RUNS))
def test_random_depthwise_convolution_is_exact(seed: int) -> None:
    emit = CheckingEmitter(seed)
    check(make(seed, is_depthwise=True), emit)
    assert emit.names == ["conv_depthwise"]


def run(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any
) -> tuple[Any, tuple[int, ...]]:
    """Check a convolution of whole numbers with a kernel for each channel; return its tile and the extents of y."""
    tiles, find_tile = [], conv_depthwise.find_tile

    def note(*given: Any) -> Any:
        tiles.append(find_tile(*given))
        return tiles[-1]

    monkeypatch.setattr(conv_depthwise, "find_tile", note)
    rng, emit = np.random.default_rng(5), CheckingEmitter(1)
    op = build("Conv", {"group": x[1], **attributes})
    given = Given(op, (integers(rng, *x), integers(rng, x[1], 1, *kernel), integers(rng, x[1])))
    check(given, emit)
    assert emit.names == ["conv_depthwise"]
    (tile,) = tiles
    return tile, given.op.compute(*given.inputs)[0].shape


def test_what_strides_leave_out_is_in_no_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row and column of each of three planes, which lie one after another in memory and in the patch."""
    tile, _ = run(monkeypatch, (1, 3, 5, 5), (2, 2), strides=[2, 2])
    assert (tile.planes, tile.patch_rows, tile.pitch) == (3, 4, 4)


def test_padding_behind_a_range_stays_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range ends amid four elements, and the rows below it are padding."""
    tile, shape = run(monkeypatch, (1, 2, 31, 31), (3, 3), pads=[1, 1, 1, 1])
    assert tile.planes == 1 and tile.rows < shape[2] and tile.columns == shape[3]


def test_padding_beside_the_last_columns_stays_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is several tiles, whose inputs are read element by element."""
    tile, shape = run(monkeypatch, (1, 2, 5, 1510), (3, 3), pads=[1, 1, 1, 1])
    assert tile.columns < shape[3] and shape[3] % tile.columns


def test_columns_behind_the_last_are_not_made() -> None:
    """Of the last tile of a row: as many sums are put into shared memory as there are outputs."""
    op = build("Conv", {"group": 1})
    counts = count(op, (1, 1, 6, 1510), (2, 1, 3, 3))
    outputs = 2 * 4 * 1508
    written = [line.counts.lanes for line in counts.lines if (line.space, line.access) == ("shared", "write")]
    assert outputs in written


def test_tile_that_fills_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    tile, _ = run(monkeypatch, (1, 64, 64), (2,), dilations=[56])
    assert tile.planes * tile.patch_rows * tile.pitch == 4096


def test_tile_that_fills_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last channel begins at the last of four elements, which are stored together."""
    tile, shape = run(monkeypatch, (1, 4, 24, 111), (6, 1))
    count = tile.rows * tile.columns
    assert (tile.channels, count) == (1, prod(shape[2:]))
    assert 3 * count % 4 + count == 2112


def test_tile_that_fills_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    tile, _ = run(monkeypatch, (1, 64, 15), (8,))
    assert 8 * tile.channels == 512


@pytest.mark.parametrize(
    ("channels", "extent", "kernel", "stride"),
    [
        *((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 3, 2), (192, 28, 3, 1), (192, 28, 3, 2)),
        *((384, 14, 3, 1), (576, 14, 3, 2), (960, 7, 3, 1), (240, 28, 5, 1), (240, 28, 5, 2), (32, 112, 5, 1)),
    ],
)
def test_depthwise_moves_few_bytes_beyond_the_tensors(channels: int, extent: int, kernel: int, stride: int) -> None:
    """Of what goes between multiprocessors and L2, 80 % at least are inputs, weights and outputs, each once."""
    op = build("Conv", {"pads": (kernel // 2,) * 4, "strides": (stride,) * 2, "group": channels})
    x, w = (1, channels, extent, extent), (channels, 1, kernel, kernel)
    (spec,) = op.infer(TensorSpec(x, np.dtype(np.float32)), TensorSpec(w, np.dtype(np.float32)))
    counts = count(op, x, w)
    ideal = 4 * (prod(x) + prod(w) + spec.size)
    assert ideal >= 0.8 * (counts.l2_read_nbytes + counts.l2_written_nbytes)
