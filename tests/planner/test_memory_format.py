"""Memory formats of images: which nodes run channels last, and plans in which they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.geometry import channels_last_strides
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.nn.conv import Conv
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from gpuexec.planner.memory_format import assign_formats, count_transposes, is_image
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder, compute_graph

SHAPE = (2, 8, 6, 5)
TRANSPOSE = 2 * (4 * 2 * 8 * 6 * 5) + LAUNCH_NBYTES  # what it costs, as bytes
RNG = np.random.default_rng(4)


def weigh(outs: int = 8, ins: int = 8) -> np.ndarray:
    return RNG.integers(-2, 3, (outs, ins, 3, 3)).astype(np.float32)


class Builder(GraphBuilder):
    """Builder of graphs of images."""

    def conv(self, x: Value) -> Value:
        return self.node(build("Conv", {"pads": (1, 1, 1, 1)}), x, self.constant(weigh()))

    def op(self, name: str, *inputs: Value) -> Value:
        return self.node(build(name, {}), *inputs)


@pytest.fixture
def gain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose one entry is what every convolution gains."""
    gains = [1 << 40]

    def count(op: Operator, inputs: Sequence[object], outputs: Sequence[object], target: Target) -> int:
        return gains[0]

    monkeypatch.setattr(Conv, "count_format_gain", count)
    return gains


