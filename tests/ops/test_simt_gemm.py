"""Products of float on the FP32 units: kernels alone over random extents, strides, batches and slices, to the bit."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.slices import TILES, Tile
from gpuexec.ops.linalg.product import GEMV_ROWS, Product
from tests.ops.draws import draws

Array = np.ndarray[Any, Any]
F32 = np.float32
SEEDS = draws(3)
PRODUCTS = 12  # of a seed
EDGES = [1, 2, 3, 7, 8, 9, 13, 31, 63, 64, 65, 97, 127, 128, 129, 131]
INNER = [0, 1, 3, 4, 15, 16, 17, 31, 32, 48, 61, 64, 131, 272]
ALIGNMENT = 256
LANES = {"k": (1, 2, 4, 8), "columns": (8, 16, 32)}


@functools.cache
def load(source: str, mode: Mode) -> Mapping[str, SimulatorFunction]:
    return load_file(source, instantiations(source), mode=mode)  # the whole file, as other tests have it compiled


@dataclass(frozen=True)
class Operands:
    """Integer-valued operands of a product, whose sums are exact in any order, and what it makes of them."""

    product: Product
    a: Array
    b: Array
    c: Array | None
    y: Array
    expected: Array

    def check(self, what: str) -> None:
        columns = self.expected.shape[-1]
        np.testing.assert_array_equal(self.y[..., :columns], self.expected, err_msg=what)
        assert np.isnan(self.y[..., columns:]).all(), f"{what}: wrote beyond the columns"


def aligned(shape: tuple[int, ...]) -> Array:
    """Return an array of NaN that starts where memory of a device does."""
    count = int(np.prod(shape))
    memory = np.full(count + ALIGNMENT // 4, np.nan, F32)
    first = -memory.ctypes.data % ALIGNMENT // 4
    return memory[first : first + count].reshape(shape)


def lay(array: Array, is_across: bool, spare: int) -> tuple[Array, tuple[int, int]]:
    """Lay the last two axes out by rows or by columns, lines ``spare`` elements apart: memory, and both strides."""
    turned = array.swapaxes(-1, -2) if is_across else array
    wide = aligned((*turned.shape[:-1], turned.shape[-1] + spare))
    wide[..., : turned.shape[-1]] = turned
    pitch = wide.shape[-1]
    return wide, (1, pitch) if is_across else (pitch, 1)


def slot(number: int, array: Array) -> Slot:
    return Slot(number, 0, TensorSpec(array.shape, array.dtype), (0,) * array.ndim)


def make(pick: random.Random, rows: int, columns: int, inner: int, batch: tuple[int, ...] = ()) -> Operands:
    rng = np.random.default_rng(pick.getrandbits(32))

    def numbers(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(F32)

    a, b, c = numbers(*batch, rows, inner), numbers(*batch, inner, columns), numbers(rows, columns)
    spare = pick.choice([0, 0, 4, 1])
    a_memory, a_strides = lay(a, pick.random() < 0.3, spare)
    b_memory, b_strides = lay(b, pick.random() < 0.5, spare)
    y = aligned((*batch, rows, columns + pick.choice([0, 0, 0, 1])))
    walks = tuple(tuple(each.strides[axis] // 4 for axis in range(len(batch))) for each in (a_memory, b_memory, y))
    alpha, beta, has_c = pick.choice([1.0, 2.0, -0.5]), pick.choice([1.0, 3.0]), pick.random() < 0.5
    product = Product(
        (slot(0, a), slot(1, b), slot(2, c) if has_c else None, slot(3, y)), (rows, columns, inner), a_strides,
        b_strides, (columns, 1), (y.shape[-1], 1), (alpha, beta), batch, walks,
    )  # fmt: skip
    expected = alpha * np.matmul(a, b) + (beta * c if has_c else 0)
    return Operands(product, a_memory, b_memory, c if has_c else None, y, expected.astype(F32))


def launch(
    function: SimulatorFunction,
    operands: Operands,
    packed: bytes,
    grid: tuple[int, int, int],
    threads: int,
    floats: int,
    seed: int,
    counts: list[LaunchCounts] | None = None,
    more: Sequence[Any] = (),
) -> None:
    """Launch with scratch memory and counters, which must be 0 again afterwards, and with arguments behind them."""
    blocks, slices = grid[0] * grid[2], grid[1]
    scratch = aligned((blocks * slices * floats,)) if slices > 1 else None
    counters = np.zeros(blocks, np.uint32) if slices > 1 else None
    function.launch_arrays(
        grid, threads, operands.a, operands.b, operands.c, operands.y, packed, scratch, counters, *more,
        schedule=Schedule("random", seed), counts=counts,
    )  # fmt: skip
    assert counters is None or not counters.any()


def multiply_tiles(
    mode: Mode,
    tile: Tile,
    operands: Operands,
    slices: int,
    seed: int = 0,
    *,
    copies: str = "kAny",
    counts: list[LaunchCounts] | None = None,
) -> None:
    rows, columns, _ = operands.product.extents
    grid = (operands.product.count * tile.count(rows, columns), slices, 1)
    function = load("simt_gemm.cu", mode)[f"simt_gemm<{tile.name}, Copies::{copies}>"]
    packed = operands.product.pack_simt()
    launch(function, operands, packed, grid, tile.threads, tile.size, seed, counts)


def list_copies(product: Product) -> list[str]:
    """Return what a product's operands may be copied by."""
    return ["kVectors", "kAny"] if product.has_vectors else ["kAny"]


