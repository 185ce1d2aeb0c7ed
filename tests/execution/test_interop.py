"""Arrays of other packages, in and out, with their streams; Workers chained through pending Tensors on every device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.recorder.tracer import TracerDevice
from tests.devices.foreign_arrays import CudaStreamArray, DeviceArray, DlpackArray, HostOnly, InterfaceArray
from tests.model.small_models import (
    CPU,
    affine,
    expect_affine,
    hold,
    make_model,
    make_tracer,
    ramp,
    trace,
    two_inputs,
)

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.mark.feature("S39")
@pytest.mark.parametrize("is_versioned", [True, False], ids=["1.0", "before 1.0"])
def test_host_array_comes_in_by_dlpack(is_versioned: bool, backend: Backend) -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(HostOnly(x, is_versioned=is_versioned))[0], expect_affine(x))
        np.testing.assert_array_equal(worker.run(HostOnly(x, device=dlpack.CUDA_HOST))[0], expect_affine(x))


def test_bfloat16_comes_in_by_dlpack() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    x = ramp(2, 3).astype(ml_dtypes.bfloat16)
    with gx.Worker(make_model(nodes, {"x": (2, 3)}, {"y": (2, 3)}, TensorProto.BFLOAT16), backend=CPU) as worker:
        np.testing.assert_array_equal(worker.run(HostOnly(x))[0], x + x)


def test_dlpack_array_is_let_go_of_once_copied() -> None:
    x = ramp(2, 3)
    given = HostOnly(x)
    gone = weakref.ref(given)
    with gx.Worker(affine(), backend=CPU) as worker:
        worker.run(given)
        del given
        gc.collect()
        assert gone() is None


def test_host_backend_refuses_device_arrays_by_name() -> None:
    tracer = make_tracer()
    with gx.Worker(affine(), backend=CPU) as worker:
        for given in (CudaStreamArray(tracer, ramp(2, 3)), InterfaceArray(tracer, ramp(2, 3))):
            with pytest.raises(gx.InputError, match=r"Input 'x'.*cpu can't read; copy it to the host"):
                worker.schedule(given)
        with pytest.raises(gx.InputError, match="device type 8"):
            worker.schedule(HostOnly(ramp(2, 3), device=8))


@pytest.mark.feature("S56")
def test_numpy_takes_a_finished_tensor_without_a_copy() -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=CPU) as worker:
        run = worker.schedule(x)
        run.wait()
        y = run.peek_output()
        taken = np.from_dlpack(y)
        assert np.shares_memory(taken, np.asarray(y, copy=False))
        for number in range(4):
            worker.run(x + number + 1)
        np.testing.assert_array_equal(taken, expect_affine(x))
        # The bytes left the ring: the tensor speaks for them still.
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))
    np.testing.assert_array_equal(taken, expect_affine(x))


def test_pending_tensor_on_the_host_is_not_given() -> None:
    stream = open_backend(CPU).device.create_stream()
    gate = hold(stream)
    with gx.Worker(affine(), backend=CPU, stream=stream) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        with pytest.raises(gx.PendingError, match="readback_and_clone"):
            np.from_dlpack(y)
        gate.set()


def test_stale_tensor_is_not_given() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        worker.run(ramp(2, 3))
        with pytest.raises(gx.StaleError):
            np.from_dlpack(y)


def test_other_devices_and_copies_are_refused() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        run = worker.schedule(ramp(2, 3))
        run.wait()
        for wrong in ({"copy": True}, {"dl_device": (dlpack.CUDA, 0)}):
            with pytest.raises(BufferError, match="copy_output"):
                run.peek_output().__dlpack__(**wrong)  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            _ = run.peek_output().__cuda_array_interface__


@pytest.mark.feature("S56", "E82")
@pytest.mark.parametrize("kind", [CudaStreamArray, DlpackArray, InterfaceArray])
def test_device_array_is_waited_for_on_its_stream(kind: type[DeviceArray]) -> None:
    backend = open_backend(SIMULATOR)
    x = ramp(2, 3)
    given = kind(backend, x, is_held=True)
    assert given.gate is not None
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(given)
        # Schedule has returned though the array is not made yet.
        assert not run.is_done()
        given.gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(x))


@pytest.mark.feature("E82")
@pytest.mark.parametrize("kind", [CudaStreamArray, DlpackArray, InterfaceArray])
def test_device_array_is_read_where_it_lies(kind: type[DeviceArray]) -> None:
    backend = make_tracer()
    given = kind(backend, ramp(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare((2, 3))
        before = len(trace(backend))
        worker.schedule(given)
        assert not {"copy_to_device", "copy_to_host", "copy"} & set(trace(backend)[before:])
        assert isinstance(backend.device, TracerDevice)
        first = next(row for row in backend.device.log[before:] if row[0] == "launch")
        assert given.memory.address.to_bytes(8, "little") in first[4]  # type: ignore[operator]


def test_device_array_is_waited_for_anew_when_it_stays_set() -> None:
    backend = make_tracer()
    given = CudaStreamArray(backend, ramp(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(given)
        waits = trace(backend).count("wait")
        worker.schedule()
        assert trace(backend).count("wait") > waits


@pytest.mark.feature("E43", "E74")
def test_device_array_is_kept_until_the_run_is_done() -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend, stream=stream) as worker:
        worker.run(x)
        gate = hold(stream)
        given = CudaStreamArray(backend, x)
        gone = weakref.ref(given)
        request = worker.schedule(given).peek_output().readback_request()
        worker.schedule(x)  # from now on the Worker itself has no use for it
        del given
        gc.collect()
        assert gone() is not None
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(x))
        worker.wait_for_completion()
        worker.trim()
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize(
    ("extra", "reported"),
    [({"strides": (4, 8)}, "must be dense"), ({"stream": 0}, "stream 0"), ({"typestr": "<f8"}, "cast it")],
)
def test_interface_that_cannot_be_read_is_refused_by_name(extra: dict[str, Any], reported: str) -> None:
    backend = make_tracer()
    given = InterfaceArray(backend, ramp(2, 3))
    given.extra = extra
    with gx.Worker(affine(), backend=backend) as worker, pytest.raises(gx.InputError, match=rf"Input 'x'.*{reported}"):
        worker.schedule(given)


@pytest.mark.parametrize("stream", [1, 2, None])
def test_default_streams_and_none_are_understood(stream: int | None) -> None:
    backend = make_tracer()
    given = InterfaceArray(backend, ramp(2, 3))
    given.extra = {"stream": stream}
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare((2, 3))
        waits = trace(backend).count("wait")
        worker.schedule(given)
        assert trace(backend).count("wait") - waits == (stream is not None)


@pytest.mark.feature("S43", "S56")
def test_exported_tensor_carries_its_stream_and_leaves_the_ring() -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend, stream=stream) as worker:
        worker.run(x)
        gate = hold(stream)
        y = worker.schedule(x).peek_output()
        interface = y.__cuda_array_interface__
        assert not y.is_done()
        assert interface["stream"] == stream.handle and interface["shape"] == (2, 3) and interface["typestr"] == "<f4"
        addresses = [worker.schedule(x + 1).peek_output()._content.region.address for _ in range(4)]
        assert interface["data"][0] not in addresses
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))
        np.testing.assert_array_equal(worker.read_output(), expect_affine(x + 1))


@pytest.mark.feature("S56", "E82")
def test_consumers_stream_waits_for_an_exported_tensor() -> None:
    backend = open_backend(SIMULATOR)
    producing, consuming = backend.device.create_stream(), backend.device.create_stream()
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend, stream=producing) as worker:
        worker.run(x)
        gate = hold(producing)
        y = worker.schedule(x).peek_output()
        capsule = y.__dlpack__(stream=consuming.handle, max_version=(1, 0))
        taken = dlpack.take(type("Taken", (), {"__dlpack__": lambda self, **_: capsule})())
        out = backend.device.allocate_pinned(24)
        assert out.array is not None
        consuming.copy_to_host(out.array, taken.address)
        assert not consuming.is_done()
        gate.set()
        consuming.synchronize()
        np.testing.assert_array_equal(out.array[:24].view(np.float32).reshape(2, 3), expect_affine(x))


def test_no_waiting_is_asked_for_by_minus_one() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        waits = trace(backend).count("wait")
        y.__dlpack__(stream=-1)
        assert trace(backend).count("wait") == waits
        y.__dlpack__(stream=None)
        assert trace(backend).count("wait") == waits + 1


def test_exported_tensor_comes_back_in() -> None:
    backend = open_backend(SIMULATOR)
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend) as producer, gx.Worker(affine(), backend=backend) as consumer:
        y = producer.schedule(x).peek_output()

        class Foreign:
            __cuda_array_interface__ = y.__cuda_array_interface__

        np.testing.assert_array_equal(consumer.run(Foreign())[0], expect_affine(expect_affine(x)))


def test_worker_runs_on_a_stream_by_handle_or_protocol() -> None:
    backend = open_backend(SIMULATOR)
    stream = backend.device.create_stream()

    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream.handle)

    x = ramp(2, 3)
    for given in (stream, stream.handle, Foreign()):
        with gx.Worker(affine(), backend=backend, stream=given) as worker:
            gate = hold(stream)
            run = worker.schedule(x)
            assert not run.is_done()
            gate.set()
            np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(x))


@pytest.mark.feature("S38")
@pytest.mark.parametrize(("stream", "reported"), [("main", "__cuda_stream__"), (7, "no stream 0x7")])
def test_stream_that_is_none_is_refused(stream: object, reported: str) -> None:
    with pytest.raises(gx.InputError, match=reported):
        gx.Worker(affine(), backend=make_tracer(), stream=stream)


def test_stream_by_handle_on_the_host_is_refused() -> None:
    with pytest.raises(gx.InputError, match="belong to GPUs"):
        gx.Worker(affine(), backend=CPU, stream=1)


def test_each_of_several_tensors_that_are_given_stays_the_readers() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        x = ramp(4, 3)
        run = worker.schedule([x, 2 * x])
        run.wait()
        taken = [np.from_dlpack(run.peek_output(name)) for name in ("sum", "difference")]
        for number in range(4):
            worker.run([x + number, x])
        np.testing.assert_array_equal(taken[0], 3 * x)
        np.testing.assert_array_equal(taken[1], -x)


def test_a_tensor_beside_one_that_is_given_becomes_stale() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        run = worker.schedule([ramp(4, 3), ramp(4, 3)])
        run.wait()
        np.from_dlpack(run.peek_output("sum"))
        worker.run([ramp(4, 3), ramp(4, 3)])
        with pytest.raises(gx.StaleError):
            run.peek_output("difference").readback_and_clone()
