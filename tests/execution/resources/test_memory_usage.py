"""Memory usage: bytes held and since when, by held-up runs too, and bytes released by a flush."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.revision import Revision
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.execution.resources.memory_usage import MemoryUsage, MemoryUsageRow
from gpuexec.execution.resources.weights import weights_of
from tests.devices.opening import list_kernels
from tests.model.small_models import CPU, GATES, affine, expect_affine, gated, hold, ramp, two_layers

SIMULATOR = gx.BackendType.SIMULATOR
X = ramp(64, 3)


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend of its own, so that no other memory is counted."""
    if request.param == "cpu":
        return Backend(CpuDevice(), CPU, "for a test")
    return Backend(SimulatorDevice(list_kernels), SIMULATOR, "for a test")


def rows_of(worker: gx.Worker) -> dict[str, MemoryUsageRow]:
    return {row.name: row for row in worker.memory_report()}


def test_row_reports_since_when_and_the_most() -> None:
    nbytes = 0
    revision = Revision()
    memory_usage = MemoryUsage({"arena": lambda: nbytes}, revision)
    assert memory_usage.list_rows() == (MemoryUsageRow("arena"),)
    for nbytes, run, layer in ((8, None, ""), (64, 2, "conv"), (64, 3, ""), (16, 5, "")):
        revision.number += 1
        memory_usage.observe(run, layer)
        if nbytes == 64:
            assert memory_usage.list_rows() == (MemoryUsageRow("arena", 64, 64, 2, "conv"),)
    assert memory_usage.list_rows() == (MemoryUsageRow("arena", 16, 64, 5),)
    assert str(MemoryUsageRow("arena", 64, 2048, 2, "conv")) == "arena 64 B since run 2, layer conv, 2,048 B at most"
    assert str(MemoryUsageRow("arena", 64, 64)) == "arena 64 B since before any run, 64 B at most"


def test_memory_is_held_since_the_run_that_needed_it(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend, frames=1) as worker:
        assert all(row.nbytes == 0 for row in worker.memory_report())
        worker.prepare((4, 3))
        assert rows_of(worker)["arena"].since_run is None and rows_of(worker)["arena"].nbytes > 0
        for number in range(5):
            worker.run(ramp(4 if number < 3 else 1024, 3))
        rows = rows_of(worker)
        assert rows["arena"].since_run == rows["frames"].since_run == 3
        assert rows["weights"].since_run is None
        assert {row.name: row.nbytes for row in rows.values()}.items() <= worker.memory_stats().items()
        worker.trim()
        trimmed = rows_of(worker)
        assert trimmed["arena"].nbytes < trimmed["arena"].most_nbytes == rows["arena"].most_nbytes
        assert str(trimmed["arena"]) in worker.summary()


def test_memory_of_a_run_by_steps_is_held_since_its_layer() -> None:
    backend = Backend(SimulatorDevice(list_kernels), SIMULATOR, "for a test")
    with gx.Worker(affine(), backend=backend) as worker:
        worker.run(X)
        worker.wait_for_completion()
        assert rows_of(worker)["pinned"].nbytes == 0
        steps = worker.schedule_iterable(X)
        next(steps)
        assert (rows_of(worker)["pinned"].since_run, rows_of(worker)["pinned"].since_layer) == (1, "double")
        list(steps)


def test_run_held_open_keeps_its_arena_and_no_staging() -> None:
    device = SimulatorDevice(list_kernels)
    backend = Backend(device, SIMULATOR, "for a test")
    with gx.Worker(two_layers(), backend=backend, frames=1) as worker:
        worker.run(X)
        steps = worker.schedule_iterable(X + 1)
        next(steps)
        worker.wait_for_completion()
        held = worker.memory_stats()
        assert held["pinned"] == held["exchange"] == 0
        allocated = device.context.blocks.nbytes
        for _ in range(50):  # frames of the caller's, in which the run is not gone on with
            worker.wait_for_completion()
        gc.collect()
        assert worker.memory_stats() == held
        assert device.context.blocks.nbytes == allocated == held["arena"] + held["frames"] + held["weights"]
        assert len(backend.deferred_free) == 0
        list(steps)
        expected = np.maximum((X + 1) @ ramp(3, 5), 0) @ ramp(5, 2)
        np.testing.assert_allclose(worker.read_output(), expected, rtol=1e-6)
    device.close()


