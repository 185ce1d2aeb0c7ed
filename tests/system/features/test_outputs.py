"""Rows on outputs: peeking, copying, pending and stale tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, make_model, ramp, trace, two_inputs
from tests.system.features.held import held_worker
from tests.system.features.marks import is_tracer, on

X = ramp(2, 3)
Y = expect_affine(X)
READS: dict[str, Callable[[gx.Tensor], object]] = {
    "index": lambda y: y[0],
    "array": np.asarray,
    "iteration": list,
    "float": float,
    "truth": bool,
    "ufunc": lambda y: np.add(y, 1),
}


def test_b33_s24_e15_peek_is_a_view_until_the_next_run(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker:
        with pytest.raises(gx.StateError, match="schedule"):
            worker.peek_output()
        worker.schedule([X, X])
        first = worker.peek_output()
        assert first is worker.peek_output("sum") and first.name == "sum"
        assert worker.peek_output("difference").name == "difference"
        with pytest.raises(gx.InputError, match=r"no output 'product'.*sum, difference"):
            worker.peek_output("product")
        worker.schedule([X, X])
        with pytest.raises(gx.StaleError, match=r"'sum' belongs to an earlier run.*copy_output"):
            first.readback_request()


def test_s24_outputs_that_are_inputs_or_constants_are_copies(backend: Backend) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Identity", ["c"], ["fixed"])]
    model = make_model(nodes, {"x": (2, 3)}, {"same": (2, 3), "fixed": (2,)}, c=np.float32([1, 2]))
    with gx.Worker(model, backend=backend) as worker:
        run = worker.schedule(X)
        for tensor in run.outputs.values():
            tensor.upload(np.zeros(tensor.shape, np.float32))
        same, fixed = worker.run()
        np.testing.assert_array_equal(same, X)
        np.testing.assert_array_equal(fixed, [1, 2])


def test_b34_t2_what_is_read_is_a_copy_of_the_callers_own(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        array = worker.read_output()
        array[...] = 7
        np.testing.assert_array_equal(worker.read_output(), Y)
        np.testing.assert_array_equal(worker.peek_output().readback_and_clone(), Y)


def test_s25_t2_copy_output_copies_on_the_device_and_lasts(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        worker.schedule(X)
        copy = worker.copy_output()
        assert not copy.is_done() and copy.backend_type is backend.type
        gate.set()
        worker.peek_output().upload(np.zeros((2, 3), np.float32))
        worker.schedule(X + 1)
        np.testing.assert_array_equal(copy.readback_and_clone(), Y)
        assert worker.copy_output(out=copy) is copy
        np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(X + 1))
        worker.schedule(ramp(4, 3))
        with pytest.raises(gx.InputError, match=r"float32\[4,3\]"):
            worker.copy_output(out=copy)
    np.testing.assert_array_equal(copy.readback_and_clone(), expect_affine(X + 1))


@on("tracer")
def test_s25_copy_output_downloads_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        worker.copy_output()
        assert "copy_to_host" not in trace(backend)


def test_s26_a_stale_tensor_raises_and_an_older_request_answers(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend, frames=1) as worker:
        stale = worker.schedule(X).peek_output()
        requests = [worker.schedule(X + number).peek_output().readback_request() for number in range(4)]
        uses: tuple[Callable[[gx.Tensor], object], ...] = (
            gx.Tensor.readback_request,
            gx.Tensor.readback_and_clone,
            lambda y: y.upload(X),
            worker.schedule,
        )
        for use in uses:
            with pytest.raises(gx.StaleError):
                use(stale)
        for number, request in enumerate(requests):
            np.testing.assert_array_equal(request.result(), expect_affine(X + number))


def test_s40_a_tensor_tells_what_it_is_before_its_content_is_there(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.schedule(X).peek_output()
        assert (y.name, y.shape, y.ndim, y.size, y.nbytes, y.dtype) == ("y", (2, 3), 2, 6, 24, np.float32)
        assert y.backend_type is backend.type and not y.is_done() and "pending" in repr(y)
        gate.set()
        worker.wait_for_completion()
        assert y.is_done() and "done" in repr(y)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_b53_s52_reading_elements_of_a_pending_tensor_raises(
    read: Callable[[gx.Tensor], object], backend: Backend
) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.schedule(X).peek_output()
        with pytest.raises(gx.PendingError, match=r"'y' .*call readback_and_clone\(\) to block .* or await"):
            read(y)
        gate.set()


@on("simulator", "tracer")
def test_b53_s52_reading_elements_that_are_far_raises_and_downloads_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(X)
        run.wait()
        for read in READS.values():
            with pytest.raises(gx.PendingError, match="lies on a device"):
                read(run.peek_output())
        assert worker.report().host_syncs == ()
        if is_tracer(backend):
            assert "copy_to_host" not in trace(backend)