def multiply_rows(
    mode: Mode, way: str, together: int, lanes: int, operands: Operands, slices: int, seed: int = 0, **options: Any
) -> None:
    rows, columns, _ = operands.product.extents
    block_columns = 32 // lanes if way == "k" else 4 * lanes
    grid = (operands.product.count * ceil_div(columns, block_columns), slices, ceil_div(rows, together))
    packed = operands.product.pack_simt(is_b_along_k=way == "k", lanes=lanes)
    function = load("gemv.cu", mode)[f"gemv_along_{way}<{together}>"]
    launch(function, operands, packed, grid, 256, together * block_columns, seed, **options)


def pick_extents(pick: random.Random, rows: list[int]) -> tuple[int, int, int]:
    m, n, k = pick.choice(rows), pick.choice(EDGES), pick.choice(INNER)
    if pick.random() < 0.5:  # copies of 16 bytes
        m, n, k = (ceil_div(each, 4) * 4 for each in (m, n, k))
    return m, n, k


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_random_products_by_tiles(mode: Mode, tile: Tile, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(PRODUCTS if mode == "plain" else PRODUCTS // 4):
        operands = make(pick, *pick_extents(pick, EDGES), pick.choice([(), (), (2,), (2, 3)]))
        slices = pick.choice([1, 1, 2, 3, 5, 16])
        for copies in list_copies(operands.product):
            operands.y[...] = np.nan
            multiply_tiles(mode, tile, operands, slices, seed, copies=copies)
            operands.check(f"{operands.product} in {slices} slices, {copies}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", LANES)
def test_random_products_of_few_rows(way: str, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(PRODUCTS // 4):
        operands = make(pick, *pick_extents(pick, [1, 2, 3, 5, 8, 11]), pick.choice([(), (), (2,), (2, 3)]))
        together, lanes, slices = pick.choice(GEMV_ROWS), pick.choice(LANES[way]), pick.choice([1, 1, 2, 3, 16])
        multiply_rows("check", way, together, lanes, operands, slices, seed)
        operands.check(f"{operands.product} by {together} rows, {lanes} lanes, {slices} slices")


@pytest.mark.parametrize(("copies", "inner"), [("kAny", 61), ("kVectors", 60)])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_one_slice_adds_in_order(tile: Tile, copies: str, inner: int) -> None:
    rng = np.random.default_rng(0)
    operands = make_wide(70, 68, inner, pitches=1) if copies == "kVectors" else make(random.Random(3), 70, 68, inner)
    operands.a[...], operands.b[...] = (rng.standard_normal(each.shape) for each in (operands.a, operands.b))
    a_stride, b_stride = operands.product.a, operands.product.b
    left = np.lib.stride_tricks.as_strided(operands.a, (70, inner), tuple(4 * each for each in a_stride))
    right = np.lib.stride_tricks.as_strided(operands.b, (inner, 68), tuple(4 * each for each in b_stride))
    expected = np.zeros((70, 68))
    for k in range(inner):  # products are exact in doubles: one fma a step, but for rare double roundings
        expected = (expected + np.outer(left[:, k].astype(np.float64), right[k])).astype(F32).astype(np.float64)
    multiply_tiles("plain", tile, operands, 1, copies=copies)
    alpha, beta = (F32(each) for each in operands.product.scale)
    scaled = expected.astype(F32) * alpha
    if operands.c is not None:
        scaled = scaled + operands.c * beta
    np.testing.assert_array_equal(operands.y[:, :68], scaled)


def make_wide(rows: int, columns: int, inner: int, along_k: bool = False, pitches: int = 8) -> Operands:
    """Return operands all of which are read and written 16 bytes at a time, lines multiples of ``pitches`` apart."""
    pick = random.Random(0)
    while True:
        operands = make(pick, rows, columns, inner)
        wide = operands.product.pack_simt(is_b_along_k=along_k)[88:92]
        lines = (*operands.product.a, *operands.product.b, operands.y.shape[-1])
        if wide == bytes([7, 0, 0, 0]) and all(each == 1 or each % pitches == 0 for each in lines):
            return operands


def assert_least(counts: list[LaunchCounts]) -> None:
    """Each request of 16 bytes a lane takes the least sectors or wavefronts."""
    lines = [line for line in counts[0].lines if line.width == 16 and line.counts.nbytes]
    assert {(line.space, line.access) for line in lines} >= {("global", "read"), ("global", "write")}
    for line in lines:
        assert line.counts.ratio == 1.0, line


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("copies", ["kVectors", "kAny"])
def test_tiles_take_the_least_sectors_and_wavefronts(tile: Tile, slices: int, copies: str) -> None:
    counts: list[LaunchCounts] = []
    operands = make_wide(2 * tile.rows, 2 * tile.columns, 96)
    multiply_tiles("count", tile, operands, slices, copies=copies, counts=counts)
    assert_least(counts)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize(("way", "lanes"), [("k", 1), ("k", 4), ("columns", 8), ("columns", 32)])
def test_few_rows_take_the_least_sectors(way: str, lanes: int, slices: int) -> None:
    counts: list[LaunchCounts] = []
    operands = make_wide(4, 256, 1024, along_k=way == "k")
    multiply_rows("count", way, 4, lanes, operands, slices, counts=counts)
    assert_least(counts)
