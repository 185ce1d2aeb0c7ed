"""Rows on streams and foreign arrays: zero-copy inputs and outputs, and their order."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from tests.devices.foreign_arrays import CudaStreamArray, DeviceArray, DlpackArray, HostOnly, InterfaceArray
from tests.model.small_models import affine, expect_affine, ramp, trace
from tests.system.features.held import held_worker, holding
from tests.system.features.marks import on

X = ramp(2, 3)
Y = expect_affine(X)
KINDS = [CudaStreamArray, DlpackArray, InterfaceArray]


LAYOUTS = {
    "strided": np.repeat(X, 2, axis=0)[::2],
    "columns first": np.asfortranarray(X),
    "reversed": np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "read-only": np.broadcast_to(X[0], (2, 3)),
    "other byte order": X.astype(">f4"),
}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "other byte order"])
@pytest.mark.parametrize("form", [np.asarray, HostOnly], ids=["NumPy", "DLPack"])
def test_s39_arrays_of_any_layout_come_in(layout: str, form: Any, backend: Backend) -> None:
    x = LAYOUTS[layout]
    if form is HostOnly and not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    with gx.Worker(affine(), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(form(x))[0], expect_affine(np.asarray(x)))


def test_s39_other_byte_orders_are_refused_and_named(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker, pytest.raises(gx.InputError, match=r"'x'.*>f4.*cast it"):
        worker.schedule(LAYOUTS["other byte order"])


def test_s39_scalars_have_no_axes(backend: Backend) -> None:
    with gx.Worker(affine(()), backend=backend) as worker:
        for scalar in (3, 3.0, np.float32(3), np.array(3, np.float32)):
            y = worker.schedule(scalar).peek_output()
            assert y.shape == () and y.size == 1
            assert y.readback_and_clone().item() == 7.0


def test_e43_host_arrays_are_copied_before_the_call_returns(backend: Backend) -> None:
    x = X.copy()
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.schedule(x).peek_output()
        x[...] = 99
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), Y)


@on("cpu")
def test_e43_host_arrays_are_borrowed_where_asked(backend: Backend) -> None:
    x = X.copy()
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.schedule(x, copy=False).peek_output()
        x += 1
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(X + 1))


@on("simulator")
@pytest.mark.parametrize("kind", KINDS)
def test_e82_s56_device_arrays_are_waited_for_on_their_stream(kind: type[DeviceArray], backend: Backend) -> None:
    given = kind(backend, X, is_held=True)
    assert given.gate is not None
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(given)
        assert not run.is_done()
        given.gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), Y)


@on("tracer")
@pytest.mark.parametrize("kind", KINDS)
def test_e82_device_arrays_are_read_where_they_lie(kind: type[DeviceArray], backend: Backend) -> None:
    given = kind(backend, X)
    with gx.Worker(affine(), backend=backend) as worker:
        worker.prepare((2, 3))
        before = len(trace(backend))
        worker.schedule(given)
        assert not {"copy_to_device", "copy_to_host", "copy"} & set(trace(backend)[before:])
        launch = next(row for row in backend.device.log[before:] if row[0] == "launch")  # type: ignore[attr-defined]
        assert given.memory.address.to_bytes(8, "little") in launch[4]


@on("simulator")
def test_e43_e74_device_arrays_are_held_until_the_run_is_done(backend: Backend) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=stream) as worker:
        worker.run(X)
        with holding(stream) as gate:
            given = CudaStreamArray(backend, X)
            gone = weakref.ref(given)
            request = worker.schedule(given).peek_output().readback_request()
            worker.schedule(X)
            del given
            gc.collect()
            assert gone() is not None
            gate.set()
            np.testing.assert_array_equal(request.result(), Y)
            worker.wait_for_completion()
            worker.trim()
            gc.collect()
            assert gone() is None


@on("simulator")
def test_s56_s43_exported_bytes_carry_their_stream_and_leave_the_ring(backend: Backend) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=stream) as worker:
        worker.run(X)
        with holding(stream) as gate:
            y = worker.schedule(X).peek_output()
            interface = y.__cuda_array_interface__
            assert not y.is_done()
            assert (interface["stream"], interface["shape"], interface["typestr"]) == (stream.handle, (2, 3), "<f4")
            later = [worker.schedule(X + 1).peek_output() for _ in range(4)]
            gate.set()
            np.testing.assert_array_equal(y.readback_and_clone(), Y)
            np.testing.assert_array_equal(later[-1].readback_and_clone(), expect_affine(X + 1))


@on("simulator")
def test_s56_e82_the_consumers_stream_waits_and_nobody_else(backend: Backend) -> None:
    producing, consuming = backend.device.create_stream(), backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=producing) as worker:
        worker.run(X)
        with holding(producing) as gate:
            y = worker.schedule(X).peek_output()
            capsule = y.__dlpack__(stream=consuming.handle, max_version=(1, 0))
            taken = dlpack.take(type("Taken", (), {"__dlpack__": lambda self, **_: capsule})())
            out = backend.device.allocate_pinned(24)
            assert out.array is not None
            consuming.copy_to_host(out.array, taken.address)
            assert not consuming.is_done()
            gate.set()
            consuming.synchronize()
            np.testing.assert_array_equal(out.array[:24].view(np.float32).reshape(2, 3), Y)


@on("cpu")
def test_s56_numpy_takes_a_finished_tensor_without_a_copy(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(X)
        run.wait()
        taken = np.from_dlpack(run.peek_output())
        assert np.shares_memory(taken, np.asarray(run.peek_output(), copy=False))
        for number in range(4):
            worker.run(X + number + 1)
    np.testing.assert_array_equal(taken, Y)


@on("simulator")
@pytest.mark.parametrize("form", ["stream", "handle", "protocol"])
def test_s38_e82_a_run_takes_its_place_on_the_callers_stream(form: str, backend: Backend) -> None:
    stream = backend.device.create_stream()
    protocol = type("Foreign", (), {"__cuda_stream__": lambda self: (0, stream.handle)})()
    given: Any = {"stream": stream, "handle": stream.handle, "protocol": protocol}[form]
    memory, out = backend.device.allocate(24), backend.device.allocate_pinned(24)
    assert out.array is not None
    with gx.Worker(affine(), backend=backend, stream=given) as worker, holding(stream) as gate:
        stream.copy_to_device(memory.address, X.reshape(-1).view(np.uint8))  # before the run
        source = type(
            "Source",
            (),
            {
                "__cuda_array_interface__": {
                    "shape": (2, 3),
                    "typestr": "<f4",
                    "data": (memory.address, False),
                    "version": 3,
                    "stream": stream.handle,
                }
            },
        )()
        y = worker.schedule(source).peek_output()
        stream.copy_to_host(out.array, y.__cuda_array_interface__["data"][0])  # and after it
        assert not y.is_done()
        gate.set()
        stream.synchronize()
        np.testing.assert_array_equal(out.array[:24].view(np.float32).reshape(2, 3), Y)


@pytest.mark.parametrize(("stream", "told"), [("main", "__cuda_stream__"), (7, "no stream 0x7")])
@on("tracer")
def test_s38_what_is_no_stream_is_refused(stream: object, told: str, backend: Backend) -> None:
    with pytest.raises(gx.InputError, match=told):
        gx.Worker(affine(), backend=backend, stream=stream)


def test_s54_a_reader_waits_for_the_writer_and_nobody_else_does(backend: Backend) -> None:
    with (
        held_worker(affine(), backend) as (producer, gate),
        gx.Worker(affine(), backend=backend) as consumer,
        gx.Worker(affine(), backend=backend) as other,
    ):
        run = consumer.schedule(producer.schedule(X).peek_output())
        np.testing.assert_array_equal(other.run(X)[0], Y)
        assert not run.is_done()
        gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(Y))
