"""Failure and end of replays: closed, dropped, or with a lost device."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.operations import Operation
from tests.devices.opening import make_simulator
from tests.execution.held import holding
from tests.execution.replay.replaying import SIMULATOR, on_both, read, take_calls
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, make_tracer, ramp, two_layers


def test_failure_belongs_to_its_submission() -> None:
    model, number = gated()
    with gx.Worker(model, backend=CPU) as worker, worker.record(ramp(2, 3)) as replay:
        GATES.open[number].set()
        GATES.failures[number] = ValueError("on purpose")
        with pytest.raises(gx.DeviceError, match=r"'gate'.* failed on the host: ValueError: on purpose"):
            read(replay.submit())
        np.testing.assert_array_equal(read(replay.submit()), ramp(2, 3) + 1)


@pytest.mark.feature("S32", "S34", "T8")
@on_both
def test_close_waits_and_ends_it(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        replay = worker.record(ramp(2, 3))
        made = replay.submit()["y"]
        request = made.readback_request()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))  # no run of the Worker's
        replay.close()
        replay.close()
        with pytest.raises(gx.ClosedError, match="The Replay, or its Worker, is closed"):
            replay.submit()
        with pytest.raises(gx.ClosedError, match="its Replay is closed"):
            made._content.check()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
        np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


def test_worker_closes_its_replays() -> None:
    worker = gx.Worker(affine(), backend=SIMULATOR)
    replay = worker.record(ramp(2, 3))
    replay.submit()
    worker.close()
    with pytest.raises(gx.ClosedError, match="The Replay, or its Worker, is closed"):
        replay.submit()


def test_replay_that_is_dropped_gives_its_graph_back() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        held = [worker.record(ramp(2, 3))]
        watch = weakref.ref(held[0])
        take_calls(backend)
        with pytest.warns(
            ResourceWarning, match=r"A Replay of 'small', made at .*test_replay_life.py:.* was never closed"
        ):
            _drop(held)
        assert watch() is None and take_calls(backend) == ["close graph"]
        pinned = backend.staging.nbytes
        backend.staging.trim()
        assert backend.staging.nbytes < pinned, "its pinned blocks are nobody's"


def _drop(held: list[gx.Replay]) -> None:
    held.clear()
    gc.collect()


def test_device_that_is_lost_says_so_and_closes() -> None:
    device = make_simulator()
    worker = gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test"))
    replay = worker.record(ramp(2, 3))
    _lose(device)
    with pytest.raises(gx.DeviceLostError):
        replay.submit()
    replay.close()
    with pytest.raises(gx.ClosedError):
        replay.submit()


def _lose(device: SimulatorDevice) -> None:
    device.context.lose(Operation("a kernel", lambda: None), RuntimeError("on purpose"))


def test_replay_and_outputs_that_are_dropped_leave_their_bytes_to_what_is_under_way() -> None:
    device = make_simulator(check_order=True)
    stream = device.create_stream()
    with gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        with holding(stream) as gate:
            held = [worker.record(ramp(2, 3), stream=stream)]
            with pytest.warns(ResourceWarning, match="A Replay of 'small'"):
                _drop(held)
            held = [worker.record((2, 3), stream=stream)]
            held[0].submit(ramp(2, 3))
            with pytest.warns(ResourceWarning, match="A Replay of 'small'"):
                _drop(held)
            gate.set()
            stream.synchronize()
        np.testing.assert_array_equal(worker.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))
    device.close()


def test_output_read_by_steps_of_this_thread_is_not_waited_for() -> None:
    """Nobody else would finish the steps; the pinned block of what was given comes back."""
    with gx.Worker(affine(), backend=SIMULATOR) as worker, gx.Worker(two_layers(), backend=SIMULATOR) as other:
        replay = worker.record((5, 3))
        expected = other.run(expect_affine(ramp(5, 3)))[0]
        free = len(replay._bound.home._blocks)
        steps = other.schedule_iterable(replay.submit(ramp(5, 3))["y"])
        next(steps)
        with pytest.raises(gx.StateError, match="finish iterating"):
            replay.submit(ramp(5, 3) + 1)
        assert len(replay._bound.home._blocks) == free
        list(steps)
        np.testing.assert_array_equal(other.read_output(), expected)
        np.testing.assert_array_equal(read(replay.submit(ramp(5, 3) + 2)), expect_affine(ramp(5, 3) + 2))
