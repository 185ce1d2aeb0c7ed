"""Methods: inputs that stay set, runs whole or in steps, outputs where they lie, and one caller at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from gpuexec.resources.fence import Fence
from gpuexec.runtime.backend import Backend, open_backend
from tests.small_models import (
    CPU,
    GATES,
    affine,
    expect_affine,
    gated,
    hold,
    make_tracer,
    ramp,
    trace,
    two_inputs,
    two_layers,
)

BACKENDS = [CPU, gx.BackendType.SIMULATOR]
SHAPES = {"x": ((1, 8), 3)}


def load(
    model: gx.Model,
    backend: gx.BackendType | Backend = CPU,
    shapes: Any = SHAPES,
    planned: bool = False,
    **options: Any,
) -> gx.Method:
    program = gx.Program.build({"forward": model}, shapes=shapes and {"forward": shapes}, backend=backend)
    memory = None
    if planned:
        arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
        memory = gx.MemoryManager(planned_memory=arenas)
    return program.load_method("forward", memory, **options)


@pytest.fixture(params=[(b, p) for b in BACKENDS for p in (False, True)], ids=lambda v: f"{v[0].value}-{v[1]}")
def method(request: pytest.FixtureRequest) -> Iterator[gx.Method]:
    backend, planned = request.param
    with load(affine(), backend, planned=planned) as made:
        yield made


def read(method: gx.Method, index: int | str = 0) -> np.ndarray[Any, Any]:
    return method.get_output(index).readback_and_clone()


# ---- inputs


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


def test_input_buffer_is_written_without_a_copy(method: gx.Method) -> None:
    method.set_input(0, ramp(8, 3))
    method.execute()
    buffer = method.input_buffer(0, (5, 3))
    assert buffer.shape == (5, 3)
    buffer.data_on_backend.upload(ramp(5, 3) * 3)
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
        method.input_buffer(0).data_on_backend.upload(-ramp(8, 3))
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(8, 3)))
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(-ramp(8, 3)))


def test_input_buffer_on_the_cpu_is_seen_by_numpy() -> None:
    with load(affine(), planned=True) as method:
        np.from_dlpack(method.input_buffer(0))[...] = ramp(8, 3)
        method.execute()
        np.testing.assert_array_equal(read(method), expect_affine(ramp(8, 3)))


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
    (1.5, ramp(2, 3), ErrorCode.INVALID_ARGUMENT, "an index or a name, not a float"),
    (ramp(2, 3), 0, ErrorCode.INVALID_ARGUMENT, r"index first: set_input\(0, array\)"),
    (ramp(2, 3), "x", ErrorCode.INVALID_ARGUMENT, r"index first: set_input\('x', array\)"),
]


@pytest.mark.parametrize(("index", "value", "code", "message"), BAD_INPUTS)
def test_bad_input_is_refused_and_changes_nothing(index: Any, value: Any, code: ErrorCode, message: str) -> None:
    with load(affine()) as method:
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


def test_inputs_are_set_all_or_none() -> None:
    shapes = {"left": ((1, 4), 3), "right": ((1, 4), 3)}
    with load(two_inputs(), shapes=shapes) as method:
        method.set_inputs([ramp(2, 3), ramp(2, 3)])
        with pytest.raises(gx.InputError, match="'right'"):
            method.set_inputs([ramp(4, 3), ramp(5, 3)])
        with pytest.raises(gx.InputError, match="2 inputs, got 1"):
            method.set_inputs([ramp(4, 3)])
        with pytest.raises(gx.InputError, match="Input 'left' is given twice"):
            method.set_inputs({"left": ramp(4, 3), 0: ramp(4, 3)})
        method.execute()
        np.testing.assert_array_equal(read(method, "sum"), 2 * ramp(2, 3))
        method.set_inputs({"left": ramp(4, 3), 1: ramp(4, 3)})
        method.execute()
        np.testing.assert_array_equal(read(method, "sum"), 2 * ramp(4, 3))


def test_input_never_set_is_named() -> None:
    with load(two_inputs(), shapes={"left": (2, 3), "right": (2, 3)}) as method:
        method.set_input("left", ramp(2, 3))
        with pytest.raises(gx.InputError, match=r"input 'right' .* is missing"):
            method.execute()


# ---- running


def test_steps_are_layers_and_end_with_none(method: gx.Method) -> None:
    method.set_input(0, ramp(2, 3))
    assert not method.in_progress()
    names = []
    while (step := method.step()) is not None:
        names += step.nodes
        assert method.in_progress()
    assert len(names) >= 1 and not method.in_progress()
    assert method.step() is None
    np.testing.assert_array_equal(read(method), expect_affine(ramp(2, 3)))
    method.reset()
    assert method.step() is not None
    method.reset()


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


def test_execute_that_does_not_wait_returns_before_the_work_is_done() -> None:
    model, gate = gated()
    with load(model) as method:
        run = method.execute([ramp(2, 3)], wait=False)
        GATES.entered[gate].wait()
        assert not run.is_done()
        GATES.open[gate].set()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


def test_second_thread_entering_is_refused() -> None:
    model, gate = gated()
    with load(model) as method:
        method.set_input(0, ramp(2, 3))
        waiting = threading.Thread(target=method.execute)
        waiting.start()
        GATES.entered[gate].wait()
        for call in (method.execute, method.reset, lambda: method.set_input(0, ramp(2, 3))):
            with pytest.raises(gx.StateError, match="Another caller is inside this Method"):
                call()
        GATES.open[gate].set()
        waiting.join()
        np.testing.assert_array_equal(read(method), ramp(2, 3) + 1)


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_of_one_program_run_on_many_threads(backend: gx.BackendType) -> None:
    model = two_layers()
    program = gx.Program.build({"forward": model}, shapes={"forward": SHAPES}, backend=backend)
    with gx.Worker(model, backend=backend) as worker:
        expected = {rows: worker.run(ramp(rows, 3)) for rows in range(1, 9)}
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


# ---- outputs


def test_output_before_the_first_execute_is_refused(method: gx.Method) -> None:
    with pytest.raises(gx.StateError, match="Nothing was run yet"):
        method.get_output(0)


def test_output_is_stale_after_the_next_run(method: gx.Method) -> None:
    method.execute([ramp(2, 3)])
    before = method.get_output(0)
    method.execute()
    with pytest.raises(gx.StaleError, match="'y'"):
        before.readback_and_clone()
    assert len(method.get_outputs()) == method.outputs_size == method.inputs_size == 1


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


def test_constants_are_attributes() -> None:
    with load(two_layers()) as method:
        weights = method.get_attribute("first")
        np.testing.assert_array_equal(weights, ramp(3, 5))
        assert not weights.flags.writeable
        with pytest.raises(gx.InputError, match="no attribute 'third'"):
            method.get_attribute("third")


# ---- life


def test_closed_method_is_refused_and_reads_what_was_asked_for(method: gx.Method) -> None:
    method.execute([ramp(2, 3)])
    request = method.get_output(0).readback_request()
    method.close()
    method.close()
    np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
    for call in (method.execute, method.reset, lambda: method.get_output(0), lambda: method.set_input(0, ramp(2, 3))):
        with pytest.raises(gx.ClosedError, match="The Method is closed"):
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


def test_backend_is_told_or_the_programs() -> None:
    program = gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, backend=gx.BackendType.SIMULATOR)
    with program.load_method("forward", backend=CPU) as method:
        assert "cpu" in repr(method)
    with program.load_method("forward") as method:
        assert "simulator" in repr(method)
        assert open_backend(gx.BackendType.SIMULATOR).device.name in repr(method)
