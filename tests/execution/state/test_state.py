"""State in swap form: a run continues from the state of the run before."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, hold_worker, make_tracer, ramp, trace
from tests.model.state_models import WIDTH, running_sum
from tests.program.program_seeds import load_text

HELD = ramp(2, WIDTH)


def test_memories_are_no_inputs_and_no_outputs() -> None:
    model = running_sum()
    assert [port.name for port in model.inputs] == ["x"]
    assert [port.name for port in model.outputs] == ["y"]
    (memory,) = model.memories
    assert (memory.input, memory.output, memory.shape, memory.form) == ("held", "total", ("n", WIDTH), "swap")
    assert str(memory) == "held <- total: float32[n,3] (swap)"


@pytest.mark.feature("B41")
def test_state_begins_as_zeros(backend: Backend) -> None:
    with gx.Worker(running_sum((2, WIDTH)), backend=backend) as worker:
        np.testing.assert_array_equal(worker.state.get("held"), np.zeros((2, WIDTH)))
        np.testing.assert_array_equal(worker.run(HELD)[0], 2 * HELD)


@pytest.mark.feature("B41", "B42", "E38")
def test_runs_go_on_from_what_the_run_before_left(worker: gx.Worker) -> None:
    for number in range(1, 6):
        run = worker.schedule(HELD)
        assert list(run.outputs) == ["y"]
        np.testing.assert_array_equal(worker.read_output(), 2 * number * HELD)
    np.testing.assert_array_equal(worker.state.get(), 5 * HELD)
    assert worker.report().plans == 1 and worker.report().host_syncs == ()
    worker.trim()
    np.testing.assert_array_equal(worker.run(HELD)[0], 12 * HELD)


@pytest.mark.feature("B42", "E38")
def test_runs_in_flight_go_on_from_each_other(backend: Backend) -> None:
    worker, gate = hold_worker(running_sum(), backend, frames=2)
    with worker:
        requests = [worker.schedule(HELD).peek_output().readback_request() for _ in range(6)]
        assert not any(request.is_done() for request in requests)
        gate.set()
        for number, request in enumerate(requests, 1):
            np.testing.assert_array_equal(request.result(), 2 * number * HELD)


@pytest.mark.feature("E38")
def test_state_of_a_run_that_goes_on_is_not_copied() -> None:
    backend = make_tracer()
    with gx.Worker(running_sum(), backend=backend) as worker:
        worker.schedule(HELD)
        count = len(backend.device.log)  # type: ignore[attr-defined]
        worker.schedule(HELD)
        worker.wait_for_completion()
        assert "copy" not in trace(backend)[count:] and "copy_to_host" not in trace(backend)[count:]
        held = worker.memory_stats()["exchange"]
        for _ in range(20):
            worker.schedule(HELD)
        assert worker.memory_stats()["exchange"] == held
        count = len(trace(backend))
        for _ in range(3):
            worker.schedule(HELD)
        assert not {"copy_to_host", "copy", "allocate"} & set(trace(backend)[count:])


@pytest.mark.feature("B43")
def test_array_given_for_a_memory_replaces_it_for_that_run(worker: gx.Worker) -> None:
    worker.run(HELD)
    np.testing.assert_array_equal(worker.run({"x": HELD, "held": 10 * HELD})[0], 22 * HELD)
    # The sequence goes on from that run's result; what was given does not stay set.
    np.testing.assert_array_equal(worker.run(HELD)[0], 24 * HELD)
    np.testing.assert_array_equal(worker.run()[0], 26 * HELD)


def test_tensor_of_the_device_is_taken_for_a_memory(worker: gx.Worker, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as other:
        given = other.schedule(HELD).peek_output()
        np.testing.assert_array_equal(
            worker.run({"x": HELD, "held": given})[0], 2 * (HELD + given.readback_and_clone())
        )


@pytest.mark.feature("B43")
def test_bad_array_for_a_memory_is_refused_and_changes_nothing(worker: gx.Worker) -> None:
    worker.run(HELD)
    for bad, words in ((HELD[:, :2], "expects"), (HELD.astype(np.float64), "float64"), (HELD[:1], "'n' is")):
        with pytest.raises(gx.InputError, match=words) as caught:
            worker.run({"x": HELD, "held": bad})
        assert caught.value.value == "held"
    with pytest.raises(gx.InputError, match="'n' is 2, but 1 in input 'x'"):
        worker.run(HELD[:1])
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)


def test_model_with_memories_is_not_recorded(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match=r"\(held\) move on. Use schedule\(\).*take turns"):
        worker.record(HELD)


def test_memory_shows_its_shape_once_a_run_reports_it(worker: gx.Worker) -> None:
    assert worker.state.memories[0].shape == ("n", WIDTH)
    worker.run(HELD)
    assert worker.state.memories[0].shape == (2, WIDTH)
    assert "state held <- total: float32[2,3] (swap)" in worker.summary()


# What the second one leaves is known once the host has read how many elements are not zero.
MISDECLARED = {
    "at once": "h = Cast <to = 11> (held)  t = Add (x, h)  total = Cast <to = 10> (t)  y = Neg (h)",
    "as it runs": "p = NonZero (x)  q = Transpose (p)  r = GatherND (x, q)  s = ReduceSum <keepdims = 1> (r)"
    "  h = Cast <to = 11> (held)  t = Add (s, h)  y = Neg (h)  shape = Shape (q)  wide = Expand (t, shape)"
    "  total = Cast <to = 10> (wide)",
}


@pytest.mark.parametrize("known", MISDECLARED)
@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_output_that_is_not_of_the_type_declared_is_refused(known: str, backend: gx.BackendType) -> None:
    text = f"(double[n, 2] x, float[n, 2] held) => (double[n, 2] y, float[n, 2] total) {{ {MISDECLARED[known]} }}"
    model = load_text(text).bind_state({"total": "held"})
    x, held = np.eye(2), np.full((2, 2), 3, np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.state.set({"held": held})
        for _ in range(2):
            with pytest.raises(gx.ModelError, match=r"Output 'total' .* Memory 'held' expects float32.*, got float16"):
                worker.run(x)
            np.testing.assert_array_equal(worker.state.get("held"), held)
