"""Methods: whole or stepwise runs, outputs in place, and exclusive use."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.errors import ErrorCode
from tests.execution.held import opening
from tests.model.small_models import (
    CPU,
    GATES,
    Array,
    affine,
    expect_affine,
    gated,
    make_tracer,
    ramp,
    trace,
    two_layers,
)
from tests.program.methods import BACKENDS, SHAPES, load, read


@pytest.mark.feature("E50", "E53")
def test_steps_are_layers_and_end_with_none(method: gx.Method) -> None:
    method.set_input(0, ramp(2, 3))
    assert not method.in_progress()
    seen = []
    while (step := method.step()) is not None:
        seen.append(step.nodes)
        assert method.in_progress()
    assert seen == [("double",), ("relu",), ("add",)] and not method.in_progress()
    assert method.step() is None
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))
    method.reset()
    assert method.step() is not None
    method.reset()


@pytest.mark.feature("E42")
def test_calls_in_the_middle_of_steps_are_refused_until_reset(method: gx.Method) -> None:
    method.set_input(0, ramp(2, 3))
    method.reset()
    method.step()
    for call in (
        lambda: method.set_input(0, ramp(2, 3)),
        lambda: method.set_output(0, None),
        lambda: method.execute(),
        lambda: method.input_buffer(0),
    ):
        with pytest.raises(gx.StateError, match=r"reset\(\)") as caught:
            call()
        assert caught.value.code == ErrorCode.INVALID_STATE
    method.reset()
    assert not method.in_progress()
    with pytest.raises(gx.StateError, match=r"execute\(\)"):
        method.get_output(0)
    method.execute()
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))
    method.step()
    with pytest.raises(gx.StateError, match=r"reset\(\)"):
        method.set_input(5, np.zeros((9, 9)))
    list(iter(method.step, None))
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))


def test_failed_execute_can_be_tried_again() -> None:
    model, gate = gated()
    GATES.open[gate].set()
    GATES.failures[gate] = ValueError("on purpose")
    with load(model, planned=True) as method:
        with pytest.raises(gx.GpuexecError, match="on purpose"):
            method.execute([ramp(2, 3)])
        method.execute()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


def test_failed_step_ends_the_steps() -> None:
    model, gate = gated()
    GATES.open[gate].set()
    GATES.failures[gate] = ValueError("on purpose")
    with load(model, gx.BackendType.SIMULATOR) as method:
        method.set_input(0, ramp(2, 3))
        with pytest.raises(gx.GpuexecError, match="on purpose"):
            list(iter(method.step, None))
        assert not method.in_progress()
        list(iter(method.step, None))
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


@pytest.mark.feature("E47")
def test_execute_that_does_not_wait_returns_before_the_work_is_done() -> None:
    model, gate = gated()
    with load(model) as method:
        run = method.execute([ramp(2, 3)], wait=False)
        GATES.entered[gate].wait()
        assert not run.is_done()
        GATES.open[gate].set()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)
        assert method.execute().is_done()


@pytest.mark.feature("E60")
def test_second_thread_entering_is_refused() -> None:
    model, gate = gated()
    with load(model) as method:
        method.set_input(0, ramp(2, 3))
        waiting = threading.Thread(target=method.execute)
        waiting.start()
        GATES.entered[gate].wait()
        for call in (method.execute, method.reset, method.step, lambda: method.set_input(0, ramp(2, 3))):
            with pytest.raises(gx.StateError, match="Another caller is inside this Method") as caught:
                call()
            assert caught.value.code == ErrorCode.INVALID_STATE
        GATES.open[gate].set()
        waiting.join()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


@pytest.mark.feature("E60")
def test_second_thread_is_refused_while_an_input_is_being_read(backend: Backend) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        """An array that takes its time."""

        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            entered.set()
            leave.wait()
            return ramp(2, 3)

    with load(affine(), backend, planned=True) as method, opening(leave):
        first = threading.Thread(target=lambda: method.set_input(0, Slow()))
        first.start()
        assert entered.wait(30)
        for call in (method.execute, method.reset, method.step, lambda: method.set_input(0, ramp(2, 3))):
            with pytest.raises(gx.StateError, match="Another caller is inside this Method") as caught:
                call()
            assert caught.value.code == ErrorCode.INVALID_STATE
        leave.set()
        first.join()
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))


@pytest.mark.feature("E60")
def test_second_thread_in_the_same_step_is_refused() -> None:
    model, gate = gated()
    with load(model, gx.BackendType.SIMULATOR) as method:
        method.set_input(0, ramp(2, 3))
        stepping = threading.Thread(target=lambda: list(iter(method.step, None)))
        stepping.start()
        GATES.entered[gate].wait()
        for call in (method.step, method.execute, method.reset):
            with pytest.raises(gx.StateError, match=r"Another caller is inside this Method|in the middle of steps"):
                call()
        GATES.open[gate].set()
        stepping.join()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


@pytest.mark.feature("E8", "E60")
@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_of_one_program_run_on_many_threads(backend: gx.BackendType) -> None:
    model = two_layers()
    program = gx.Program.build({"forward": model}, shapes={"forward": SHAPES}, backend=backend)
    with gx.Worker(model, backend=backend) as worker:
        expected = {rows: worker.run(ramp(rows, 3))[0] for rows in range(1, 9)}
    wrong: list[str] = []

    def work(number: int) -> None:
        with program.load_method("forward") as method:
            for turn in range(12):
                rows = 1 + (number + turn) % 8
                method.execute([ramp(rows, 3)])
                if not np.array_equal(read(method), expected[rows]):
                    wrong.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.feature("E56")
def test_output_before_the_first_execute_is_refused(method: gx.Method) -> None:
    for call in (lambda: method.get_output(0), method.get_outputs):
        with pytest.raises(gx.StateError, match=r"Nothing was run yet.*call execute\(\)"):
            call()


@pytest.mark.feature("E54")
def test_output_is_stale_after_the_next_run(method: gx.Method) -> None:
    method.execute([ramp(2, 3)])
    view = method.get_output(0)
    assert view.name == "y" and method.get_output("y") is view
    copy = view.readback_and_clone()
    method.execute([ramp(2, 3) + 1])
    np.testing.assert_array_equal(copy, expect_affine(ramp(2, 3)))
    later = method.get_output(0)
    method.execute([ramp(2, 3) + 2])
    for use in (later.readback_and_clone, later.readback_request, lambda: method.set_input(0, later)):
        with pytest.raises(gx.StaleError, match="'y' belongs to an earlier run"):
            use()
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3) + 2))
    for key, message in ((1, "1 outputs, got index 1"), ("z", "no output 'z'; it has y")):
        with pytest.raises(gx.InputError, match=message):
            method.get_output(key)  # type: ignore[arg-type]
    assert len(method.get_outputs()) == method.method_meta.num_outputs == method.method_meta.num_inputs == 1


@pytest.mark.feature("E46")
def test_output_lies_in_memory_of_the_users() -> None:
    for planned in (False, True):
        with load(affine(), planned=planned) as method:
            mine = gx.DeviceAllocator(CPU).allocate(8 * 3 * 4)
            seen = np.from_dlpack(mine).view(np.float32).reshape(8, 3)
            method.set_output(0, seen)
            method.execute([ramp(8, 3)])
            np.testing.assert_array_equal(seen, expect_affine(ramp(8, 3)))
            np.testing.assert_array_equal(read(method), seen)
            method.set_output("y", None)
            method.execute([-ramp(8, 3)])
            np.testing.assert_array_equal(seen, expect_affine(ramp(8, 3)))
            np.testing.assert_array_equal(read(method), expect_affine(-ramp(8, 3)))


def test_exported_output_lasts_where_it_is_not_the_users_memory() -> None:
    for planned in (False, True):
        with load(affine(), planned=planned) as method:
            method.execute([ramp(8, 3)])
            output = method.get_output(0)
            exported = np.from_dlpack(output)
            method.execute([-ramp(8, 3)])
            wanted = expect_affine(-ramp(8, 3) if planned else ramp(8, 3))
            np.testing.assert_array_equal(exported, wanted)
            if planned:
                with pytest.raises(gx.StaleError):
                    output.readback_and_clone()


BAD_OUTPUTS = [
    (0, np.zeros((2, 3), np.float32), "needs 96 bytes, got 24"),
    (0, np.zeros((8, 3), np.int32), "is float32, the memory given is of int32"),
    (0, np.broadcast_to(np.zeros((8, 1), np.float32), (8, 3)), "not contiguous"),
    (0, bytes(96), "read-only"),
    (0, object(), "a object can't be it"),
    (1, np.zeros((8, 3), np.float32), "1 outputs, got index 1"),
    (np.zeros((8, 3), np.float32), 0, r"index first: set_output\(0, array\)"),
]


@pytest.mark.parametrize(("index", "array", "message"), BAD_OUTPUTS)
def test_bad_output_is_refused(index: Any, array: Any, message: str) -> None:
    with load(affine()) as method, pytest.raises(gx.InputError, match=message):
        method.set_output(index, array)


@pytest.mark.feature("E57")
def test_constants_are_attributes() -> None:
    with load(two_layers()) as method:
        weights = method.get_attribute("first")
        np.testing.assert_array_equal(weights, ramp(3, 5))
        assert not weights.flags.writeable
        with pytest.raises(gx.InputError, match="no attribute 'third'"):
            method.get_attribute("third")


@pytest.mark.feature("B37", "E51")
def test_closed_method_is_refused_and_reads_what_was_asked_for(method: gx.Method) -> None:
    method.execute([ramp(2, 3)])
    request = method.get_output(0).readback_request()
    method.execute()
    unread = method.get_output(0)
    method.close()
    method.close()
    np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
    for call in (method.execute, method.reset, lambda: method.get_output(0), lambda: method.set_input(0, ramp(2, 3))):
        with pytest.raises(gx.ClosedError, match="The Method is closed"):
            call()
    for call in (method.step, unread.readback_request, lambda: method.state):
        with pytest.raises(gx.ClosedError, match="closed"):
            call()


def test_execute_allocates_nothing_on_the_device() -> None:
    backend = make_tracer()
    with load(two_layers(), backend, planned=True) as method:
        before = trace(backend).count("allocate")
        for rows in (8, 3, 5):
            method.execute([ramp(rows, 3)])
        assert trace(backend).count("allocate") == before


def test_input_that_stays_is_uploaded_once() -> None:
    backend = make_tracer()
    with load(affine(), backend, planned=True) as method:
        method.execute([ramp(2, 3)])
        before = trace(backend).count("copy_to_device")
        method.execute()
        assert trace(backend).count("copy_to_device") == before
        method.execute([ramp(2, 3)])
        assert trace(backend).count("copy_to_device") == before + 1


def test_backend_is_given_or_the_programs() -> None:
    program = gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, backend=gx.BackendType.SIMULATOR)
    with program.load_method("forward", backend=CPU) as method:
        assert "cpu" in repr(method)
    with program.load_method("forward") as method:
        assert "simulator" in repr(method)
        assert open_backend(gx.BackendType.SIMULATOR).device.name in repr(method)
