"""Stream order of replay submissions: only streams and events order them."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.recorder.tracer import TracerEvent
from tests.devices.opening import make_simulator
from tests.execution.held import holding
from tests.execution.replay.replaying import SIMULATOR, Buffer, StreamBuffer, float32, on_both, read, take_calls
from tests.execution.runs.test_graphs_in_use import branches, expect_branches
from tests.model.small_models import affine, expect_affine, make_tracer, ramp, two_layers


def test_submission_is_in_the_order_of_the_stream_it_is_given() -> None:
    """Nothing but the stream orders the caller's writes and reads with the run; the checker of the order agrees."""
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    x, y = Buffer(backend, float32(4, 4)), Buffer(backend, float32(4, 4))
    with gx.Worker(branches(), backend=backend) as worker:
        mine = device.create_stream()
        replay = worker.record(x, outputs={"y": y}, stream=mine)
        got = []
        for number in range(3):
            x.write(mine, ramp(4, 4) + number)
            replay.submit()
            got.append(y.read(mine))
        mine.synchronize()
        for number, array in enumerate(got):
            np.testing.assert_array_equal(array, expect_branches(ramp(4, 4) + number))
        y.read(device.create_stream())
        with pytest.raises(gx.OrderError):
            replay.submit()
    device.close()


def test_another_stream_waits_for_the_submission_before() -> None:
    device = make_simulator(check_order=True)
    with gx.Worker(two_layers(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        expected = worker.run(ramp(5, 3))[0]
        first, second = device.create_stream(), device.create_stream()
        replay = worker.record((5, 3))
        with holding(first) as gate:
            replay.submit(ramp(5, 3) + 1, stream=first)
            later = replay.submit(ramp(5, 3), stream=second.handle)["y"]
            assert not later.is_done()
            gate.set()
            np.testing.assert_array_equal(later.readback_and_clone(), expected)
    device.close()


def test_pending_tensor_of_the_same_stream_takes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker, gx.Worker(affine(), backend=backend) as other:
        replay = worker.record((2, 3))
        monkeypatch.setattr(TracerEvent, "is_done", lambda self: False)
        here, there = worker.schedule(ramp(2, 3)).peek_output(), other.schedule(ramp(2, 3)).peek_output()
        take_calls(backend)
        replay.submit(here)
        assert take_calls(backend) == ["node", "graph launch", "record"]
        replay.submit(there)
        assert take_calls(backend) == ["wait", "node", "graph launch", "record"]
        monkeypatch.undo()


@on_both
def test_pending_tensor_is_waited_for_on_the_stream(type: gx.BackendType) -> None:
    backend = open_backend(type)
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=type, stream=stream) as maker, gx.Worker(affine(), backend=type) as worker:
        replay = worker.record((2, 3))
        with holding(stream) as gate:
            made = replay.submit(maker.schedule(ramp(2, 3)).peek_output())["y"]
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(expect_affine(ramp(2, 3))))
            assert worker.report().host_syncs == ()


def test_maker_of_an_input_waits_before_it_writes_it_again() -> None:
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    mine = device.create_stream()
    with gx.Worker(affine(), backend=backend, frames=1) as maker, gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record((2, 3), stream=mine)
        with holding(mine) as gate:
            made = replay.submit(maker.schedule(ramp(2, 3)).peek_output())["y"]
            newer = maker.schedule(ramp(2, 3) + 1)
            assert not newer.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(expect_affine(ramp(2, 3))))
    device.close()


def test_device_array_given_before_is_waited_for_anew() -> None:
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    x = StreamBuffer(backend, float32(2, 3))
    x.write(x.stream, ramp(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(x)
        made = replay.submit()["y"]
        np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3)))
        made.wait()
        with holding(x.stream) as gate:
            x.write(x.stream, ramp(2, 3) + 4)
            made = replay.submit()["y"]
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3) + 4))
    device.close()


def test_stale_tensor_given_before_is_refused() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        replay = worker.record(y)
        worker.schedule(ramp(2, 3))
        with pytest.raises(gx.StaleError, match=r"'x'.*belongs to an earlier run"):
            replay.submit()
        np.testing.assert_array_equal(read(replay.submit(ramp(2, 3))), expect_affine(ramp(2, 3)))
