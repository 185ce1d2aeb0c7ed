"""Depthwise convolution: random shapes to the bit, tiles at the edges of what their kernel allows, and its requests."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.nn import conv_depthwise
from tests.ops.draws import draws
from tests.ops.test_conv_simt import CheckingEmitter, Given, RecordingEmitter, check, count, integers, make


@pytest.mark.parametrize("seed", draws(24))
def test_random_depthwise_convolution_is_exact(seed: int) -> None:
    emit = CheckingEmitter(seed)
    check(make(seed, is_depthwise=True), emit)
    assert emit.names == ["conv_depthwise"]


def note_tiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that the tiles of lowerings from here on are put into."""
    tiles, find_tile = list[Any](), conv_depthwise.find_tile

    def note(*given: Any) -> Any:
        tiles.append(find_tile(*given))
        return tiles[-1]

    monkeypatch.setattr(conv_depthwise, "find_tile", note)
    return tiles


def run(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any
) -> tuple[Any, tuple[int, ...]]:
    """Check a convolution of whole numbers with a kernel for each channel; return its tile and the extents of y."""
    tiles = note_tiles(monkeypatch)
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


def find_tile(op: Operator, x: tuple[int, ...], w: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the tile of a convolution, which is only lowered."""
    emit = RecordingEmitter(Target.named("sm_90"))
    slots = tuple(emit.fresh(shape, np.float32) for shape in (x, w))
    (spec,) = op.infer(*(slot.spec for slot in slots))
    tiles = note_tiles(monkeypatch)
    assert op.lower is not None
    op.lower(emit, slots, (emit.fresh(spec.shape, spec.dtype),))
    (tile,) = tiles
    return tile


# Channels of a layer, and as many of them as are counted, in whole tiles.
@pytest.mark.parametrize(
    ("channels", "counted", "extent", "kernel", "stride"),
    [
        *((32, 3, 112, 3, 1), (96, 3, 112, 3, 2), (144, 110, 56, 3, 1), (144, 4, 56, 3, 2), (192, 4, 28, 3, 1)),
        *((192, 8, 28, 3, 2), (384, 8, 14, 3, 1), (576, 40, 14, 3, 2), (960, 40, 7, 3, 1), (240, 4, 28, 5, 1)),
        *((240, 8, 28, 5, 2), (32, 3, 112, 5, 1)),
    ],
)
def test_depthwise_moves_few_bytes_beyond_the_tensors(
    channels: int, counted: int, extent: int, kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what goes between multiprocessors and L2, 80 % at least are inputs, weights and outputs, each once.

    All channels are read alike, in tiles of the same extents, so that some have the share of all.
    """
    pads, strides = (kernel // 2,) * 4, (stride,) * 2
    whole, op = (build("Conv", {"pads": pads, "strides": strides, "group": each}) for each in (channels, counted))
    x, w = (1, counted, extent, extent), (counted, 1, kernel, kernel)
    tile, tiles = find_tile(whole, (1, channels, *x[2:]), (channels, *w[1:]), monkeypatch), note_tiles(monkeypatch)
    (spec,) = op.infer(TensorSpec(x, np.dtype(np.float32)), TensorSpec(w, np.dtype(np.float32)))
    counts = count(op, x, w)
    assert tiles == [tile] and counted % tile.channels == 0
    ideal = 4 * (prod(x) + prod(w) + spec.size)
    assert ideal >= 0.8 * (counts.l2_read_nbytes + counts.l2_written_nbytes)
