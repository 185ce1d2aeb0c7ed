"""The Worker: scheduling, results, and reports."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import (
    CPU,
    GATES,
    affine,
    expect_affine,
    gated,
    hold,
    hold_worker,
    make_model,
    make_tracer,
    ramp,
    two_inputs,
    two_layers,
)

LATER_NAMES = ("math", "budget_ms")


@pytest.mark.feature("S22")
def test_run_gives_the_answer(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    for given in (x, [x], {"x": x}):
        np.testing.assert_array_equal(worker.run(given)[0], expect_affine(x))


def test_run_gives_a_list_for_several_outputs() -> None:
    left, right = ramp(2, 3), ramp(2, 3)[::-1]
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        total, difference = worker.run({"left": left, "right": right})
    np.testing.assert_array_equal(total, left + right)
    np.testing.assert_array_equal(difference, left - right)


def test_schedule_returns_before_the_work_is_done() -> None:
    model, gate = gated()
    x = ramp(2, 3)
    with gx.Worker(model, backend=CPU) as worker:
        run = worker.schedule(x)
        assert GATES.entered[gate].wait()
        assert not run.is_done() and not run.wait(timeout_s=0)
        y = worker.peek_output()
        assert y.shape == (2, 3) and not y.is_done()
        GATES.open[gate].set()
        assert run.wait()
        np.testing.assert_array_equal(y.readback_and_clone(), x + 1)


def test_names_of_later_work_are_absent() -> None:
    for name in LATER_NAMES:
        with pytest.raises(TypeError, match=name):
            gx.Worker(affine(), backend=CPU, **{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize("frames", [0, -1, 1.5, "2"])
def test_frames_that_are_no_count_are_refused(frames: Any) -> None:
    with pytest.raises(gx.InputError, match="frames must be a whole number"):
        gx.Worker(affine(), backend=CPU, frames=frames)


@pytest.mark.feature("B33", "S24", "E15")
def test_peek_before_a_run_raises(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match="schedule"):
        worker.peek_output()


@pytest.mark.feature("B33", "S24", "E15")
def test_peek_names_the_outputs_there_are(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker:
        run = worker.schedule([ramp(1, 3), ramp(1, 3)])
        assert worker.peek_output().name == "sum" and run.peek_output("difference").name == "difference"
        assert worker.peek_output() is worker.peek_output("sum")
        assert list(run.outputs) == ["sum", "difference"]
        with pytest.raises(gx.InputError, match=r"'total'.*sum, difference"):
            worker.peek_output("total")


@pytest.mark.feature("B33", "S24", "S26", "E15")
def test_stale_tensor_raises_after_the_next_run(worker: gx.Worker) -> None:
    y = worker.schedule(ramp(2, 3)).peek_output()
    worker.schedule(ramp(2, 3))
    for use in (
        y.readback_request,
        y.readback_and_clone,
        lambda: y[0],
        lambda: y.upload(ramp(2, 3)),
        lambda: worker.schedule(y),
    ):
        with pytest.raises(gx.StaleError, match=r"'y' belongs to an earlier run.*copy_output"):
            use()


def test_refused_inputs_leave_outputs_fresh(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    y = worker.schedule(x).peek_output()
    with pytest.raises(gx.InputError):
        worker.schedule(x[0])
    np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(x))


@pytest.mark.feature("S25", "T2")
def test_copy_outlives_later_runs_and_the_worker(backend: Backend) -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(x)
        copy = worker.copy_output()
        for _ in range(4):
            worker.schedule(x + 9)
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


@pytest.mark.feature("S25", "T2")
def test_copy_does_not_wait(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    x = ramp(2, 3)
    with worker:
        worker.schedule(x)
        copy = worker.copy_output()
        assert not copy.is_done() and copy.backend_type is backend.type
        gate.set()
        np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


def test_pending_copy_is_not_overtaken_by_later_runs(worker: gx.Worker, backend: Backend) -> None:
    x = ramp(2, 3)
    with backend.transfers.lock:
        copies = backend.transfers.open()
        gate = hold(copies)
    worker.schedule(x)
    copy = worker.copy_output()
    later = [worker.schedule(x + number) for number in range(1, 5)]
    assert not later[-1].is_done()
    gate.set()
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


@pytest.mark.feature("S25", "T2")
def test_copy_is_no_view_of_the_workers_tensor(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    y = worker.schedule(x).peek_output()
    copy = worker.copy_output()
    y.upload(np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x))


@pytest.mark.feature("S25", "T2")
def test_copy_into_a_copy_waits_for_its_readers(worker: gx.Worker) -> None:
    x = ramp(2, 3)
    worker.schedule(x)
    copy = worker.copy_output()
    before = copy.readback_request()
    worker.schedule(x + 1)
    assert worker.copy_output(out=copy) is copy
    np.testing.assert_array_equal(before.result(), expect_affine(x))
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(x + 1))


@pytest.mark.feature("S25", "T2")
def test_copy_into_another_shape_or_a_workers_tensor_is_refused(worker: gx.Worker) -> None:
    worker.schedule(ramp(2, 3))
    copy = worker.copy_output()
    other = worker.schedule(ramp(4, 3)).peek_output()
    for out in (copy, other, np.zeros((4, 3), np.float32)):
        with pytest.raises(gx.InputError, match="copy_output"):
            worker.copy_output(out=out)  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"float32\[4,3\]"):
        worker.copy_output(out=copy)


def test_prepare_leaves_nothing_to_plan(worker: gx.Worker) -> None:
    plan = worker.prepare({"x": (2, 3)})
    before = worker.report()
    assert before.runs == 0 and before.plans == 1 and worker.plans == (plan,)
    worker.run(ramp(2, 3))
    assert worker.report().plans == 1 and worker.report().runs == 1


def test_prepare_takes_arrays_and_shapes(worker: gx.Worker) -> None:
    plan = worker.prepare(ramp(2, 3))
    assert worker.prepare((2, 3)) is worker.prepare([(2, 3)]) is worker.prepare({"x": (2, 3)}) is plan
    with pytest.raises(gx.InputError, match=r"'x'.*free dimensions"):
        worker.prepare()
    with pytest.raises(gx.InputError, match="axis 1 must be 3"):
        worker.prepare({"x": (2, 4)})
    with pytest.raises(gx.InputError, match="no input 'z'"):
        worker.prepare({"z": (2, 3)})
    with pytest.raises(gx.InputError, match="has 1 input, got 2"):
        worker.prepare([(2, 3)] * 2)
    with pytest.raises(gx.InputError, match="'x' expects float32, got float64"):
        worker.prepare(ramp(2, 3).astype(np.float64))
    with pytest.raises(gx.InputError, match=r"'x' expects .*, got the shape \(-1, 3\)"):
        worker.prepare((-1, 3))


def test_prepare_takes_whatever_schedule_takes() -> None:
    with gx.Worker(two_inputs(), backend=CPU) as worker:
        plan = worker.prepare([(2, 3), (2, 3)])
        assert worker.prepare((ramp(2, 3), ramp(2, 3))) is worker.prepare([ramp(2, 3), (2, 3)]) is plan
        worker.run([ramp(2, 3), ramp(2, 3)])
        assert worker.prepare([worker.peek_output(), (2, 3)]) is plan
    with gx.Worker(make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ()}, {"y": ()}), backend=CPU) as worker:
        assert worker.prepare(1.5) is worker.prepare(()) is worker.prepare(np.float32(1)) is not None


def test_prepare_without_inputs_takes_fixed_shapes() -> None:
    with gx.Worker(affine((2, 3)), backend=CPU) as worker:
        plan = worker.prepare()
        assert plan is not None and plan.inputs[0].spec == TensorSpec((2, 3), np.dtype(np.float32))


def test_memory_stats_show_the_arena_beside_its_bound() -> None:
    with gx.Worker(two_layers(), backend=CPU) as worker:
        worker.run(ramp(64, 3))
        stats = worker.memory_stats()
    kinds = {"arena", "exchange", "weights", "frames", "lane", "graphs", "pinned", "cached"}
    assert set(stats) == {*kinds, "arena_lower_bound"}
    assert stats["arena"] >= stats["arena_lower_bound"] > 0
    assert stats["frames"] >= 64 * 2 * 4 and stats["weights"] == (3 * 5 + 5 * 2) * 4


@pytest.mark.feature("S60")
def test_trim_gives_outgrown_memory_back(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(2, 3))
        answer = worker.run(ramp(5000, 3))[0]
        before = worker.memory_stats()
        worker.trim()
        after = worker.memory_stats()
        assert after["arena"] < before["arena"] and after["pinned"] < before["pinned"]
        np.testing.assert_array_equal(worker.run(ramp(5000, 3))[0], answer)


@pytest.mark.feature("B36")
def test_report_and_summary_name_backend_and_counts(worker: gx.Worker, backend: Backend) -> None:
    worker.run(ramp(2, 3))
    report = worker.report()
    name = backend.device.name
    assert (report.backend, report.runs, report.plans, report.host_calls, report.host_syncs) == (name, 1, 1, (), ())
    for part in (f"on {name}", "runs 1", "plans 1", "arena", "weights"):
        assert part in worker.summary()
    assert worker.backend_type is backend.type and worker.backend_reason == report.reason


@pytest.mark.feature("B36")
def test_summary_reports_the_bytes_of_weights(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.run(ramp(4, 3))
        assert "weights 100 B" in worker.summary()


def test_wait_that_nobody_asked_for_is_counted() -> None:
    producer, gate = hold_worker(affine())
    tracer = make_tracer()
    with producer, gx.Worker(affine(), backend=tracer, stream=tracer.device.create_stream()) as consumer:
        pending = producer.schedule(ramp(2, 3)).peek_output()
        counted = threading.Event()

        class Syncs(deque[tuple[str, str]]):
            def append(self, row: tuple[str, str]) -> None:
                super().append(row)
                counted.set()

        consumer._engine.syncs._waits = Syncs()
        scheduling = threading.Thread(target=consumer.schedule, args=(pending,))
        scheduling.start()
        assert counted.wait(60)
        gate.set()
        scheduling.join()
        assert [what for what, _ in consumer.report().host_syncs] == ["run 0"]
        assert "host wait for run 0" in consumer.summary()


def test_what_is_of_another_kind_is_refused_before_any_work() -> None:
    refused: Any = 3
    with pytest.raises(
        gx.InputError, match=r"a path, bytes, a binary file, a ModelProto or an ONNXProgram to load, got int"
    ):
        gx.Worker(refused)
    with gx.Worker(affine(), backend=CPU) as worker:
        with pytest.raises(gx.InputError, match=r"tap takes reducers by name, .* got a int"):
            worker.tap(refused)
        for call in (
            lambda: gx.Worker(affine(), backend=CPU, progress=refused),
            lambda: worker.prepare((2, 3), progress=refused),
            lambda: gx.load(b"", progress=refused),
            lambda: gx.Program.build({"m": affine()}).load_method("m", backend=CPU, progress=refused),
        ):
            with pytest.raises(gx.InputError, match="progress takes a function of a Progress, or None, got a int"):
                call()


@pytest.mark.feature("B1", "S1")
@pytest.mark.parametrize("form", ["path", "text", "bytes", "bytearray", "file", "stream", "message"])
def test_a_worker_loads_what_load_takes(form: str, tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "affine.onnx"
    affine().save(path)
    with path.open("rb") as file:
        content = path.read_bytes()
        given: dict[str, Any] = {"path": path, "text": str(path), "bytes": content, "bytearray": bytearray(content)}
        given |= {"file": file, "stream": io.BytesIO(content), "message": onnx.load(path)}
        with gx.Worker(given[form], backend=backend) as worker:
            np.testing.assert_array_equal(worker.run(ramp(2, 3))["y"], expect_affine(ramp(2, 3)))


def test_a_worker_of_a_broken_file_says_what_load_says(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(gx.ModelError, match="expected an ONNX model, got 8 bytes"):
        gx.Worker(tmp_path / "model.onnx", backend=CPU)


def build_program(**options: Any) -> gx.Program:
    return gx.Program.build({"forward": affine()}, shapes={"forward": {"x": [2, 3]}}, **options)


def compare_with(name: str) -> object:
    with gx.Worker(affine(), backend=CPU, compare_with=name) as worker:
        worker.run(ramp(2, 3))
        return worker.report().compared


DOORS: dict[str, Callable[[str], object]] = {
    "Worker": lambda name: gx.Worker(affine(), backend=name).close(),
    "compare_with": compare_with,
    "Program.build": lambda name: build_program(backend=name).method_meta("forward"),
    "Program.load_method": lambda name: build_program().load_method("forward", backend=name).close(),
    "Program.method_meta": lambda name: build_program().method_meta("forward", backend=name),
    "Module": lambda name: gx.Module(build_program(), backend=name).load_method().close(),
    "DeviceAllocator": lambda name: gx.DeviceAllocator(name).allocate(8),
    "ImageConverter": lambda name: gx.ImageConverter(name).close(),
    "to_tensor": lambda name: gx.to_tensor(np.zeros((2, 2), np.uint8), backend=name),
    "measure_gap": lambda name: gx.measure_gap(affine(), ramp(2, 3), name),
    "measure_gap against": lambda name: gx.measure_gap(affine(), ramp(2, 3), CPU, name),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_backend_is_taken_by_its_name_in_any_case(door: str) -> None:
    DOORS[door]("cpu")
    DOORS[door]("CPU")
    with pytest.raises(gx.InputError):
        DOORS[door]("gpuu")


def test_backend_that_there_is_not_is_refused_by_those_there_are(tmp_path: Path) -> None:
    wrong: Any = "gpuu"
    path = tmp_path / "absent.gxp"
    for call in (
        lambda: gx.Worker(affine(), backend=wrong),
        lambda: gx.Worker(affine(), backend=CPU, compare_with=wrong),
        lambda: gx.Module(path, backend=wrong),
        lambda: gx.Program.load(path, backend=wrong),
        lambda: build_program(backend=wrong),
    ):
        with pytest.raises(
            gx.InputError, match=r"no backend 'gpuu'; .*: 'auto', 'gpu_compute', 'gpu_pixel', 'cpu', 's"
        ):
            call()
