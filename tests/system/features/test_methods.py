"""Rows on a Method: setting, reading and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat import executorch
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, ramp
from tests.model.state_models import running_sum
from tests.system.features.held import opening
from tests.system.features.marks import on
from tests.system.features.programs import build, load, own_memory, read

X = ramp(2, 3)
Y = expect_affine(X)
planned = pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "own"])


WRONG: list[tuple[object, object, int, str]] = [
    (5, np.zeros((9, 9)), 0x12, "has 1 inputs, got index 5"),
    (-1, X, 0x12, "has 1 inputs, got index -1"),
    ("z", np.zeros((9, 9)), 0x12, "no input 'z'; it has x"),
    (0, None, 0x12, "'x'"),
    (0, np.zeros((9, 9)), 0x12, "'x' expects float32, got float64"),
    (0, ramp(9, 3), 0x10, r"float32\[n,3\], got float32\[9,3\]: axis 0 must be 1 to 8, not 9"),
    (0, ramp(2, 4), 0x10, "axis 1 must be 3, not 4"),
    (0, ramp(6), 0x10, "2 axes, not 1"),
    (X, 0, 0x12, r"index first: set_input\(0, array\)"),
]


@pytest.mark.parametrize(("index", "value", "code", "message"), WRONG)
def test_e42_index_type_and_bounds_are_checked_in_that_order(
    index: Any, value: object, code: int, message: str, backend: Backend
) -> None:
    with load(backend) as method:
        method.execute([X])
        with pytest.raises(gx.InputError, match=message) as caught:
            method.set_input(index, value)
        assert caught.value.code == code
        method.execute()
        np.testing.assert_array_equal(read(method), Y)


def test_e42_in_the_middle_of_steps_nothing_is_set(backend: Backend) -> None:
    with load(backend) as method:
        method.set_input(0, X)
        method.step()
        with pytest.raises(gx.StateError, match=r"middle of steps.*reset\(\)") as caught:
            method.set_input(5, np.zeros((9, 9)))
        assert caught.value.code == 0x02
        while method.step() is not None:
            pass
        np.testing.assert_array_equal(read(method), Y)


@planned
def test_e45_inputs_are_set_all_or_none(is_planned: bool, backend: Backend) -> None:
    with load(backend, "pair", is_planned=is_planned) as method:
        method.set_inputs([X, X])
        for wrong, message in (
            ([5 * X, ramp(9, 3)], "'right'.*1 to 8"),
            ({"left": 5 * X, "right": X.astype(np.float64)}, "'right'.*float64"),
            ([ramp(5, 3), ramp(4, 3)], "'right'.*'n' is 4, but 5 in input 'left'"),
            ({"left": 5 * X, "middle": X}, "no input 'middle'"),
            ([5 * X], "2 inputs, got 1"),
            ([5 * X, X, X], "2 inputs, got 3"),
        ):
            for call in (method.set_inputs, method.execute):
                with pytest.raises(gx.InputError, match=message):
                    call(wrong)
            method.execute()
            np.testing.assert_array_equal(read(method, "sum"), 2 * X)
        method.set_inputs({1: 3 * X, "left": 2 * X})
        method.execute()
        np.testing.assert_array_equal(read(method, "sum"), 5 * X)


@planned
def test_e43_t13_host_arrays_are_copied_at_once(is_planned: bool, backend: Backend) -> None:
    with load(backend, is_planned=is_planned) as method:
        x = X.copy()
        method.set_input(0, x)
        x[...] = 7
        for _ in range(3):
            method.execute()
            np.testing.assert_array_equal(read(method), Y)


def test_e59_an_inputs_memory_is_written_in_place(backend: Backend) -> None:
    with load(backend) as method:
        buffer = method.input_buffer("x", (5, 3))
        assert buffer.shape == (5, 3) and method.input_buffer(0).shape == (8, 3)
        buffer = method.input_buffer("x", (5, 3))
        buffer.upload(ramp(5, 3))
        for _ in range(2):
            method.execute()
            np.testing.assert_array_equal(read(method), expect_affine(ramp(5, 3)))


def make_floats(backend: Backend, rows: int = 8) -> gx.Tensor:
    """Return memory of the caller's on a device: zeros of float32[rows, 3]."""
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ramp(rows, 3))
        tensor = worker.copy_output()
    tensor.upload(np.zeros((rows, 3), np.float32))
    return tensor


def test_e46_results_go_to_memory_of_the_users(backend: Backend) -> None:
    x, mine = ramp(8, 3), make_floats(backend)
    with load(backend) as method:
        method.set_output(0, mine)
        method.execute([x])
        method.execute([x])  # it stays set
        np.testing.assert_array_equal(read(method), expect_affine(x))
        method.set_output("y", None)
        method.execute([2 * x])
        np.testing.assert_array_equal(read(method), expect_affine(2 * x))
        np.testing.assert_array_equal(mine.readback_and_clone(), expect_affine(x))


