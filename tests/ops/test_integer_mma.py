"""Products of 8-bit integers on tensor cores: the kernel alone over random extents, signs, zero points, batches and
slices, to the bit; operators by tile; and the work of launches beside what is counted."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.ops.lib.slices import MMA_TILES, MmaTile
from gpuexec.ops.quant import integer_matmul
from gpuexec.ops.quant.integer import offset_of
from gpuexec.ops.quant.integer_words import WORD_BYTES, ByteLines, find_pitch
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Case, run_case
from tests.ops.test_integer_gemm import Operands, aligned, make

Array = np.ndarray[Any, Any]
U8, I8, F32 = np.uint8, np.int8, np.float32
DEPTHS = [0, 1, 16, 31, 32, 33, 61, 64, 100, 128, 255, 272, 1040]
NAMES = [tile.name for tile in MMA_TILES]


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    return load_file("integer_mma.cu", instantiations("integer_mma.cu"), mode=mode)


def lay_lines(b: Array) -> tuple[Array, int]:
    """Return lines along the inner extent, and how many words a line has."""
    packed = PackedForm.of(ByteLines(b.shape[-1]), TensorSpec.of(b), tuple(range(b.ndim))).pack(b)
    laid = aligned(packed.shape, U8)
    laid[...] = packed
    return laid.view(np.uint32), find_pitch(b.shape[-2]) // WORD_BYTES


def multiply(mode: Mode, tile: MmaTile, operands: Operands, slices: int = 1, seed: int = 0) -> None:
    """Launch with scratch memory and counters, which must be 0 again afterwards."""
    rows, columns, _ = operands.extents
    blocks = int(np.prod(operands.expected.shape[:-2])) * tile.count(rows, columns)
    scratch = aligned((blocks * slices * tile.size,), np.int32) if slices > 1 else None
    counters = np.zeros(blocks, np.uint32) if slices > 1 else None
    load(mode)[f"integer_mma<{tile.name}>"].launch_arrays(
        (blocks, slices, 1), tile.threads, operands.a, operands.b, operands.addend, operands.y, operands.packed,
        scratch, counters, *operands.quants, shared_bytes=tile.ring_nbytes, schedule=Schedule("random", seed),
    )  # fmt: skip
    assert counters is None or not counters.any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_random_products(mode: Mode, tile: MmaTile, seed: int) -> None:
    pick, is_small = random.Random(f"{tile.name} {seed}"), tile.size <= 64 * 64
    for _ in range((10 if is_small else 3) if mode == "plain" else 2 if is_small else 1):
        rows, columns = (
            pick.choice([1, 2, 7, each // 2, each - 1, each, each + 1, each + 13]) for each in (tile.rows, tile.columns)
        )
        batch = pick.choice([(), (), (2,), (2, 3)] if is_small else [()])
        operands = make(pick, rows, columns, pick.choice(DEPTHS), batch, lay_lines)
        slices = pick.choice([1, 1, 2, 3, 5, 16] if is_small else [1, 1, 3])
        multiply(mode, tile, operands, slices, seed)
        operands.check(f"{operands.extents} of {batch} in {slices} slices")


@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_loop_of_whole_slabs(tile: MmaTile) -> None:
    depth = (2 * tile.stages + 2) * tile.slab_nbytes + 48
    operands = make(random.Random(5), min(tile.rows, 40), 40, depth, lay_right=lay_lines)
    multiply("plain", tile, operands)
    operands.check(f"{operands.extents}")


def product(id: str, *extents: int, b: type = I8, const: tuple[int, ...] = (1,)) -> Case:
    rng, (rows, inner, columns) = np.random.default_rng(7), extents
    given = [rng.integers(0, 255, (rows, inner)).astype(U8), rng.integers(-128, 127, (inner, columns)).astype(b)]
    given += [np.array(3, U8), rng.integers(0, 100, columns).astype(b)]
    expected = (given[0].astype(np.int64) - 3) @ (given[1].astype(np.int64) - given[3])
    return Case(id, "MatMulInteger", tuple(given), expected=(expected.astype(np.int32),), const=const)


@pytest.mark.parametrize(
    "case",
    [
        product("weight", 21, 40, 24),
        product("unsigned_weight", 21, 37, 25, b=U8),
        product("two_inputs", 21, 40, 24, const=()),
        product("slices", 21, 1500, 24),
    ],
    ids=lambda case: case.id,
)
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_operators_by_tile(checks: str, tile: MmaTile, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a size class takes it whose upper end is larger."""
    monkeypatch.setattr(integer_matmul, "choose_mma_tile", lambda *_: tile)
    run_case(case, checks)


