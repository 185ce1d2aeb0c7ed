"""Replays: recorded once and submitted many times, as one graph, with memory of their own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.opening import make_simulator
from tests.execution.held import holding
from tests.execution.replay.replaying import SIMULATOR, on_both, read, take_calls
from tests.execution.runs.test_graphs_in_use import branches, expect_branches
from tests.model.small_models import CPU, affine, expect_affine, make_model, make_tracer, ramp, two_inputs, two_layers


@pytest.mark.feature("S32", "S33")
@on_both
def test_submission_gives_what_a_run_gives(type: gx.BackendType) -> None:
    with gx.Worker(branches(), backend=type) as worker, worker.record(ramp(4, 4)) as replay:
        np.testing.assert_array_equal(read(replay.submit()), expect_branches(ramp(4, 4)))
        for number in range(4):
            x = ramp(4, 4) + number
            made = replay.submit(x)
            assert made["y"].shape == (4, 4)
            np.testing.assert_array_equal(read(made), expect_branches(x))


@pytest.mark.feature("S32", "S33", "S34", "T8")
@on_both
def test_worker_and_replays_do_not_disturb_each_other(type: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=type) as worker:
        plain = [worker.run(ramp(5, 3) + number)[0] for number in range(4)]
        first, second = worker.record(ramp(5, 3)), worker.record(ramp(5, 3))
        for number in range(4):
            runs = [worker.schedule(ramp(5, 3) + number), first.submit(ramp(5, 3) + (number + 1) % 4)]
            runs.append(second.submit(ramp(5, 3) + (number + 2) % 4))
            tensors = [runs[0].peek_output(), runs[1]["y"], runs[2]["y"]]  # type: ignore[union-attr, index]
            for ahead, tensor in enumerate(tensors):
                np.testing.assert_array_equal(tensor.readback_and_clone(), plain[(number + ahead) % 4])
        assert worker.report().runs == 8, "a submission is no run of the Worker"


@pytest.mark.feature("S33")
@on_both
def test_inputs_not_given_stay(type: gx.BackendType) -> None:
    left, right = ramp(2, 3), ramp(2, 3) * 10
    with gx.Worker(two_inputs(), backend=type) as worker, worker.record({"left": left, "right": right}) as replay:
        replay.submit({"left": left + 1})
        made = replay.submit({"right": right + 5})
        np.testing.assert_array_equal(read(made, "sum"), left + 1 + right + 5)
        np.testing.assert_array_equal(read(replay.submit(), "difference"), left + 1 - right - 5)


def test_neighbours_from_the_host_go_in_one_copy_and_what_lies_between_stays() -> None:
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Sub", ["d", "c"], ["y"])]
    model, x = make_model(nodes, dict.fromkeys("abc", (2, 3)), {"y": (2, 3)}), ramp(2, 3)
    with gx.Worker(model, backend=SIMULATOR) as worker:
        replay = worker.record([x, 2 * x, 3 * x])
        np.testing.assert_array_equal(read(replay.submit({"a": x + 1, "c": x + 5})), (x + 1) - 2 * x - (x + 5))
        np.testing.assert_array_equal(read(replay.submit({"c": 7 * x, "b": x})), (x + 1) - x - 7 * x)
    backend = make_tracer()
    with gx.Worker(model, backend=backend) as worker:
        replay = worker.record([x, 2 * x, 3 * x])
        for names, copies in (("abc", 1), ("ab", 1), ("ac", 2), ("b", 1)):
            take_calls(backend)
            replay.submit(dict.fromkeys(names, x))
            assert take_calls(backend).count("copy_to_device") == copies


def test_input_recorded_by_its_shape_is_given_first() -> None:
    with gx.Worker(two_inputs(), backend=SIMULATOR) as worker:
        replay = worker.record({"left": (2, 3), "right": ramp(2, 3)})
        with pytest.raises(gx.InputError, match=r"'left' \(float32\[2,3\]\) has no content"):
            replay.submit({"right": ramp(2, 3)})
        made = replay.submit([ramp(2, 3) + 1])
        np.testing.assert_array_equal(read(made, "difference"), np.ones((2, 3), np.float32))


@pytest.mark.feature("S32", "S34", "T8")
@on_both
def test_outputs_are_good_until_the_next_submission(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker, worker.record(ramp(2, 3)) as replay:
        before = replay.submit()["y"]
        unread = replay.submit(ramp(2, 3) + 1)["y"]
        request = unread.readback_request()
        now = replay.submit(ramp(2, 3) + 2)["y"]
        with pytest.raises(gx.StaleError, match="belongs to an earlier run"):
            before.readback_request()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3) + 1))
        np.testing.assert_array_equal(now.readback_and_clone(), expect_affine(ramp(2, 3) + 2))
        worker.run(ramp(2, 3))
        assert now.readback_request().is_done(), "a run of the Worker's makes nothing of it stale"


def test_next_submission_waits_on_the_stream_for_readers() -> None:
    """The host does not wait, though the readback can't begin: its stream is held."""
    device = make_simulator()
    with gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        replay = worker.record(ramp(2, 3))
        made = replay.submit()["y"]
        with made._content.lease.transfers.lock:
            copies = made._content.lease.transfers.open()
        with holding(copies) as gate:
            request = made.readback_request()
            later = replay.submit(ramp(2, 3) + 7)["y"]
            assert not later.is_done()
            gate.set()
            np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
            np.testing.assert_array_equal(later.readback_and_clone(), expect_affine(ramp(2, 3) + 7))
    device.close()


@pytest.mark.feature("S32", "S33")
def test_replay_is_a_graph_at_once() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        take_calls(backend)
        replay = worker.record(ramp(2, 3))
        made, plans = take_calls(backend), worker.report().plans
        assert replay.has_graph and made.count("graph") == 1
        assert not {"launch", "graph launch"} & set(made) and worker.report().runs == 0
        replay.submit()
        assert take_calls(backend) == ["graph launch", "record"]
        replay.submit(ramp(2, 3))
        assert take_calls(backend) == ["copy_to_device", "graph launch", "record"]
        assert worker.report().plans == plans
        worker.run(ramp(2, 3))
        take_calls(backend)
        replay.close()
        assert take_calls(backend) == ["close graph"]


def test_device_without_graphs_replays_all_the_same() -> None:
    with gx.Worker(affine(), backend=CPU) as worker, worker.record(ramp(2, 3)) as replay:
        assert not replay.has_graph


def test_graphs_of_replays_are_not_closed_for_others() -> None:
    with gx.Worker(affine(), backend=make_tracer()) as worker, worker.record(ramp(2, 3)) as replay:
        worker._engine.planning.graphs.clear()
        assert replay.has_graph


def test_memory_is_its_own_and_given_back() -> None:
    device = make_simulator()
    with gx.Worker(two_layers(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        worker.run(ramp(5, 3))
        worker.wait_for_completion()
        before = worker.memory_stats()
        replay = worker.record(ramp(5, 3))
        assert replay.nbytes >= 5 * 3 * 4 + 5 * 5 * 4 + 5 * 2 * 4
        stats = worker.memory_stats()
        assert {name: stats[name] for name in ("arena", "frames", "weights")} == {
            name: before[name] for name in ("arena", "frames", "weights")
        }
        replay.close()
        assert replay.nbytes == 0
    device.close()
