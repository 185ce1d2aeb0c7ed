"""Lifetime of a Worker: closing, threads, processes."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.errors import ErrorCode
from tests.devices.opening import make_simulator
from tests.model.small_models import (
    CPU,
    Array,
    affine,
    expect_affine,
    hold,
    hold_worker,
    make_tracer,
    ramp,
    trace,
    two_layers,
)


def test_close_is_idempotent_and_ends_use(worker: gx.Worker) -> None:
    y = worker.schedule(ramp(2, 3)).peek_output()
    worker.close()
    worker.close()
    for use in (
        lambda: worker.schedule(ramp(2, 3)),
        worker.peek_output,
        worker.wait_for_completion,
        y.readback_request,
    ):
        with pytest.raises(gx.ClosedError, match="closed"):
            use()


@pytest.mark.parametrize("type", [CPU, gx.BackendType.SIMULATOR], ids=["cpu", "simulator"])
def test_worker_that_is_dropped_leaves_its_bytes_to_the_run_under_way(type: gx.BackendType) -> None:
    device = CpuDevice() if type is CPU else make_simulator(check_order=True)
    backend, stream = Backend(device, type, "for a test"), device.create_stream()
    held = [gx.Worker(two_layers(), backend=backend, stream=stream)]
    expected = held[0].run(ramp(5, 3))[0]
    held[0].wait_for_completion()
    gate = hold(stream)
    try:
        request = held[0].schedule(ramp(5, 3)).peek_output().readback_request()
        held[0].schedule(ramp(5, 3) + 1)
        with pytest.warns(ResourceWarning, match="never closed"):
            _drop(held)
    finally:
        gate.set()
    np.testing.assert_array_equal(request.result(), expected)
    stream.synchronize()
    device.close()


def _drop(held: list[gx.Worker]) -> None:
    held.clear()
    gc.collect()


def test_close_while_readbacks_are_pending_keeps_them_readable() -> None:
    worker, gate = hold_worker(affine())
    x = ramp(2, 3)
    request = worker.schedule(x).peek_output().readback_request()
    closing = threading.Thread(target=worker.close)
    closing.start()
    assert not request.is_done()
    gate.set()
    closing.join()
    assert request.is_done()
    np.testing.assert_array_equal(request.result(), expect_affine(x))


def test_close_leaves_the_callers_stream_open() -> None:
    stream = open_backend(CPU).device.create_stream()
    for _ in range(2):
        with gx.Worker(affine(), backend=CPU, stream=stream) as worker:
            worker.run(ramp(2, 3))
    stream.synchronize()


@pytest.mark.feature("S58")
def test_second_caller_is_refused(worker: gx.Worker) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            entered.set()
            leave.wait()
            return ramp(2, 3)

    answers: list[object] = []
    first = threading.Thread(target=lambda: answers.append(worker.run({"x": Slow()})[0]))
    first.start()
    assert entered.wait()
    for use in (lambda: worker.schedule(ramp(2, 3)), worker.copy_output, worker.close, worker.trim):
        with pytest.raises(gx.StateError, match="one Worker per thread") as caught:
            use()
        assert caught.value.code == ErrorCode.INVALID_STATE
    leave.set()
    first.join()
    np.testing.assert_array_equal(answers[0], expect_affine(ramp(2, 3)))  # type: ignore[arg-type]


def test_workers_of_one_model_run_in_threads_over_the_same_weights() -> None:
    model = affine()
    answers: dict[int, Array] = {}

    def work(number: int) -> None:
        with gx.Worker(model, backend=CPU) as worker:
            for _ in range(20):
                answers[number] = worker.run(ramp(2, 3) + number)[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        np.testing.assert_array_equal(answer, expect_affine(ramp(2, 3) + number))
    assert len(answers) == 4


def test_weights_are_uploaded_once_for_all_workers() -> None:
    backend, model = make_tracer(), affine()
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as other:
        one.schedule(ramp(2, 3))
        held = one.memory_stats()["weights"]
        uploads = trace(backend).count("copy_to_device")
        other.schedule(ramp(2, 3))
        assert trace(backend).count("copy_to_device") == uploads + 1  # its input
        assert other.memory_stats()["weights"] == one.memory_stats()["weights"] == held > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_objects_raise_with_the_word_spawn(worker: gx.Worker) -> None:
    run = worker.schedule(ramp(2, 3))
    tensor, request = run.peek_output(), run.peek_output().readback_request()
    request.wait()
    uses = [
        lambda: worker.schedule(ramp(2, 3)),
        worker.peek_output,
        worker.wait_for_kernels,
        lambda: worker.is_compiled,
        worker.close,
        run.wait,
        run.is_done,
        run.cancel,
        tensor.readback_and_clone,
        tensor.is_done,
        lambda: tensor[0],
        request.result,
        request.is_done,
        request.cancel,
        lambda: gx.Worker(worker.model, backend=CPU),
    ]
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        said = 0
        for use in uses:
            try:
                use()
            except gx.StateError as error:
                said += "spawn" in str(error)
        os.write(send, bytes([said]))
        os._exit(0)
    os.close(send)  # so that a child that dies is seen by what it did not write
    with open(receive, "rb") as answer:
        assert answer.read() == bytes([len(uses)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
