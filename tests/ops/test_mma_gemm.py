"""Products of half, bf16 and tf32 on tensor cores: the kernel alone over random extents, strides, batches and slices,
to the bit."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.instances import instantiations
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.lib.slices import (
    DEEP_MMA_TILES,
    GROUP_TILES,
    ONE_SLICE,
    SMALL_GROUP,
    SMALL_MMA,
    MmaTile,
)
from gpuexec.ops.linalg import mma_launch
from gpuexec.ops.linalg.mma_launch import name_mma
from gpuexec.ops.linalg.product import ACROSS, ALONG_K, Product
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_device
from tests.model.small_models import make_model
from tests.ops.chains import chain
from tests.ops.harness import Case, compile_first, run_case

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
FLOAT16 = helper.np_dtype_to_tensor_dtype(HALF)
INNER = [0, 1, 7, 8, 31, 32, 33, 61, 64, 100, 131, 272, 520]
ALIGNMENT = 256
# Types of operands and result.
TYPES = [(dtype, result) for dtype in (HALF, BFLOAT16) for result in (dtype, FLOAT)]
TF32 = (FLOAT, FLOAT)
STEPS = (("Add", (), (-1, 2)), ("Relu", (), (-1,)), ("Mul", (), (-1, "0.5")))
CAST = {dtype: ("Cast", (("to", helper.np_dtype_to_tensor_dtype(dtype)),), (-1,)) for dtype in (HALF, BFLOAT16)}
# Tiles with the ways in which their left operand may lie.
LEFT = [*((tile, ALONG_K) for tile in (*DEEP_MMA_TILES, *GROUP_TILES)), (SMALL_MMA, ACROSS), (SMALL_GROUP, ACROSS)]
LEFT_NAMES = [f"{tile.name}{left[5:]}" for tile, left in LEFT]


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    # The whole file, as other tests have it compiled, but for counting.
    counted = [name_mma((HALF, HALF), tile, (left, right)) for tile, left in LEFT for right in (ALONG_K, ACROSS)]
    counted += [name_mma((HALF, FLOAT), tile, (ALONG_K, ALONG_K)) for tile in DEEP_MMA_TILES]
    expressions = [each.expression for each in counted] if mode == "count" else instantiations("mma_gemm.cu")
    return load_file("mma_gemm.cu", expressions, mode=mode)


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
        assert np.isnan(self.y[..., columns:].astype(np.float32)).all(), f"{what}: wrote beyond the columns"


def choose_device(checks: str, tile: MmaTile) -> str:
    """Return where a tile runs: tiles of groups are those of sm_90."""
    return "simulator_90" if checks == "simulator" and tile.is_by_groups else checks


def force_tile(monkeypatch: pytest.MonkeyPatch, tile: MmaTile) -> None:
    """Let products take a tile; one of groups of warps where an architecture and the operands allow it."""

    def choose(*given: Any) -> MmaTile:
        return tile if not tile.is_by_groups or tile in given[5] else SMALL_MMA

    monkeypatch.setattr(mma_launch, "choose_mma_tile", choose)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of NaN that starts where memory of a device does."""
    count = int(np.prod(shape))
    memory = np.full(count + ALIGNMENT // dtype.itemsize, np.nan, dtype)
    first = -memory.ctypes.data % ALIGNMENT // dtype.itemsize
    return memory[first : first + count].reshape(shape)


def lay(array: Array, lie: str, is_left: bool, spare: int, is_wide: bool = False) -> tuple[Array, tuple[int, int]]:
    """Lay the last two axes out as `lie` says, lines ``spare`` elements apart, or aligned: memory, and both strides."""
    is_turned = (lie == ALONG_K) != is_left
    turned = array.swapaxes(-1, -2) if is_turned else array
    spare = -turned.shape[-1] % 8 if is_wide else spare
    wide = aligned((*turned.shape[:-1], turned.shape[-1] + spare), array.dtype)
    wide[..., : turned.shape[-1]] = turned
    pitch = wide.shape[-1]
    return wide, (1, pitch) if is_turned else (pitch, 1)


def slot(number: int, array: Array) -> Slot:
    return Slot(number, 0, TensorSpec(array.shape, array.dtype), (0,) * array.ndim)


def make(
    pick: random.Random,
    extents: tuple[int, int, int],
    lies: tuple[str, str],
    batch: tuple[int, ...] = (),
    types: tuple[np.dtype[Any], np.dtype[Any]] = (HALF, HALF),
    spare: int | None = None,
    is_wide: bool = False,
) -> Operands:
    rng = np.random.default_rng(pick.getrandbits(32))
    (rows, columns, inner), (dtype, result) = extents, types

    def numbers(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(dtype)

    a, b, c = numbers(*batch, rows, inner), numbers(*batch, inner, columns), numbers(rows, columns).astype(result)
    gaps = [pick.choice([0, 0, 8, 1]) if spare is None else spare for _ in range(3)]
    a_memory, a_strides = lay(a, lies[0], True, gaps[0], is_wide)
    b_memory, b_strides = lay(b, lies[1], False, gaps[1], is_wide)
    y = aligned((*batch, rows, columns + gaps[2]), result)
    walks = tuple(
        tuple(each.strides[axis] // each.itemsize for axis in range(len(batch))) for each in (a_memory, b_memory, y)
    )
    alpha, beta, has_c = pick.choice([1.0, 2.0, -0.5]), pick.choice([1.0, 3.0]), pick.random() < 0.5
    product = Product(
        (slot(0, a), slot(1, b), slot(2, c) if has_c else None, slot(3, y)), (rows, columns, inner), a_strides,
        b_strides, (columns, 1), (y.shape[-1], 1), (alpha, beta), batch, walks,
    )  # fmt: skip
    exact = alpha * np.matmul(a.astype(np.float64), b.astype(np.float64)) + (beta * c.astype(np.float64) * has_c)
    return Operands(product, a_memory, b_memory, c if has_c else None, y, exact.astype(result))


def multiply(
    mode: Mode,
    tile: MmaTile,
    lies: tuple[str, str],
    operands: Operands,
    slices: int = 1,
    seed: int = 0,
    counts: list[LaunchCounts] | None = None,
) -> None:
    """Launch with scratch memory and counters, which must be 0 again afterwards."""
    rows, columns, _ = operands.product.extents
    blocks = operands.product.count * tile.count(rows, columns)
    scratch = aligned((blocks * slices * tile.size,), np.dtype(np.float32)) if slices > 1 else None
    counters = np.zeros(blocks, np.uint32) if slices > 1 else None
    load(mode)[name_mma((operands.a.dtype, operands.y.dtype), tile, lies).expression].launch_arrays(
        (blocks, slices, 1), tile.threads, operands.a, operands.b, operands.c, operands.y,
        operands.product.pack_mma(*lies), scratch, counters, shared_bytes=tile.ring_nbytes,
        schedule=Schedule("random", seed), counts=counts,
    )  # fmt: skip
    assert counters is None or not counters.any()


def pick_extents(pick: random.Random, tile: MmaTile) -> tuple[int, int, int]:
    rows, columns = (
        pick.choice([1, 2, 7, each // 2, each - 1, each, each, each + 1, each + 13])
        for each in (tile.rows, tile.columns)
    )
    inner = pick.choice(INNER)
    if pick.random() < 0.5:  # copies of 16 bytes
        columns, inner = (columns + 7) // 8 * 8, (inner + 7) // 8 * 8
    return rows, columns, inner


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("right", [ALONG_K, ACROSS], ids=["along_k", "across"])
@pytest.mark.parametrize(("tile", "left"), LEFT, ids=LEFT_NAMES)
def test_random_products(mode: Mode, tile: MmaTile, left: str, right: str, seed: int) -> None:
    pick = random.Random(f"{tile.name} {left} {right} {seed}")
    is_small = tile.size <= SMALL_MMA.size
    for _ in range((12 if is_small else 4) if mode == "plain" else 2 if is_small else 1):
        batch = pick.choice([(), (), (2,), (2, 2)] if is_small else [()])
        types = pick.choice([*TYPES, TF32] if left == right == ALONG_K and not tile.is_by_groups else TYPES)
        extents = pick_extents(pick, tile)
        operands = make(pick, extents, (left, right), batch, types, is_wide=tile.is_by_groups)
        slices = pick.choice([1, 1, 2, 3, 5, 16] if is_small else [1, 1, 3])
        multiply(mode, tile, (left, right), operands, slices, seed)
        operands.check(f"{operands.product} in {slices} slices")


@pytest.mark.parametrize("right", [ALONG_K, ACROSS], ids=["along_k", "across"])
@pytest.mark.parametrize(("tile", "left"), LEFT, ids=LEFT_NAMES)
def test_loop_of_whole_slabs(tile: MmaTile, left: str, right: str) -> None:
    """The last slab is not whole: in the first case it comes two rounds of the ring after the first."""
    pick = random.Random(5)
    for slabs in (2 * tile.stages - 1, 2 * tile.stages + 2):
        depth = slabs * tile.slab_nbytes // 2 + 8
        operands = make(pick, (min(tile.rows, 40), 40, depth), (left, right), spare=0)
        multiply("plain", tile, (left, right), operands)
        operands.check(f"{operands.product}")


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize(("tile", "left"), LEFT, ids=LEFT_NAMES)
def test_lines_across_end_within_a_chunk(mode: Mode, tile: MmaTile, left: str) -> None:
    """Behind the last line there is room, as in packed weights, or none, where all lines along k are one."""
    extents = (21, 61, (2 * tile.stages + 2) * tile.slab_nbytes // 2)
    operands = make(random.Random(6), extents, (left, ACROSS), spare=3, is_wide=tile.is_by_groups)
    multiply(mode, tile, (left, ACROSS), operands)
    operands.check("room behind the last line")

    line = aligned((61,), HALF)
    line[...] = operands.b[0, :61]
    sums = (operands.a[:, :21].T if left == ACROSS else operands.a[:, : extents[2]]).astype(np.float64).sum(axis=1)
    (alpha, beta), c = operands.product.scale, operands.c
    exact = alpha * np.outer(sums, line.astype(np.float64)) + (0 if c is None else beta * c.astype(np.float64))
    one = replace(operands, b=line, product=replace(operands.product, b=(0, 1)), expected=exact.astype(HALF))
    one.y[...] = np.nan
    assert operands.product.has_chunks(left, ACROSS) or not tile.is_by_groups
    assert not one.product.has_chunks(left, ACROSS)
    if tile.is_by_groups:
        return
    multiply(mode, tile, (left, ACROSS), one)
    one.check("one line")


@pytest.mark.parametrize("right", [ALONG_K, ACROSS], ids=["along_k", "across"])
@pytest.mark.parametrize(
    ("tile", "left", "slices"),
    [*((tile, left, 1) for tile, left in LEFT), (SMALL_MMA, ALONG_K, 3)],
    ids=[*LEFT_NAMES, "slices"],
)
def test_aligned_operands_take_the_least_sectors_and_wavefronts(
    tile: MmaTile, left: str, slices: int, right: str
) -> None:
    check_requests(tile, (left, right), HALF, slices)


@pytest.mark.parametrize("tile", DEEP_MMA_TILES, ids=[tile.name for tile in DEEP_MMA_TILES])
def test_results_of_float_take_the_least_sectors(tile: MmaTile) -> None:
    """Lanes that are neighbours fill them together."""
    check_requests(tile, (ALONG_K, ALONG_K), FLOAT)


def check_requests(tile: MmaTile, lies: tuple[str, str], result: np.dtype[Any], slices: int = 1) -> None:
    """Check that a product of one whole tile asks for no more sectors and wavefronts than it must."""
    counts: list[LaunchCounts] = []
    extents = tile.rows, tile.columns, (2 * tile.stages + 2) * tile.slab_nbytes // 2
    multiply("count", tile, lies, make(random.Random(0), extents, lies, (), (HALF, result), 0), slices, counts=counts)
    kinds = set()
    for line in counts[0].lines:
        # Neither the counters nor the addend, which lies anyhow.
        is_other = line.width < 16 and line.space == "global"
        if not line.counts.nbytes or is_other or any(file == "epilogue.cuh" for file, _ in line.places):
            continue
        kinds.add((line.space, line.access, line.width))
        assert line.counts.ratio == 1.0, line
    read = 16 if tile.is_by_groups else 4  # a lane's share of what its group reads, or a word of a fragment
    assert kinds >= {("global", "read", 16), ("global", "write", 16), ("shared", "write", 16), ("shared", "read", read)}


# Types of operands and of the result, and operators behind the product.
FORMS: list[tuple[tuple[np.dtype[Any], np.dtype[Any]], tuple[Any, ...]]] = [
    *(((dtype, dtype), steps) for dtype in (HALF, BFLOAT16) for steps in ((), STEPS)),
    *(((dtype, FLOAT), steps) for dtype in (HALF, BFLOAT16) for steps in ((), STEPS, (*STEPS, CAST[dtype]))),
    *((TF32, steps) for steps in ((), STEPS)),
]


def make_form(
    left: str,
    right: str,
    types: tuple[np.dtype[Any], np.dtype[Any]],
    steps: tuple[Any, ...],
    extents: tuple[int, int, int] = (24, 24, 40),
) -> Case:
    rng, (dtype, result), (rows, columns, inner) = np.random.default_rng(2), types, extents
    shapes = ((rows, inner), (inner, columns), (columns,))
    a, b, bias = (rng.integers(-4, 5, shape).astype(dtype) for shape in shapes)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    given = [a if left == ALONG_K else a.T.copy(), b if right == ACROSS else b.T.copy()]
    attributes: dict[str, Any] = {"transA": int(left == ACROSS), "transB": int(right == ALONG_K)}
    if result == FLOAT:
        attributes["precision"] = {HALF: "fp16", BFLOAT16: "bf16", FLOAT: "tf32"}[dtype]
    if steps:
        attributes |= chain(steps, result)
        given.append(bias.astype(result))
        expected = np.maximum(expected.astype(result).astype(np.float64) + bias.astype(np.float64), 0)
        expected = expected.astype(result).astype(np.float64) * 0.5
    stored = dtype if steps and steps[-1] == CAST.get(dtype) else result
    name = "gpuexec.FusedGemm" if steps else "Gemm"
    return Case("forms", name, tuple(given), attributes, expected=(expected.astype(stored),), terms=40)


FORM_NAMES = [
    *(f"{dtype}{kind}" for dtype in ("float16", "bfloat16") for kind in ("", "-steps")),
    *(f"{dtype}-to-float{kind}" for dtype in ("float16", "bfloat16") for kind in ("", "-steps", "-steps-cast")),
    *(f"tf32{kind}" for kind in ("", "-steps")),
]


def list_rights(tile: MmaTile, left: str, form: int) -> tuple[str, ...]:
    """Return how right operands lie: in both ways, and in one of them, by turns, where there are steps behind."""
    turn = (LEFT.index((tile, left)) + form) % 2
    return ((ALONG_K, ACROSS)[turn],) if FORMS[form][1] else (ALONG_K, ACROSS)


BY_TILE = [
    pytest.param(tile, left, right, form, id=f"{left_name}-{'along_k' if right == ALONG_K else 'across'}-{form_name}")
    for (tile, left), left_name in zip(LEFT, LEFT_NAMES, strict=True)
    for form, form_name in enumerate(FORM_NAMES)
    for right in list_rights(tile, left, form)
]


@pytest.mark.parametrize(("tile", "left", "right", "form"), BY_TILE)
def test_operators_by_tile(
    checks: str, tile: MmaTile, left: str, right: str, form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a size class takes it whose upper end is larger."""
    force_tile(monkeypatch, tile)
    device = choose_device(checks, tile)
    finished = [each for each in range(len(FORMS)) if FORMS[each][1]]
    forms = (make_form(left, way, *FORMS[each]) for each in finished for way in list_rights(tile, left, each))
    compile_first(("mma_gemm", tile, left), forms, device)
    run_case(make_form(left, right, *FORMS[form]), device)


@pytest.mark.parametrize("right", [ALONG_K, ACROSS], ids=["along_k", "across"])
@pytest.mark.parametrize(("tile", "left"), LEFT, ids=LEFT_NAMES)
def test_sums_of_many_slabs_by_tile(
    checks: str, tile: MmaTile, left: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one slice: slabs amid the others are whole, and loaded without a look at the end of the sum."""
    force_tile(monkeypatch, tile)
    monkeypatch.setattr(mma_launch, "slice_mma_tiles", lambda *_: ONE_SLICE)
    inner = (3 * tile.stages + 1) * tile.slab_nbytes // 2 + 8
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, shape).astype(HALF) for shape in ((24, inner), (inner, 24)))
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(HALF)
    given = (a if left == ALONG_K else a.T.copy(), b if right == ACROSS else b.T.copy())
    attributes = {"transA": int(left == ACROSS), "transB": int(right == ALONG_K)}
    case = Case("slabs", "Gemm", given, attributes, expected=(expected,), terms=inner)
    run_case(case, choose_device(checks, tile))


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), [(21, 45), (40, 5)])  # the second is the product of the transposed
def test_unaligned_weights_are_packed_with_aligned_rows(rows: int, columns: int, turned: int) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.integers(-4, 5, (rows, 37)).astype(HALF), rng.integers(-4, 5, (37, columns)).astype(HALF)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=turned)
    model = make_model([node], {"x": x.shape}, {"y": [rows, columns]}, FLOAT16, w=w.T.copy() if turned else w)
    template = plan_graph(model.graph, {"x": TensorSpec(x.shape, HALF)}, Target.named("sm_90"))
    (launch,) = (each for each in template.plan.segment.commands if isinstance(each, Launch))
    (packed,) = (buffer for buffer in template.plan.buffers if buffer.form is not None)
    assert str(packed.form) == "padded_rows(8)"
    assert packed.nbytes == columns * 40 * HALF.itemsize
    index = 1 if columns > 16 else 0
    operand = launch.arguments[index]
    assert isinstance(operand, Slot) and operand.buffer == packed.id
    (y,) = run_template(template, model.graph, {"x": x}, open_device("simulator"))
    np.testing.assert_array_equal(y, (x.astype(np.float64) @ w.astype(np.float64)).astype(HALF))


def test_all_sizes_of_a_class_take_its_kernel() -> None:
    """Aligned ones and others, fewer rows than the transposed would need, in as many slices as there is room for."""
    rng = np.random.default_rng(4)
    w = rng.integers(-4, 5, (520, 40)).astype(HALF)
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["rows", 520]}, {"y": ["rows", 40]}, FLOAT16, w=w
    )
    template = plan_graph(model.graph, {"x": TensorSpec((70, 520), HALF)}, Target.named("sm_90"), model.dims)
    for rows in (70, 64, 33, 17, 16, 5, 1):
        x = rng.integers(-4, 5, (rows, 520)).astype(HALF)
        (y,) = run_template(template, model.graph, {"x": x}, open_device("simulator"))
        np.testing.assert_array_equal(y, (x.astype(np.float64) @ w.astype(np.float64)).astype(HALF))
