"""Products with codes of 2, 4 and 8 bits on tensor cores: the kernels alone over random extents, blocks, zero points
and slices, to the bit, those of few rows too; and the work of launches beside what is counted."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.lib.slices import SMALL_MMA
from gpuexec.ops.linalg.product import ALONG_K, Product
from gpuexec.ops.microsoft.few_nbits import name_few_nbits
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits, name_mma_nbits, pack_shape
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts
from tests.ops.direct import lower_and_run
from tests.ops.test_integer_gemm import aligned

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
BITS = (2, 4, 8)
TILE = SMALL_MMA
FEW_COLUMNS = 32  # of a warp


@functools.cache
def load(mode: Mode, source: str = "mma_nbits.cu") -> Mapping[str, SimulatorFunction]:
    return load_file(source, instantiations(source), mode=mode)


def lay(array: Array) -> Array:
    memory = aligned(array.shape, array.dtype)
    memory[...] = array
    return memory


def pack(codes: Array, bits: int) -> Array:
    """Pack rows of codes into bytes, the first in the low bits."""
    parts = codes.reshape(codes.shape[0], codes.shape[1] * bits // 8, 8 // bits)
    packed = (parts << np.arange(0, 8, bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return np.ascontiguousarray(packed)


def slot(number: int, array: Array) -> Slot:
    return Slot(number, 0, TensorSpec(array.shape, array.dtype), (0,) * array.ndim)


def check_product(
    pick: random.Random, mode: Mode, extents: tuple[int, int, int], slices: int, block: int, bits: int,
    counts: list[LaunchCounts] | None = None, folds: int = 0,
) -> None:  # fmt: skip
    """Multiply integers by codes whose scales are powers of two, so that sums are exact; with ``folds`` of few rows."""
    rng, (rows, columns, inner) = np.random.default_rng(pick.getrandbits(32)), extents
    dtypes = [HALF, *([FLOAT] if folds else []), *([BFLOAT16] if not (folds and bits == 8) else [])]
    dtype, blocks = pick.choice(dtypes) if counts is None else HALF, ceil_div(extents[2], block)
    result, middle = dtype if counts is not None or pick.random() < 0.5 else FLOAT, 1 << (bits - 1)
    a = lay(rng.integers(-3, 4, (rows, inner)).astype(dtype))
    codes = rng.integers(0, 1 << bits, (columns, blocks * block)).astype(np.uint8)
    scales = 2.0 ** rng.integers(-2, 2, (columns, blocks))
    has_zeros, has_bias = (pick.random() < 0.5 for _ in range(2))
    zeros = rng.integers(0, 1 << bits, (columns, round_up(blocks, 8 // bits))).astype(np.uint8) if has_zeros else None
    bias = rng.integers(-4, 5, columns).astype(result) if has_bias else None
    zero = middle if zeros is None else zeros[:, :blocks].astype(np.int64).repeat(block, 1)[:, :inner]
    weights = (codes[:, :inner].astype(np.int64) - zero) * scales.repeat(block, 1)[:, :inner]
    expected = (a.astype(np.float64) @ weights.T + (0 if bias is None else bias.astype(np.float64))).astype(result)
    y = aligned((rows, columns), result)
    packed = lay(pack(codes, bits))
    packed_zeros = None if zeros is None else pack(zeros, bits)
    shape = pack_shape(blocks * block, ceil_div(blocks * bits, 8), blocks, block, bits, int(has_zeros))
    product = Product(
        (slot(0, a), slot(1, packed), None, slot(3, y)), extents, (inner, 1), (1, inner), (0, 1), (columns, 1),
        (1.0, 1.0), (), ((), (), ()),
    )  # fmt: skip
    block_columns = 8 // max(folds, 1) * FEW_COLUMNS
    tiles = ceil_div(columns, block_columns) if folds else TILE.count(rows, columns)
    size, threads, nbytes = (rows * block_columns, 256, 0) if folds else (TILE.size, TILE.threads, TILE.ring_nbytes)
    scratch = aligned((tiles * slices * size,), np.dtype(np.float32)) if slices > 1 else None
    counters = np.zeros(tiles, np.uint32) if slices > 1 else None
    few = name_few_nbits(dtype, result, bits, rows)
    kernel = few if folds else name_mma_nbits(dtype, result, bits)
    load(mode, kernel.source)[kernel.expression].launch_arrays(
        (tiles, slices, 1), threads, a, packed, bias, y, product.pack_mma(ALONG_K, ALONG_K, folds), scratch, counters,
        scales.astype(result), packed_zeros, shape, shared_bytes=nbytes,
        schedule=Schedule("random", pick.getrandbits(16)), counts=counts,
    )  # fmt: skip
    np.testing.assert_array_equal(y, expected, err_msg=f"{extents}: {slices} slices, {bits} bits, blocks of {block}")
    assert counters is None or not counters.any()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("mode", ["plain", "check"])
def test_random_products(mode: Mode, bits: int, seed: int) -> None:
    pick = random.Random(10 * seed + bits)
    for _ in range(8 if mode == "plain" else 2):
        rows, columns = (pick.choice([1, 7, each - 1, each, each + 1, each + 13]) for each in (TILE.rows, TILE.columns))
        inner, block = pick.choice([0, 8, 16, 40, 64, 136, 272, 520, 1048]), pick.choice([32, 64, 128, 256])
        check_product(pick, mode, (rows, columns, inner), pick.choice([1, 1, 2, 3, 5]), block, bits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("mode", ["plain", "check"])
def test_random_products_of_few_rows(mode: Mode, bits: int, seed: int) -> None:
    pick = random.Random(10 * seed + bits)
    for _ in range(12 if mode == "plain" else 3):
        rows, columns = pick.choice([1, 1, 2, 3, 4]), pick.choice([1, 7, 31, 32, 33, 64, 130, 200])
        inner, block = pick.choice([0, 8, 40, 128, 136, 264, 520, 2056, 4096]), pick.choice([32, 64, 128, 256])
        folds, slices = pick.choice([2, 4, 8]), pick.choice([1, 1, 2, 3, 5])
        check_product(pick, mode, (rows, columns, inner), slices, block, bits, folds=folds)


def test_scales_and_numbers_that_are_not_there_count_nowhere() -> None:
    """Infinite ones in the places of lanes beside."""
    a, scales = np.ones((3, 64), HALF), np.ones((33, 2), HALF)
    a[1, 40], scales[5, 1] = np.inf, np.inf
    codes = np.full((33, 64), 9, np.uint8)
    op = MatMulNBits(K=64, N=33, block_size=32, bits=4)
    inputs = (a, pack(codes, 4).reshape(33, 2, 16), scales)
    (y,) = lower_and_run(op, inputs)
    with np.errstate(invalid="ignore"):
        expected = (a.astype(FLOAT) @ scales.astype(FLOAT).repeat(32, 1).T).astype(HALF)
    np.testing.assert_array_equal(y, expected)
    assert np.isfinite(y[0, :5]).all() and np.isinf(y[1]).all() and np.isinf(y[0, 5])


@pytest.mark.parametrize("bits", BITS)
def test_tiles_take_the_least_sectors_and_wavefronts(bits: int) -> None:
    counts: list[LaunchCounts] = []
    depth = (2 * TILE.stages + 2) * TILE.slab_nbytes // 2
    check_product(random.Random(0), "count", (TILE.rows, TILE.columns, depth), 1, 32, bits, counts)
    for line in counts[0].lines:
        if line.counts.nbytes and (line.width >= 16 or line.space == "shared"):
            assert line.counts.ratio == 1.0, line


@pytest.mark.parametrize(
    ("target", "dtype", "rows", "given", "kernel"),
    [
        ("sm_80", HALF, 5, {}, "mma_nbits"),
        ("sm_120", BFLOAT16, 500, {}, "mma_nbits"),
        ("sm_75", HALF, 5, {}, "matmul_nbits"),
        ("sm_75", FLOAT, 4, {}, "few_nbits"),
        ("sm_90", FLOAT, 1, {"bits": 8}, "few_nbits"),
        ("sm_80", HALF, 1, {}, "mma_few_nbits"),
        ("sm_90", BFLOAT16, 4, {}, "mma_few_nbits"),
        ("sm_90", BFLOAT16, 4, {"bits": 8}, "mma_nbits"),
        ("sm_80", FLOAT, 5, {}, "matmul_nbits"),
        ("sm_80", HALF, 5, {"bits": 2}, "mma_nbits"),
        ("sm_80", HALF, 5, {"bits": 8}, "mma_nbits"),
        ("sm_80", HALF, 5, {"precision": "fp16"}, "mma_nbits"),
        ("sm_80", HALF, 1, {"precision": "fp16", "bits": 8}, "mma_few_nbits"),
        ("sm_90", BFLOAT16, 500, {"precision": "bf16", "bits": 2}, "mma_nbits"),
        ("sm_75", HALF, 5, {"precision": "fp16"}, "matmul_nbits"),
        ("sm_80", HALF, 5, {"precision": "fp16", "block_size": 16}, "matmul_nbits"),
        ("sm_80", HALF, 5, {"K": 44}, "matmul_nbits"),
        ("sm_80", HALF, 5, {"block_size": 16}, "matmul_nbits"),
    ],
)
def test_codes_take_tensor_cores(target: str, dtype: Any, rows: int, given: dict[str, Any], kernel: str) -> None:
    op = MatMulNBits(**{"K": 48, "N": 6, "block_size": 32, **given})
    build, blocks = GraphBuilder(), ceil_div(op.K, op.block_size)
    specs = {
        "a": TensorSpec((rows, op.K), dtype),
        "b": TensorSpec((6, blocks, op.block_size * op.bits // 8), np.dtype(np.uint8)),
        "scales": TensorSpec((6, blocks), FLOAT if op.precision else dtype),
    }
    values = [build.input(name, *spec.shape, dtype=spec.dtype) for name, spec in specs.items()]
    plan = plan_graph(build.graph(build.node(op, *values)), specs, Target.named(target)).plan
    kernels = [each.kernel.expression.partition("<")[0] for each in plan.segment.commands if isinstance(each, Launch)]
    # What is rounded is widened again where there are no tensor cores.
    assert kernels == ["convert"] * (op.precision != "" and kernel == "matmul_nbits") + [kernel]


@pytest.mark.parametrize("precision", ["", "fp16"])
def test_all_sizes_of_a_class_take_its_kernel(precision: str) -> None:
    """One row, too."""
    rng, build = np.random.default_rng(5), GraphBuilder()
    op = MatMulNBits(K=136, N=20, block_size=32, precision=precision)
    codes = rng.integers(0, 256, (20, 5, 16)).astype(np.uint8)
    scales = (2.0 ** rng.integers(-2, 2, (20, 5))).astype(FLOAT if precision else HALF)
    left = build.input("a", "rows", 136, dtype=HALF)
    graph = build.graph(build.node(op, left, build.constant(codes), build.constant(scales)))
    template = plan_graph(graph, {"a": TensorSpec((70, 136), HALF)}, Target.named("sm_90"))
    assert "mma_nbits" in str(template.plan.kernels())
    for rows in (70, 64, 5, 4, 1):
        a = rng.integers(-4, 5, (rows, 136)).astype(HALF)
        (y,) = run_template(template, graph, {"a": a}, open_device("simulator"))
        np.testing.assert_array_equal(y, op.compute(a, codes, scales)[0])


@pytest.mark.parametrize(
    ("bits", "rows", "columns", "inner", "precision"),
    [
        *((4, 1, 256, 2048, "fp16"), (4, 3, 256, 1024, ""), (8, 2, 128, 1024, ""), (2, 4, 128, 4096, "fp16")),
        *((4, 1, 256, 2048, "float"), (8, 4, 128, 1024, "float")),
    ],
)
def test_work_of_few_rows_is_as_counted(bits: int, rows: int, columns: int, inner: int, precision: str) -> None:
    rng, blocks, dtype = np.random.default_rng(0), inner // 32, FLOAT if precision == "float" else HALF
    codes = rng.integers(0, 256, (columns, blocks, 4 * bits)).astype(np.uint8)
    attributes = {"K": inner, "N": columns, "block_size": 32, "bits": bits, "domain": "com.microsoft"}
    attributes["precision"] = "" if precision == "float" else precision
    weights = {"b": codes, "s": np.ones((columns, blocks), FLOAT if precision else HALF)}
    kernel = "few_nbits" if precision == "float" else "mma_few_nbits"
    found = compare(CountedCase("MatMulNBits", kernel, {"a": (rows, inner)}, weights, attributes, dtype=dtype.type))
    assert found.work.flops == 2 * rows * columns * inner
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    issued = sum(line.counts.issued for line in found.counts.operations if line.unit == "mma")
    assert found.work.matrix_products == issued
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    # A lane has neighbours of codes and rows, and L1 the other half of a sector for the load behind.
    reads = [line for line in found.counts.lines if line.space == "global" and line.access == "read"]
    wide = sum(line.counts.nbytes for line in reads if line.width >= 8)
    if dtype == HALF:
        assert wide == codes.nbytes + columns // 32 * rows * inner * dtype.itemsize
    assert codes.nbytes <= found.work.l2_nbytes <= found.counts.l2_read_nbytes + found.counts.l2_written_nbytes


@pytest.mark.parametrize(
    ("bits", "rows", "block", "precision"),
    [(4, 16, 32, ""), (4, 64, 128, ""), (4, 128, 32, ""), (2, 128, 32, ""), (8, 64, 32, ""), (8, 128, 128, "fp16")],
)
def test_work_is_as_counted(bits: int, rows: int, block: int, precision: str) -> None:
    inner, columns = 512, 128
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (columns, inner // block, block * bits // 8)).astype(np.uint8)
    scales = np.ones((columns, inner // block), FLOAT if precision else HALF)
    attributes = {"K": inner, "N": columns, "block_size": block, "bits": bits, "precision": precision}
    attributes["domain"] = "com.microsoft"
    weights = {"b": codes, "s": scales}
    found = compare(
        CountedCase("MatMulNBits", "mma_nbits", {"a": (rows, inner)}, weights, attributes, dtype=np.float16)
    )
    assert found.work.flops == 2 * rows * columns * inner
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    issued = sum(line.counts.issued for line in found.counts.operations if line.unit == "mma")
    assert found.work.matrix_products == issued
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    # Count mode has no L1, which keeps the scales, and of codes of two bits the half of a sector for the next slab.
    narrow = [line.counts.transactions for line in found.counts.lines if line.space == "global" and line.width <= 8]
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert counted - 32 * sum(narrow) <= found.work.l2_nbytes <= counted
