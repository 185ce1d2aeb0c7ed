"""Sizes in device memory: a graph whose launches read them there computes, bit for bit, what a stream of launches does.

A plan of two layers of attention that append to their memories: attention takes all that moves with the length from
device memory, an elementwise launch between them nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.device import Device, Region
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.recording import LaunchRecording, record_graph, record_launches, record_segment
from gpuexec.errors import OutOfMemoryError
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.moving_arguments import STORE_SIZES
from gpuexec.ir.operator import build
from gpuexec.ir.plan import Segment, Variant
from gpuexec.ir.size_layout import SizedVariant
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.append import Append
from gpuexec.planner.symbolic_variant import SymbolicVariant, share_layout
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.strided import Window

Array = np.ndarray[Any, Any]
HEADS, DEPTH, CAPACITY, LAYERS = 2, 8, 300, 2
WIDTH = 3 * HEADS * DEPTH
MEMORIES = tuple(f"{name}{layer}" for layer in range(LAYERS) for name in "kv")
LENGTHS = (5, 6, 7, 8, 100, 101, 31, 32, 33, 5, 0, 299, 150)
SHAPE = (1, HEADS, CAPACITY, DEPTH)


def make_graph(appends: bool) -> Graph:
    """Return the layers, each behind a launch that doubles what it reads; without rows to append, if so."""
    draw = GraphBuilder()
    x, outputs = draw.input("x", WIDTH), list[Value]()
    grown: list[Value] = []
    for layer in range(LAYERS):
        twice = draw.node(build("Add", {}), x, x)

        def show(part: int, product: Value = twice) -> Value:
            return draw.node(Window((1, HEADS, 1, DEPTH), (WIDTH, DEPTH, WIDTH, 1), part * HEADS * DEPTH), product)

        k, v = (draw.input(f"{name}{layer}", 1, HEADS, "past", DEPTH) for name in "kv")
        if appends:
            k, v = (
                draw.node(Append(2, CAPACITY, held.name), held, show(part), name=f"append {held.name}")
                for part, held in enumerate((k, v), 1)
            )
            grown += [k, v]
        flipped = draw.node(build("Transpose", {"perm": (0, 1, 3, 2)}), k)
        attention = build("gpuexec.ScaledDotProductAttention", {"precision": "fp16"})
        y = draw.node(attention, show(0), flipped, v)
        rows = draw.node(build("Reshape", {}), y, draw.constant(np.array([HEADS * DEPTH])))
        x = draw.node(build("Concat", {"axis": 0}), rows, rows, rows)
        outputs.append(rows)
    return draw.graph(*outputs, *grown)


def describe(length: int) -> dict[str, TensorSpec]:
    dtype = np.dtype(np.float32)
    held = {name: TensorSpec((1, HEADS, length, DEPTH), dtype) for name in MEMORIES}
    return {"x": TensorSpec((WIDTH,), dtype), **held}


class Sizes:
    """The plan, and variants of its sizes that share one layout."""

    def __init__(self, *, appends: bool = True) -> None:
        self.graph = make_graph(appends)
        specs, target = describe(CAPACITY - appends), Target.named("sm_90")
        self.template: Template = plan_graph(self.graph, specs, target, grows=appends)
        self._traced: list[SymbolicVariant] = []
        self._groups = [[(name, 2) for name in MEMORIES]]
        for length in LENGTHS:
            if self._look_up(length) is None:
                self._traced.append(self.template.trace(describe(length), self._groups))
        share_layout(self._traced)

    def find(self, length: int) -> SizedVariant:
        """Return the variant of a size that is served by its row."""
        found = self._look_up(length)
        assert found is not None
        return found

    def plan(self, length: int) -> Variant:
        """Return the variant of a size that is planned by itself."""
        return self.template.specialise(describe(length))

    def share_anew(self) -> None:
        """Let all sizes have another layout."""
        share_layout(self._traced)

    def _look_up(self, length: int) -> SizedVariant | None:
        return next((each for each in (symbolic.find((length,)) for symbolic in self._traced) if each), None)


class Decoding:
    """Steps of a plan on a device, each with inputs of its own."""

    def __init__(self, sizes: Sizes, device: Device, record: Any) -> None:
        constants = {value.name: array for value, array in sizes.graph.constants.items()}
        self.loaded = LoadedPlan(sizes.template.plan, constants, device, record)
        self._random = np.random.default_rng(5)

    @property
    def recording(self) -> LaunchRecording:
        """The recording."""
        assert isinstance(self.loaded.recording, LaunchRecording)
        return self.loaded.recording

    def move(self, names: Sequence[str] | None = None) -> None:
        """Bind inputs, memories and outputs elsewhere; only these inputs where some are named."""
        ports = {port.buffer for port in self.loaded.plan.inputs if names is not None and port.name in names}
        for buffer, region in list(self.loaded.bindings.items()):
            if names is not None and buffer not in ports:
                continue
            memory = self.loaded._allocate(region.nbytes)
            self.loaded.bindings[buffer] = Region(memory, 0, region.nbytes)

    def step(self, variant: Variant) -> list[Array]:
        """Run a size; return what attention gives and all bytes of the memories."""
        plan = self.loaded.plan
        shapes = {port.name: spec.shape for port, spec in zip(plan.inputs, variant.inputs, strict=True)}
        shapes |= dict.fromkeys(MEMORIES, SHAPE) if len(plan.outputs) > LAYERS else {}
        arrays = {name: self._random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        self.recording.resize(variant)
        self.loaded.run(arrays)
        grown = [TensorSpec.of(arrays[name]) for name in MEMORIES[: len(plan.outputs) - LAYERS]]
        return self.loaded.download([*variant.outputs[:LAYERS], *grown])


SIZES = Sizes()


def run_both(device: str, variants: Sequence[Variant | None], sizes: Sizes = SIZES) -> None:
    """Hold steps in graph form against steps as launches; None: everything is bound elsewhere from there on."""
    opened = open_living(device)
    as_graph, as_stream = (Decoding(sizes, opened, record) for record in (record_graph, record_launches))
    for variant in variants:
        if variant is None:
            as_graph.move()
            continue
        for got, expected in zip(as_graph.step(variant), as_stream.step(variant), strict=True):
            np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
    assert as_graph.recording.has_graph
    for each in (as_graph, as_stream):
        each.recording.close()
        each.loaded.close()


in_both_modes = pytest.mark.parametrize("device", ["simulator_90", "check_90"])


@in_both_modes
def test_bits_are_those_of_launches_at_every_length(device: str) -> None:
    run_both(device, [SIZES.find(length) for length in LENGTHS])


@in_both_modes
def test_bits_are_those_of_launches_when_memories_lie_elsewhere(device: str) -> None:
    first, second, third = (SIZES.find(length) for length in (40, 41, 42))
    run_both(device, [first, second, None, second, third, None, first])


@in_both_modes
def test_bits_are_those_of_launches_when_sizes_are_planned_by_themselves(device: str) -> None:
    variants = [SIZES.find(7), SIZES.plan(8), SIZES.find(9), SIZES.find(10), SIZES.plan(11), SIZES.plan(12)]
    run_both(device, [*variants, None, SIZES.plan(13), None, SIZES.find(14), SIZES.find(15)])


@in_both_modes
def test_bits_are_those_of_launches_when_the_layout_changes(device: str) -> None:
    before = [SIZES.find(length) for length in (20, 21)]
    SIZES.share_anew()
    after = [SIZES.find(length) for length in (22, 23)]
    assert before[0].layout is not after[0].layout
    run_both(device, [*before, *after, *before, *after])


@in_both_modes
def test_bits_are_those_of_launches_when_nothing_is_appended(device: str) -> None:
    """Strides move with the length, which are a matter of nodes; what is null is null in device memory, too."""
    sizes = Sizes(appends=False)
    run_both(device, [sizes.find(20), sizes.find(21), None, sizes.find(22), sizes.find(150), sizes.find(23)], sizes)


@in_both_modes
def test_bits_are_those_of_launches_when_addresses_have_graphs_of_their_own(device: str) -> None:
    opened, graphs = open_living(device), GraphCache(1 << 30)

    def record(device: Any, segment: Segment, memory: Any) -> Any:
        return record_segment(device, segment, memory, graphs)

    as_graph, as_stream = Decoding(SIZES, opened, record), Decoding(SIZES, opened, record_launches)
    here = dict(as_graph.loaded.bindings)
    as_graph.move()
    places = here, dict(as_graph.loaded.bindings)
    variants = [*(SIZES.find(length) for length in range(20, 32)), SIZES.plan(32), SIZES.plan(33)]
    for number, variant in enumerate([*variants, *(SIZES.find(length) for length in (33, 34, 35, 150, 151, 152))]):
        as_graph.loaded.bindings = places[number % 2]
        for got, expected in zip(as_graph.step(variant), as_stream.step(variant), strict=True):
            np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))
    assert graphs.count == 2
    graphs.clear()
    as_graph.loaded.close()
    as_stream.loaded.close()


class Traced:
    """Steps on a tracer, as the calls that each makes."""

    def __init__(self, graphs: GraphCache | None = None, sizes: Sizes = SIZES) -> None:
        self.device, self.graphs = TracerDevice(), graphs or GraphCache(1 << 30)
        self.device.launch_costs = replace(self.device.launch_costs, launch_us=3.0)  # so that nodes are worth an update
        self.decoding = Decoding(sizes, self.device, self._record)

    def step(self, variant: Variant) -> list[Any]:
        """Submit a size; return the calls, of nodes their positions."""
        self.decoding.recording.resize(variant)
        return self.submit()

    def submit(self) -> list[Any]:
        """Submit once more; return the calls."""
        self.device.log.clear()
        self.decoding.recording.submit(self.decoding.loaded.stream, self.decoding.loaded.bindings)
        return [row[2] if row[0] == "node" else row[1] if row[0] == "launch" else row[0] for row in self.device.log]

    def _record(self, device: Any, segment: Segment, memory: Any) -> Any:
        return record_segment(device, segment, memory, self.graphs)


STORE, ATTENTION = str(STORE_SIZES), [1, 5]


@pytest.fixture
def traced() -> Traced:
    """Return steps of which the last four made the graph."""
    made = Traced()
    for length in (10, 11, 12):
        assert STORE not in made.step(SIZES.find(length)), "launches take their arguments by value"
    assert made.step(SIZES.find(13))[-3:] == ["copy_to_device", STORE, "graph launch"]
    return made


def test_another_size_is_one_launch_in_front_of_the_graph(traced: Traced) -> None:
    assert [traced.step(SIZES.find(length)) for length in (14, 15, 40, 14)] == [[STORE, "graph launch"]] * 4
    assert not traced.graphs.updated


def test_same_size_is_the_graph_alone(traced: Traced) -> None:
    assert traced.step(SIZES.find(13)) == traced.submit() == ["graph launch"]


def test_what_moves_besides_is_a_matter_of_nodes() -> None:
    """Strides of what is not appended to, and the grid."""
    sizes = Sizes(appends=False)
    made = Traced(sizes=sizes)
    calls = [made.step(sizes.find(length)) for length in (10, 11, 12, 13, 14, 150)]
    assert calls[-2:] == [[*ATTENTION, STORE, "graph launch"]] * 2
    assert made.graphs.updated == {("attend_few", True): 2 * 2}


def test_grid_over_a_memory_is_the_same_at_every_length() -> None:
    launches = [
        command for length in LENGTHS for command in SIZES.plan(length).commands if "attend_few" in str(command)
    ]
    assert len(launches) == LAYERS * len(LENGTHS)
    (grid,) = {launch.grid for launch in launches if isinstance(launch, Launch)}
    assert grid[1] > 1


def test_size_planned_by_itself_is_a_matter_of_nodes(traced: Traced) -> None:
    assert traced.step(SIZES.plan(14)) == [*ATTENTION, "graph launch"]
    assert traced.step(SIZES.plan(15)) == [*ATTENTION, "graph launch"]
    calls = traced.step(SIZES.find(16))
    assert calls == ["allocate", *ATTENTION, "copy_to_device", STORE, "graph launch"][1:]
    assert traced.step(SIZES.find(17)) == [STORE, "graph launch"]


def test_memory_that_lies_elsewhere_is_told_with_the_addresses(traced: Traced) -> None:
    traced.decoding.move(MEMORIES[:2])
    assert traced.submit() == [1, "copy_to_device", STORE, "graph launch"]
    assert traced.graphs.updated == {("attend_few", False): 1}
    traced.decoding.move(["x"])
    assert traced.submit() == [0, "graph launch"]


def test_launches_of_parts_take_arguments_by_value(traced: Traced) -> None:
    recording, stream = traced.decoding.recording, traced.decoding.loaded.stream
    recording.resize(SIZES.find(20))
    traced.device.log.clear()
    recording.submit(stream, traced.decoding.loaded.bindings, last=2)
    row = traced.device.log[-1]
    assert str(row[1]).startswith("attention_few.cu") and row[4][-1] == bytes(8)  # type: ignore[index]
    assert traced.submit() == [STORE, "graph launch"]


def test_closed_graph_frees_the_memory_and_comes_back_with_it(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    freed: list[int] = []
    memory = traced.decoding.recording._graph._sizes._memory  # type: ignore[union-attr]
    monkeypatch.setattr(type(memory), "free", lambda self: freed.append(self.address))
    traced.graphs.clear()
    assert freed == [memory.address]  # type: ignore[union-attr]
    calls = [traced.step(SIZES.find(length))[-2:] for length in (21, 22, 23, 24, 25)]
    assert calls[-2:] == [[STORE, "graph launch"]] * 2 and STORE not in calls[2]


def test_without_memory_another_size_updates_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Traced()

    def refuse(*_: object) -> object:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(made.device, "allocate", refuse)
    calls = [made.step(SIZES.find(length)) for length in (10, 11, 12, 13, 14, 15)]
    assert calls[-2:] == [[*ATTENTION, "graph launch"]] * 2


def test_plan_has_the_kernel_that_stores_sizes_where_one_reads_them() -> None:
    assert SIZES.template.plan.kernels()[-1] == STORE_SIZES