def test_devices_without_tensor_cores_give_the_same_bits(checks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all before sm_80."""
    monkeypatch.setattr(integer_matmul, "has_tensor_cores", lambda _: False)
    run_case(product("weight", 70, 161, 67), checks)
    run_case(product("slices", 9, 1500, 24, b=U8, const=()), checks)


@pytest.mark.parametrize(
    ("target", "rows", "inner", "kernel"),
    [
        ("sm_80", 9, 32, "integer_mma"),
        ("sm_120", 9, 32, "integer_mma"),
        ("sm_75", 9, 32, "integer_gemm"),
        ("sm_80", 8, 32, "integer_gemv"),
        ("sm_80", 9, 31, "integer_gemm"),
    ],
)
def test_more_than_eight_rows_of_32_bytes_take_tensor_cores(target: str, rows: int, inner: int, kernel: str) -> None:
    build, specs = (
        GraphBuilder(),
        {"a": TensorSpec((rows, inner), np.dtype(U8)), "b": TensorSpec((inner, 5), np.dtype(I8))},
    )
    values = [build.input(name, *spec.shape, dtype=spec.dtype) for name, spec in specs.items()]
    graph = build.graph(build.node(integer_matmul.MatMulInteger(), *values))
    plan = plan_graph(graph, specs, Target.named(target)).plan
    assert kernel in {each.expression.partition("<")[0] for each in plan.kernels()}


def test_all_sizes_of_a_class_take_its_kernel() -> None:
    """Fewer rows than there are kernels for few, and fewer bytes than an mma takes."""
    build = GraphBuilder()
    left = build.input("a", "rows", "inner", dtype=np.dtype(U8))
    right = build.input("b", "inner", 20, dtype=np.dtype(I8))
    graph = build.graph(build.node(integer_matmul.MatMulInteger(), left, right))
    rng = np.random.default_rng(4)
    template = None
    for rows, inner in ((70, 130), (64, 130), (9, 48), (1, 7)):
        a, b = rng.integers(0, 255, (rows, inner)).astype(U8), rng.integers(-128, 127, (inner, 20)).astype(I8)
        arrays = {"a": a, "b": b}
        template = template or plan_graph(
            graph, {k: TensorSpec.of(v) for k, v in arrays.items()}, Target.named("sm_90")
        )
        assert "integer_mma" in str(template.plan.kernels())
        (y,) = run_template(template, graph, arrays, open_device("simulator"))
        np.testing.assert_array_equal(y, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("tile", MMA_TILES, ids=NAMES)
def test_work_is_as_counted(tile: MmaTile, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices; all copies, fragments and sums take the least sectors and wavefronts."""
    monkeypatch.setattr(integer_matmul, "choose_mma_tile", lambda *_: tile)
    rows, inner, columns = tile.rows, (2 * tile.stages + 2) * tile.slab_nbytes, 2 * tile.columns
    weight = floats(inner, columns, dtype=dtype)
    found = compare(CountedCase("MatMulInteger", "integer_mma", {"x": (rows, inner)}, {"w": weight}, dtype=dtype))
    assert found.work.flops == 2 * rows * inner * columns
    issued = sum(line.counts.issued for line in found.counts.operations if line.unit == "mma")
    assert 2 * found.work.matrix_products == issued
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.work.l2_nbytes == pytest.approx(counted, rel=2e-3)
    for line in found.counts.lines:
        if line.counts.nbytes and (line.width == 16 or line.space == "shared"):
            assert line.counts.ratio == 1.0, line


def test_the_floor_of_large_products_is_twice_the_rate_of_halves() -> None:
    build, specs = GraphBuilder(), {name: TensorSpec((4096, 4096), np.dtype(I8)) for name in "ab"}
    values = [build.input(name, *spec.shape, dtype=spec.dtype) for name, spec in specs.items()]
    graph = build.graph(build.node(integer_matmul.MatMulInteger(), *values))
    found = predict_plan(plan_graph(graph, specs, Target.named("sm_90")).plan)
    assert found.floor_us == pytest.approx(4096**3 / found.gpu.matrix_rate * 1e6, rel=0.01)
    assert found.floor_us < found.predicted_us


@pytest.mark.parametrize("dtype", [U8, I8])
def test_a_weight_is_packed_alike_in_any_blocks(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    b = rng.integers(limits.min, limits.max, (2, 203, 70), dtype, endpoint=True)
    form = ByteLines(70)
    whole, by_rows, by_columns = (np.zeros(form.infer(TensorSpec.of(b)).shape, U8) for _ in range(3))
    form.pack(b, (0, 0, 0), whole)
    for first in range(0, b.shape[1], 64):
        form.pack(b[:, first : first + 64], (0, first, 0), by_rows)
    for first in range(0, b.shape[2], 64):
        form.pack(b[:, :, first : first + 64], (0, 0, first), by_columns)
    np.testing.assert_array_equal(by_rows, whole)
    np.testing.assert_array_equal(by_columns, whole)
    centred = b.astype(np.int64) - offset_of(b.dtype)
    lines, sums = whole[:, : 70 * 224].reshape(2, 70, 224), whole[:, 70 * 224 :].view(np.int32)
    np.testing.assert_array_equal(lines[..., :203].view(I8), centred.swapaxes(1, 2))
    np.testing.assert_array_equal(sums[:, :70], centred.sum(1))
    assert not lines[..., 203:].any()
