"""Necessity of every wait: the simulator refuses a run with any one of them left out."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.deferred_free import DeferredFree
from gpuexec.devices.simulator.stream import SimulatorEvent, SimulatorStream
from gpuexec.devices.staging import Staging
from gpuexec.errors import OrderError
from gpuexec.execution.results.readback import ReadbackRequest
from tests.devices.opening import make_simulator
from tests.model.small_models import affine, expect_affine, make_model, ramp

X = ramp(2, 3)


class Stage:
    """Workers on a simulator of their own, whose streams are held until `go`: nothing is done before."""

    def __init__(self) -> None:
        self.device = make_simulator()
        self.backend = Backend(self.device, gx.BackendType.SIMULATOR, "for a test")
        self._stack, self._gates = contextlib.ExitStack(), list[threading.Event]()

    def open(self, model: gx.Model, *, is_prepared: bool = True, **options: Any) -> gx.Worker:
        """Return a Worker whose stream is held now; one that is prepared has done all that comes once."""
        stream = self.device.create_stream()
        worker = self._stack.enter_context(gx.Worker(model, backend=self.backend, stream=stream, **options))
        if is_prepared:
            worker.prepare(X.shape)
            stream.synchronize()
        self._gates.append(stream.hold())
        return worker

    def go(self) -> None:
        for gate in self._gates:
            gate.set()

    def close(self) -> list[str]:
        """End it all; return what was found."""
        self.go()
        with contextlib.suppress(OrderError):
            self._stack.close()
        gc.collect()
        found = [str(finding) for finding in self.device.context.ordering.findings]
        self.device.close()
        return found


def read_back(stage: Stage) -> None:
    request = stage.open(affine()).schedule(X).peek_output().readback_request()
    stage.go()
    np.testing.assert_array_equal(request.result(), expect_affine(X))


def run_while_read(stage: Stage) -> None:
    worker = stage.open(affine(), frames=1)
    request = worker.schedule(X).peek_output().readback_request()
    worker.schedule(X + 1)
    stage.go()
    np.testing.assert_array_equal(request.result(), expect_affine(X))


def chain(stage: Stage) -> None:
    producer, consumer = stage.open(affine(), frames=1), stage.open(affine(), frames=1)
    request = consumer.schedule(producer.schedule(X).peek_output()).peek_output().readback_request()
    producer.schedule(X + 5)
    stage.go()
    np.testing.assert_array_equal(request.result(), expect_affine(expect_affine(X)))


def share_weights(stage: Stage) -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "one"], ["y"], name="add")], {"x": X.shape}, {"y": X.shape}, one=np.float32(1)
    )
    first, second = (stage.open(model, is_prepared=False) for _ in range(2))
    first.schedule(X)
    request = second.schedule(X).peek_output().readback_request()
    stage.go()
    np.testing.assert_array_equal(request.result(), X + 1)


def copy_and_upload(stage: Stage) -> None:
    worker = stage.open(affine(), frames=1)
    worker.schedule(X)
    copied = worker.copy_output()
    first = copied.readback_request()
    copied.upload(X[:1])
    last = copied.readback_request()
    worker.schedule(X + 1)
    stage.go()
    np.testing.assert_array_equal(first.result(), expect_affine(X))
    np.testing.assert_array_equal(last.result(), [X[0], expect_affine(X)[1]])


# And the waits of a stream for another that each takes.
SCENARIOS = [(read_back, 1), (run_while_read, 2), (chain, 3), (share_weights, 2), (copy_and_upload, 2)]


class Waits:
    """Counts the waits that tell a stream something new, and leaves one of them out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left_out: int | None = None) -> None:
        self.count, wait = 0, SimulatorStream.wait

        def count(stream: SimulatorStream, event: SimulatorEvent) -> None:
            known = stream._timeline.known
            others = [(other, tick) for other, tick in event.mark.items() if other is not stream._timeline]
            is_new = any(tick > max(known.get(other, 0), other.seen) for other, tick in others)
            if is_new:
                self.count += 1
            if not is_new or self.count - 1 != left_out:
                wait(stream, event)

        monkeypatch.setattr(SimulatorStream, "wait", count)


@pytest.mark.parametrize(("scenario", "count"), SCENARIOS)
def test_each_wait_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Stage], None], count: int
) -> None:
    with monkeypatch.context() as patch:
        stage, waits = Stage(), Waits(patch)
        scenario(stage)
        assert (stage.close(), waits.count) == ([], count)
    for left_out in range(count):
        with monkeypatch.context() as patch:
            stage, waits = Stage(), Waits(patch, left_out)
            with contextlib.suppress(OrderError, AssertionError):
                scenario(stage)
            assert stage.close(), f"wait {left_out} of {count} is not missed"


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def test_result_read_without_waiting_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    request = stage.open(affine()).schedule(X).peek_output().readback_request()
    with monkeypatch.context() as patch:
        patch.setattr(ReadbackRequest, "wait", lambda self, timeout_s=None: True)
        with pytest.raises(OrderError, match=r"The host reads bytes 0 to 24 .* which copy of 24 bytes .* writes"):
            request.result()


def test_staging_used_again_without_waiting_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = Staging.give_back
    worker = stage.open(affine())
    monkeypatch.setattr(Staging, "give_back", lambda self, memory, event=None: give_back(self, memory))
    worker.schedule(X)
    worker.schedule(X)  # gives the first one's block back
    with pytest.raises(OrderError, match=r"The host writes bytes .* of pinned memory .* which copy of 256 bytes"):
        worker.schedule(X)


def test_staging_of_uploads_used_again_without_waiting_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = Staging.give_back
    worker = stage.open(affine())
    monkeypatch.setattr(Staging, "give_back", lambda self, memory, event=None: give_back(self, memory))
    worker.schedule(X)
    copied = worker.copy_output()
    copied.upload(X)
    with pytest.raises(
        OrderError, match=r"The host writes bytes 0 to 24 .* of pinned memory .* which copy of 24 bytes"
    ):
        copied.upload(X)


def test_tensor_dropped_without_keeping_its_bytes_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stage.open(affine())
    monkeypatch.setattr(DeferredFree, "hold", lambda self, event, *objects: None)
    worker.schedule(X)
    copied = worker.copy_output()
    copied.close()
    del copied
    gc.collect()
    with pytest.raises(OrderError, match=r"The host frees bytes 0 to 24 of 24 .* which copy of 24 bytes .* writes"):
        worker.schedule(X)


def test_worker_closed_without_waiting_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stage.open(affine())
    worker.schedule(X)
    with monkeypatch.context() as patch:
        patch.setattr(SimulatorEvent, "synchronize", lambda self, timeout_s=None: True)
        with pytest.raises(OrderError, match=r"The host frees .* of device memory"):
            worker.close()