def test_e46_memory_that_does_not_fit_is_refused_with_both_numbers(backend: Backend) -> None:
    with load(backend) as method:
        allocator = gx.DeviceAllocator(backend)
        for index, given, message in (
            (0, make_floats(backend, 7), r"'y'.* needs 96 bytes, got 84"),
            (0, allocator.allocate(95), r"'y'.* needs 96 bytes, got 95"),
            (0, np.zeros((8, 3)), r"'y'.* float32, .* float64"),
            (1, allocator.allocate(96), "1 outputs, got index 1"),
            ("z", allocator.allocate(96), "no output 'z'; it has y"),
        ):
            with pytest.raises(gx.InputError, match=message):
                method.set_output(index, given)  # type: ignore[arg-type]
        method.execute([X])
        np.testing.assert_array_equal(read(method), Y)


@on("cpu")
def test_e46_arrays_of_numpy_are_written_on_the_cpu(backend: Backend) -> None:
    with load(backend) as method:
        mine = np.from_dlpack(gx.DeviceAllocator(backend).allocate(96)).view(np.float32).reshape(8, 3)
        method.set_output(0, mine)
        method.execute([ramp(8, 3)])
        np.testing.assert_array_equal(mine, expect_affine(ramp(8, 3)))


def test_e54_an_output_is_a_view_until_the_next_execute(backend: Backend) -> None:
    with load(backend) as method:
        method.execute([X])
        view = method.get_output(0)
        assert view.name == "y" and method.get_output("y") is view
        copy = view.readback_and_clone()
        method.execute([X + 1])
        np.testing.assert_array_equal(copy, Y)
        later = method.get_output(0)
        method.execute([X + 2])
        for use in (later.readback_and_clone, later.readback_request, lambda: method.set_input(0, later)):
            with pytest.raises(gx.StaleError, match="'y' belongs to an earlier run"):
                use()
        np.testing.assert_array_equal(read(method), expect_affine(X + 2))
        for key, message in ((1, "1 outputs, got index 1"), ("z", "no output 'z'; it has y")):
            with pytest.raises(gx.InputError, match=message):
                method.get_output(key)  # type: ignore[arg-type]


def test_e55_all_outputs_come_in_order(backend: Backend) -> None:
    with load(backend, "pair") as method:
        method.execute([3 * X, X])
        total, difference = method.get_outputs()
        assert (total.name, difference.name) == ("sum", "difference")
        np.testing.assert_array_equal(total.readback_and_clone(), 4 * X)
        np.testing.assert_array_equal(difference.readback_and_clone(), 2 * X)


def test_e56_outputs_before_a_run_are_refused(backend: Backend) -> None:
    with load(backend) as method:
        for call in (lambda: method.get_output(0), method.get_outputs):
            with pytest.raises(gx.StateError, match=r"call execute\(\)"):
                call()


@planned
def test_e57_attributes_are_read_and_written_by_name(is_planned: bool, backend: Backend) -> None:
    program = build(backend, forward=running_sum())
    memory = own_memory(program.method_meta("forward")) if is_planned else None
    x = ramp(8, 3)
    with program.load_method("forward", memory) as method:
        method.execute([x])
        method.execute([x])
        for name in ("held", "total"):
            np.testing.assert_array_equal(method.get_attribute(name), 2 * x)
        method.set_attribute("held", 10 * x)
        method.execute()
        np.testing.assert_array_equal(read(method), 22 * x)
        constant = method.get_attribute("two")
        assert constant.item() == 2 and not constant.flags.writeable
        for call in (method.get_attribute, lambda name: method.set_attribute(name, x)):
            with pytest.raises(gx.InputError, match="'gone'"):
                call("gone")
        np.testing.assert_array_equal(method.get_attribute("held"), 11 * x)


def test_e58_a_method_tells_its_sizes_and_its_meta(backend: Backend) -> None:
    with load(backend, "pair") as method:
        meta = method.method_meta
        sized = executorch.Method(method)
        assert (sized.inputs_size(), sized.outputs_size()) == (meta.num_inputs, meta.num_outputs) == (2, 2)
        assert meta.name == "pair" and meta.input_tensor_meta(0).sizes == (8, 3)


def test_e60_a_second_caller_is_refused(backend: Backend) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        """An array that takes its time."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
            entered.set()
            leave.wait()
            return X

    with load(backend) as method, opening(leave):
        first = threading.Thread(target=lambda: method.set_input(0, Slow()))
        first.start()
        assert entered.wait(30)
        for call in (method.execute, method.reset, method.step, lambda: method.set_input(0, X)):
            with pytest.raises(gx.StateError, match="Another caller is inside this Method") as caught:
                call()
            assert caught.value.code == 0x02
        leave.set()
        first.join()
        method.execute()
        np.testing.assert_array_equal(read(method), Y)


def test_e37_an_own_output_may_be_the_next_input(backend: Backend) -> None:
    with load(backend) as method:
        method.set_input(0, X)
        expected = X
        for _ in range(3):
            method.execute()
            expected = expect_affine(expected)
            np.testing.assert_array_equal(read(method), expected)
            method.set_input(0, method.get_output(0))


def test_b37_e51_a_closed_method_says_so(backend: Backend) -> None:
    program = build(backend, forward=affine())
    method = program.load_method("forward")
    method.execute([X])
    y = method.get_output(0)
    method.close()
    method.close()
    uses: tuple[Callable[[], object], ...] = (
        *(method.execute, method.step, method.reset, y.readback_request),
        lambda: method.get_output(0),
        lambda: method.state,
    )
    for call in uses:
        with pytest.raises(gx.ClosedError, match="closed"):
            call()
