"""Depthwise separable convolutions as one launch: random convolutions to the bit of the launches apart, in plans of the
simulator, its requests of memory, and what is left apart."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import InputError
from gpuexec.ir.command import Command, Launch, Slot
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Join, build
from gpuexec.ir.plan import Plan
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ir.work import WARP, find_form
from gpuexec.ops.lib.slices import (
    DEEP_MMA_TILES,
    FLAT_DEEP_MMA,
    GROUP_TILES,
    MMA_TILES,
    SMALL_DEEP_MMA,
    SMALL_GROUP,
    SMALL_MMA,
    MmaTile,
    choose_mma_tile,
)
from gpuexec.ops.lib.windows import resolve_windows
from gpuexec.ops.linalg import mma_launch
from gpuexec.ops.nn.conv_depthwise_last import LAST_FORMS
from gpuexec.ops.nn.conv_host import convolve
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner import emitter
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan, specs_of
from tests.devices.opening import list_kernels
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case
from tests.ops.chains import chain
from tests.ops.counted_launch import count_wavefronts
from tests.ops.direct import DirectEmitter
from tests.ops.harness import run_case
from tests.ops.test_conv_depthwise_last import turn
from tests.ops.tolerance import to_bits

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
NAME, KERNEL = "gpuexec.SeparableConv", "conv_separable"
TILES = (SMALL_MMA.name, SMALL_DEEP_MMA.name, FLAT_DEEP_MMA.name, SMALL_GROUP.name)


@dataclass(frozen=True)
class Separable:
    """A depthwise convolution with an activation, and one of a tap with another activation and perhaps a residual.

    Without a precision operands and results are of ``dtype``.
    """

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    outs: int
    attributes: dict[str, Any] = field(default_factory=dict)
    dtype: Any = HALF
    precision: str = "fp16"
    first: tuple[str, ...] = ("Relu",)
    second: tuple[str, ...] = ("Sigmoid",)
    has_bias: bool = True
    has_residual: bool = False
    seed: int = 0

    def build(self) -> tuple[Graph, dict[str, Array]]:
        """Return the graph as loaded in its precision, and its inputs."""
        rng, graph = np.random.default_rng(self.seed), GraphBuilder()
        dtype = FLOAT if self.precision else self.dtype

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(dtype)

        channels = self.shape[1]
        arrays = {"x": draw(*self.shape)}
        made = graph.input("x", *self.shape, dtype=dtype)
        # In front stands another product, behind which images lie channels last.
        made = graph.node(build("Conv", {}), made, graph.constant(draw(channels, channels, *[1] * len(self.kernel))))
        for op, weight, steps in (
            (build("Conv", {"group": channels, **self.attributes}), draw(channels, 1, *self.kernel), self.first),
            (build("Conv", {}), draw(self.outs, channels, *[1] * len(self.kernel)), self.second),
        ):
            bias = [graph.constant(draw(weight.shape[0]))] if self.has_bias else []
            made = graph.node(op, made, graph.constant(weight), *bias)
            for step in steps:
                made = graph.node(build(step, {}), made)
        if self.has_residual:
            windows = build("Conv", self.attributes).windows(self.shape, (1, 1, *self.kernel))  # type: ignore[attr-defined]
            shape = (self.shape[0], self.outs, *windows.counts)
            arrays["z"] = draw(*shape)
            made = graph.node(build("Add", {}), made, graph.input("z", *shape, dtype=dtype))
        whole = graph.graph(made)
        return lower_precision(whole, Precision(self.precision)) if self.precision else whole, arrays


@dataclass(frozen=True)
class Ran:
    """What a plan gave, and its launches with what was counted of them."""

    results: list[Array]
    launches: list[Launch]
    counts: list[LaunchCounts]

    @property
    def names(self) -> list[str]:
        return [each.kernel.expression.partition("<")[0] for each in self.launches]

    def find(self) -> tuple[Launch, LaunchCounts | None]:
        """Return the launch of both convolutions, and what was counted of it."""
        index = self.names.index(KERNEL)
        return self.launches[index], self.counts[index] if self.counts else None


@dataclass(frozen=True)
class Planned:
    """A graph's plan, and what it runs on."""

    plan: Plan
    constants: dict[str, Array]
    arrays: dict[str, Array]


