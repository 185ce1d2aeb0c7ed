"""Inputs of a Method: they stay set, in buffers of their own, and are refused before anything changes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.errors import ErrorCode
from gpuexec.execution.resources.fence import Fence
from tests.model.small_models import CPU, affine, expect_affine, hold, ramp, two_inputs
from tests.program.methods import BACKENDS, load, read


@pytest.mark.feature("E43", "T13")
def test_input_stays_set_and_its_bytes_are_kept(method: gx.Method) -> None:
    x = ramp(8, 3)
    method.set_input(0, x)
    kept, x[...] = x.copy(), 0
    for _ in range(3):
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(kept))


def test_smaller_input_gives_smaller_output(method: gx.Method) -> None:
    for rows in (8, 1, 5):
        method.set_input("x", ramp(rows, 3))
        method.execute()
        np.testing.assert_array_equal(read(method, "y"), expect_affine(ramp(rows, 3)))


def test_input_set_while_runs_are_under_way_leaves_them_alone(method: gx.Method) -> None:
    requests = []
    for rows in range(1, 9):
        method.set_input(0, ramp(rows, 3))
        method.execute(wait=False)
        requests.append(method.get_output(0).readback_request())
    for rows, request in enumerate(requests, 1):
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(rows, 3)))


def test_borrowed_input_is_read_by_every_run(method: gx.Method) -> None:
    x = ramp(4, 3)
    method.set_input(0, x, copy=False)
    for scale in (1, 2):
        x *= scale
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(x))


def test_strided_input_is_taken(method: gx.Method) -> None:
    x = ramp(3, 8).T
    method.set_input(0, x, copy=False)
    method.execute()
    np.testing.assert_array_equal(read(method), expect_affine(x))


@pytest.mark.feature("E59")
def test_input_buffer_is_written_without_a_copy(method: gx.Method) -> None:
    method.set_input(0, ramp(8, 3))
    method.execute()
    buffer = method.input_buffer(0, (5, 3))
    assert buffer.shape == (5, 3)
    buffer.upload(ramp(5, 3) * 3)
    for _ in range(2):
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(ramp(5, 3) * 3))
    assert method.input_buffer("x").shape == (8, 3)


def test_input_buffer_is_written_once_runs_have_read_it() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    stream = backend.device.create_stream()
    with load(affine(), backend, planned=True, stream=stream) as method:
        method.set_input(0, ramp(8, 3))
        gate = hold(stream)
        method.execute(wait=False)
        request = method.get_output(0).readback_request()
        method.input_buffer(0).upload(-ramp(8, 3))
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(8, 3)))
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(-ramp(8, 3)))


def test_input_buffer_on_the_cpu_is_seen_by_numpy() -> None:
    with load(affine(), planned=True) as method:
        np.from_dlpack(method.input_buffer(0))[...] = ramp(8, 3)
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(ramp(8, 3)))


@pytest.mark.feature("E37")
def test_own_output_can_be_an_input(method: gx.Method) -> None:
    x = expected = ramp(4, 3)
    for _ in range(3):
        method.execute([x])
        x, expected = method.get_output(0), expect_affine(expected)
    method.set_input(0, x)
    for _ in range(2):
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(expected))


def test_input_and_output_may_be_the_same_bytes() -> None:
    shapes = {"left": (8, 3), "right": (8, 3)}
    with load(two_inputs(), shapes=shapes) as method:
        mine = np.from_dlpack(gx.DeviceAllocator(CPU).allocate(8 * 3 * 4)).view(np.float32).reshape(8, 3)
        for written, other in (("sum", "difference"), ("difference", "sum")):
            mine[...] = 3 * ramp(8, 3)
            method.set_input("left", mine, copy=False)
            method.set_input("right", ramp(8, 3))
            method.set_output(written, mine)
            method.execute()
            expected = {"sum": 4 * ramp(8, 3), "difference": 2 * ramp(8, 3)}
            np.testing.assert_array_equal(mine, expected[written])
            np.testing.assert_array_equal(read(method, other), expected[other])
            method.set_output(written, None)


def test_input_that_stays_is_brought_anew_once_its_place_was_given_back() -> None:
    with load(affine(), gx.BackendType.SIMULATOR) as method:
        method.execute([ramp(8, 3)])
        method._engine.binder.give_back()
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(ramp(8, 3)))


def test_input_is_set_anew_once_its_planned_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_backend(CPU).device.create_stream()
    with load(affine(), planned=True, stream=stream) as method:
        method.set_input(0, ramp(8, 3))
        gate = hold(stream)
        method.execute(wait=False)
        request = method.get_output(0).readback_request()
        settle = Fence.settle

        def let_go(fence: Fence) -> None:
            gate.set()
            settle(fence)

        monkeypatch.setattr(Fence, "settle", let_go)
        method.set_input(0, -ramp(8, 3))
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(8, 3)))
        with pytest.raises(gx.ImplicitSyncError, match="'x': a run in flight reads"), gx.no_implicit_sync():
            hold_and_set(method, hold(stream))
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(-ramp(8, 3)))


def hold_and_set(method: gx.Method, gate: threading.Event) -> None:
    try:
        method.execute(wait=False)
        method.set_input(0, ramp(8, 3))
    finally:
        gate.set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_of_another_device_can_be_an_input(backend: gx.BackendType) -> None:
    other = next(each for each in BACKENDS if each is not backend)
    with load(affine(), other) as first, load(affine(), backend, planned=True) as second:
        first.execute([ramp(2, 3)])
        second.execute([first.get_output(0)])
        np.testing.assert_array_equal(read(second), expect_affine(expect_affine(ramp(2, 3))))
        second.execute()
        np.testing.assert_array_equal(read(second), expect_affine(expect_affine(ramp(2, 3))))


BAD_INPUTS = [
    (0, ramp(9, 3), ErrorCode.NOT_SUPPORTED, r"got float32\[9,3\]: axis 0 must be 1 to 8, not 9"),
    (0, ramp(2, 4), ErrorCode.NOT_SUPPORTED, "axis 1 must be 3, not 4"),
    (0, ramp(2), ErrorCode.NOT_SUPPORTED, "2 axes, not 1"),
    (0, ramp(9, 3).astype(np.float64), ErrorCode.INVALID_ARGUMENT, "expects float32, got float64"),
    (1, ramp(2, 3), ErrorCode.INVALID_ARGUMENT, "1 inputs, got index 1"),
    (-1, ramp(2, 3), ErrorCode.INVALID_ARGUMENT, "1 inputs, got index -1"),
    ("z", ramp(2, 3), ErrorCode.INVALID_ARGUMENT, "no input 'z'; it has x"),
    (0, None, ErrorCode.INVALID_ARGUMENT, "'x'"),
    # The index is looked at first, then the type, then the shape.
    (5, np.zeros((9, 9)), ErrorCode.INVALID_ARGUMENT, "1 inputs, got index 5"),
    ("z", np.zeros((9, 9)), ErrorCode.INVALID_ARGUMENT, "no input 'z'; it has x"),
    (0, np.zeros((9, 9)), ErrorCode.INVALID_ARGUMENT, "'x' expects float32, got float64"),
    (1.5, ramp(2, 3), ErrorCode.INVALID_ARGUMENT, "an index or a name, not a float"),
    (ramp(2, 3), 0, ErrorCode.INVALID_ARGUMENT, r"index first: set_input\(0, array\)"),
    (ramp(2, 3), "x", ErrorCode.INVALID_ARGUMENT, r"index first: set_input\('x', array\)"),
]


@pytest.mark.feature("E42")
@pytest.mark.parametrize(("index", "value", "code", "message"), BAD_INPUTS)
def test_bad_input_is_refused_and_changes_nothing(
    index: Any, value: Any, code: ErrorCode, message: str, method: gx.Method
) -> None:
    method.execute([ramp(2, 3)])
    with pytest.raises(gx.InputError, match=message) as caught:
        method.set_input(index, value)
    assert caught.value.code == code
    method.execute()
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))


def test_input_buffer_refuses_what_is_no_shape() -> None:
    with load(affine()) as method, pytest.raises(gx.InputError, match="shape must be a tuple of extents, got 3"):
        method.input_buffer(0, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("planned", [False, True])
def test_inputs_without_elements_need_no_memory(backend: gx.BackendType, planned: bool) -> None:
    with load(affine(), backend, {"x": (0, 3)}, planned) as method:
        for _ in range(2):
            method.execute([ramp(0, 3)])
            assert read(method).shape == (0, 3)
        method.input_buffer(0)
        method.execute()
        assert read(method).shape == (0, 3)


@pytest.mark.feature("E45")
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_set_all_or_none(backend: gx.BackendType, planned: bool) -> None:
    x = ramp(2, 3)
    with load(two_inputs(), backend, {"left": ((1, 8), 3), "right": ((1, 8), 3)}, planned) as method:
        method.set_inputs([x, x])
        for wrong, message in (
            ([5 * x, ramp(9, 3)], "'right'.*1 to 8"),
            ({"left": 5 * x, "right": x.astype(np.float64)}, "'right'.*float64"),
            ([ramp(5, 3), ramp(4, 3)], "'right'.*'n' is 4, but 5 in input 'left'"),
            ({"left": 5 * x, "middle": x}, "no input 'middle'"),
            ({"left": 5 * x, 0: 5 * x}, "Input 'left' is given twice"),
            ([5 * x], "2 inputs, got 1"),
            ([5 * x, x, x], "2 inputs, got 3"),
        ):
            for call in (method.set_inputs, method.execute):
                with pytest.raises(gx.InputError, match=message):
                    call(wrong)
            method.execute()
            np.testing.assert_array_equal(read(method, "sum"), 2 * x)
        method.set_inputs({"left": ramp(4, 3), 1: 3 * ramp(4, 3)})
        method.execute()
        np.testing.assert_array_equal(read(method, "sum"), 4 * ramp(4, 3))


@pytest.mark.feature("E48")
@pytest.mark.parametrize("backend", BACKENDS)
def test_input_never_set_is_named(backend: gx.BackendType) -> None:
    with load(two_inputs(), backend, {"left": (2, 3), "right": (2, 3)}, planned=True) as method:
        method.set_input("left", ramp(2, 3))
        for call in (method.execute, method.step):
            with pytest.raises(gx.InputError, match=r"input 'right' .* is missing") as caught:
                call()
            assert caught.value.value == "right" and not method.in_progress()
