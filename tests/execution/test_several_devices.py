"""Several devices at once: each with weights, streams, memory and faults of its own."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.opening import SCALE_SOURCE, list_kernels
from tests.model.small_models import CPU, Array, affine, expect_affine, make_tracer, ramp, two_layers

SIMULATOR = gx.BackendType.SIMULATOR
X = ramp(4, 3)


def expect_layers(x: Array) -> Array:
    return np.maximum(x @ ramp(3, 5), 0) @ ramp(5, 2)


def test_worker_runs_on_the_device_asked_for() -> None:
    for ordinal in (0, 1):
        with gx.Worker(affine(), backend=SIMULATOR, device=ordinal) as worker:
            np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
            assert worker._backend is open_backend(SIMULATOR, ordinal)
    assert open_backend(SIMULATOR, 0).device is not open_backend(SIMULATOR, 1).device
    assert open_backend(SIMULATOR) is open_backend(SIMULATOR, 0)


def test_name_distinguishes_devices() -> None:
    names = [open_backend(SIMULATOR, ordinal).device.name for ordinal in (0, 1)]
    assert names == ["simulator (sm_90)", "simulator 1 (sm_90)"]


@pytest.mark.parametrize(
    ("backend", "reported"),
    [(CPU, "There is no CPU 9; there is 0"), (SIMULATOR, r"There is no simulator 9; there is 0 \(simulated\), 1")],
)
def test_device_that_is_not_there_is_refused_with_what_is(backend: gx.BackendType, reported: str) -> None:
    with pytest.raises(gx.DeviceNotFoundError, match=reported):
        gx.Worker(affine(), backend=backend, device=9)


@pytest.mark.parametrize("wrong", [-1, True, "cuda:1", 1.0])
@pytest.mark.parametrize("backend", [CPU, SIMULATOR, gx.BackendType.AUTO])
def test_what_is_no_ordinal_is_refused(wrong: object, backend: gx.BackendType) -> None:
    with pytest.raises(gx.InputError, match="device must be an ordinal"):
        gx.Worker(affine(), backend=backend, device=wrong)  # type: ignore[arg-type]


def test_backend_of_another_ordinal_is_refused() -> None:
    with pytest.raises(gx.InputError, match="device=0 is not that of"):
        gx.Worker(affine(), backend=open_backend(SIMULATOR, 1), device=0)


def test_weights_and_memory_are_each_devices_own() -> None:
    model = two_layers()
    backends = [Backend(SimulatorDevice(list_kernels, ordinal=each), SIMULATOR, "for a test") for each in (0, 1)]
    one, other = (gx.Worker(model, backend=backend) for backend in backends)
    np.testing.assert_array_equal(one.run(X)[0], expect_layers(X))
    assert one.memory_stats()["weights"] > 0 == other.memory_stats()["weights"] == other.memory_stats()["pinned"]
    np.testing.assert_array_equal(other.run(X)[0], expect_layers(X))
    other.close()
    np.testing.assert_array_equal(one.run(X)[0], expect_layers(X))
    one.close()
    for backend in backends:
        backend.device.close()


def test_pending_tensor_goes_to_another_device_without_a_wait() -> None:
    with (
        gx.Worker(affine(), backend=SIMULATOR, device=0) as one,
        gx.Worker(affine(), backend=SIMULATOR, device=1) as other,
    ):
        y = other.schedule(one.schedule(X).peek_output()).peek_output()
        back = one.schedule(y).peek_output()
        np.testing.assert_array_equal(back.readback_and_clone(), expect_affine(expect_affine(expect_affine(X))))
        assert one.report().host_syncs == other.report().host_syncs == ()


def test_two_devices_run_from_two_threads() -> None:
    model, answers = two_layers(), {}

    def run(ordinal: int) -> None:
        with gx.Worker(model, backend=SIMULATOR, device=ordinal) as worker:
            answers[ordinal] = [worker.run(X + number)[0] for number in range(20)]

    threads = [threading.Thread(target=run, args=(ordinal,)) for ordinal in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ordinal in (0, 1):
        for number, got in enumerate(answers[ordinal]):
            np.testing.assert_array_equal(got, expect_layers(X + number))


def test_device_that_is_lost_takes_no_other_along() -> None:
    model = affine()
    backends = [Backend(SimulatorDevice(list_kernels, ordinal=each), SIMULATOR, "for a test") for each in (0, 1)]
    with gx.Worker(model, backend=backends[1]) as other:
        broken = gx.Worker(model, backend=backends[0])
        broken.run(X)
        device, kernel = backends[0].device, Kernel(SCALE_SOURCE, "fault")
        device.load([kernel])
        stream = device.create_stream()
        stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), (1, 1, 1)), PackedArguments([None]))
        with pytest.raises(gx.DeviceLostError):
            stream.synchronize()
        with pytest.raises(gx.DeviceLostError):
            broken.run(X)
        np.testing.assert_array_equal(other.run(X)[0], expect_affine(X))
        broken.close()
    for backend in backends:
        backend.device.close()


def test_array_of_another_device_is_refused_by_name() -> None:
    backend = make_tracer()

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (dlpack.CUDA, 1)

        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("never asked for")

    with (
        gx.Worker(affine(), backend=backend) as worker,
        pytest.raises(gx.InputError, match="Input 'x': it lies on GPU 1, the Worker runs on GPU 0; copy it there"),
    ):
        worker.schedule(Elsewhere())


def test_exported_tensor_names_its_device() -> None:
    with gx.Worker(affine(), backend=SIMULATOR, device=1) as worker:
        assert worker.schedule(X).peek_output().__dlpack_device__() == (dlpack.CUDA, 1)
        worker.wait_for_completion()


def test_stream_of_another_device_is_refused() -> None:
    stream = open_backend(SIMULATOR, 1).device.create_stream()
    with pytest.raises(gx.InputError, match=r"expected .* a stream of the device"):
        gx.Worker(affine(), backend=SIMULATOR, device=0, stream=stream)