def plan(graph: Graph, arrays: dict[str, Array], disabled: Sequence[str] = ()) -> Planned:
    specs = specs_of(arrays)
    planned = run_passes(graph, AT_PLAN, disabled, specs)
    constants = {value.name: array for value, array in planned.constants.items()}
    return Planned(plan_graph(planned, specs, Target.named("sm_90")).plan, constants, arrays)


def run_all(all_planned: Sequence[Planned], mode: str = "plain") -> list[Ran]:
    """Run plans on a device of their own, for which the kernels of generated text are compiled together.

    The others are the whole files that other tests run, but for counting, where what is run is compiled.
    """
    kernels = dict.fromkeys(kernel for planned in all_planned for kernel in planned.plan.kernels())

    def list_launched(source: str) -> list[str]:
        return [each.expression for each in kernels if each.source == source and not each.text]

    device = SimulatorDevice(
        list_launched if mode == "count" else list_kernels,
        check_kernels=mode == "check",
        count_kernels=mode == "count",
    )
    device.load(list(kernels))
    made = []
    for planned in all_planned:
        known = len(device.counts)
        with LoadedPlan(planned.plan, planned.constants, device) as loaded:
            results = loaded.run(planned.arrays)
        launches = [each for each in planned.plan.segment.commands if isinstance(each, Launch)]
        made.append(Ran(list(results), launches, list(device.counts[known:]) if mode == "count" else []))
    device.close()
    return made


def run(graph: Graph, arrays: dict[str, Array], disabled: Sequence[str] = (), mode: str = "plain") -> Ran:
    (ran,) = run_all([plan(graph, arrays, disabled)], mode)
    return ran


def list_alike(tile: str) -> tuple[MmaTile, ...]:
    """Return the tiles that add as a tile does: those of groups, those of one group of warps, or that tile."""
    (found,) = (each for each in (*DEEP_MMA_TILES, *GROUP_TILES) if each.name == tile)
    if found.is_by_groups:
        return GROUP_TILES
    return MMA_TILES if found.groups == 1 else (found,)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let products take tiles that add as a tile does."""

    def restrict(tile: str) -> None:
        def choose(emit: Any, rows: int, columns: int, nbytes: int, batch: int, able: Sequence[MmaTile]) -> MmaTile:
            alike = list_alike(tile)
            is_able = not alike[0].is_by_groups or alike[0] in able
            return choose_mma_tile(emit, rows, columns, nbytes, batch, alike if is_able else able)

        monkeypatch.setattr(mma_launch, "choose_mma_tile", choose)

    return restrict


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch, take: Any) -> Any:
    """Let the launch of both by a tile take the least time, and the product apart a tile that adds alike."""

    def choose(tile: str) -> None:
        take(tile)

        def cost(commands: Sequence[Command], target: Target) -> float:
            names = [each.kernel.expression for each in commands if isinstance(each, Launch)]
            return float(not any(name.startswith(KERNEL) and tile in name for name in names))

        monkeypatch.setattr(emitter, "predict_commands_us", cost)

    return choose


def make_case(seed: int) -> Separable:
    pick = random.Random(seed)
    rank = pick.choice([1, 2, 2, 2])
    form = LAST_FORMS[seed % len(LAST_FORMS)]
    columns, stride = (pick.choice([1, 2, 5]), pick.choice([1, 2])) if form == LAST_FORMS[0] else form
    kernel = (pick.choice([1, 3, 5]), columns)[2 - rank :]
    attributes = {
        "strides": (pick.choice([1, 2]), stride)[2 - rank :],
        "dilations": (pick.choice([1, 2]), pick.choice([1, 3]) if form == LAST_FORMS[0] else 1)[2 - rank :],
        "pads": tuple([pick.choice([0, 1, 2]) for _ in range(2 * rank)]),
    }
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, attributes["dilations"], strict=True)]
    extents = [each + pick.randrange(1, 12) for each in reach]
    dtype, precision = [(HALF, ""), (HALF, "fp16"), (BFLOAT16, "bf16"), (BFLOAT16, "")][seed % 4]
    return Separable(
        (pick.choice([1, 3]), pick.choice([8, 40, 64, 264]), *extents),
        kernel,
        pick.choice([8, 17, 24, 72, 136]),
        attributes,
        dtype,
        precision,
        first=pick.choice([(), ("Sigmoid",), ("Relu", "Sigmoid")]),
        second=pick.choice([(), ("Relu",)]),
        has_bias=pick.random() < 0.5,
        has_residual=pick.random() < 0.5,
        seed=seed,
    )


@functools.cache
def build_random() -> list[tuple[Separable, Graph, dict[str, Array]]]:
    return [(case := make_case(seed), *case.build()) for seed in range(7)]


@functools.cache
def run_apart(alike: tuple[MmaTile, ...]) -> list[Ran]:
    """Run the launches apart, whose products take one of some tiles."""
    return run_all([plan(graph, arrays, ["fuse_separable"]) for _, graph, arrays in build_random()])


@pytest.mark.parametrize(("mode", "least"), [("check", 1), ("plain", 4)], ids=["check", "plain"])
@pytest.mark.parametrize("tile", TILES)
def test_random_convolutions_have_the_bits_of_launches_apart(prefer: Any, tile: str, mode: str, least: int) -> None:
    """Check mode has two of four for each tile, all types and forms of the first convolution among the tiles."""
    prefer(tile)
    number = TILES.index(tile)
    chosen = [number, (number + 1) % 4] if mode == "check" else list(range(7))
    drawn, two = ([each[index] for index in chosen] for each in (build_random(), run_apart(list_alike(tile))))
    one = run_all([plan(graph, arrays) for _, graph, arrays in drawn], mode)
    for (case, *_), joined, apart in zip(drawn, one, two, strict=True):
        np.testing.assert_array_equal(to_bits(joined.results[0]), to_bits(apart.results[0]), err_msg=str(case))
        assert KERNEL not in apart.names
    assert sum(each.names.count(KERNEL) for each in one) >= least


def test_kernels_of_a_plan_share_types() -> None:
    """Two pairs whose depthwise convolutions end alike, and whose products don't: each type is defined once."""
    rng, graph = np.random.default_rng(0), GraphBuilder()
    arrays = {"x": rng.standard_normal((1, 16, 9, 10)).astype(HALF)}
    made = graph.input("x", 1, 16, 9, 10, dtype=HALF)
    for steps in (("Relu",), ("Relu", "Sigmoid"), ()):
        for op, shape, behind in (
            (build("Conv", {"group": 16, "pads": (1,) * 4}), (16, 1, 3, 3), ("Relu",)),
            (build("Conv", {}), (16, 16, 1, 1), steps),
        ):
            made = graph.node(op, made, graph.constant(rng.standard_normal(shape).astype(HALF)))
            for step in behind:
                made = graph.node(build(step, {}), made)
    one, two = (run(graph.graph(made), arrays, disabled) for disabled in ((), ["fuse_separable"]))
    assert one.names.count(KERNEL) == 3
    np.testing.assert_array_equal(to_bits(one.results[0]), to_bits(two.results[0]))


