"""Synchronous Workers: each command finished before the next, and a failing one named at the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.recorder.tracer import TracerEvent
from tests.devices.cupy_standin import Standin, install
from tests.devices.opening import make_simulator
from tests.execution.test_mid_run_faults import CALLING, FAULTY, load
from tests.model.small_models import CPU, affine, expect_affine, make_tracer, ramp
from tests.model.staged_models import MODELS, inputs
from tests.ops.operators import CALLED

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.fixture(params=["cpu", "simulator", "standin"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend of the test's own; ``standin`` is the code for GPUs over a simulator."""
    if request.param == "cpu":
        yield Backend(CpuDevice(), CPU, "for a test")
        return
    below = make_simulator()
    if request.param == "simulator":
        yield Backend(below, SIMULATOR, "for a test")
    else:
        from gpuexec.devices.cuda.cuda import CudaDevice

        install(monkeypatch, Standin(below, architecture=(8, 0)))
        device = CudaDevice()
        yield Backend(device, gx.BackendType.GPU_COMPUTE, "for a test")
        device.close()
    below.close()


@pytest.mark.parametrize("way", ["schedule", "schedule_iterable"])
@pytest.mark.parametrize("name", ["affine", "scan"])
def test_each_command_is_finished_before_the_next(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    log: Any = backend.device.log  # type: ignore[attr-defined]
    monkeypatch.setattr(TracerEvent, "synchronize", lambda self, timeout_s=None: log.append(("finish",)) or True)
    model, x = (affine(), ramp(2, 3)) if name == "affine" else (MODELS[name].load(), inputs(0))
    with gx.Worker(model, backend=backend, synchronous=True) as worker:
        if way == "schedule":
            worker.schedule(x)
        else:
            list(worker.schedule_iterable(x))
    kinds = [row[0] for row in log]
    launches = [index for index, kind in enumerate(kinds) if kind == "launch"]
    assert len(launches) >= 3
    for index in launches:
        assert kinds[index + 1 : index + 3] == ["record", "finish"]


def test_ordinary_run_finishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    finished: list[object] = []
    monkeypatch.setattr(TracerEvent, "synchronize", lambda self, timeout_s=None: finished.append(self) or True)
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ramp(2, 3))
        assert finished == []


@pytest.mark.feature("B17")
def test_synchronous_run_is_done_at_the_call(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, synchronous=True) as worker:
        run = worker.schedule(ramp(2, 3))
        assert run.is_done()
        np.testing.assert_array_equal(worker.read_output(), expect_affine(ramp(2, 3)))


@pytest.mark.parametrize("name", MODELS)
def test_synchronous_run_of_several_plans_is_done_at_the_call(name: str, backend: Backend) -> None:
    staged, x = MODELS[name], inputs(1)
    with gx.Worker(staged.load(), backend=backend, synchronous=True) as worker:
        run = worker.schedule(x)
        assert run.is_done() and run.peek_output().shape == staged.expect(x)[0].shape
        staged.check(x, [tensor.readback_and_clone() for tensor in run.outputs.values()])


@pytest.mark.feature("B17")
def test_failing_function_is_named_at_the_call(backend: Backend) -> None:
    def fail(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise ZeroDivisionError("no more numbers")

    with gx.Worker(load(CALLING), backend=backend, synchronous=True) as worker:
        CALLED["in the middle"] = fail
        with pytest.raises(gx.DeviceError, match=r"Call_1.*no more numbers") as caught:
            worker.schedule(inputs(0))
        assert caught.value.node == "Call_1"
        CALLED["in the middle"] = np.negative
        np.testing.assert_array_equal(worker.run(inputs(0))[1], -np.maximum(inputs(0), 0))


def test_launch_whose_fault_the_next_call_reports_is_named(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU may have met the fault of a launch when the event behind it is made."""
    worker = gx.Worker(load(FAULTY), backend=backend, synchronous=True)
    issued, create = [], backend.device.create_event
    record = backend.device.record

    def create_or_fail() -> Any:
        if issued:
            raise gx.DeviceError("creating an event failed")
        return create()

    def record_noting(*given: Any) -> Any:
        recording = record(*given)
        submit = recording.submit

        def submit_noting(*arguments: Any) -> None:
            issued.append(arguments)
            submit(*arguments)

        monkeypatch.setattr(recording, "submit", submit_noting)
        return recording

    monkeypatch.setattr(backend.device, "create_event", create_or_fail)
    monkeypatch.setattr(backend.device, "record", record_noting)
    with pytest.raises(gx.DeviceError, match="creating an event failed") as caught:
        worker.schedule(inputs(0))
    assert caught.value.node
    monkeypatch.undo()
    worker.close()


def test_failing_launch_is_named_at_the_call(backend: Backend) -> None:
    # The CPU computes what others launch; its error does not end the device.
    expected = gx.DeviceLostError if backend.device.target.has_kernels else gx.DeviceError
    worker = gx.Worker(load(FAULTY), backend=backend, synchronous=True)
    with pytest.raises(expected, match="Fault_1") as caught:
        worker.schedule(inputs(0))
    assert caught.value.node == "Fault_1"
    worker.close()
