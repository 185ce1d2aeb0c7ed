"""Convolutions of half, bf16 and tf32 on tensor cores: the kernel alone over random extents, windows and slices, to the
bit; and the plans that launch it."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import channels_last_strides, round_up
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.instances import instantiations
from gpuexec.ir.operator import build
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.lib.rounding import round_to
from gpuexec.ops.lib.slices import DEEP_MMA_TILES, SMALL_MMA, MmaTile
from gpuexec.ops.lib.windows import Windows, resolve_windows
from gpuexec.ops.linalg.product import Product
from gpuexec.ops.nn import conv_mma
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.conv_host import convolve
from gpuexec.ops.nn.conv_mma import FLOAT_TILES, ConvLines, count_chunk, name_conv, pack_conv
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner.memory_format import count_transposes
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan, run_template
from tests.devices.opening import make_simulator, open_device
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.model.small_models import make_model
from tests.ops.chains import chain
from tests.ops.harness import Case, compile_first, run_case

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
ALIGNMENT = 256
# Types of operands and result.
TYPES = [(dtype, result) for dtype in (HALF, BFLOAT16) for result in (dtype, FLOAT)]
TF32 = (FLOAT, FLOAT)
STEPS = (("Mul", (), (-1, 3)), ("Relu", (), (-1,)))
KINDS = (((), ""), (STEPS, "-steps"))
PRECISIONS = {HALF: "fp16", BFLOAT16: "bf16", FLOAT: "tf32"}
CAST = {dtype: ("Cast", (("to", helper.np_dtype_to_tensor_dtype(dtype)),), (-1,)) for dtype in (HALF, BFLOAT16)}
NAMES = [tile.name for tile in DEEP_MMA_TILES]
# Tiles with the types of operands and result that each is tried with.
TILED = [
    *(pytest.param(tile, (HALF, HALF), id=tile.name) for tile in DEEP_MMA_TILES),
    *(pytest.param(tile, TF32, id=f"{tile.name}-tf32") for tile in FLOAT_TILES),
]


@functools.cache
def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    # The whole file, as other tests have it compiled, but for counting.
    counted = [name_conv((HALF, HALF), tile).expression for tile in DEEP_MMA_TILES]
    counted += [name_conv(TF32, tile).expression for tile in FLOAT_TILES]
    return load_file("conv_mma.cu", counted if mode == "count" else instantiations("conv_mma.cu"), mode=mode)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of NaN that starts where memory of a device does."""
    memory = np.full(prod(shape) + ALIGNMENT // dtype.itemsize, np.nan, dtype)
    first = -memory.ctypes.data % ALIGNMENT // dtype.itemsize
    return memory[first : first + prod(shape)].reshape(shape)


def turn(array: Array) -> Array:
    """Return a copy with channels last, aligned."""
    turned = np.moveaxis(array, 1, -1)
    made = aligned(turned.shape, array.dtype)
    made[...] = turned
    return made


def slot(number: int, array: Array, strides: tuple[int, ...] = ()) -> Slot:
    return Slot(number, 0, TensorSpec(array.shape, array.dtype), strides or (0,) * array.ndim)


@dataclass(frozen=True)
class Operands:
    """Integer-valued operands of a convolution, whose sums are exact in any order, and what it makes of them."""

    windows: Windows
    x: Array  # channels first
    w: Array
    bias: Array | None
    result: np.dtype[Any]

    @property
    def rows(self) -> int:
        return self.x.shape[0] * prod(self.windows.counts)

    def compute(self) -> Array:
        x, w = (each.astype(np.float64) for each in (self.x, self.w))
        bias = None if self.bias is None else self.bias.astype(np.float64)
        return convolve(x, w, bias, self.windows, 1, None).astype(self.result)

    def keep_bits_below_tf32(self) -> Operands:
        """Return them with an image whose numbers have such bits: half are ties or above, half are below."""
        share = np.where(np.arange(self.x.size).reshape(self.x.shape) % 2, 2.0**-11, 2.0**-12)
        return replace(self, x=(self.x * (1 + share)).astype(np.float32))

    def round_to_tf32(self) -> Operands:
        return replace(self, x=round_to(self.x, "tf32"))


def make(
    pick: random.Random,
    rank: int,
    images: int,
    channels: int,
    outs: int,
    types: tuple[np.dtype[Any], np.dtype[Any]] = (HALF, HALF),
) -> Operands:
    rng, (dtype, result) = np.random.default_rng(pick.getrandbits(32)), types
    kernel = [pick.choice([1, 2, 3, 5] if rank < 3 else [1, 2, 3]) for _ in range(rank)]
    strides, dilations = ([pick.choice([1, 1, 2, 3]) for _ in range(rank)] for _ in range(2))
    pads = [pick.choice([0, 0, 1, 2]) for _ in range(2 * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [each + pick.randrange(9 if rank == 1 else 5) for each in reach]
    windows = resolve_windows(extents, kernel, strides, dilations, pads, "NOTSET")
    x, w = (
        rng.integers(-3, 4, shape).astype(dtype) for shape in ((images, channels, *extents), (outs, channels, *kernel))
    )
    bias = rng.integers(-9, 10, outs).astype(result) if pick.random() < 0.5 else None
    return Operands(windows, x, w, bias, result)


def convolve_by(
    mode: Mode,
    tile: MmaTile,
    operands: Operands,
    slices: int = 1,
    seed: int = 0,
    counts: list[LaunchCounts] | None = None,
) -> Array:
    """Launch with scratch memory and counters, which must be 0 again afterwards; return the result, channels first."""
    x, w, windows = operands.x, operands.w, operands.windows
    outs, channels, rows = w.shape[0], x.shape[1], operands.rows
    lines = np.zeros((outs, windows.taps * channels), w.dtype)
    ConvLines().pack(w, (0,) * w.ndim, lines)
    weights = aligned(lines.shape, w.dtype)
    weights[...] = lines
    y = aligned((x.shape[0], *windows.counts, outs), operands.result)
    placed = slot(0, x, channels_last_strides(x.shape))
    product = Product(
        (placed, slot(1, w), None, slot(3, y)), (rows, outs, lines.shape[1]), (lines.shape[1], 1), (1, lines.shape[1]),
        (0, 1), (outs, 1), (1.0, 1.0), (), ((), (), ()),
    )  # fmt: skip
    tiles = tile.count(rows, outs)
    scratch = aligned((tiles * slices * tile.size,), FLOAT) if slices > 1 else None
    counters = np.zeros(tiles, np.uint32) if slices > 1 else None
    load(mode)[name_conv((x.dtype, y.dtype), tile).expression].launch_arrays(
        (tiles, slices, 1), tile.threads, turn(x), weights, operands.bias, y,
        pack_conv(product, placed, windows, channels, tile), scratch, counters, shared_bytes=tile.ring_nbytes,
        schedule=Schedule("random", seed), counts=counts,
    )  # fmt: skip
    assert counters is None or not counters.any()
    return np.moveaxis(y, -1, 1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", DEEP_MMA_TILES, ids=NAMES)
def test_random_convolutions(mode: Mode, tile: MmaTile, seed: int) -> None:
    pick = random.Random(f"{tile.name} {seed}")
    is_small = tile.size <= SMALL_MMA.size
    for number in range((12 if is_small else 5) if mode == "plain" else 2):
        channels = pick.choice([8, 8, 16, 24, 32, 40, 64, 72])
        outs = pick.choice([1, 7, 8, 16, tile.columns, tile.columns + 5]) if is_small else pick.choice([5, 16, 72])
        operands = make(pick, number % 3 + 1, pick.choice([1, 2, 3]), channels, outs, pick.choice(TYPES))
        slices = pick.choice([1, 1, 2, 3, 5] if is_small else [1, 1, 3])
        got = convolve_by(mode, tile, operands, slices, seed)
        np.testing.assert_array_equal(got, operands.compute(), err_msg=f"{operands.windows} in {slices} slices")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", FLOAT_TILES, ids=[tile.name for tile in FLOAT_TILES])
def test_random_convolutions_of_tf32_round_their_image(mode: Mode, tile: MmaTile, seed: int) -> None:
    """Ties are rounded away from zero, where an mma would cut them off."""
    pick = random.Random(f"tf32 {tile.name} {seed}")
    is_small = tile.size <= SMALL_MMA.size
    for number in range((12 if is_small else 5) if mode == "plain" else 2):
        channels = pick.choice([4, 4, 8, 12, 16, 20, 32, 36])
        outs = pick.choice([1, 7, 8, 16, tile.columns, tile.columns + 5]) if is_small else pick.choice([5, 16, 72])
        operands = make(pick, number % 3 + 1, pick.choice([1, 2, 3]), channels, outs, TF32).keep_bits_below_tf32()
        slices = pick.choice([1, 1, 2, 3, 5] if is_small else [1, 1, 3])
        got = convolve_by(mode, tile, operands, slices, seed)
        expected = operands.round_to_tf32().compute()
        np.testing.assert_array_equal(got, expected, err_msg=f"{operands.windows} in {slices} slices")


@pytest.mark.parametrize("tile", FLOAT_TILES, ids=[tile.name for tile in FLOAT_TILES])
def test_numbers_that_are_none_and_infinite_ones_stay_so_as_tf32(tile: MmaTile) -> None:
    windows = resolve_windows((3, 2), (1, 1), (1, 1), (1, 1), (0,) * 4, "NOTSET")
    x, w = np.zeros((1, 4, 3, 2), FLOAT), np.ones((5, 4, 1, 1), FLOAT)
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000001], np.uint32)
    x[0, 0] = bits.view(FLOAT).reshape(3, 2)
    got = convolve_by("plain", tile, Operands(windows, x, w, None, FLOAT))
    expected = [np.nan, np.nan, np.inf, -np.inf, np.inf, 0.0]
    np.testing.assert_array_equal(got[0].reshape(5, 6), np.tile(np.array(expected, FLOAT), (5, 1)))


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("types", [(HALF, HALF), TF32], ids=["half", "tf32"])
def test_table_full_of_taps(types: tuple[np.dtype[Any], np.dtype[Any]], mode: Mode) -> None:
    rng = np.random.default_rng(6)
    windows = resolve_windows((17, 11), (16, 8), (1, 2), (1, 1), (1, 0, 0, 1), "NOTSET")
    x, w = (rng.integers(-3, 4, shape).astype(types[0]) for shape in ((1, 8, 17, 11), (5, 8, 16, 8)))
    operands = Operands(windows, x, w, None, types[1])
    np.testing.assert_array_equal(convolve_by(mode, SMALL_MMA, operands), operands.compute())


@pytest.mark.parametrize(("tile", "types"), TILED)
def test_loop_of_whole_slabs(tile: MmaTile, types: tuple[np.dtype[Any], np.dtype[Any]]) -> None:
    dtype, chunk = types[0], count_chunk(types[0])
    elements = (2 * tile.stages + 2) * tile.slab_nbytes // dtype.itemsize
    rng, channels = np.random.default_rng(5), round_up(elements // 9, chunk) + chunk
    windows = resolve_windows((6, 5), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET")
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((1, channels, 6, 5), (40, channels, 3, 3)))
    operands = Operands(windows, x, w, None, types[1])
    np.testing.assert_array_equal(convolve_by("plain", tile, operands), operands.compute())


@pytest.mark.parametrize(("channels", "slices"), [(16, 1), (64, 1), (64, 3)])
@pytest.mark.parametrize(("tile", "types"), TILED)
def test_images_take_the_least_sectors_and_wavefronts(
    tile: MmaTile, types: tuple[np.dtype[Any], np.dtype[Any]], channels: int, slices: int
) -> None:
    dtype, result = types
    channels = channels * 2 // dtype.itemsize
    rng, counts = np.random.default_rng(0), list[LaunchCounts]()
    extents = (tile.rows // 8, 8)
    windows = resolve_windows(extents, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET")
    shapes = (1, channels, *extents), (tile.columns, channels, 3, 3)
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in shapes)
    convolve_by("count", tile, Operands(windows, x, w, None, result), slices, counts=counts)
    kinds = set()
    for line in counts[0].lines:
        if not line.counts.nbytes or (line.width < 16 and line.space == "global"):  # the counters
            continue
        kinds.add((line.space, line.access, line.width))
        assert line.counts.ratio == 1.0, line
    assert kinds >= {("global", "read", 16), ("global", "write", 16), ("shared", "write", 16), ("shared", "read", 4)}


FORMS: list[tuple[tuple[np.dtype[Any], np.dtype[Any]], tuple[Any, ...], str]] = [
    *(((dtype, dtype), steps, f"{dtype}{kind}") for dtype in (HALF, BFLOAT16) for steps, kind in KINDS),
    *(
        ((dtype, FLOAT), steps, f"{dtype}-to-float{kind}")
        for dtype in (HALF, BFLOAT16)
        for steps, kind in (*KINDS, ((*STEPS, CAST[dtype]), "-steps-cast"))
    ),
    *((TF32, steps, f"tf32{kind}") for steps, kind in KINDS),
]


def make_form(types: tuple[np.dtype[Any], np.dtype[Any]], steps: tuple[Any, ...]) -> Case:
    rng, (dtype, result) = np.random.default_rng(2), types
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 16, 5, 6), (24, 16, 3, 2)))
    bias, scale = rng.integers(-9, 10, 24).astype(result), rng.integers(-2, 3, (24, 1, 1)).astype(result)
    attributes: dict[str, Any] = {"pads": (1, 0, 1, 1), "strides": (1, 2)}
    windows = resolve_windows((5, 6), (3, 2), (1, 2), (1, 1), (1, 0, 1, 1), "NOTSET")
    expected = Operands(windows, x, w, bias, result).compute()
    given = [x, w, bias]
    if result == FLOAT:
        attributes["precision"] = PRECISIONS[dtype]
    if steps:
        attributes |= chain(steps)
        given.append(scale)
        expected = np.maximum(expected * scale, np.zeros((), result))
    stored = dtype if steps and steps[-1] == CAST.get(dtype) else result
    name = "gpuexec.FusedConv" if steps else "Conv"
    return Case("forms", name, tuple(given), attributes, expected=(expected.astype(stored),), terms=96)


@pytest.mark.parametrize(
    ("tile", "types", "steps"),
    [
        pytest.param(tile, types, steps, id=f"{tile.name}-{name}")
        for tile in DEEP_MMA_TILES
        for types, steps, name in FORMS
        if types != TF32 or tile in FLOAT_TILES
    ],
)
def test_operators_by_tile(
    checks: str,
    tile: MmaTile,
    types: tuple[np.dtype[Any], np.dtype[Any]],
    steps: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a size class takes it whose upper end is larger."""
    monkeypatch.setattr(conv_mma, "choose_mma_tile", lambda *_: tile)
    forms = (make_form(*form[:2]) for form in FORMS if form[1] and (form[0] != TF32 or tile in FLOAT_TILES))
    compile_first(("conv_mma", tile), forms, checks)
    run_case(make_form(types, steps), checks)


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 9, 9, 10), (8, 9, 3, 3)),
        ((2, 10, 17), (5, 10, 1)),
        ((2, 12, 5, 6), (10, 6, 3, 2)),
        ((2, 8, 5, 6), (10, 4, 3, 2)),
    ],
    ids=["odd-channels", "points", "odd-groups", "groups"],
)
def test_operators_of_tf32(checks: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng, (image, weight) = np.random.default_rng(6), shapes
    x, w = (rng.integers(-3, 4, shape).astype(FLOAT) for shape in shapes)
    groups, rank = image[1] // weight[1], len(image) - 2
    windows = resolve_windows(image[2:], weight[2:], (1,) * rank, (1,) * rank, (0,) * 2 * rank, "NOTSET")
    expected = convolve(x.astype(np.float64), w.astype(np.float64), None, windows, groups, None).astype(FLOAT)
    attributes = {"precision": "tf32", "group": groups}
    run_case(Case("tf32", "Conv", (x, w), attributes, expected=(expected,), terms=prod(weight[1:])), checks)


def plan(graph: Graph, x: Array, target: str = "sm_90") -> tuple[list[Array], list[str], int]:
    """Return the results on the simulator, the kernels launched, and how many transposes there are."""
    device = make_simulator(target=target, check_kernels=True)
    plan = plan_graph(graph, {"x": TensorSpec(x.shape, x.dtype)}, device.target).plan
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        results = loaded.run({"x": x})
    device.close()
    commands = plan.segment.commands
    names = [each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)]
    return list(results), names, count_transposes(commands)[0]


def integers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(HALF)


def test_images_of_half_models_are_turned_at_the_ends_alone() -> None:
    graph, x = GraphBuilder(), integers(2, 16, 12, 11)
    value = graph.input("x", *x.shape, dtype=HALF)
    weights = [graph.constant(integers(*shape)) for shape in ((24, 16, 3, 3), (16, 24, 1, 1), (8, 16, 3, 3))]
    first = graph.node(build("Relu", {}), graph.node(build("Conv", {"pads": (1,) * 4}), value, weights[0]))
    second = graph.node(build("Conv", {}), first, weights[1])
    total = graph.node(build("Add", {}), second, value)
    made = graph.graph(graph.node(build("Conv", {"strides": (2, 2)}), total, weights[2]))
    got, names, transposes = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert names.count("conv_mma") == 2 and names.count("mma_gemm") == 1 and transposes == 2


@pytest.mark.parametrize("channels", [9, 12])
def test_channels_are_padded_to_eights(channels: int) -> None:
    graph, x = GraphBuilder(), integers(2, channels, 9, 8)
    weight = graph.constant(integers(8, channels, 3, 3))
    made = graph.graph(graph.node(build("Conv", {"pads": (1,) * 4}), graph.input("x", *x.shape, dtype=HALF), weight))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "conv_mma" in names


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("groups", "channels", "outs"), [(2, 8, 8), (3, 16, 5), (5, 24, 72)])
def test_groups_are_batches(groups: int, channels: int, outs: int, kernel: int) -> None:
    graph, x = GraphBuilder(), integers(2, groups * channels, 7, 6)
    value = graph.node(build("Relu", {}), graph.input("x", *x.shape, dtype=HALF))
    weight, bias = integers(groups * outs, channels, kernel, kernel), integers(groups * outs)
    scale = graph.constant(integers(groups * outs, 1, 1))
    given = value, graph.constant(weight), graph.constant(bias), scale
    steps = (("Mul", (), (-1, 3)),)
    made = graph.graph(graph.node(build("gpuexec.FusedConv", {"group": groups, **chain(steps)}), *given))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "conv_mma" in names and "mma_gemm" not in names


@pytest.mark.parametrize("channels", [8, 12])
def test_weights_that_are_computed_are_packed_by_a_copy(channels: int) -> None:
    graph, x = GraphBuilder(), integers(8, channels, 3, 3)
    image = graph.node(build("Relu", {}), graph.constant(integers(1, channels, 9, 8)))
    weight = graph.node(build("Neg", {}), graph.input("x", *x.shape, dtype=HALF))
    made = graph.graph(graph.node(build("Conv", {}), image, weight))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "conv_mma" in names


@pytest.mark.parametrize(
    ("target", "attributes", "weight"),
    [
        ("sm_75", {}, (8, 16, 3, 3)),
        ("sm_90", {"group": 4}, (8, 4, 3, 3)),
        ("sm_90", {}, (8, 16, 12, 11)),  # more taps than the table has
    ],
    ids=["sm_75", "groups", "taps"],
)
def test_other_convolutions_keep_their_kernels(
    target: str, attributes: dict[str, Any], weight: tuple[int, ...]
) -> None:
    graph, x = GraphBuilder(), integers(2, 16, 12, 11)
    value = graph.input("x", *x.shape, dtype=HALF)
    made = graph.graph(graph.node(build("Conv", attributes), value, graph.constant(integers(*weight))))
    got, names, _ = plan(made, x, target)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "conv_mma" not in names


def test_an_image_of_half_of_the_places_that_are_counted_runs_on_tensor_cores() -> None:
    """A last tile may reach behind the last position: into another image, if not into many."""
    graph, shape = GraphBuilder(), (1, 512, 1024, 1024)
    weight = graph.constant(np.zeros((8, 512, 3, 3), HALF))
    attributes = {"pads": (1,) * 4, "strides": (2, 2)}
    made = graph.graph(graph.node(build("Conv", attributes), graph.input("x", *shape, dtype=HALF), weight))
    commands = plan_graph(made, {"x": TensorSpec(shape, HALF)}, Target.named("sm_90")).plan.segment.commands
    names = [command.kernel.expression for command in commands if isinstance(command, Launch)]
    assert any(name.startswith("conv_mma") for name in names)


def test_results_do_not_depend_on_how_images_lie() -> None:
    """A value that is looked at, and so row-major, is what it is where nobody looks."""
    x = np.random.default_rng(1).standard_normal((2, 16, 9, 8)).astype(HALF)
    first, second = (np.random.default_rng(2).standard_normal(shape).astype(HALF) for shape in ((24, 16, 3, 3),) * 2)
    answers = []
    for is_looked_at in (False, True):
        graph = GraphBuilder()
        value = graph.input("x", *x.shape, dtype=HALF)
        made = graph.node(build("Relu", {}), graph.node(build("Conv", {}), value, graph.constant(first)))
        last = graph.node(build("Conv", {}), graph.node(build("Slice", {}), made, *cut(graph)), graph.constant(second))
        got, names, _ = plan(graph.graph(last, *([made] if is_looked_at else [])), x)
        assert names.count("conv_mma") == 2
        answers.append(got[0])
    np.testing.assert_array_equal(*answers)


def cut(graph: GraphBuilder) -> list[Value]:
    """Return what a Slice reads to take the first 16 channels."""
    return [graph.constant(np.array([number])) for number in (0, 16, 1)]


def test_weights_that_are_rounded_are_packed_as_they_lie() -> None:
    """A node makes them of a constant, and they have the rank of an image."""
    x, w = (np.random.default_rng(3).standard_normal(shape).astype(FLOAT) for shape in ((2, 16, 9, 8), (24, 16, 3, 3)))
    graph = GraphBuilder()
    made = graph.graph(graph.node(build("Conv", {}), graph.input("x", *x.shape), graph.constant(w)))
    lowered = lower_precision(made, Precision.of("fp16"))
    planned = plan_graph(lowered, {"x": TensorSpec(x.shape, FLOAT)}, Target.named("sm_90")).plan
    assert [str(buffer.form) for buffer in planned.buffers if buffer.form][-1].endswith("conv_lines()")
    assert count_transposes(planned.segment.commands)[0] == 2
    assert not any(
        isinstance(each, Launch) and each.kernel.source == "conv_simt.cu" for each in planned.segment.commands
    )


def lower_to_tf32(graph: Graph) -> Graph:
    return lower_precision(graph, Precision.of("tf32"))


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_images_of_tf32_models_are_turned_at_the_ends_alone_and_rounded_where_they_are_read() -> None:
    """A residual reads what no convolution has rounded; of one tap or several, they round for themselves."""
    graph, x = GraphBuilder(), integers(2, 12, 9, 8).astype(FLOAT)
    value = graph.input("x", *x.shape)
    weights = [
        graph.constant(integers(*shape).astype(FLOAT)) for shape in ((24, 12, 3, 3), (12, 24, 1, 1), (8, 12, 3, 3))
    ]
    first = graph.node(build("Relu", {}), graph.node(build("Conv", {"pads": (1,) * 4}), value, weights[0]))
    pooled = graph.node(build("MaxPool", {"kernel_shape": (3, 3), "pads": (1,) * 4}), first)
    second = graph.node(build("Conv", {}), pooled, weights[1])
    total = graph.node(build("Add", {}), second, value)
    made = lower_to_tf32(graph.graph(graph.node(build("Conv", {"strides": (2, 2)}), total, weights[2])))
    got, names, transposes = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert names.count("conv_mma") == 3 and names.count("unary") == 1 and transposes == 2
    assert "conv_mma" not in plan(made, x, "sm_75")[1]


def test_an_image_is_rounded_to_tf32_before_what_takes_it_rounded() -> None:
    """A rounding stays where one of its readers, here a product, takes it as it is, or the graph gives it out."""
    x, points, last = floats(2, 16, 9, 8), floats(24, 16, 1, 1), floats(8, 24)
    for is_read in (False, True):
        graph = GraphBuilder()
        value = graph.node(build("Relu", {}), graph.input("x", *x.shape))
        outputs = [graph.node(build("Conv", {}), value, graph.constant(points))]
        if is_read:
            outputs.append(graph.node(build("MatMul", {}), value, graph.constant(last[:, :8].T)))
        made = lower_to_tf32(graph.graph(*outputs))
        got, names, _ = plan(made, x)
        for found, expected in zip(got, compute_graph(made, {"x": x}), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
        assert names.count("unary") == 1 + is_read


@pytest.mark.parametrize("channels", [9, 11, 14])
def test_channels_of_tf32_are_padded_to_fours(channels: int) -> None:
    graph, x = GraphBuilder(), integers(2, channels, 9, 8).astype(FLOAT)
    weight = graph.constant(integers(8, channels, 3, 3).astype(FLOAT))
    made = lower_to_tf32(graph.graph(graph.node(build("Conv", {"pads": (1,) * 4}), graph.input("x", *x.shape), weight)))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert names[:2] == ["pad_channels", "conv_mma"]


@pytest.mark.parametrize(("groups", "channels", "kernel"), [(2, 4, 3), (3, 12, 1), (2, 6, 3)])
def test_groups_of_tf32_are_batches_where_their_channels_are_fours(groups: int, channels: int, kernel: int) -> None:
    graph, x = GraphBuilder(), integers(2, groups * channels, 7, 6).astype(FLOAT)
    weight = graph.constant(integers(groups * 5, channels, kernel, kernel).astype(FLOAT))
    value = graph.node(build("Conv", {"group": groups}), graph.input("x", *x.shape), weight)
    made = lower_to_tf32(graph.graph(value))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert ("conv_mma" in names) is (channels % 4 == 0) is ("unary" not in names)


def test_patches_of_tf32_of_many_taps_are_rows_of_a_product() -> None:
    graph, x = GraphBuilder(), integers(2, 8, 48, 80).astype(FLOAT)
    weight = graph.constant(integers(16, 8, 16, 16).astype(FLOAT))
    made = lower_to_tf32(
        graph.graph(graph.node(build("Conv", {"strides": (16, 16)}), graph.input("x", *x.shape), weight))
    )
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "mma_gemm" in names and "simt_conv" not in names


def test_convolutions_on_tensor_cores_gain_what_their_transposes_move() -> None:
    def gain(target: str = "sm_90", groups: int = 1, dtype: np.dtype[Any] = HALF, precision: str = "") -> int:
        image = TensorSpec((1, 16, 56, 56), dtype)
        weight = TensorSpec((16, 16 // groups, 3, 3), dtype)
        conv = Conv(pads=(1, 1, 1, 1), group=groups, precision=precision)
        return conv.count_format_gain((image, weight), (image,), Target.named(target))

    assert gain() == gain(groups=2) == 8 * 16 * 56 * 56 + 2 * LAUNCH_NBYTES
    assert gain("sm_75") == gain(groups=4) == gain(dtype=FLOAT) == 0
    of_floats = 16 * 16 * 56 * 56 + 2 * LAUNCH_NBYTES
    assert gain(dtype=FLOAT, precision="tf32") == gain(dtype=FLOAT, precision="tf32", groups=4) == of_floats
    assert gain("sm_75", dtype=FLOAT, precision="tf32") == gain(dtype=FLOAT, precision="tf32", groups=8) == 0


@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["float16", "tf32"])
def test_all_sizes_of_a_class_take_its_kernel(dtype: np.dtype[Any]) -> None:
    """Fewer images and smaller ones, in as many slices as there is room for."""
    w = np.random.default_rng(4).integers(-2, 3, (24, 16, 3, 3)).astype(dtype)
    dims: list[str | int] = ["n", 16, "height", "width"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    code = helper.np_dtype_to_tensor_dtype(dtype)
    model = make_model([node], {"x": dims}, {"y": ["n", 24, "height", "width"]}, code, w=w)
    graph = lower_to_tf32(model.graph) if dtype == FLOAT else model.graph
    template = plan_graph(graph, {"x": TensorSpec((4, 16, 20, 20), dtype)}, Target.named("sm_90"), model.dims)
    for n, height, width in ((4, 20, 20), (3, 20, 17), (1, 5, 20), (1, 2, 2), (1, 1, 3)):
        windows = resolve_windows((height, width), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET")
        operands = Operands(windows, integers(n, 16, height, width).astype(dtype), w, None, dtype)
        operands = operands.keep_bits_below_tf32() if dtype == FLOAT else operands
        (y,) = run_template(template, graph, {"x": operands.x}, open_device("simulator"))
        expected = operands.round_to_tf32() if dtype == FLOAT else operands
        np.testing.assert_array_equal(y, expected.compute())
