"""Bindings and values of the look-alike, on the host and on a device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.compat.onnxruntime import capi
from gpuexec.devices.backend import open_backend
from tests.execution.held import holding
from tests.interfaces.compat.onnxruntime.sessions import CPU, F32, NONZERO, SIMULATOR, B, X, make_bytes, make_session

PLACES = pytest.mark.parametrize(("provider", "device"), [(CPU, "cpu"), (SIMULATOR, "simulator")])
errors = capi.onnxruntime_pybind11_state


def bind(session: ort.InferenceSession, x: Any = X, b: Any = B) -> ort.IOBinding:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("b", b)
    return binding


@PLACES
def test_outputs_stay_on_the_device_until_copied(provider: str, device: str) -> None:
    session = make_session(provider=provider)
    binding = bind(session)
    binding.bind_output("z", device)
    binding.bind_output("y")
    assert [value.has_value() for value in binding.get_outputs()] == [False, False]
    session.run_with_iobinding(binding)
    z, y = binding.get_outputs()
    assert (z.device_name(), y.device_name()) == (device, "cpu")
    assert (z.shape(), z.data_type(), z.is_tensor()) == ([3, 2], "tensor(float)", True)
    # What was made stays, whatever is run next.
    session.run_with_iobinding(bind_all(session, X * 2, device))
    np.testing.assert_array_equal(z.numpy(), -(X + B))
    for got, expected in zip(binding.copy_outputs_to_cpu(), (-(X + B), X + B), strict=True):
        np.testing.assert_array_equal(got, expected)


def bind_all(session: ort.InferenceSession, x: Any, device: str) -> ort.IOBinding:
    binding = bind(session, x)
    for name in session.output_names:
        binding.bind_output(name, device)
    return binding


@PLACES
def test_values_on_the_device_are_inputs_and_take_outputs(provider: str, device: str) -> None:
    session = make_session(provider=provider)
    binding = session.io_binding()
    x = ort.OrtValue.ortvalue_from_numpy(X.copy(), device)
    out = ort.OrtValue.ortvalue_from_shape_and_type([3, 2], F32, device)
    address = out.data_ptr()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_input("b", ort.OrtValue.ortvalue_from_numpy(B))
    binding.bind_ortvalue_output("y", out)
    for factor in (1, 3):
        x.update_inplace(X * factor)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out.numpy(), X * factor + B)
    assert binding.get_outputs()[0] is out or binding.get_outputs()[0].data_ptr() == address


@PLACES
def test_bare_addresses_are_read_and_written(provider: str, device: str) -> None:
    session = make_session(provider=provider)
    x = ort.OrtValue.ortvalue_from_numpy(X.copy(), device)
    out = ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 2), F32), device)
    x.wait()
    out.wait()
    binding = session.io_binding()
    binding.bind_input("x", device, 0, F32, x.shape(), x.data_ptr())
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", device, 0, F32, (3, 2), out.data_ptr())
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + B)
    np.testing.assert_array_equal(out.numpy(), X + B)


def test_bare_addresses_are_used_in_the_order_of_the_default_stream() -> None:
    session, options = make_session(provider=SIMULATOR), ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    device = session.backend.device
    x, out = (ort.OrtValue.ortvalue_from_shape_and_type((3, 2), F32, "simulator") for _ in range(2))
    theirs, read = device.external_stream(1), np.empty(X.nbytes, np.uint8)
    binding = session.io_binding()
    # Only what is bound by address says that others work on it.
    for is_in, is_out in ((True, False), (False, True), (True, True)):
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        binding.bind_cpu_input("b", B)
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "simulator")
        if is_in:
            binding.bind_input("x", "simulator", 0, F32, (3, 2), x.data_ptr())
        if is_out:
            binding.bind_output("y", "simulator", 0, F32, (3, 2), out.data_ptr())
        with holding(theirs):
            if is_in:
                theirs.copy_to_device(x.data_ptr(), X.reshape(-1).view(np.uint8))
            session.run_with_iobinding(binding, options)
            if is_out:
                theirs.copy_to_host(read, out.data_ptr())
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + B)
        theirs.synchronize()
        if is_out:
            np.testing.assert_array_equal(read.view(F32).reshape(3, 2), X + B)


@PLACES
def test_outputs_of_unknown_shape_are_bound(provider: str, device: str) -> None:
    session = make_session(NONZERO, provider)
    binding = session.io_binding()
    for x in (np.array([0, 1, 1], F32), np.array([2, 0, 3, 4], F32)):
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", device)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.nonzero(x))


def test_run_does_not_wait_for_the_device_where_it_is_asked_not_to() -> None:
    session, options = make_session(provider=SIMULATOR), ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    binding = bind_all(session, X, "simulator")
    session.run_with_iobinding(binding)
    backend = open_backend(gx.BackendType.SIMULATOR)
    with session._runner._find_pool(frozenset()).lending() as worker:
        stream = worker._engine.stream
    with holding(stream) as gate:
        session.run_with_iobinding(binding, options)
        y = binding.get_outputs()[0]
        assert y.tensor is not None and not y.tensor.is_done() and not gate.is_set()
    np.testing.assert_array_equal(y.numpy(), X + B)
    assert y.backend is backend


@PLACES
def test_what_does_not_fit_is_refused_and_the_binding_stays_usable(provider: str, device: str) -> None:
    session = make_session(provider=provider)
    binding = bind(session)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type([4, 2], F32, device))
    with pytest.raises(RuntimeError, match=r"float32\[3,2\].*float32\[4,2\]"):
        session.run_with_iobinding(binding)
    calls = (
        (lambda: binding.bind_output("q"), "no output 'q'"),
        (lambda: binding.bind_ortvalue_input("q", ort.OrtValue.ortvalue_from_numpy(X)), "no input 'q'"),
        (lambda: binding.bind_output("y", "tpu"), "no device 'tpu'"),
        (lambda: binding.bind_output("y", device, buffer_ptr=64), "element_type and shape"),
        (lambda: binding.bind_input("x", device, 0, np.str_, [2], 64), "element type"),
    )
    for call, why in calls:
        with pytest.raises(RuntimeError, match=why):
            call()
    with pytest.raises(TypeError, match="Expected an OrtValue"):
        binding.bind_ortvalue_input("x", X)  # type: ignore[arg-type]
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + B)
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError, match=r"\['x', 'b'\] are missing"):
        session.run_with_iobinding(binding)


def test_memory_of_another_device_is_refused_for_outputs() -> None:
    with pytest.raises(RuntimeError, match="runs on cpu and has no way"):
        make_session().io_binding().bind_output("y", "simulator")


def test_value_on_the_host_shares_its_bytes() -> None:
    array = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(X * 2)
    np.testing.assert_array_equal(array, X * 2)
    assert value.numpy() is array and value.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(np.from_dlpack(value), array)
    np.testing.assert_array_equal(np.asarray(value), array)
    assert value.__dlpack_device__() == (1, 0)


def test_value_on_a_device_is_a_copy_and_goes_by_dlpack() -> None:
    array = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(array, "simulator")
    array[...] = 0
    np.testing.assert_array_equal(value.numpy(), X)
    assert value.__dlpack_device__()[0] == 2
    with gx.Worker(gx.load(make_bytes()), backend=gx.BackendType.SIMULATOR) as worker:
        taken = ort.OrtValue.from_dlpack(worker.schedule([X, B]).peek_output("z"))
        worker.run([X * 2, B])
        assert taken.device_name() == "simulator"
        np.testing.assert_array_equal(taken.numpy(), -(X + B))


def test_dlpack_and_types_of_onnx_make_values() -> None:
    np.testing.assert_array_equal(ort.OrtValue.from_dlpack(X).numpy(), X)
    halves = np.array([1, -2], ml_dtypes.bfloat16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(halves.view(np.uint16), 16)
    assert value.data_type() == "tensor(bfloat16)" and value.element_type() == 16
    np.testing.assert_array_equal(value.numpy(), halves)
    for given in (np.float16, np.dtype("float16"), "float16", 10):
        made = ort.OrtValue.ortvalue_from_shape_and_type((2, 3), given)
        assert (made.shape(), made.data_type()) == ([2, 3], "tensor(float16)")


def test_values_that_can_not_be_are_refused() -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    calls = (
        (lambda: ort.OrtValue.ortvalue_from_numpy([1, 2]), "NumPy array, got list"),  # type: ignore[arg-type]
        (lambda: ort.OrtValue.ortvalue_from_numpy(np.array(["a"])), "no element type"),
        (lambda: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, 16), "2 bytes"),
        (lambda: ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X[:2]), r"float32\[3,2\].*float32\[2,2\]"),
        (lambda: ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace(X.astype(int)), "int64"),
        (lambda: ort.OrtValue.ortvalue_from_numpy(frozen).update_inplace(X), "read-only"),
        (lambda: ort.OrtValue(None).numpy(), "not there"),
    )
    for call, why in calls:
        with pytest.raises(RuntimeError, match=why):
            call()
    with pytest.raises(TypeError, match="no __dlpack__"):
        ort.OrtValue.from_dlpack(object())


@PLACES
def test_values_go_through_run_with_ort_values(provider: str, device: str) -> None:
    session = make_session(provider=provider)
    feed = {"x": ort.OrtValue.ortvalue_from_numpy(X, device), "b": ort.OrtValue.ortvalue_from_numpy(B)}
    (z,) = session.run_with_ort_values(["z"], feed)
    assert z.device_name() == "cpu"
    np.testing.assert_array_equal(z.numpy(), -(X + B))


def test_devices_are_named_by_number() -> None:
    reported = [(d.device_type(), d.device_id()) for d in (ort.OrtDevice.make("cpu", 0), ort.OrtDevice.make("cuda", 1))]
    assert reported == [(ort.OrtDevice.cpu(), 0), (ort.OrtDevice.cuda(), 1)] == [(0, 0), (1, 1)]