# In slices and not, and with few results, whose products apart are those of the transposed.
COUNTED = [
    (case, tile)
    for case, tiles in (
        (Separable((1, 64, 16, 16), (3, 3), 64, {"pads": (1,) * 4}, has_bias=False, has_residual=True), TILES),
        (Separable((1, 96, 32, 32), (3, 3), 24, {"pads": (1,) * 4, "strides": (2, 2)}), TILES),
        (Separable((1, 384, 14, 14), (3, 3), 64, {"pads": (1,) * 4}), TILES[2:3]),  # in slices of its own tile
        (Separable((1, 64, 32, 32), (3, 3), 16, {"pads": (1,) * 4}), TILES[:3]),
    )
    for tile in tiles
]


@pytest.mark.parametrize(("case", "tile"), COUNTED, ids=lambda each: getattr(each, "shape", each))
def test_launches_are_as_counted(prefer: Any, case: Separable, tile: str) -> None:
    prefer(tile)
    graph, arrays = case.build()
    ran = run(graph, arrays, mode="count")
    launch, counts = ran.find()
    form = find_form(launch.kernel)
    assert form is not None and counts is not None
    work = form(launch)
    assert work.matrix_products + WARP * work.multiply_adds == counts.multiply_adds.issued
    assert work.needed_multiply_adds == counts.needed_multiply_adds
    shared = [line.counts for line in counts.lines if line.space == "shared" and line.counts.nbytes]
    assert all(each.ratio == 1.0 for each in shared)
    assert work.wavefronts == count_wavefronts(counts, 1)
    images = [
        line.counts
        for line in counts.lines
        if line.space == "global" and line.width == 16 and "conv_separable.cu" not in dict(line.places)
    ]
    assert images and all(each.ratio == 1.0 for each in images)
    # Count mode has no L1, which answers most taps of a place after the first.
    counted = counts.l2_read_nbytes + counts.l2_written_nbytes
    assert 0.35 * counted <= work.l2_nbytes <= 1.05 * counted


