"""Graphs of a Worker's plans: from the fourth run on, patched for each run, closed when memory is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.graph_cache import NODE_NBYTES
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.planner import layout
from tests.bench.decoders import make_gpt2
from tests.devices.opening import make_simulator
from tests.model.small_models import Array, make_model, make_tracer, ramp

SIMULATOR = gx.BackendType.SIMULATOR
BRANCHES = 8


def branches(rows: int | str = "n") -> gx.Model:
    """y = (the sum of relu(h @ w_i) over 8 branches) @ last, where h = x @ first; weights are small whole numbers."""
    nodes = [helper.make_node("MatMul", ["x", "first"], ["h"], name="stem")]
    total = ""
    for index in range(BRANCHES):
        nodes.append(helper.make_node("MatMul", ["h", f"w{index}"], [f"m{index}"], name=f"branch{index}"))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"], name=f"relu{index}"))
        if index:
            nodes.append(helper.make_node("Add", [total, f"r{index}"], [f"s{index}"], name=f"join{index}"))
        total = f"s{index}" if index else "r0"
    nodes.append(helper.make_node("MatMul", [total, "last"], ["y"], name="end"))
    return make_model(nodes, {"x": (rows, 4)}, {"y": (rows, 4)}, **_weights())


def expect_branches(x: Array) -> Array:
    weights = _weights()
    h = x @ weights["first"]
    total: Array = np.sum([np.maximum(h @ weights[f"w{index}"], 0) for index in range(BRANCHES)], axis=0)
    return total @ weights["last"]


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    names = ["first", "last", *(f"w{index}" for index in range(BRANCHES))]
    return {name: rng.integers(-2, 3, (4, 4)).astype(np.float32) for name in names}


def log_of(backend: Backend) -> list[tuple[Any, ...]]:
    assert isinstance(backend.device, TracerDevice)
    return backend.device.log


def count(backend: Backend) -> Counter[Any]:
    """Return the counts of calls made to the tracer, by name, and clear its log."""
    calls = Counter(row[0] for row in log_of(backend))
    log_of(backend).clear()
    return calls


def test_graph_is_in_use_from_the_fourth_run_on() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        commands = len(worker.prepare((4, 4)).segment.commands)  # type: ignore[union-attr]
        count(backend)
        for number in range(6):
            worker.schedule(ramp(4, 4) + number)
            calls = count(backend)
            assert calls["launch"] == (commands if number < 3 else 0)
            assert calls["graph"] == (number == 3)
            assert calls["graph launch"] == (number >= 3)


def test_new_inputs_patch_what_reads_and_writes_them_and_make_nothing() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        for _ in range(5):
            worker.schedule(ramp(4, 4))
        count(backend)
        worker.schedule(ramp(4, 4) + 1)
        calls = count(backend)
    assert calls["node"] == 2, "the stem reads the input, and the end writes the output"
    assert not {"graph", "launch", "load", "allocate", "synchronize"} & set(calls)


def test_frames_have_a_graph_each_and_no_node_is_updated() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        for number in range(10):
            worker.schedule(ramp(4, 4) + number)
        count(backend)
        for number in range(6):
            worker.schedule(ramp(4, 4) - number)
        calls = count(backend)
        assert worker.report().graphs == 2
    assert calls["graph launch"] == 6 and not {"graph", "node"} & set(calls)


def test_new_size_of_the_class_patches_the_same_graph() -> None:
    backend = make_tracer(launch_us=10.0)
    with gx.Worker(branches(), backend=backend) as worker:
        for rows in (7, 8, 7, 8, 7):
            worker.schedule(ramp(rows, 4))
        count(backend)
        plans = len(worker.plans)
        worker.schedule(ramp(6, 4))
        calls = count(backend)
        assert len(worker.plans) == plans
    assert calls["node"] > 2 and calls["graph launch"] == 1 and "graph" not in calls


@pytest.fixture
def wide_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let branches of small commands have bytes of their own, as those of heavy ones do."""
    monkeypatch.setattr(layout, "HEAVY_BYTES", 1)


@pytest.mark.usefixtures("wide_layout")
def test_branches_of_the_model_are_branches_of_the_graph() -> None:
    backend = make_tracer()
    with gx.Worker(branches(4), backend=backend) as worker:
        plan = worker.prepare()
        assert plan is not None
        for _ in range(4):
            worker.schedule(ramp(4, 4))
        (row,) = [row for row in log_of(backend) if row[0] == "graph"]
    after = _find_after(row[2], row[3])
    origins = plan.segment.origins
    starts = [origins.index(f"branch{index}+relu{index}") for index in range(BRANCHES)]
    apart = [(a, b) for a in starts for b in starts if b not in after[a] and a not in after[b] and a != b]
    assert len(apart) == BRANCHES * (BRANCHES - 1), "no path joins any two"
    assert all(start in after[origins.index("stem")] for start in starts)


def _find_after(nodes: int, edges: Sequence[tuple[int, int]]) -> list[set[int]]:
    after: list[set[int]] = [set() for _ in range(nodes)]
    for node in reversed(range(nodes)):
        for first, second in edges:
            if first == node:
                after[node] |= {second} | after[second]
    return after


