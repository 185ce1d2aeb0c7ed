"""Budgeted steps: layers per step, by device timestamps. No test looks at a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.execution.runs.stopwatch import LayerTimes
from gpuexec.ir.command import Kernel
from gpuexec.ir.operator import Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import CPU, DOMAIN, GATES, affine, gated, hold_worker, make_model, ramp

Array = np.ndarray[Any, Any]
SLOW_MS = 20.0
# More than the host would rather compute itself than read.
X = ramp(300, 3) / 900


class Clock:
    """Stands still but for what work takes; a reading is in seconds."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms / 1e3


CLOCK = Clock()


@operator("Work", DOMAIN)
@dataclass(frozen=True, slots=True)
class Work(Operator):
    """Passes its input on, which takes ``ms`` of `CLOCK`."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    ms: float = 1.0

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        CLOCK.ms += self.ms
        return (x.copy(),)


def chain(*layers: str | float) -> gx.Model:
    """Return a model of operators one after the other; a number is Work that takes so many milliseconds."""
    names = ["x", *(f"v{i}" for i in range(len(layers) - 1)), "y"]
    nodes = []
    for i, layer in enumerate(layers):
        places: Any = ([names[i]], [names[i + 1]])
        if isinstance(layer, str):
            nodes.append(helper.make_node(layer, *places, name=f"layer{i}"))
        else:
            nodes.append(helper.make_node("Work", *places, name=f"layer{i}", domain=DOMAIN, ms=float(layer)))
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)})


def count_layers(steps: Sequence[gx.Step]) -> list[int]:
    return [len(step.nodes) for step in steps]


def open_tracer() -> Backend:
    """Return a tracer on which a launch takes 1 ms, and one of Exp 20 ms."""

    def launch_ms(kernel: Kernel) -> float:
        return SLOW_MS if "Exp" in kernel.expression else 1.0

    return Backend(TracerDevice(launch_ms=launch_ms), gx.BackendType.GPU_COMPUTE, "for a test")


def check_steps(steps: Sequence[gx.Step], layer_ms: Sequence[float], budget_ms: float) -> None:
    """Check that steps hold as many layers as fit, and none too many."""
    assert [name for step in steps for name in step.nodes] == [f"layer{i}" for i in range(len(layer_ms))]
    for step in steps:
        last = step.index + len(step.nodes)
        taken = sum(layer_ms[step.index : last])
        assert taken <= budget_ms or len(step.nodes) == 1
        if last < len(layer_ms):
            assert taken + layer_ms[last] > budget_ms


def test_layers_are_measured_one_per_step_and_packed_from_then_on() -> None:
    layers = ["Relu", "Neg"] * 6 + ["Exp"] + ["Neg", "Relu"] * 8
    with gx.Worker(chain(*layers), backend=open_tracer()) as worker:
        first = list(worker.schedule_iterable(ramp(4, 3), budget_ms=5))
        second = list(worker.schedule_iterable(ramp(4, 3), budget_ms=5))
    assert count_layers(first) == [1] * 29
    assert count_layers(second) == [5, 5, 2, 1, 5, 5, 5, 1]
    check_steps(second, [SLOW_MS if layer == "Exp" else 1.0 for layer in layers], 5)


def test_times_hold_for_other_sizes_of_the_class() -> None:
    with gx.Worker(chain(*["Relu", "Neg"] * 5), backend=open_tracer()) as worker:
        list(worker.schedule_iterable(ramp(7, 3), budget_ms=4))
        assert count_layers(list(worker.schedule_iterable(ramp(5, 3), budget_ms=4))) == [4, 4, 2]
        assert worker.report().plans == 1


@pytest.mark.parametrize(("budget_ms", "counts"), [(0, [1, 1, 1]), (0.5, [1, 1, 1]), (2, [2, 1]), (math.inf, [3])])
def test_a_step_holds_at_least_one_layer(budget_ms: float, counts: list[int]) -> None:
    with gx.Worker(chain("Neg", "Relu", "Neg"), backend=open_tracer()) as worker:
        list(worker.schedule_iterable(ramp(4, 3), budget_ms=budget_ms))
        assert count_layers(list(worker.schedule_iterable(ramp(4, 3), budget_ms=budget_ms))) == counts


def test_a_layer_not_measured_yet_ends_the_step_before_it() -> None:
    with gx.Worker(chain(*["Relu", "Neg"] * 3), backend=open_tracer()) as worker:
        begun = worker.schedule_iterable(ramp(4, 3), budget_ms=9)
        for _ in range(3):
            next(begun)
        assert count_layers(list(worker.schedule_iterable(ramp(4, 3), budget_ms=9))) == [3, 1, 1, 1]


def test_nothing_is_measured_without_a_budget() -> None:
    with gx.Worker(chain("Neg", "Relu", "Neg"), backend=open_tracer()) as worker:
        for _ in range(2):
            assert count_layers(list(worker.schedule_iterable(ramp(4, 3)))) == [1, 1, 1]
        assert count_layers(list(worker.schedule_iterable(ramp(4, 3), budget_ms=9))) == [1, 1, 1]
        assert count_layers(list(worker.schedule_iterable(ramp(4, 3)))) == [1, 1, 1]


def test_cpu_layers_are_packed_by_the_time_that_streams_report() -> None:
    layer_ms = [1.0] * 7 + [20.0] + [1.0] * 6
    backend = Backend(CpuDevice(clock=CLOCK), CPU, "for a test")
    x = ramp(4, 3)
    with gx.Worker(chain(*layer_ms), backend=backend) as worker:
        list(worker.schedule_iterable(x, budget_ms=3))
        worker.wait_for_completion()
        steps = list(worker.schedule_iterable(x, budget_ms=3.5))
        np.testing.assert_array_equal(worker.read_output(), x)
    assert count_layers(steps) == [3, 3, 1, 1, 3, 3]
    check_steps(steps, layer_ms, 3.5)


def test_progress_and_indices_count_layers() -> None:
    with gx.Worker(chain("Neg", "Relu", "Neg", "Relu"), backend=open_tracer()) as worker:
        list(worker.schedule_iterable(ramp(4, 3), budget_ms=3))
        seen = []
        for step in worker.schedule_iterable(ramp(4, 3), budget_ms=3):
            seen.append((step.index, len(step.nodes), worker.schedule_progress))
    assert seen == [(0, 3, 0.75), (3, 1, 1.0)]


def test_measuring_waits_for_nothing() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        x = ramp(2, 3)
        for _ in range(2):
            assert count_layers(list(worker.schedule_iterable(x, budget_ms=math.inf))) == [1, 1, 1]
        gate.set()
        worker.wait_for_completion()
        assert count_layers(list(worker.schedule_iterable(x, budget_ms=math.inf))) == [3]


def test_layers_of_the_host_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.execution.runs.run_executor.time", SimpleNamespace(perf_counter=CLOCK))
    with gx.Worker(chain("Relu", 8.0, "Relu", "Neg", 8.0, 2.0, "Neg"), backend=open_tracer()) as worker:
        first = list(worker.schedule_iterable(X, budget_ms=10.5))
        second = list(worker.schedule_iterable(X, budget_ms=10.5))
        calls = worker.report().host_calls
    assert count_layers(first) == [1] * 7
    assert [step.nodes for step in second] == [
        ("layer0", "layer1", "layer2"),
        ("layer3", "layer4"),
        ("layer5", "layer6"),
    ]
    assert {call.node: call.computed_ms for call in calls} == pytest.approx(
        {"layer1": 16.0, "layer4": 16.0, "layer5": 4.0}
    )


def branching() -> gx.Model:
    """Two layers, a branch that the device decides, and two more."""
    body = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["taken"], name="taken")],
        "taken",
        [],
        [helper.make_tensor_value_info("taken", 1, ("n", 3))],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("ReduceMax", ["b"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["is_large"], name="compare"),
        helper.make_node("If", ["is_large"], ["c"], name="if", then_branch=body, else_branch=body),
        helper.make_node("Relu", ["c"], ["y"], name="last"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, limit=np.float32(0))


def test_a_step_goes_on_behind_a_read_that_is_done() -> None:
    with gx.Worker(branching(), backend=open_tracer()) as worker:
        measured = list(worker.schedule_iterable(X, budget_ms=100))
        (step,) = worker.schedule_iterable(X, budget_ms=100)
    assert step.nodes == tuple([name for each in measured for name in each.nodes])
    assert step.nodes[0] == "exp" and step.nodes[-1] == "last"


def test_a_step_ends_where_it_has_to_wait() -> None:
    with gx.Worker(branching(), backend=CPU) as worker, gx.Worker(affine(), backend=CPU) as early:
        producer, gate = hold_worker(affine())
        with producer:
            measured: list[str] = []
            early.run(X)
            for step in worker.schedule_iterable(early.peek_output(), budget_ms=math.inf):
                measured += step.nodes
                worker.wait_for_completion()
            steps = worker.schedule_iterable(producer.schedule(X).peek_output(), budget_ms=math.inf)
            first, second = next(steps), next(steps)
            gate.set()
            rest = [step for step in steps if not step.waiting]
            expected = producer.read_output()
        np.testing.assert_allclose(worker.read_output(), np.maximum(-np.exp(expected), 0), rtol=1e-6)
    assert [first.nodes[0], first.nodes[-1], rest[-1].nodes[-1]] == ["exp", "most", "last"]
    assert second == gx.Step(len(first.nodes), (), True)
    assert [*first.nodes, *(name for step in rest for name in step.nodes)] == measured
    assert len(rest) == 1


@pytest.mark.parametrize("budget_ms", [-1.0, math.nan, "1"])
def test_a_budget_that_is_no_time_is_refused(worker: gx.Worker, budget_ms: float) -> None:
    with pytest.raises(gx.InputError, match="budget_ms"):
        worker.schedule_iterable(ramp(2, 3), budget_ms=budget_ms)


def test_a_failed_layer_reports_no_time() -> None:
    model, number = gated()
    GATES.open[number].set()
    GATES.failures[number] = ValueError("as told")
    with gx.Worker(model, backend=CPU) as worker:
        assert len(list(worker.schedule_iterable(ramp(2, 3), budget_ms=math.inf))) == 2
        with pytest.raises(gx.DeviceError, match="as told"):
            worker.wait_for_completion()
        assert count_layers(list(worker.schedule_iterable(ramp(2, 3), budget_ms=math.inf))) == [1, 1]
        worker.wait_for_completion()
        assert count_layers(list(worker.schedule_iterable(ramp(2, 3), budget_ms=math.inf))) == [2]


def test_a_timed_run_fails_with_the_run_it_takes_its_input_from() -> None:
    model, number = gated()
    GATES.failures[number] = ValueError("as told")
    with gx.Worker(model, backend=CPU) as producer, gx.Worker(affine(), backend=CPU) as consumer:
        pending = producer.schedule(ramp(2, 3)).peek_output()
        list(consumer.schedule_iterable(pending, budget_ms=1))
        GATES.open[number].set()
        with pytest.raises(gx.DeviceError, match="as told"):
            consumer.read_output()


def test_times_follow_measurements_by_halves() -> None:
    times = LayerTimes()
    assert times.find("a") is None
    seen = []
    for ms in (8.0, 4.0, 4.0):
        times.note("a", ms)
        seen.append(times.find("a"))
    assert seen == [8.0, 6.0, 5.0]
    assert times.find("b") is None
