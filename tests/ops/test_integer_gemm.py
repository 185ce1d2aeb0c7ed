"""Products of 8-bit integers: kernels alone over random extents, signs, zero points, batches and slices, to the bit."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.ops.lib.slices import TILES, Tile
from gpuexec.ops.quant.integer import offset_of, pack_finish
from gpuexec.ops.quant.integer_matmul import MAX_BATCH_AXES, ROWS
from gpuexec.ops.quant.integer_words import ByteWords, count_words
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.draws import draws

Array = np.ndarray[Any, Any]
U8, I8, I32, F32, F16 = np.uint8, np.int8, np.int32, np.float32, np.float16
SEEDS = draws(3)
PRODUCTS = 10  # of a seed
EDGES = [1, 2, 3, 7, 8, 9, 13, 31, 63, 64, 65, 97, 127, 128, 129, 131]
DEPTHS = [0, 1, 3, 4, 5, 15, 16, 17, 61, 63, 64, 65, 127, 128, 129, 256, 331, 1040]
TYPES = {U8: "u8", I8: "u8", I32: "i32", F32: "float", F16: "half"}
KINDS = {I32: 0, F32: 1, F16: 2, U8: 3, I8: 3}  # y_kind of ``IntegerGemm``
ALIGNMENT = 256


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    return load_file("integer_matmul.cu", instantiations("integer_matmul.cu"), mode=mode)


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array that starts where memory of a device does, of bytes that no result has throughout."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(nbytes + ALIGNMENT, 0xA5, U8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)


def lay_rows(a: Array, spare: int) -> Array:
    """Return rows as words, filled up with 0, with words that nobody may read behind each."""
    *outer, depth = a.shape
    laid = aligned((*outer, 4 * (count_words(depth) + spare)), U8)
    laid[..., : 4 * count_words(depth)] = 0
    laid[..., :depth] = a.view(U8)
    return laid.view(np.uint32)


def lay_columns(b: Array) -> tuple[Array, int]:
    """Return columns of words, and how many words apart neighbours along the inner extent are."""
    packed = PackedForm.of(ByteWords(), TensorSpec.of(b), tuple(range(b.ndim))).pack(b)
    laid = aligned(packed.shape, np.uint32)
    laid[...] = packed
    return laid, packed.shape[-1]


@dataclass(frozen=True)
class Operands:
    """Operands of a product, what they are finished with, and what it makes of them."""

    a: Array
    b: Array
    addend: Array | None
    y: Array
    packed: bytes
    quants: tuple[Array | None, ...]
    expected: Array
    extents: tuple[int, int, int]
    lanes_at: int = 24  # of lanes in `packed`

    def pack(self, lanes: int) -> bytes:
        return self.packed[: self.lanes_at] + struct.pack("<i", lanes) + self.packed[self.lanes_at + 4 :]

    def check(self, what: str) -> None:
        columns = self.expected.shape[-1]
        np.testing.assert_array_equal(self.y[..., :columns], self.expected, err_msg=what)
        assert (self.y[..., columns:].view(U8) == 0xA5).all(), f"{what}: wrote beyond the columns"


def make(
    pick: random.Random,
    rows: int,
    columns: int,
    depth: int,
    batch: tuple[int, ...] = (),
    lay_right: Callable[[Array], tuple[Array, int]] = lay_columns,
) -> Operands:
    rng = np.random.default_rng(pick.getrandbits(32))

    def integers(dtype: Any, *shape: int) -> Array:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    def scales(*shape: int) -> Array:
        return rng.uniform(0.01, 0.1, shape).astype(F32)

    a_type, b_type, y_type = pick.choice([U8, I8]), pick.choice([U8, I8]), pick.choice([U8, I8, I32, F32, F16])
    a, b = integers(a_type, *batch, rows, depth), integers(b_type, *batch, depth, columns)
    by_row, by_column = pick.random() < 0.5, pick.random() < 0.5
    zeros = [
        integers(each, extent) if pick.random() < 0.7 else None
        for each, extent in ((a_type, rows if by_row else 1), (b_type, columns if by_column else 1))
    ]
    left, right = (np.int64(0) if zero is None else zero.astype(np.int64) for zero in zeros)
    left = left[:, None] if np.ndim(left) else left
    addend = integers(I32, rows, columns) if pick.random() < 0.3 else None
    sums = np.matmul(a.astype(np.int64) - left, b.astype(np.int64) - right)
    sums = (sums if addend is None else sums + addend).astype(I32)
    is_scaled, is_byte = y_type != I32, y_type in (U8, I8)
    a_scale, b_scale = scales(rows if by_row else 1), scales(columns if by_column else 1)
    y_scale, y_zero = (
        scales(rows if by_row else 1) * F32(40),
        integers(y_type if is_byte else U8, rows if by_row else 1),
    )
    bias = scales(columns).astype(y_type) if y_type in (F32, F16) else None
    alpha = pick.choice([1.0, -0.5])
    scale = (F32(alpha) * a_scale)[:, None] * b_scale
    expected: Array = sums
    if is_byte:
        whole = np.rint(sums.astype(F32) * (scale / y_scale[:, None])).astype(np.int64) + y_zero[:, None]
        expected = np.clip(whole, np.iinfo(y_type).min, np.iinfo(y_type).max).astype(y_type)
    elif is_scaled:
        assert bias is not None
        with np.errstate(over="ignore"):
            expected = (sums.astype(F32) * scale + bias.astype(F32)).astype(y_type)
    a_words, (b_words, b_step) = lay_rows(a, pick.choice([0, 0, 4])), lay_right(b)
    y = aligned((*batch, rows, columns + pick.choice([0, 0, 4, 1])), y_type)
    quant_steps = (int(by_row), int(by_column), int(by_row))
    has_fours = columns % 4 == 0 and y.shape[-1] % 4 == 0
    head = struct.pack("<8i", rows, columns, count_words(depth), depth, len(batch), has_fours, 0, KINDS[y_type])
    strides = (a_words.shape[-1], b_step, y.shape[-1], *quant_steps, columns, 1, 1)
    offsets = struct.pack("<2i", offset_of(a.dtype), offset_of(b.dtype))
    finish = pack_finish(alpha, y.dtype, np.dtype(F32))
    pad = (0,) * (MAX_BATCH_AXES - len(batch))
    walks = [[each.strides[axis] // each.itemsize for axis in range(len(batch))] for each in (a_words, b_words, y)]
    tables = [entry for walk in (*walks, *([0] * len(batch),) * 3) for entry in (*walk, *pad)]
    packed = head + struct.pack("<9q", *strides) + offsets + finish
    packed += struct.pack(f"<{MAX_BATCH_AXES}i", *batch, *pad) + struct.pack(f"<{len(tables)}q", *tables)
    quants = (
        *zeros, *((a_scale, b_scale) if is_scaled else (None, None)), *((y_scale, y_zero) if is_byte else (None, None)),
        bias,
    )  # fmt: skip
    return Operands(a_words, b_words, addend, y, packed, quants, expected, (rows, columns, depth))


def launch(
    mode: Mode,
    name: str,
    operands: Operands,
    lanes: int,
    grid: tuple[int, int, int],
    threads: int,
    size: int,
    seed: int,
    counts: list[LaunchCounts] | None = None,
) -> None:
    """Launch with scratch memory and counters, which must be 0 again afterwards."""
    blocks, slices = grid[0] * grid[2], grid[1]
    scratch = aligned((blocks * slices * size,), np.uint32) if slices > 1 else None
    counters = np.zeros(blocks, np.uint32) if slices > 1 else None
    load(mode)[f"{name}, {TYPES[operands.y.dtype.type]}>"].launch_arrays(
        grid, threads, operands.a, operands.b, operands.addend, operands.y, operands.pack(lanes), scratch, counters,
        *operands.quants, schedule=Schedule("random", seed), counts=counts,
    )  # fmt: skip
    assert counters is None or not counters.any()


def multiply_tiles(mode: Mode, tile: Tile, operands: Operands, slices: int, seed: int = 0, **options: Any) -> None:
    rows, columns, _ = operands.extents
    batch = int(np.prod(operands.expected.shape[:-2]))
    grid = (batch * tile.count(rows, columns), slices, 1)
    launch(mode, f"integer_gemm<{tile.name}", operands, 0, grid, tile.threads, tile.size, seed, **options)


def multiply_rows(
    mode: Mode, together: int, lanes: int, operands: Operands, slices: int, seed: int = 0, **options: Any
) -> None:
    rows, columns, _ = operands.extents
    batch = int(np.prod(operands.expected.shape[:-2]))
    grid = (batch * ceil_div(columns, 4 * lanes), slices, ceil_div(rows, together))
    launch(mode, f"integer_gemv<{together}", operands, lanes, grid, 256, together * 4 * lanes, seed, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_random_products_by_tiles(mode: Mode, tile: Tile, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(PRODUCTS if mode == "plain" else PRODUCTS // 3):
        extents = (pick.choice(EDGES), pick.choice(EDGES), pick.choice(DEPTHS))
        operands = make(pick, *extents, pick.choice([(), (), (2,), (2, 3)]))
        slices = pick.choice([1, 1, 2, 3, 5, 16])
        multiply_tiles(mode, tile, operands, slices, seed)
        operands.check(f"{extents} in {slices} slices")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("together", ROWS)
def test_random_products_of_few_rows(mode: Mode, together: int, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(PRODUCTS if mode == "plain" else PRODUCTS // 3):
        extents = (pick.choice([1, 2, 3, 5, 8, 11]), pick.choice(EDGES), pick.choice(DEPTHS))
        operands = make(pick, *extents, pick.choice([(), (), (2,), (2, 3)]))
        lanes, slices = pick.choice([8, 16, 32]), pick.choice([1, 1, 2, 3, 16])
        multiply_rows(mode, together, lanes, operands, slices, seed)
        operands.check(f"{extents} by {lanes} lanes in {slices} slices")


def make_plain(rows: int, columns: int, depth: int) -> Operands:
    """Return operands of which y is stored in fours, and rows begin at whole sectors."""
    pick = random.Random(0)
    while True:
        operands = make(pick, rows, columns, depth)
        if operands.y.dtype == I32 and operands.y.shape[-1] == columns and operands.a.shape[-1] == count_words(depth):
            return operands


def assert_least(counts: list[LaunchCounts]) -> None:
    """Each request of 16 bytes a lane takes the least sectors or wavefronts."""
    lines = [line for line in counts[0].lines if line.width == 16 and line.counts.nbytes]
    assert {(line.space, line.access) for line in lines} >= {("global", "read"), ("global", "write")}
    for line in lines:
        assert line.counts.ratio == 1.0, line


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("slices", [1, 3])
def test_tiles_take_the_least_sectors_and_wavefronts(tile: Tile, slices: int) -> None:
    counts: list[LaunchCounts] = []
    multiply_tiles("count", tile, make_plain(2 * tile.rows, 2 * tile.columns, 384), slices, counts=counts)
    assert_least(counts)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("lanes", [8, 32])
def test_few_rows_take_the_least_sectors(lanes: int, slices: int) -> None:
    counts: list[LaunchCounts] = []
    multiply_rows("count", 8, lanes, make_plain(8, 256, 4096), slices, counts=counts)
    assert_least(counts)


def product(rows: int, depth: int, columns: int, dtype: type = I8) -> CountedCase:
    """Return a product on a device without tensor cores that take bytes."""
    kernel = "integer_gemv" if rows <= ROWS[-1] else "integer_gemm"
    weight = floats(depth, columns, dtype=dtype)
    return CountedCase("MatMulInteger", kernel, {"x": (rows, depth)}, {"w": weight}, dtype=dtype, target="sm_75")


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("extents", [(64, 64, 64), (128, 1024, 128), (1024, 128, 2048)], ids=str)
def test_work_of_tiles_is_as_counted(extents: tuple[int, int, int], dtype: type) -> None:
    found = compare(product(*extents, dtype))
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.work.l2_nbytes == pytest.approx(counted, rel=2e-3)
    # Pairs of lanes read one address in the loop, but not of sums that wait; unsigned bytes have sums of rows beside.
    waiting = extents[0] * extents[2] / 32
    wavefronts = count_wavefronts(found.counts, 2) + waiting / 2
    assert found.work.wavefronts == (wavefronts if dtype is I8 else pytest.approx(wavefronts, rel=0.1))


@pytest.mark.parametrize("case", [product(1, 1024, 256), product(8, 256, 512), product(3, 4096, 64, U8)], ids=str)
def test_work_of_few_rows_is_as_counted(case: CountedCase) -> None:
    found = compare(case)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert 0.8 * counted <= found.work.l2_nbytes <= counted  # count mode has no L1, which keeps the rows


@pytest.mark.parametrize("dtype", [U8, I8])
def test_a_weight_is_packed_alike_in_any_blocks(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    b = rng.integers(limits.min, limits.max, (2, 203, 70), dtype, endpoint=True)
    whole, parts = (np.zeros(ByteWords().infer(TensorSpec.of(b)).shape, np.uint32) for _ in range(2))
    ByteWords().pack(b, (0, 0, 0), whole)
    for first in range(0, b.shape[1], 64):
        ByteWords().pack(b[:, first : first + 64], (0, first, 0), parts)
    np.testing.assert_array_equal(parts, whole)
    centred = b.astype(np.int64) - offset_of(b.dtype)
    np.testing.assert_array_equal(whole[:, -1, :70].view(np.int32), centred.sum(1))
    np.testing.assert_array_equal(whole[:, :-1].view(I8).reshape(2, 52, 72, 4)[:, 3, 5], centred[:, 12:16, 5])
