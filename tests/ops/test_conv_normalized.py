"""Convolutions with the normalisation of what they make as one launch: random ones to the bit of the launches apart, by
all tiles and in slices, in plans of the simulator; what is left apart; and its work."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.command import Command, Launch
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Emitter, build
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ir.work import WARP, find_form
from gpuexec.ops.lib.slices import FLAT_MMA, LARGE_MMA, MEDIUM_MMA, SMALL_MMA, MmaTile, Slices
from gpuexec.ops.lib.windows import resolve_windows
from gpuexec.ops.linalg.mma_launch import has_tensor_cores
from gpuexec.ops.nn import conv_mma
from gpuexec.ops.nn.conv_host import convolve
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner import emitter
from tests.devices.execute import LoadedPlan, specs_of
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case
from tests.ops.chains import chain
from tests.ops.counted_launch import count_wavefronts
from tests.ops.harness import keep_plans, run_case
from tests.ops.test_conv_separable import Planned, Ran, plan, run_all
from tests.ops.tolerance import to_bits

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
NAME, KERNEL, PASS = "gpuexec.NormalizedConv", "conv_normalized", "fuse_normalized"
# Types of operands and of what is normalised, as a type and a precision.
TYPES = [(HALF, ""), (BFLOAT16, ""), (FLOAT, "fp16"), (FLOAT, "bf16"), (FLOAT, "tf32")]
TILES = (LARGE_MMA, MEDIUM_MMA, SMALL_MMA)


@dataclass(frozen=True)
class Normalized:
    """A convolution between others, with steps behind it and behind its normalisation."""

    shape: tuple[int, ...]
    outs: int
    attributes: dict[str, Any] = field(default_factory=lambda: {"pads": (1,) * 4})
    dtype: Any = HALF
    precision: str = ""
    kernel: int = 3
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ("Sigmoid",)
    has_bias: bool = True
    has_residual: bool = False
    seed: int = 0

    def build(self) -> tuple[Graph, dict[str, Array]]:
        """Return the graph as loaded in its precision, and its inputs."""
        rng, graph = np.random.default_rng(self.seed), GraphBuilder()
        rank, channels = len(self.shape) - 2, self.shape[1]

        def draw(*shape: int) -> Any:
            return graph.constant((rng.standard_normal(shape) / 2).astype(self.dtype))

        arrays = {"x": rng.standard_normal(self.shape).astype(self.dtype)}
        made = graph.input("x", *self.shape, dtype=self.dtype)
        # In front and behind stand other products, beside which images lie channels last.
        made = graph.node(build("Conv", {}), made, draw(channels, channels, *(1,) * rank))
        bias = [draw(self.outs)] if self.has_bias else []
        op = build("Conv", self.attributes)
        shape = (self.shape[0], self.outs, *op.windows(self.shape, (1, 1, *(self.kernel,) * rank)).counts)  # type: ignore[attr-defined]
        made = graph.node(op, made, draw(self.outs, channels, *(self.kernel,) * rank), *bias)
        for step in self.first:
            made = graph.node(build(step, {}), made)
        made = graph.node(build("InstanceNormalization", {"epsilon": 1e-3}), made, draw(self.outs), draw(self.outs))
        for step in self.second:
            made = graph.node(build(step, {}), made)
        if self.has_residual:
            arrays["z"] = rng.standard_normal(shape).astype(self.dtype)
            made = graph.node(build("Add", {}), made, graph.input("z", *shape, dtype=self.dtype))
        whole = graph.graph(graph.node(build("Conv", {}), made, draw(8, self.outs, *(1,) * rank)))
        return lower_precision(whole, Precision(self.precision)) if self.precision else whole, arrays


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let convolutions take a tile and slices, and the launch of both, if there is one, the least time."""

    def choose(tile: MmaTile, slices: int = 1) -> None:
        def cost(commands: Sequence[Command], target: Target) -> float:
            names = [each.kernel.expression for each in commands if isinstance(each, Launch)]
            return float(not any(name.startswith(KERNEL) and tile.name in name for name in names))

        def slice_tiles(emit: Emitter, own: MmaTile, tiles: int, inner_nbytes: int) -> Slices:
            count = min(slices, max(1, inner_nbytes // own.slab_nbytes))
            if count == 1:
                return Slices(1, None, None)
            return Slices(count, emit.temp((tiles * count * own.size,), FLOAT), emit.counters(tiles))

        monkeypatch.setattr(emitter, "predict_commands_us", cost)
        monkeypatch.setattr(conv_mma, "choose_mma_tile", lambda *given: tile if tile in given[5] else MEDIUM_MMA)
        monkeypatch.setattr(conv_mma, "slice_mma_tiles", slice_tiles)

    return choose


def make_case(seed: int) -> Normalized:
    pick = random.Random(seed)
    dtype, precision = TYPES[seed % len(TYPES)]
    shape, stride = pick.choice([((72, 64), 1), ((64, 66), 1), ((144, 128), 2), ((66, 64), 1)])
    return Normalized(
        (pick.choice([1, 1, 2]), pick.choice([8, 16]), *shape),
        pick.choice([8, 24, 40, 136]),
        {"pads": (1,) * 4, "strides": (stride, stride)},
        dtype,
        precision,
        first=pick.choice([(), (), ("LeakyRelu",), ("Relu", "Neg")]),
        second=pick.choice([(), ("Sigmoid",), ("Relu", "Neg")]),
        has_bias=pick.random() < 0.5,
        has_residual=pick.random() < 0.3,
        seed=seed,
    )


@functools.cache
def build_all(seeds: range) -> list[tuple[Normalized, Graph, dict[str, Array]]]:
    return [(case := make_case(seed), *case.build()) for seed in seeds]


@functools.cache
def run_apart(seeds: range, tile: MmaTile, slices: int) -> list[Ran]:
    """Run the launches apart, which `force` lets take a tile and slices."""
    return run_all([plan(graph, arrays, [PASS]) for _, graph, arrays in build_all(seeds)])


def compare(force: Any, tile: MmaTile, seeds: range, slices: int = 1) -> tuple[list[Ran], list[Normalized]]:
    """Run both forms of some convolutions, hold their bits to each other, and return what one launch did.

    Without slices all tiles add alike, so one run of the launches apart is for all.
    """
    apart_tile = MEDIUM_MMA if slices == 1 else tile
    force(apart_tile, slices)
    two = run_apart(seeds, apart_tile, slices)
    force(tile, slices)
    cases = build_all(seeds)
    one = run_all([plan(graph, arrays) for _, graph, arrays in cases])
    for (case, *_), joined, apart in zip(cases, one, two, strict=True):
        np.testing.assert_array_equal(to_bits(joined.results[0]), to_bits(apart.results[0]), err_msg=str(case))
        assert np.isfinite(joined.results[0].astype(FLOAT)).all()
        assert KERNEL not in apart.names and "normalize_large_channels" in apart.names
    return one, [case for case, *_ in cases]


@pytest.mark.parametrize(("slices", "seeds"), [(1, range(5)), (3, range(1, 3))], ids=["1", "3"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_random_convolutions_have_the_bits_of_launches_apart(
    force: Any, tile: MmaTile, slices: int, seeds: range
) -> None:
    """Without slices of all types, and the same bits by all tiles, which are held to one run of the launches apart."""
    one, cases = compare(force, tile, seeds, slices)
    for ran, case in zip(one, cases, strict=True):
        assert (KERNEL in ran.names) == (tile is not LARGE_MMA or case.precision != "tf32"), case


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_kernels_keep_to_their_bytes(force: Any, tile: MmaTile) -> None:
    """In slices: the bits are those of plain mode, which the random ones hold to those of the launches apart."""
    force(tile, 2)
    graph, arrays = Normalized((1, 8, 72, 64), 40, dtype=FLOAT, precision="fp16", first=("LeakyRelu",)).build()
    (ran,) = run_all([plan(graph, arrays)], "check")
    assert KERNEL in ran.names


def test_tiles_that_cut_runs_stay_apart(force: Any) -> None:
    force(FLAT_MMA)
    assert KERNEL not in list_names(plan(*make_case(0).build()))


@pytest.mark.parametrize(
    "case",
    [
        Normalized((1, 8, 65, 64), 16),
        Normalized((1, 8, 72, 64), 12),
        Normalized((1, 8, 64, 64), 16),
        Normalized((1, 8, 72, 64), 16, {}, kernel=1),
        Normalized((1, 16, 72, 64), 16, {"pads": (1,) * 4, "group": 2}),
    ],
    ids=["positions", "channels", "small", "product", "groups"],
)
def test_others_stay_apart(force: Any, case: Normalized) -> None:
    force(SMALL_MMA)
    graph, arrays = build_graph(case)
    assert KERNEL not in list_names(plan(graph, arrays))


def test_what_is_read_beside_stays_apart(force: Any) -> None:
    force(SMALL_MMA)
    graph, arrays = Normalized((1, 8, 72, 64), 16).build()
    (made,) = [node.outputs[0] for node in graph.nodes if node.operator.name == "Conv"][1:2]
    assert KERNEL in list_names(plan(graph, arrays))
    assert KERNEL not in list_names(plan(replace(graph, outputs=(*graph.outputs, made)), arrays))


def test_runs_one_after_the_other_find_counters_at_zero(force: Any) -> None:
    force(MEDIUM_MMA, 2)
    case = Normalized((2, 16, 72, 64), 136, has_residual=True)
    graph, arrays = case.build()
    planned = plan(graph, arrays)
    (launch,) = [each for each in list_launches(planned) if each.kernel.expression.startswith(KERNEL)]
    assert launch.arguments[5] is not None  # in slices
    device = make_simulator(target="sm_90")
    with LoadedPlan(planned.plan, planned.constants, device) as loaded:
        first, *others = [loaded.run(arrays)[0].copy() for _ in range(3)]
    device.close()
    for each in others:
        np.testing.assert_array_equal(to_bits(each), to_bits(first))


@pytest.mark.plans
@pytest.mark.parametrize(("dtype", "precision"), TYPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_instances_are_launched(force: Any, tile: MmaTile, dtype: Any, precision: str) -> None:
    if precision == "tf32" and tile is LARGE_MMA:
        return  # there is none
    force(tile)
    graph, arrays = Normalized((1, 8, 72, 64), 16, dtype=dtype, precision=precision, second=()).build()
    specs = specs_of(arrays)
    planned = run_passes(graph, [each for each in AT_PLAN if each.name != "fuse_epilogues"], (), specs)
    stored = dtype_row(np.dtype(dtype) if not precision else conv_mma_operand(precision)).cuda
    result = dtype_row(np.dtype(dtype)).cuda
    wanted = f"{KERNEL}<NoSteps<{result}>, {stored}, {result}, {tile.name}>"
    for made in keep_plans(planned, specs):
        names = [each.kernel.expression for each in made.segment.commands if isinstance(each, Launch)]
        assert (wanted in names) == has_tensor_cores(Target.named(made.target)), names


def conv_mma_operand(precision: str) -> np.dtype[Any]:
    """Return the type of operands of a precision."""
    return {"fp16": HALF, "bf16": np.dtype(BFLOAT16), "tf32": FLOAT}[precision]


def make_operator_case(
    id: str, shape: tuple[int, ...], outs: int, dtype: Any, steps: Sequence[str] = (), precision: str = ""
) -> Case:
    """Return a case of small integers, whose convolution is exact.

    Args:
        id: Its name.
        shape: Of the image.
        outs: Channels of the result.
        dtype: Of the operands.
        steps: "first" and "second", behind which operator there is a Relu.
        precision: Where there is one, what is normalised is of float.
    """
    result = FLOAT if precision else dtype
    rng = np.random.default_rng(len(id))
    x, w = (rng.integers(-2, 3, each).astype(dtype) for each in (shape, (outs, shape[1], *(3,) * (len(shape) - 2))))
    scale, shift = (rng.integers(1, 4, outs).astype(result) for _ in range(2))
    rank = len(shape) - 2
    windows = resolve_windows(shape[2:], (3,) * rank, (), (), (1,) * (2 * rank), "NOTSET")
    z = convolve(x.astype(np.float64), w.astype(np.float64), None, windows, 1, None)
    z = np.maximum(z, 0) if "first" in steps else z
    assert np.abs(z).max() <= 256
    axes, spread = tuple(range(2, z.ndim)), (-1, *(1,) * rank)
    distances = z - z.mean(axes, keepdims=True)
    y = distances / np.sqrt((distances**2).mean(axes, keepdims=True) + 1e-5) * scale.astype(np.float64).reshape(spread)
    y += shift.astype(np.float64).reshape(spread)
    y = np.maximum(y, 0) if "second" in steps else y
    rows, stored = [], (("precision", precision),) if precision else ()
    for part, name, attributes, inputs in (
        ("first", "Conv", (("pads", (1,) * (2 * rank)), *stored), (0, 1)),
        ("second", "InstanceNormalization", (), (-1, 2, 3)),
    ):
        behind = tuple(chain((("Relu", (), (-1,)),), result).items()) if part in steps else ()
        rows.append((f"gpuexec.Fused{name}" if behind else name, (*attributes, *behind), inputs))
    given = (x, w, scale, shift)
    return Case(id, NAME, given, {"steps": tuple(rows)}, expected=(y.astype(result),), terms=prod(z.shape[2:]))


CASES = [
    make_operator_case("images", (1, 8, 72, 64), 16, HALF),
    make_operator_case("images, narrow", (2, 8, 64, 66), 8, BFLOAT16),
    make_operator_case("steps", (1, 8, 72, 64), 24, HALF, ("first", "second")),
    make_operator_case("signals", (2, 8, 4224), 16, HALF, ("second",)),
    make_operator_case("sums of float", (1, 8, 9, 7), 16, HALF, ("first",), "fp16"),
    make_operator_case("small channels", (2, 8, 9, 7), 16, HALF, ("first",)),
    make_operator_case("odd channels", (1, 6, 9, 7), 5, HALF),
    make_operator_case("floats", (1, 8, 9, 7), 5, FLOAT, ("first", "second")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_normalized_convolutions(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_steps_that_are_not_two_in_a_row_are_refused() -> None:
    x, w = TensorSpec((1, 8, 4, 4), HALF), TensorSpec((8, 8, 3, 3), HALF)
    with pytest.raises(InputError, match="NormalizedConv expects two operators, the second over"):
        build(NAME, {"steps": (("Conv", (), (0, 1)),)}).infer(x, w)


def build_graph(case: Normalized) -> tuple[Graph, dict[str, Array]]:
    """Return the graph of a case; weights of a grouped convolution have fewer channels."""
    group = case.attributes.get("group", 1)
    graph, arrays = case.build() if group == 1 else replace(case, attributes={"pads": (1,) * 4}).build()
    return (graph, arrays) if group == 1 else (split_groups(graph, group), arrays)


def split_groups(graph: Graph, group: int) -> Graph:
    """Return a graph whose second convolution has groups."""
    node = [each for each in graph.nodes if each.operator.name == "Conv"][1]
    weight = node.inputs[1]
    assert weight is not None
    array = graph.constants[weight]
    constants = {**graph.constants, weight: array[:, : array.shape[1] // group]}
    operator = build("Conv", {"pads": (1,) * 4, "group": group})
    nodes = [replace(each, operator=operator) if each is node else each for each in graph.nodes]
    return replace(graph, nodes=tuple(nodes), constants=constants)


def list_launches(planned: Planned) -> list[Launch]:
    return [each for each in planned.plan.segment.commands if isinstance(each, Launch)]


def list_names(planned: Planned) -> list[str]:
    return [each.kernel.expression.partition("<")[0] for each in list_launches(planned)]


@pytest.mark.parametrize(("tile", "slices"), [*((tile, 1) for tile in TILES), (MEDIUM_MMA, 2)])
def test_launches_are_as_counted(force: Any, tile: MmaTile, slices: int) -> None:
    force(tile, slices)
    graph, arrays = Normalized((1, 16, 72, 64), 80, has_residual=True).build()
    (ran,) = run_all([plan(graph, arrays)], "count")
    index = ran.names.index(KERNEL)
    launch, counts = ran.launches[index], ran.counts[index]
    form = find_form(launch.kernel)
    assert form is not None
    work = form(launch)
    assert work.behind is not None
    assert work.matrix_products + WARP * work.multiply_adds == counts.multiply_adds.issued
    assert work.needed_multiply_adds == counts.needed_multiply_adds
    assert work.wavefronts == pytest.approx(count_wavefronts(counts, 1), rel=0.01)
    counted = counts.l2_read_nbytes + counts.l2_written_nbytes
    assert 0.85 * counted <= work.l2_nbytes + work.behind.l2_nbytes <= 1.1 * counted
    made = [line.counts for line in counts.lines if line.space == "global" and line.width == 16]
    assert made and all(each.ratio == 1.0 for each in made)