def test_flush_that_blocks_gives_staging_back_and_keeps_inputs_set(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for number in range(3):
            worker.run(X + number)
        assert worker.memory_stats()["pinned"] > 0
        gc.collect()
        worker.wait_for_completion()
        assert worker.memory_stats()["pinned"] == 0
        np.testing.assert_array_equal(worker.run()[0], expect_affine(X + 2))


def test_waiting_in_a_loop_gives_staging_back_too(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        asyncio.run(worker.wait_for_completion_async())
        assert worker.memory_stats()["pinned"] == 0
        np.testing.assert_array_equal(worker.run()[0], expect_affine(X))


def test_flush_after_a_run_that_failed_gives_staging_back() -> None:
    model, gate = gated()
    with gx.Worker(model, backend=Backend(CpuDevice(), CPU, "for a test")) as worker:
        GATES.failures[gate] = ValueError("planted")
        GATES.open[gate].set()
        worker.schedule(X)
        with pytest.raises(gx.DeviceError, match="planted"):
            worker.wait_for_completion()
        assert worker.memory_stats()["pinned"] == 0
        np.testing.assert_array_equal(worker.run()[0], X + 1)


def test_flush_leaves_a_readback_its_block(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        request = worker.schedule(X).peek_output().readback_request()
        worker.wait_for_completion()
        assert worker.memory_stats()["pinned"] > 0
        for number in range(3):
            worker.run(X + 1 + number)
        np.testing.assert_array_equal(request.result(), expect_affine(X))
        del request
        worker.run(X)
        gc.collect()
        worker.wait_for_completion()
        assert worker.memory_stats()["pinned"] == 0


def test_flush_keeps_an_input_that_comes_from_another_device() -> None:
    backend = Backend(SimulatorDevice(list_kernels), SIMULATOR, "for a test")
    with gx.Worker(affine(), backend=CPU) as producer, gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(producer.schedule(X).peek_output())
        worker.wait_for_completion()
        assert worker.memory_stats()["pinned"] == 0
        np.testing.assert_array_equal(worker.run()[0], expect_affine(expect_affine(X)))


def test_flush_half_way_through_a_run_on_the_host_keeps_its_input() -> None:
    with gx.Worker(affine(), backend=Backend(CpuDevice(), CPU, "for a test")) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        worker.wait_for_completion()
        other = worker._backend.staging.take(X.nbytes)
        assert other.array is not None
        other.array[...] = 0xFF
        list(steps)
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


def test_iterator_not_begun_keeps_its_input_through_a_flush(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        worker.wait_for_completion()
        list(steps)
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))


def test_weights_are_freed_with_the_last_worker(backend: Backend) -> None:
    model = two_layers()
    one, other = gx.Worker(model, backend=backend), gx.Worker(model, backend=backend)
    expected = one.run(X)[0]
    np.testing.assert_array_equal(other.run(X)[0], expected)
    one.close()
    assert other.memory_stats()["weights"] > 0
    np.testing.assert_array_equal(other.run(X)[0], expected)
    other.close()
    assert weights_of(model, backend).nbytes == 0
    with gx.Worker(model, backend=backend) as again:
        np.testing.assert_array_equal(again.run(X)[0], expected)


def test_close_gives_all_of_the_device_back() -> None:
    device = SimulatorDevice(list_kernels)
    backend = Backend(device, SIMULATOR, "for a test")
    with gx.Worker(two_layers(), backend=backend) as worker:
        for rows in (1, 64, 300):
            worker.run(ramp(rows, 3))
        assert device.context.blocks.nbytes > 0 and device.context.pinned.nbytes > 0
    gc.collect()
    assert device.context.blocks.nbytes == 0
    backend.staging.trim()
    assert device.context.pinned.nbytes == 0
    device.close()


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_caller_never_waits_for_a_frame(backend: Backend, frames: int) -> None:
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, frames=frames, stream=stream) as worker:
        worker.run(X)
        gate = hold(stream)
        # The copies to the host wait as well: every frame has a reader when its turn comes again.
        requests = [worker.schedule(X + number).peek_output().readback_request() for number in range(4 * frames)]
        assert not any(request.is_done() for request in requests)
        assert worker.report().host_syncs == ()
        gate.set()
        for number, request in enumerate(requests):
            np.testing.assert_array_equal(request.result(), expect_affine(X + number))
        assert worker.memory_stats()["frames"] > 0


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_stream_waits_for_the_reader_of_a_frame(frames: int) -> None:
    # A reader on a stream of its own, held: the run that takes its frame waits there, and those before it don't.
    backend = Backend(SimulatorDevice(list_kernels), SIMULATOR, "for a test")
    reading = backend.device.create_stream()
    with gx.Worker(affine(), backend=backend, frames=frames) as worker:
        worker.run(X)
        gate = hold(reading)
        worker.schedule(X).peek_output()
        kept = worker.copy_output()
        kept.upload(X)  # the copy's bytes are read by nobody
        worker.schedule(X)
        request = worker.peek_output().readback_request(stream=reading)
        later = [worker.schedule(X + number) for number in range(frames)]
        for run in later[:-1]:
            run.wait()
        assert not later[-1].is_done() and not request.is_done()
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(X))
        later[-1].wait()
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X + frames - 1))