def name_channels_last(graph: Graph) -> set[str]:
    specs = {value: TensorSpec(SHAPE, np.dtype(np.float32)) for value in graph.inputs}
    specs |= {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    for node in graph.nodes:
        made = infer_specs(node.operator, [None if value is None else specs[value] for value in node.inputs])
        specs |= {value: spec for value, spec in zip(node.outputs, made, strict=True) if value is not None}
    target = TracerDevice("sm_90").target
    found = assign_formats(graph, range(len(graph.nodes)), specs, target)
    return {graph.nodes[position].name for position in found}


def test_images_have_channels_and_places() -> None:
    shapes = {(2, 8, 6, 5): True, (2, 8, 6): True, (2, 1, 6, 5): False, (2, 8, 1, 1): False, (2, 8): False}
    shapes |= {(0, 8, 6, 5): False, (2, 8, 3, 3, 3): True, (2, 8, 3, 3, 3, 3): False}
    assert {shape: is_image(TensorSpec(shape, np.dtype(np.float32))) for shape in shapes} == shapes


def test_nothing_moves_where_nothing_gains() -> None:
    graph = Builder()
    made = graph.op("Relu", graph.conv(graph.input("x", *SHAPE)))
    assert name_channels_last(graph.graph(made)) == set()


def test_what_stands_between_convolutions_follows(gain: list[int]) -> None:
    graph = Builder()
    first = graph.conv(graph.input("x", *SHAPE))
    between = graph.op("Relu", first)
    last = graph.conv(between)
    made = graph.graph(graph.op("Add", last, between))
    names = name_channels_last(made)
    assert {node.name for node in made.nodes[:3]} <= names


@pytest.mark.parametrize(("nbytes", "is_worth_it"), [(2 * TRANSPOSE - 1, False), (2 * TRANSPOSE + 1, True)])
def test_convolution_gains_more_than_its_transposes_move(gain: list[int], nbytes: int, is_worth_it: bool) -> None:
    """Input and output of the graph are row-major: each transpose reads and writes as many bytes, in a launch."""
    gain[0] = nbytes
    graph = Builder()
    made = graph.graph(graph.conv(graph.input("x", *SHAPE)))
    assert bool(name_channels_last(made)) is is_worth_it


def test_value_is_transposed_once_for_all_its_readers(gain: list[int]) -> None:
    gain[0] = 2 * TRANSPOSE  # four bytes more than nothing for the first, and each further reader costs an output alone
    graph = Builder()
    x = graph.input("x", *SHAPE)
    made = [graph.conv(x) for _ in range(3)]
    assert len(name_channels_last(graph.graph(graph.op("Sum", *made)))) == 4


def test_operators_that_know_one_format_stay(gain: list[int]) -> None:
    graph = Builder()
    first = graph.conv(graph.input("x", *SHAPE))
    turned = graph.node(build("DepthToSpace", {"blocksize": 2}), first)
    made = graph.graph(graph.op("Relu", turned))
    assert name_channels_last(made) == {made.nodes[0].name}


def run(graph: Graph, fused: bool) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Return the results on the simulator and by NumPy, and how many transposes there are."""
    specs = {"x": TensorSpec(SHAPE, np.dtype(np.float32))}
    graph = fuse_epilogues(graph, specs) if fused else graph
    x = RNG.integers(-3, 4, SHAPE).astype(np.float32)
    device = make_simulator(target="sm_90", check_kernels=True)
    plan = plan_graph(graph, specs, device.target).plan
    transposes, nbytes = count_transposes(plan.segment.commands)
    prediction = predict_plan(plan)
    assert (prediction.transposes, prediction.transposed_nbytes) == (transposes, nbytes)
    assert (transposes == 0) == (nbytes == 0)
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        got = loaded.run({"x": x})
    device.close()
    return list(got), list(compute_graph(graph, {"x": x})), transposes


@pytest.mark.parametrize("fused", [False, True])
def test_plan_runs_channels_last(gain: list[int], fused: bool) -> None:
    graph = Builder()
    first = graph.op("Relu", graph.conv(graph.input("x", *SHAPE)))
    both = graph.op("Add", graph.conv(first), first)
    scaled = graph.op("Mul", both, graph.constant(np.arange(1, 9, dtype=np.float32).reshape(8, 1, 1)))
    numbers = [graph.constant(np.array([number])) for number in (1, 5, 2)]
    part = graph.op("Slice", scaled, *numbers)
    mean = graph.op("ReduceMean", part, graph.constant(np.array([2, 3])))
    got, expected, transposes = run(graph.graph(mean, graph.op("Neg", part)), fused)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert transposes == 4  # the ends, and what the convolutions' kernels make


CASES: dict[str, tuple[str, dict[str, object], list[np.ndarray]]] = {
    "max_pool": ("MaxPool", {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}, []),
    "average_pool": ("AveragePool", {"kernel_shape": (2, 3), "pads": (1, 0, 0, 1), "ceil_mode": 1}, []),
    "lp_pool": ("LpPool", {"kernel_shape": (2, 2), "p": 2}, []),
    "nearest": ("Resize", {"mode": "nearest"}, [np.float32([]), np.float32([1, 1, 2, 3])]),
    "linear": ("Resize", {"mode": "linear"}, [np.float32([]), np.float32([1, 1, 2, 1.5])]),
    "batch_norm": ("BatchNormalization", {}, [np.linspace(0.5, 2, 8, dtype=np.float32) for _ in range(4)]),
    "clip": ("Clip", {}, [np.float32(-1), np.float32(5)]),
    "power": ("Pow", {}, [np.float32(2)]),
    "cast": ("Cast", {"to": 10}, []),
    "where": ("Where", {}, []),
    "concat": ("Concat", {"axis": 1}, []),
    "split": ("Split", {"axis": 2, "num_outputs": 2}, []),
    "pad": ("Pad", {"mode": "reflect"}, [np.int64([0, 0, 1, 2, 0, 0, 0, 1])]),
    "identity": ("Identity", {}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_follow(gain: list[int], name: str) -> None:
    """Nothing is transposed but the ends, and what the kernels of the two convolutions read and write."""
    kind, attributes, more = CASES[name]
    graph = Builder()
    x = graph.conv(graph.input("x", *SHAPE))
    given = [x, *[graph.constant(array) for array in more]]
    if kind == "Where":
        given = [graph.op("Greater", x, graph.constant(np.float32(0))), x, graph.op("Neg", x)]
    elif kind == "Concat":
        given = [graph.op("Relu", x), graph.op("Neg", x)]
    made, *_ = graph.nodes(build(kind, attributes), *given, count=2 if kind == "Split" else 1)
    if kind == "Cast":
        made = graph.node(build("Cast", {"to": 1}), made)
    channels = 16 if kind == "Concat" else 8
    last = graph.node(build("Conv", {}), made, graph.constant(weigh(8, channels)[:, :, :1, :1]))
    got, expected, transposes = run(graph.graph(last), fused=False)
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-5, atol=1e-4)
    assert transposes == 4


def test_results_are_made_in_the_bytes_of_an_input(gain: list[int]) -> None:
    graph = Builder()
    made = graph.graph(graph.conv(graph.op("Neg", graph.op("Relu", graph.conv(graph.input("x", *SHAPE))))))
    plan = plan_graph(made, {"x": TensorSpec(SHAPE, np.dtype(np.float32))}, TracerDevice("sm_90").target).plan
    launches = [c for c in plan.segment.commands if isinstance(c, Launch) and "unary" in c.kernel.source]
    assert len(launches) == 2
    for launch in launches:
        x, y = launch.arguments[:2]
        assert isinstance(x, Slot) and isinstance(y, Slot)
        assert x.strides == y.strides == channels_last_strides(SHAPE) and x.buffer == y.buffer


def test_addition_of_a_value_and_its_transposed_view_takes_other_bytes() -> None:
    graph = Builder()
    x = graph.op("Relu", graph.input("x", 4, 4))
    turned = graph.node(build("Transpose", {"perm": (1, 0)}), x)
    made = graph.graph(graph.op("Add", x, turned))
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    device = make_simulator(target="sm_90", check_kernels=True)
    plan = plan_graph(made, {"x": TensorSpec((4, 4), array.dtype)}, device.target).plan
    with LoadedPlan(plan, {}, device) as loaded:
        (got,) = loaded.run({"x": array})
    device.close()
    np.testing.assert_array_equal(got, array + array.T)