def make_operator_case(
    id: str,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    outs: int,
    dtype: Any,
    relus: str = "",
    precision: str = "",
) -> Case:
    """Return a case of small integers, whose sums are exact in any order.

    Args:
        id: Its name.
        shape: Of the image.
        kernel: Of the depthwise convolution.
        outs: Channels of the result.
        dtype: Of the operands.
        relus: Of "first" and "second", behind which convolution there is a Relu.
        precision: Where there is one, the result is of float.
    """
    rng, channels = np.random.default_rng(len(id)), shape[1]
    pads, none = tuple([extent // 2 for extent in kernel] * 2), (0,) * 2 * len(kernel)
    ones, result = (1,) * len(kernel), FLOAT if precision else dtype

    def draw(*extents: int) -> Array:
        return rng.integers(-2, 3, extents).astype(dtype)

    x, taps, w, bias = draw(*shape), draw(channels, 1, *kernel), draw(outs, channels, *ones), draw(channels)
    wide = [each.astype(np.float64) for each in (x, taps, bias, w)]
    y = convolve(wide[0], wide[1], wide[2], resolve_windows(shape[2:], kernel, (), (), pads, "NOTSET"), channels, None)
    y = np.maximum(y, 0) if "first" in relus else y
    y = convolve(y, wide[3], None, resolve_windows(shape[2:], ones, (), (), none, "NOTSET"), 1, None)
    y = np.maximum(y, 0) if "second" in relus else y
    assert np.abs(y).max() <= 256
    rows = []
    stored = (("precision", precision),) if precision else ()
    for part, attributes, inputs in (
        ("first", (("group", channels), ("pads", pads)), (0, 1, 2)),
        ("second", (), (-1, 3)),
    ):
        steps: list[Any] = [("Relu", (), (-1,))] if part in relus else []
        if precision and part == "first":
            steps.append(("Cast", (("to", dtype_row(dtype).code),), (-1,)))
        name, behind = ("gpuexec.FusedConv", tuple(chain(steps, dtype).items())) if steps else ("Conv", ())
        rows.append((name, (*attributes, *stored, *behind), inputs))
    given = (x, taps, bias.astype(result), w)
    return Case(id, NAME, given, {"steps": tuple(rows)}, expected=(y.astype(result),), terms=10 * channels)


CASES = [
    make_operator_case("images", (2, 8, 5, 7), (3, 3), 24, HALF),
    make_operator_case("images, narrow", (2, 8, 5, 7), (3, 3), 24, BFLOAT16),
    make_operator_case("any taps", (1, 8, 6, 4), (1, 5), 24, HALF),
    make_operator_case("any taps, narrow", (1, 8, 6, 4), (1, 5), 24, BFLOAT16),
    make_operator_case("signals", (2, 16, 9), (3,), 32, HALF, "first second"),
    make_operator_case("activation", (1, 8, 6, 6), (3, 3), 32, HALF, "first"),
    make_operator_case("activation behind", (1, 8, 6, 6), (3, 3), 32, BFLOAT16, "second"),
    make_operator_case("odd channels", (1, 6, 5, 5), (3, 3), 20, HALF, "first"),
    make_operator_case("sums of float", (1, 8, 5, 5), (3, 3), 24, HALF, precision="fp16"),
    make_operator_case("few results", (1, 8, 5, 5), (3, 3), 4, HALF),
    *[
        make_operator_case(f"{name} positions {kernel} {np.dtype(dtype)}", (1, 8, extent, extent), kernel, outs, dtype)
        for name, extent, outs in (("several", 40, 136), ("many", 64, 136))
        for kernel in ((3, 3), (1, 5))
        for dtype in (HALF, BFLOAT16)
    ],
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_separable_convolutions(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_steps_that_are_not_two_in_a_row_are_refused() -> None:
    x, taps = TensorSpec((1, 8, 4, 4), HALF), TensorSpec((8, 1, 3, 3), HALF)
    for steps in ((("Conv", (("group", 8),), (0, 1)),), (("Conv", (("group", 8),), (0, 1)),) * 2):
        with pytest.raises(InputError, match="SeparableConv expects two operators, the second over"):
            build(NAME, {"steps": steps}).infer(x, taps)


class JoiningEmitter(DirectEmitter):
    """An emitter that runs one of the launches of both convolutions, its result in a window of a wider one.

    Args:
        way: Which of those that there are.
        extra: Channels of the wider image beside those of the result, half of them in front.
    """

    def __init__(self, way: int, extra: int) -> None:
        super().__init__()
        self.way, self.extra, self.wide = way, extra, self.fresh((0,), HALF)
        self._held: list[Command] | None = None

    def choose(self, now: int | Callable[[], int]) -> int:
        return now() if callable(now) else now

    def launch(self, *given: Any, **named: Any) -> None:
        if self._held is None:
            super().launch(*given, **named)
            return
        row = dict(zip(("kernel", "grid", "block", "arguments", "writes", "shared_bytes"), given, strict=False)) | named
        row |= {"arguments": tuple(row["arguments"]), "writes": tuple(row["writes"])}
        self._held.append(Launch(**row))

    def join(self, launch: Callable[[], None], join: Join) -> None:
        self._held = []
        launch()
        commands, self._held = self._held, None
        (joined,) = join(commands)[self.way]
        assert isinstance(joined, Launch)
        y, packed, at = joined.arguments[3], joined.arguments[4], struct.calcsize("<4i6q")  # y_row of SimtGemm
        assert isinstance(y, Slot) and isinstance(packed, bytes)
        batch, channels, *axes = y.shape
        self.wide = self.slot(turn(np.full((batch, channels + self.extra, *axes), 7, y.dtype)))
        window = Slot(self.wide.buffer, self.extra // 2 * y.dtype.itemsize, y.spec, self.wide.strides)
        pitched = packed[:at] + struct.pack("<q", channels + self.extra) + packed[at + 8 :]
        arguments = [*joined.arguments[:3], window, pitched, *joined.arguments[5:]]
        super().launch(joined.kernel, joined.grid, joined.block, arguments, joined.writes, joined.shared_bytes)


@pytest.mark.parametrize(("tile", "way"), [(tile, 0) for tile in TILES])
def test_rows_of_the_result_may_lie_apart(take: Any, tile: str, way: int) -> None:
    take(tile)
    for case in CASES[:4]:
        op, emit = build(NAME, case.attributes), JoiningEmitter(way, 16)
        x, *weights = case.inputs
        assert x is not None and case.expected is not None and op.lower is not None
        slots = [emit.slot(turn(x)), *(None if each is None else emit.slot(each) for each in weights)]
        (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
        op.lower(emit, tuple(slots), (emit.slot(turn(np.zeros(spec.shape, spec.dtype))),))
        made = emit.read(emit.wide)
        np.testing.assert_array_equal(made[:, 8:-8], case.expected[0])
        assert (made[:, :8] == 7).all() and (made[:, -8:] == 7).all()


def test_results_are_made_in_a_concat() -> None:
    rng, graph = np.random.default_rng(0), GraphBuilder()
    arrays = {"x": rng.standard_normal((1, 16, 24, 24)).astype(HALF)}

    def convolve_by(value: Any, group: int, *shape: int) -> Any:
        op = build("Conv", {"group": group, "pads": (shape[-1] // 2,) * 4})
        made = graph.node(op, value, graph.constant(rng.standard_normal(shape).astype(HALF)))
        return graph.node(build("Relu", {}), made)

    first = convolve_by(graph.input("x", 1, 16, 24, 24, dtype=HALF), 1, 32, 16, 1, 1)
    parts = [convolve_by(convolve_by(first, 32, 32, 1, 3, 3), 1, 24, 32, 1, 1) for _ in range(2)]
    joined = graph.node(build("Concat", {"axis": 1}), *parts)
    whole = graph.graph(convolve_by(joined, 1, 40, 48, 1, 1))
    one, two = (run(whole, arrays, disabled, mode="check") for disabled in ((), ["fuse_separable"]))
    assert one.names.count(KERNEL) == 2
    np.testing.assert_array_equal(to_bits(one.results[0]), to_bits(two.results[0]))
    written = [each.arguments[3] for each in one.launches if each.kernel.source == "conv_separable.cu"]
    assert all(isinstance(slot, Slot) and slot.strides[-1] == 48 for slot in written)
