"""Products and convolutions of float with narrow weights on the FP32 units: the bits of those with widened weights."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.operator import build, describe
from gpuexec.ops.lib.slices import LARGE_TILE, TILES, Tile
from gpuexec.ops.linalg.product import GEMV_ROWS, Product
from gpuexec.ops.linalg.simt_launch import find_gemv_width
from gpuexec.ops.nn import conv_simt
from gpuexec.ops.quant.narrow_weight import STORED, name_stored, widen
from tests.ops.draws import draws
from tests.ops.test_conv_simt import CheckingEmitter, divide, integers
from tests.ops.test_conv_simt import make as make_conv
from tests.ops.test_simt_gemm import EDGES, Operands, aligned, launch, load, multiply_tiles, pick_extents, slot

Array = np.ndarray[Any, Any]
F32 = np.float32
SEEDS = draws(3)
PRODUCTS = 6  # of a seed
ALIGNMENT = 256


def align(array: Array) -> Array:
    """Return a copy that starts where memory of a device does."""
    memory = np.zeros(array.nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    made = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


class NarrowOperands:
    """Operands of a product with a narrow matrix, and the same with the matrix widened.

    Args:
        pick: Of what is random.
        extents: Rows, columns and the inner extent.
        stored: The type of the weights.
        batch: Extents of batch axes.
        is_exact: Whether sums are exact in any order.
        is_across: Whether columns of the matrix lie dense, not its rows; None: it is random.
        spare: Elements from the end of a line of the matrix to the next.
        has_addend: Whether there may be one.
    """

    def __init__(
        self,
        pick: random.Random,
        extents: tuple[int, int, int],
        stored: np.dtype[Any],
        batch: tuple[int, ...] = (),
        *,
        is_exact: bool = False,
        is_across: bool | None = None,
        spare: int | None = None,
        has_addend: bool = True,
    ) -> None:
        rng, (rows, columns, inner) = np.random.default_rng(pick.getrandbits(32)), extents
        is_across = pick.random() < 0.5 if is_across is None else is_across
        spare = pick.choice([0, 0, 16, 4, 1]) if spare is None else spare
        has_scales, has_zeros = pick.random() < 0.7, pick.random() < 0.6
        a = rng.integers(-4, 5, (*batch, rows, inner)).astype(F32) if is_exact else None
        a = rng.standard_normal((*batch, rows, inner)).astype(F32) if a is None else a
        shape = (*batch, columns, inner + spare) if is_across else (*batch, inner, columns + spare)
        self.scale: Array | None = None
        self.zero: Array | None = None
        if stored == np.int8:
            b = rng.integers(-128, 128, shape, np.int8)
            count = columns if has_scales else 1
            self.scale = rng.uniform(0.01, 0.1, count).astype(F32)
            if is_exact:
                self.scale = rng.choice([0.25, 0.5, 2.0], count).astype(F32)
            self.zero = rng.integers(-128, 128, count).astype(np.int8) if has_zeros else None
        else:
            b = rng.integers(-8, 9, shape).astype(stored) if is_exact else rng.standard_normal(shape).astype(stored)
        self.b, self.step, pitch = align(b), int(has_scales), shape[-1]
        seen = self.b[..., : inner if is_across else columns]
        seen = seen.swapaxes(-1, -2) if is_across else seen
        axis = seen.ndim - 1 if has_scales and self.scale is not None else None
        scale, zero = (each if axis is not None or each is None else each[0] for each in (self.scale, self.zero))
        self.wide = align(widen(seen, scale, zero, axis, np.dtype(F32)))
        y, c = aligned((*batch, rows, columns)), rng.integers(-4, 5, (rows, columns)).astype(F32)
        a = align(a)
        walks = tuple(
            tuple(each.strides[axis] // each.itemsize for axis in range(len(batch))) for each in (a, self.b, y)
        )
        wide_walks = (walks[0], tuple(each // F32().itemsize for each in self.wide.strides[: len(batch)]), walks[2])
        common = ((rows, columns, inner), (inner, 1))
        ends = ((columns, 1), (columns, 1), (pick.choice([1.0, 2.0]), 1.0), batch)
        self.a, self.c = a, c if has_addend and pick.random() < 0.5 else None
        c_slot = None if self.c is None else slot(2, c)
        self.product = Product(
            (slot(0, a), slot(1, self.b), c_slot, slot(3, y)),
            *common,
            (1, pitch) if is_across else (pitch, 1),
            *ends,
            walks,
        )
        self.narrow = Operands(self.product, a, self.b, self.c, y, y)
        widened = Product(
            (slot(0, a), slot(1, self.wide), c_slot, slot(3, y)), *common, (columns, 1), *ends, wide_walks
        )
        self.widened = Operands(widened, a, self.wide, self.c, aligned(y.shape), y)

    @property
    def scales(self) -> list[Any]:
        """Return the arguments of scales."""
        return [*(None if each is None else align(each) for each in (self.scale, self.zero)), np.int64(self.step)]

    def check(self, what: str) -> None:
        """Compare both results to the bit."""
        np.testing.assert_array_equal(self.narrow.y, self.widened.y, err_msg=what)


def launch_narrow(
    mode: Mode, source: str, expression: str, operands: NarrowOperands, *rest: Any, **options: Any
) -> None:
    launch(load(source, mode)[expression], operands.narrow, *rest, more=operands.scales, **options)


def multiply_narrow_tiles(
    mode: Mode, tile: Tile, operands: NarrowOperands, slices: int, seed: int = 0, **options: Any
) -> None:
    product = operands.product
    grid = (product.count * tile.count(*product.extents[:2]), slices, 1)
    expression = f"simt_gemm_narrow<{tile.name}, {name_stored(operands.b.dtype)}>"
    packed = product.pack_simt()
    launch_narrow(mode, "simt_gemm.cu", expression, operands, packed, grid, tile.threads, tile.size, seed, **options)


def multiply_narrow_rows(
    mode: Mode,
    way: str,
    together: int,
    lanes: int,
    operands: NarrowOperands,
    slices: int,
    seed: int = 0,
    **options: Any,
) -> None:
    product, dtype = operands.product, operands.b.dtype
    rows, columns, _ = product.extents
    width = find_gemv_width(dtype.itemsize, together, is_along_k=way == "k")
    block_columns = 32 // lanes if way == "k" else width * lanes
    grid = (product.count * ceil_div(columns, block_columns), slices, ceil_div(rows, together))
    packed = product.pack_simt(is_b_along_k=way == "k", lanes=lanes, width=width)
    expression = f"gemv_along_{way}_narrow<{together}, {name_stored(dtype)}>"
    launch_narrow(mode, "gemv.cu", expression, operands, packed, grid, 256, together * block_columns, seed, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_random_products_by_tiles(mode: Mode, stored: np.dtype[Any], tile: Tile, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(PRODUCTS if mode == "plain" else 2):
        operands = NarrowOperands(pick, pick_extents(pick, EDGES), stored, pick.choice([(), (), (2,), (2, 3)]))
        slices = pick.choice([1, 1, 2, 3, 5, 16])
        multiply_narrow_tiles(mode, tile, operands, slices, seed)
        multiply_tiles("plain", tile, operands.widened, slices, seed)
        operands.check(f"{operands.product} in {slices} slices")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("way", ["k", "columns"])
def test_random_products_of_few_rows(mode: Mode, stored: np.dtype[Any], way: str, seed: int) -> None:
    """Sums are exact, since lanes have other k than those of the product with the widened matrix."""
    pick = random.Random(seed)
    for _ in range(PRODUCTS if mode == "plain" else 3):
        rows, columns, inner = pick_extents(pick, [1, 2, 3, 5, 8, 11])
        if pick.random() < 0.5:  # vectors
            columns, inner = ceil_div(columns, 8) * 8, ceil_div(inner, 16) * 16 * pick.choice([1, 1, 9])
        operands = NarrowOperands(
            pick,
            (rows, columns, inner),
            stored,
            pick.choice([(), (), (2,), (2, 3)]),
            is_exact=True,
            is_across=way == "k",
        )
        together, slices = pick.choice(GEMV_ROWS), pick.choice([1, 1, 2, 3, 16])
        width = find_gemv_width(stored.itemsize, together, is_along_k=way == "k")
        lanes = pick.choice([1, 2, 4, 8] if way == "k" else [each for each in (4, 8, 16, 32) if each * width >= 32])
        multiply_narrow_rows(mode, way, together, lanes, operands, slices, seed)
        multiply_tiles("plain", TILES[1], operands.widened, 1)
        operands.check(f"{operands.product} by {together} rows, {lanes} lanes, {slices} slices")


def assert_least_sectors(counts: list[LaunchCounts], width: int) -> None:
    """Reads of the matrix, of so many bytes a lane, take the least sectors; so do those of shared memory."""
    lines = [line for line in counts[0].lines if line.counts.nbytes]
    assert [line for line in lines if (line.space, line.access, line.width) == ("global", "read", width)]
    for line in lines:
        is_matrix = line.space == "global" and line.access == "read" and line.width == width
        if is_matrix or line.access == "write" or (line.space == "shared" and line.width == 16):
            assert line.counts.ratio == 1.0, line


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_tiles_take_the_least_sectors_and_wavefronts(stored: np.dtype[Any], tile: Tile) -> None:
    operands = NarrowOperands(
        random.Random(1), (2 * tile.rows, 2 * tile.columns, 96), stored, is_across=False, spare=0, has_addend=False
    )
    counts: list[LaunchCounts] = []
    multiply_narrow_tiles("count", tile, operands, 1, counts=counts)
    assert_least_sectors(counts, 4 * stored.itemsize)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_lines_along_k_meet_on_no_bank(tile: Tile) -> None:
    """Of int8, a slab is half of a sector of each line; L1 has the other half for the next one."""
    for stored, ratio in zip(STORED, (1.0, 2.0), strict=True):
        counts: list[LaunchCounts] = []
        operands = NarrowOperands(
            random.Random(1), (2 * tile.rows, 2 * tile.columns, 96), stored, is_across=True, spare=0, has_addend=False
        )
        multiply_narrow_tiles("count", tile, operands, 1, counts=counts)
        for line in counts[0].lines:
            if (line.space, line.access) == ("shared", "write"):
                assert line.counts.ratio == 1.0, line
            is_matrix = line.counts.nbytes > 2048 and line.width == 4 * stored.itemsize
            if is_matrix and (line.space, line.access) == ("global", "read"):
                assert line.counts.ratio == ratio, line


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize(("way", "lanes"), [("k", 1), ("k", 4), ("columns", 4), ("columns", 32)])
def test_few_rows_take_the_least_sectors(stored: np.dtype[Any], way: str, lanes: int) -> None:
    operands = NarrowOperands(random.Random(1), (4, 256, 1024), stored, is_across=way == "k", spare=0, has_addend=False)
    counts: list[LaunchCounts] = []
    multiply_narrow_rows("count", way, 4, lanes, operands, 1, counts=counts)
    width = find_gemv_width(stored.itemsize, 4, is_along_k=way == "k") * stored.itemsize
    lines = [line for line in counts[0].lines if (line.space, line.access) == ("global", "read")]
    matrix = [line for line in lines if line.counts.nbytes == operands.b.nbytes and line.width == width]
    assert len(matrix) == 1 and matrix[0].counts.ratio == 1.0, lines


def compare_convolutions(seed: int, stored: np.dtype[Any], *, is_transposed: bool) -> list[str]:
    """Check that a random convolution has the bits of that with widened weights; the names of its kernels."""
    given = make_conv(seed, is_transposed=is_transposed)
    x, w, bias = given.inputs
    assert x is not None and w is not None
    rng, axis = np.random.default_rng(seed), int(is_transposed)
    x = x + rng.standard_normal(x.shape).astype(F32)
    scale = zero = None
    scale_axis: int | None = None
    if stored == np.int8:
        scale_axis = axis if seed % 3 else None
        count = () if scale_axis is None else (w.shape[axis],)
        w = rng.integers(-128, 128, w.shape, np.int8)
        scale = rng.uniform(0.01, 0.1, count).astype(F32)
        zero = rng.integers(-128, 128, count).astype(np.int8) if seed % 2 else None
    else:
        w = rng.standard_normal(w.shape).astype(stored)
    has_weights = seed % 4 > 0
    name, attributes = describe(given.op)
    narrow = build(f"gpuexec.Narrow{name}", {**dict(attributes), "to": 1, "scale_axis": scale_axis})
    inputs = [x, w, bias, scale, zero]
    while inputs[-1] is None:
        inputs.pop()
    emit, wide_emit = CheckingEmitter(seed, has_weights=has_weights), CheckingEmitter(seed, mode="plain")
    widened = widen(w, scale, zero, scale_axis, np.dtype(F32))
    np.testing.assert_array_equal(
        emit.run(narrow, inputs), wide_emit.run(given.op, (x, widened, bias)), err_msg=str(narrow)
    )
    return emit.names


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_convolutions(seed: int, stored: np.dtype[Any]) -> None:
    assert compare_convolutions(seed, stored, is_transposed=False)[-1] == "simt_conv_narrow"


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_random_transposed_convolutions(seed: int, stored: np.dtype[Any]) -> None:
    assert compare_convolutions(seed, stored, is_transposed=True)[-1] == "simt_conv_transpose_narrow"


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("slices", [2, 5])
def test_slices_of_convolutions(slices: int, stored: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    divide(slices, monkeypatch)
    for seed in (101, 102):
        compare_convolutions(seed, stored, is_transposed=bool(seed % 2))


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("shape", [(2, 32, 6, 6), (2, 24, 9, 9), (3, 5, 7, 11)], ids=str)
def test_large_tiles_of_convolutions(
    shape: tuple[int, ...], stored: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_simt, "choose_tile", lambda *_: LARGE_TILE)
    rng, extent = np.random.default_rng(7), 1 if shape[1] == 32 else 3
    x, w = integers(rng, *shape), rng.integers(-8, 9, (140, shape[1], extent, extent)).astype(stored)
    scale = () if stored == np.float16 else (None, rng.choice([0.5, 2.0], 140).astype(F32))
    emit = CheckingEmitter(1)
    op = build("gpuexec.NarrowConv", {"to": 1, "scale_axis": 0 if scale else None})
    np.testing.assert_array_equal(emit.run(op, (x, w, *scale)), op.compute(x, w, *scale)[0])
    has_large = shape[1] == 32 or (shape[1] == 24 and stored == np.int8)
    assert ("LargeTile" if has_large else "SmallTile") in emit.launches[-1][0].expression
