"""The Tensor: shape at once, elements once they are ready, uploads, closing."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import is_tracer, on
from tests.execution.held import held_worker
from tests.model.small_models import CPU, affine, expect_affine, hold_worker, ramp, trace

READS = {
    "index": lambda y: y[0],
    "array": np.asarray,
    "iteration": list,
    "sum": lambda y: sum(y),
    "float": lambda y: float(y),
    "int": lambda y: int(y),
    "truth": lambda y: bool(y),
    "ufunc": lambda y: np.add(y, 1),
}


@pytest.mark.feature("B53", "S52")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_pending_tensor_names_the_call_to_make(read: object, backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        y = worker.schedule(ramp(2, 3)).peek_output()
        with pytest.raises(gx.PendingError, match=r"'y' .*call readback_and_clone\(\) to block .* or await") as caught:
            read(y)  # type: ignore[operator]
        assert backend.type is not CPU or "is not computed yet" in str(caught.value)
        gate.set()


@pytest.mark.feature("B53", "S52")
@on("simulator", "tracer")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_device_tensor_names_the_call_to_make(read: object, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        run = worker.schedule(ramp(2, 3))
        run.wait()
        with pytest.raises(gx.PendingError, match=r"lies on a device: call readback_and_clone\(\)"):
            read(run.peek_output())  # type: ignore[operator]
        assert worker.report().host_syncs == ()
        if is_tracer(backend):
            assert "copy_to_host" not in trace(backend)


@pytest.mark.feature("S40")
def test_spec_is_there_before_the_content(backend: Backend) -> None:
    worker, gate = hold_worker(affine(), backend)
    with worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        assert (y.name, y.shape, y.max_shape, y.ndim, y.size, y.nbytes, len(y)) == ("y", (2, 3), (2, 3), 2, 6, 24, 2)
        assert y.dtype == np.float32 and y.spec.shape == (2, 3)
        assert y.backend_type is backend.type and not y.is_done() and "pending" in repr(y)
        gate.set()
        worker.wait_for_completion()
        assert y.is_done() and "done" in repr(y)


def test_finished_tensor_on_the_host_is_read_directly() -> None:
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=CPU) as worker:
        run = worker.schedule(x)
        run.wait()
        y = run.peek_output()
        assert y[1, 2] == expect_affine(x)[1, 2] and isinstance(y[1, 2], np.float32)
        assert np.asarray(y, dtype=np.float64).dtype == np.float64
        np.testing.assert_array_equal(np.array(list(y)), expect_affine(x))
        row = y[0]
        worker.run(x + 1)
        worker.run(x + 2)
        np.testing.assert_array_equal(row, expect_affine(x)[0])


def test_scalar_tensor_is_a_number() -> None:
    with gx.Worker(affine(()), backend=CPU) as worker:
        run = worker.schedule(3)
        run.wait()
        y = run.peek_output()
        assert float(y) == 7.0 and int(y) == 7 and bool(y)
        with pytest.raises(TypeError, match="0-d"):
            len(y)


def test_upload_is_ordered_behind_the_run_that_makes_the_tensor() -> None:
    worker, gate = hold_worker(affine())
    with worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        source = np.full((2, 3), 5, np.float32)
        y.upload(source)
        source[...] = 6
        assert not y.is_done()
        gate.set()
        worker.wait_for_completion()
        np.testing.assert_array_equal(y.readback_and_clone(), np.full((2, 3), 5))


def test_upload_to_a_run_half_scheduled_takes_the_array_at_the_call() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        steps = worker.schedule_iterable(ramp(2, 3))
        next(steps)
        y = worker.peek_output()
        source = np.full((2, 3), 5, np.float32)
        y.upload(source)
        source[...] = 6
        list(steps)
        np.testing.assert_array_equal(y.readback_and_clone(), np.full((2, 3), 5))


def test_upload_of_fewer_elements_keeps_the_rest() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        y.upload(np.full(2, 9, np.float32))
        expected = expect_affine(ramp(2, 3))
        expected[0, :2] = 9
        np.testing.assert_array_equal(y.readback_and_clone(), expected)


def test_upload_that_does_not_fit_is_refused() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        for wrong in (np.zeros(7, np.float32), np.zeros(6)):
            with pytest.raises(gx.InputError, match="takes up to 6 elements of float32"):
                y.upload(wrong)
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))


def test_upload_waits_for_whoever_reads_the_tensor() -> None:
    consumer, gate = hold_worker(affine())
    x = ramp(2, 3)
    with gx.Worker(affine(), backend=CPU) as producer, consumer:
        y = producer.schedule(x).peek_output()
        answer = consumer.schedule(y).peek_output()
        y.upload(np.zeros((2, 3), np.float32))
        gate.set()
        np.testing.assert_array_equal(answer.readback_and_clone(), expect_affine(expect_affine(x)))
        np.testing.assert_array_equal(y.readback_and_clone(), np.zeros((2, 3)))


def test_closed_tensor_raises_and_its_request_answers() -> None:
    x = ramp(2, 3)
    worker, gate = hold_worker(affine())
    with worker:
        worker.schedule(x)
        with worker.copy_output() as copy:
            request = copy.readback_request()
        copy.close()
        for use in (lambda: copy[0], lambda: worker.schedule(copy), lambda: copy.upload(x)):
            with pytest.raises(gx.ClosedError, match="closed"):
                use()
        assert "closed" in repr(copy)
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(x))


def test_copy_dropped_while_pending_is_kept_until_read() -> None:
    x = ramp(2, 3)
    worker, gate = hold_worker(affine())
    with worker:
        worker.schedule(x)
        request = worker.copy_output().readback_request()
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(x))