@pytest.mark.usefixtures("wide_layout")
def test_branches_run_in_many_orders_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    issue = SimulatorStream.issue_graph

    def watch(self: SimulatorStream, nodes: Any, order: Any, before: Any) -> None:
        orders.append(tuple(order))
        issue(self, nodes, order, before)

    monkeypatch.setattr(SimulatorStream, "issue_graph", watch)
    device = make_simulator(check_order=True)
    with gx.Worker(branches(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        for number in range(12):
            x = ramp(4, 4) + number
            np.testing.assert_array_equal(worker.run(x)[0], expect_branches(x))
    device.close()
    assert len(orders) == 9
    assert len(set(orders)) == 9, "of very many"
    plan = worker.plans[0].segment.origins
    first, second = plan.index("branch0+relu0"), plan.index("branch7+relu7")
    assert {order.index(first) < order.index(second) for order in orders} == {True, False}


def test_outputs_held_back_by_readers_are_right_in_both_frames() -> None:
    with gx.Worker(branches(), backend=SIMULATOR) as worker:
        requests = []
        for number in range(10):
            requests.append(worker.schedule(ramp(4, 4) + number).peek_output().readback_request())
        for number, request in enumerate(requests):
            np.testing.assert_array_equal(request.result(), expect_branches(ramp(4, 4) + number))


def test_steps_between_runs_are_launches() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        for _ in range(5):
            worker.schedule(ramp(4, 4))
        count(backend)
        steps = sum(len(step.nodes) for step in worker.schedule_iterable(ramp(4, 4)))
        calls = count(backend)
        assert steps > BRANCHES and calls["launch"] and not calls["graph launch"]
        worker.schedule(ramp(4, 4))
        assert count(backend)["graph launch"] == 1


def test_synchronous_worker_uses_no_graph() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend, synchronous=True) as worker:
        for _ in range(6):
            worker.schedule(ramp(4, 4))
    assert not {"graph", "graph launch"} & set(count(backend))


@pytest.mark.parametrize("precision", ["fp16", "strict"])
def test_attention_over_a_cache_keeps_its_nodes_at_every_length(precision: str) -> None:
    bench = replace(make_gpt2(layers=3, past=3, capacity=200, width=96, vocabulary=100), precision=precision)
    given = {name: array for name, array in bench.inputs.items() if name not in bench.state.values()}
    backend = make_tracer()
    with gx.Worker(bench.load(), backend=backend) as worker:
        for _ in range(150):
            count(backend)
            worker.schedule(given)
        calls, report = count(backend), worker.report()
    assert calls["launch"] == calls["graph launch"] == 1, "the one that stores the length"
    assert not calls["node"] and report.graphs == 2
    updated = {(kernel, why): times for kernel, why, times in report.nodes_updated}
    # Of three layers and two graphs: for a size that is planned by itself, and for one behind it, which is a row again.
    assert updated["attend_few", "size"] <= 3 * 2 * 2 * report.variants
    assert not {"attend_few"} & {kernel for kernel, why, _ in report.nodes_updated if why == "address"}
    assert report.graph_launches > 140


def test_trim_and_close_give_graphs_back() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        graphs = worker._engine.planning.graphs
        for _ in range(4):
            worker.schedule(ramp(4, 4))
        assert graphs.count == 1 and graphs.nbytes > 0
        worker.trim()
        assert (graphs.count, graphs.nbytes) == (0, 0) and count(backend)["close graph"] == 1
        for _ in range(4):
            worker.schedule(ramp(4, 4))
        assert graphs.count == 1
    assert graphs.count == 0 and count(backend)["close graph"] == 1


def test_report_reports_graphs_and_of_those_there_was_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise gx.OutOfMemoryError("no room")

    for is_refused in (False, True):
        backend = make_tracer()
        if is_refused:
            monkeypatch.setattr(backend.device, "create_graph", refuse)
        with gx.Worker(branches(), backend=backend) as worker:
            for _ in range(6):
                worker.schedule(ramp(4, 4))
            report = worker.report()
            assert (report.graphs, report.graphs_refused) == ((0, 1) if is_refused else (1, 0))
            assert ("graphs there was no memory for 1" if is_refused else "  graphs 1") in worker.summary()


def test_larger_plan_closes_graphs_over_the_old_arena() -> None:
    """A larger plan moves the arena; the graph over the old one is of no use any more."""
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        for _ in range(4):
            worker.schedule(ramp(4, 4))
        count(backend)
        worker.schedule(ramp(3000, 4))
        assert count(backend)["close graph"] == 1
        assert worker._engine.planning.graphs.count == 0


def test_graphs_of_all_plans_share_the_cap() -> None:
    backend = make_tracer()
    with gx.Worker(branches(), backend=backend) as worker:
        worker.prepare((3000, 4))
        commands = len(worker.prepare((4, 4)).segment.commands)  # type: ignore[union-attr]
        graphs = worker._engine.planning.graphs
        graphs.capacity_bytes = commands * NODE_NBYTES
        for rows in (4, 3000):
            for _ in range(4):
                worker.schedule(ramp(rows, 4))
        assert graphs.count == 1
        calls = count(backend)
        assert (calls["graph"], calls["close graph"]) == (2, 1)
        launches = []
        for _ in range(4):
            worker.schedule(ramp(4, 4))
            launches.append(count(backend)["graph launch"])
        assert launches == [0, 0, 0, 1], "it comes back"
