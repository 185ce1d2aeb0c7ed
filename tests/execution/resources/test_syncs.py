"""Implicit synchronizations: refused, counted, named; and avoided where they are needless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.execution.resources.syncs import WAITS_KEPT, SyncLog
from tests.devices.backends import on
from tests.model.control_models import ControlModel, number
from tests.model.host_value_cases import TERMS, ints, put_on_device
from tests.model.small_models import affine, hold, make_tracer, ramp, trace
from tests.model.staged_models import MODELS, inputs

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR
STAGED_WITH_READS = [name for name, model in MODELS.items() if model.reads]


def load(text: str) -> gx.Model:
    return gx.load(ControlModel(text, (), 21).parse().SerializeToString())


RESHAPE = "(float[n] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"


@pytest.mark.feature("S61", "S63")
def test_strict_refuses_a_read_before_any_work_and_names_it(backend: Backend) -> None:
    shape = put_on_device(ints(2, 3), backend)
    with gx.Worker(load(RESHAPE), backend=backend, strict=True) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=r"%?shape for .*Reshape.* \(shape\)"):
            worker.schedule({"x": ramp(6), "shape": shape})
        assert worker.report().runs == 0 and worker.report().host_reads == ()
        # The host has the content of an array: nothing to refuse.
        for sizes in ((2, 3), (3, 2), (6, 1)):
            np.testing.assert_array_equal(worker.run({"x": ramp(6), "shape": ints(*sizes)})[0], ramp(6).reshape(sizes))
        assert worker.report().host_reads == ()


@pytest.mark.feature("S29", "S63", "E41")
def test_strict_refuses_a_host_call_before_any_work_and_names_it() -> None:
    backend = make_tracer()
    with gx.Worker(MODELS["host call"].load(), backend=backend, strict=True) as worker:
        rows = len(trace(backend))
        with pytest.raises(gx.ImplicitSyncError, match="NoKernel 'NoKernel_1'"):
            worker.schedule(inputs(0))
        assert not {"launch", "copy_to_device", "copy_to_host"} & set(trace(backend)[rows:])
        assert worker.report().runs == 0


@pytest.mark.parametrize("name", STAGED_WITH_READS)
def test_strict_ends_what_it_could_not_foresee(name: str) -> None:
    with gx.Worker(MODELS[name].load(), backend=SIMULATOR, strict=True) as worker:
        with pytest.raises(gx.ImplicitSyncError, match="strict=True"):
            worker.schedule(inputs(0)).wait()
        assert worker.report().host_reads == ()


def test_strict_takes_models_without_reads(backend: Backend) -> None:
    x = inputs(0)
    with gx.Worker(MODELS["scan"].load(), backend=backend, strict=True) as worker:
        MODELS["scan"].check(x, [t.readback_and_clone() for t in worker.schedule(x).outputs.values()])


def schedule_and_wait(worker: gx.Worker, x: Array, gate: threading.Event) -> None:
    run = worker.schedule(x)
    gate.set()
    run.wait()


@pytest.mark.parametrize("name", STAGED_WITH_READS)
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "on the driver thread"])
def test_no_implicit_sync_ends_the_run_that_reads_and_no_other(name: str, is_held: bool) -> None:
    staged, x = MODELS[name], inputs(0)
    with gx.Worker(staged.load(), backend=SIMULATOR) as worker:
        before = worker.schedule(inputs(1))
        gate = hold(worker._engine.stream)
        if not is_held:
            gate.set()
        raised = pytest.raises(gx.ImplicitSyncError, match=r"no_implicit_sync\(\)")
        with raised, gx.no_implicit_sync():
            schedule_and_wait(worker, x, gate)
        gate.set()
        before.wait()
        worker.wait_for_completion()
        reads = {row.value: row.times for row in worker.report().host_reads}
        later = worker.schedule(x)
        staged.check(x, [tensor.readback_and_clone() for tensor in later.outputs.values()])
        assert {row.value: row.times for row in worker.report().host_reads} != reads


def test_run_scheduled_under_no_implicit_sync_keeps_to_it_outside(backend: Backend) -> None:
    with gx.Worker(MODELS["if"].load(), backend=backend) as worker:
        gate = hold(worker._engine.stream)
        first = worker.schedule(inputs(0))
        with gx.no_implicit_sync():
            second = worker.schedule(inputs(1))
        gate.set()
        first.wait()
        with pytest.raises(gx.ImplicitSyncError, match="sum"):
            second.wait()


@pytest.mark.feature("S67")
@on("cpu", "simulator", "tracer")
@pytest.mark.parametrize(
    "ask",
    [
        lambda worker, run: run.wait(),
        lambda worker, run: worker.wait_for_completion(),
        lambda worker, run: worker.read_output(),
        lambda worker, run: run.peek_output().readback_and_clone(),
        lambda worker, run: run.peek_output().readback_request().result(),
        lambda worker, run: worker.run(ramp(2, 3)),
        lambda worker, run: run.peek_output().wait(),
        lambda worker, run: worker.trim(),
    ],
)
def test_what_is_asked_for_by_name_never_raises(ask: Callable[[gx.Worker, gx.Run], object], backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker, gx.no_implicit_sync():
        ask(worker, worker.schedule(ramp(2, 3)))
        assert worker.report().host_syncs == worker.report().host_reads == ()


def test_wait_for_a_shape_is_refused_where_nobody_asked_for_it(backend: Backend) -> None:
    with (
        gx.Worker(MODELS["read"].load(), backend=backend) as worker,
        gx.Worker(load("(int64[2, m] y) => (int64[2, m] z) { z = Neg (y) }"), backend=backend) as consumer,
    ):
        gate = hold(worker._engine.stream)
        y = worker.schedule(inputs(0)).peek_output()
        for use in (lambda: consumer.schedule(y), worker.copy_output):
            with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError, match="waits for y"):
                use()
        gate.set()
        np.testing.assert_array_equal(consumer.run(y)[0], -MODELS["read"].expect(inputs(0))[0])


DECODE = """(float[1000, 8] x, int64[1] start) => (float[k, 8] y) <int64[1] sixteen = {16}, int64[1] axis = {0}> {
  end = Add (start, sixteen) part = Slice (x, start, end, axis) y = Neg (part)
}"""


@pytest.mark.feature("S61")
@pytest.mark.parametrize("place", ["host", "device"])
def test_decoding_with_a_moving_start_makes_no_plan_for_a_step(place: str, backend: Backend) -> None:
    x = np.arange(8000, dtype=np.float32).reshape(1000, 8)
    steps = 1000 if place == "host" else 120
    with gx.Worker(load(DECODE), backend=backend) as worker:
        for position in range(steps):
            start: Any = ints(position % 984)
            worker.schedule({"x": x, "start": start if place == "host" else put_on_device(start, backend)})
            if position % 50 == 0 or position == steps - 1:
                np.testing.assert_array_equal(worker.read_output(), -x[position % 984 :][:16])
        report = worker.report()
    # How many rows content from a device leaves is news in each run, so what takes them is planned apart.
    assert (report.plans, report.runs) == (1 if place == "host" else 2, steps)
    assert [(row.value, row.nbytes, row.times) for row in report.host_reads] == (
        [("start", 8 * steps, steps)] if place == "device" else []
    )


@pytest.mark.feature("S62")
def test_heavy_producer_stays_on_the_device_and_its_small_result_is_read(backend: Backend) -> None:
    text = """(float[n] x, int64[r, m] s) => (float[a, b] y) <int64[1] last = {-1}> {
      sums = ReduceSum <keepdims = 0> (s, last) shape = Neg (sums) y = Reshape (x, shape)
    }"""
    s = np.zeros((2, TERMS), np.int64)
    s[:, 5] = (-2, -3)
    with gx.Worker(load(text), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run({"x": ramp(6), "s": s})[0], ramp(6).reshape(2, 3))
        rows = [(row.value, row.nbytes) for row in worker.report().host_reads]
    # The sum is 256 KB of work and 16 bytes of result; what follows it is nothing to the host.
    assert rows == [("sums", 16)]


@pytest.mark.feature("S62")
def test_light_chain_of_integers_runs_on_the_host_from_one_read_further_up(backend: Backend) -> None:
    text = """(float[n] x, int64[r] s) => (float[a, b] y) <int64 two = {2}, int64 one = {1}> {
      doubled = Mul (s, two) more = Add (doubled, two) less = Sub (more, two) half = Div (less, two)
      shape = Add (half, one) y = Reshape (x, shape)
    }"""
    with gx.Worker(load(text), backend=backend) as worker:
        given = {"x": ramp(6), "s": put_on_device(ints(1, 2), backend)}
        np.testing.assert_array_equal(worker.run(given)[0], ramp(6).reshape(2, 3))
        rows = [(row.value, row.nbytes, row.times) for row in worker.report().host_reads]
    assert rows == [("s", 16, 1)]


@pytest.mark.feature("S62")
def test_shape_computed_on_the_host_that_does_not_fit_is_refused(backend: Backend) -> None:
    text = """(float[n] x, int64[r] s) => (float[a, b] y) <int64 two = {2}> {
      doubled = Mul (s, two) more = Add (doubled, two) shape = Sub (more, two) y = Reshape (x, shape)
    }"""
    with gx.Worker(load(text), backend=backend) as worker:
        with pytest.raises(gx.GpuexecError):
            worker.run({"x": ramp(6), "s": put_on_device(ints(1, 3), backend)})  # 2 * 6 is not 6
        given = {"x": ramp(4), "s": put_on_device(ints(1, 1), backend)}
        np.testing.assert_array_equal(worker.run(given)[0], ramp(4).reshape(2, 2))
        assert {row.value for row in worker.report().host_reads} == {"s"}


def test_two_readers_of_one_value_share_a_read(backend: Backend) -> None:
    text = """(float[n] x, int64[r] s) => (float[a, b] y, float[a, b] z) <int64[2] turned = {1, 0}> {
      y = Reshape (x, s) other = Gather (s, turned) z = Reshape (x, other)
    }"""
    with gx.Worker(load(text), backend=backend) as worker:
        y, z = worker.run({"x": ramp(6), "s": put_on_device(ints(2, 3), backend)})
        rows = [(row.value, row.nbytes, row.times) for row in worker.report().host_reads]
    np.testing.assert_array_equal(y, ramp(6).reshape(2, 3))
    np.testing.assert_array_equal(z, ramp(6).reshape(3, 2))
    assert rows == [("s", 16, 1)]


@pytest.mark.feature("S67")
def test_report_separates_waiting_and_copying(backend: Backend) -> None:
    with gx.Worker(load(RESHAPE), backend=backend) as worker:
        shape = put_on_device(ints(2, 3), backend)
        for _ in range(3):
            worker.schedule({"x": ramp(6), "shape": shape}).wait()
        (row,) = worker.report().host_reads
        assert (row.value, row.why, row.nbytes, row.times) == ("shape", "shape", 48, 3)
        assert row.waited_ms >= 0 and row.copied_ms >= 0
        assert "host read shape for" in worker.summary() and "3 times, 48 B" in worker.summary()
        assert "Reshape" in row.node
        with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError, match="shape"):
            worker.schedule({"x": ramp(6), "shape": put_on_device(ints(3, 2), backend)}).wait()
        assert worker.report().host_reads[0].times == 3
        np.testing.assert_array_equal(worker.run({"x": ramp(6), "shape": ints(3, 2)})[0], ramp(6).reshape(3, 2))


def test_counts_of_a_computed_loop_are_reported_by_reader() -> None:
    text = """(float[k] x, int64 n) => (float[k] y) {
      y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
        c_out = Identity (c) v_out = Add (v, v)
      }>
    }"""
    with gx.Worker(load(text), backend=SIMULATOR) as worker:
        worker.run({"x": ramp(4), "n": put_on_device(number(3), SIMULATOR)})
        assert [(row.value, row.why) for row in worker.report().host_reads] == [("n", "trip count")]


def test_waits_of_many_runs_do_not_pile_up() -> None:
    log = SyncLog()
    for run in range(WAITS_KEPT + 3):
        log.note_wait(f"run {run}", "it had to")
    assert len(log.waits) == WAITS_KEPT and log.waits[-1] == (f"run {WAITS_KEPT + 2}", "it had to")
