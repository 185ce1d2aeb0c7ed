"""State: what a run leaves for the next, in swap form; who holds it, and what changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.runtime.backend import Backend, BackendType, open_backend
from tests.program_seeds import load_text
from tests.small_models import CPU, GATES, affine, hold_worker, make_tracer, ramp, trace
from tests.state_models import WIDTH, cache, gated_sum, recurrent, running_sum
from tests.test_interop import CudaStreamArray, DeviceArray, DlpackArray, HostOnly, InterfaceArray

BACKENDS = (CPU, BackendType.SIMULATOR)
HELD = ramp(2, WIDTH)


@pytest.fixture(params=BACKENDS, ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


@pytest.fixture
def worker(backend: Backend) -> Iterator[gx.Worker]:
    with gx.Worker(running_sum(), backend=backend) as worker:
        yield worker


def run_sum(worker: gx.Worker, x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    y = worker.run(x)
    assert isinstance(y, np.ndarray)
    return y


# ---- a run goes on from the run before


def test_memories_are_no_inputs_and_no_outputs() -> None:
    model = running_sum()
    assert [port.name for port in model.inputs] == ["x"]
    assert [port.name for port in model.outputs] == ["y"]
    (memory,) = model.memories
    assert (memory.input, memory.output, memory.shape, memory.form) == ("held", "total", ("n", WIDTH), "swap")
    assert str(memory) == "held <- total: float32[n,3] (swap)"


def test_runs_go_on_from_what_the_run_before_left(worker: gx.Worker) -> None:
    for number in range(1, 6):
        run = worker.schedule(HELD)
        assert list(run.outputs) == ["y"]
        np.testing.assert_array_equal(worker.read_output(), 2 * number * HELD)
    np.testing.assert_array_equal(worker.state.get(), 5 * HELD)
    assert worker.report().plans == 1 and worker.report().host_syncs == ()


def test_runs_in_flight_go_on_from_each_other() -> None:
    worker, gate = hold_worker(running_sum(), frames=2)
    with worker:
        requests = [worker.schedule(HELD).peek_output().readback_request() for _ in range(6)]
        assert not any(request.is_done() for request in requests)
        gate.set()
        for number, request in enumerate(requests, 1):
            np.testing.assert_array_equal(request.result(), 2 * number * HELD)


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


def test_array_given_for_a_memory_replaces_it_for_that_run(worker: gx.Worker) -> None:
    worker.run(HELD)
    np.testing.assert_array_equal(worker.run({"x": HELD, "held": 10 * HELD}), 22 * HELD)
    # The sequence goes on from that run's result; what was given does not stay set.
    np.testing.assert_array_equal(worker.run(HELD), 24 * HELD)
    np.testing.assert_array_equal(worker.run(), 26 * HELD)


def test_tensor_of_the_device_is_taken_for_a_memory(worker: gx.Worker, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as other:
        given = other.schedule(HELD).peek_output()
        np.testing.assert_array_equal(worker.run({"x": HELD, "held": given}), 2 * (HELD + given.readback_and_clone()))


def test_bad_array_for_a_memory_is_refused_and_changes_nothing(worker: gx.Worker) -> None:
    worker.run(HELD)
    for bad, words in ((HELD[:, :2], "expects"), (HELD.astype(np.float64), "float64"), (HELD[:1], "'n' is")):
        with pytest.raises(gx.InputError, match=words) as caught:
            worker.run({"x": HELD, "held": bad})
        assert caught.value.value == "held"
    with pytest.raises(gx.InputError, match="'n' is 2, but 1 in input 'x'"):
        worker.run(HELD[:1])
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)


# ---- what changes nothing


def test_failed_run_changes_no_state() -> None:
    model, number = gated_sum()
    with gx.Worker(model, backend=CPU) as worker:
        GATES.open[number].set()
        worker.run(HELD)
        GATES.failures[number] = ValueError("for a test")
        with pytest.raises(gx.DeviceError, match="for a test"):
            worker.run(HELD)
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)


def test_runs_that_depend_on_one_that_fails_fail_with_it() -> None:
    model, number = gated_sum()
    with gx.Worker(model, backend=CPU, frames=3) as worker:
        GATES.open[number].set()
        worker.run(HELD)
        GATES.open[number].clear()
        GATES.failures[number] = ValueError("for a test")
        snapshots = []
        runs = []
        for _ in range(3):
            runs.append(worker.schedule(HELD))
            snapshots.append(worker.state.snapshot())
        GATES.open[number].set()
        for run in runs:
            with pytest.raises(gx.DeviceError, match="for a test"):
                run.wait()
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)
        worker.state.restore(snapshots[-1])
        np.testing.assert_array_equal(worker.state.get(), HELD)


def test_cancelled_run_changes_no_state(backend: Backend) -> None:
    (other,) = (each for each in BACKENDS if each is not backend.type)
    source, gate = hold_worker(affine(), open_backend(other))
    with source, gx.Worker(running_sum(), backend=backend) as worker:
        worker.run(HELD)
        # What another device has not made yet is waited for: the run can be taken back meanwhile.
        pending = source.schedule(HELD).peek_output()
        run = worker.schedule(pending)
        later = worker.schedule(HELD)
        is_cancelled = run.cancel()
        gate.set()
        assert is_cancelled
        for each in (run, later):
            with pytest.raises(gx.CancelledError):
                each.wait()
        np.testing.assert_array_equal(worker.state.get(), HELD)
        np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)


def test_run_scheduled_piece_by_piece_counts_from_its_end(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    np.testing.assert_array_equal(worker.state.get(), HELD)
    before = worker.state.snapshot()
    for _ in steps:
        pass
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)
    worker.state.restore(before)
    np.testing.assert_array_equal(worker.state.get(), HELD)


def test_run_given_up_half_scheduled_changes_no_state(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    # The newer run does not go on from the one it ends.
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)
    with pytest.raises(gx.StaleError):
        next(steps)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    assert worker.cancel()
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)


def test_bad_inputs_end_no_run_and_change_no_state(worker: gx.Worker) -> None:
    worker.run(HELD)
    steps = worker.schedule_iterable(HELD)
    next(steps)
    with pytest.raises(gx.InputError):
        worker.schedule({"z": HELD})
    for _ in steps:
        pass
    np.testing.assert_array_equal(worker.state.get(), 2 * HELD)


@pytest.mark.parametrize("options", [{"synchronous": True}, {"compare_with": CPU}], ids=str)
def test_state_goes_on_in_runs_that_are_watched(backend: Backend, options: dict[str, object]) -> None:
    with gx.Worker(running_sum(), backend=backend, **options) as worker:  # type: ignore[arg-type]
        for number in range(1, 4):
            np.testing.assert_array_equal(worker.run(HELD), 2 * number * HELD)


# ---- what a caller does with it


def test_state_is_zeros_before_the_first_run(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match=r"held.*not known yet"):
        worker.state.get()
    worker.prepare((2, WIDTH))
    worker.run(HELD)
    worker.state.reset()
    np.testing.assert_array_equal(worker.state.get("total"), 0 * HELD)
    np.testing.assert_array_equal(worker.run(HELD), 2 * HELD)
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU) as fixed:
        np.testing.assert_array_equal(fixed.state.get("held"), 0 * HELD)


def test_state_is_set_by_the_name_of_input_or_output(worker: gx.Worker) -> None:
    given = HELD.copy()
    worker.state.set({"total": given})
    given[:] = 0
    np.testing.assert_array_equal(worker.state.get("held"), HELD)
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)
    worker.state.set({"held": worker.peek_output()})
    np.testing.assert_array_equal(worker.run(HELD), 10 * HELD)


@pytest.mark.parametrize("kind", [CudaStreamArray, DlpackArray, InterfaceArray])
@pytest.mark.parametrize("capacity", [None, 5], ids=["swap", "append"])
def test_array_of_another_package_is_copied_on_the_device(kind: type[DeviceArray], capacity: int | None) -> None:
    backend = open_backend(BackendType.SIMULATOR)
    model = running_sum() if capacity is None else cache().bind_state({"present": "past"}, capacity=capacity)
    x, held = (HELD, 5 * HELD) if capacity is None else (ramp(2, 1, WIDTH), ramp(2, 3, WIDTH))
    with gx.Worker(model, backend=backend) as worker:
        given = kind(backend, held)
        worker.state.set({model.memories[0].input: given})
        # What is given may change from now on.
        given.stream.fill(given.memory.address, b"\1", held.nbytes)
        given.stream.synchronize()
        np.testing.assert_array_equal(worker.state.get(), held)
        y = worker.schedule(x).peek_output().readback_and_clone()
        np.testing.assert_array_equal(y, 12 * HELD if capacity is None else held.sum(1) + 2 * x.sum(1))


def test_device_array_for_a_memory_is_not_read_by_the_host() -> None:
    backend = make_tracer()
    with gx.Worker(running_sum(), backend=backend) as worker:
        given = InterfaceArray(backend, HELD)
        count = len(backend.device.log)  # type: ignore[attr-defined]
        worker.state.set({"held": given})
        assert [row for row in trace(backend)[count:] if row.startswith("copy")] == ["copy"]


def test_host_array_that_only_speaks_dlpack_is_taken_for_a_memory(worker: gx.Worker) -> None:
    held = HELD.copy()
    worker.state.set({"held": HostOnly(held)})
    held[:] = 0
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)


def test_numbers_are_taken_where_they_lose_nothing() -> None:
    model = running_sum((WIDTH,))
    with gx.Worker(model, backend=CPU) as worker:
        for given in ([1, 2, 3], [1.0, 2.0, 3.0], (1, 2.0, 3)):
            worker.state.set({"held": given})
            np.testing.assert_array_equal(worker.state.get(), np.array([1, 2, 3], np.float32))
        for bad, words in (([True] * 3, "got bool"), (["a"] * 3, "'held'"), (object(), "'held'"), ([[1], 2], "'held'")):
            with pytest.raises(gx.InputError, match=words):
                worker.state.set({"held": bad})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nothing": HELD}, "no memory 'nothing'; the model has held"),
        ({"held": HELD.astype(np.int32)}, "'held' expects float32.n,3., got int32"),
        ({"held": HELD[:, :1]}, "'held' expects float32.n,3., got float32.2,1."),
        ({"held": HostOnly(HELD[:, :1].copy())}, "'held' expects float32.n,3., got float32.2,1."),
        ({"held": HostOnly(HELD, device=8)}, "Memory 'held': it lies on DLPack device type 8"),
        ({"held": None}, "held"),
    ],
)
def test_bad_values_are_refused_and_change_nothing(worker: gx.Worker, values: dict[str, object], words: str) -> None:
    worker.run(HELD)
    with pytest.raises(gx.InputError, match=words):
        worker.state.set(values)
    np.testing.assert_array_equal(worker.state.get(), HELD)


def test_snapshots_outlive_later_runs_and_are_restored(worker: gx.Worker) -> None:
    shots = []
    for _ in range(4):
        shots.append(worker.state.snapshot())
        worker.run(HELD)
    for number, shot in reversed(list(enumerate(shots))):
        worker.state.restore(shot)
        np.testing.assert_array_equal(worker.run(HELD), 2 * (number + 1) * HELD)


def test_forks_go_their_own_ways(worker: gx.Worker) -> None:
    worker.run(HELD)
    first, second = worker.state, worker.state.fork()
    np.testing.assert_array_equal(worker.run(10 * HELD), 22 * HELD)
    worker.state = second
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)
    worker.state = first
    np.testing.assert_array_equal(worker.run(HELD), 24 * HELD)
    np.testing.assert_array_equal(second.get(), 2 * HELD)


def test_sequences_take_turns_on_one_worker(worker: gx.Worker) -> None:
    states = [worker.create_state() for _ in range(3)]
    for number in range(1, 4):
        for which, state in enumerate(states, 1):
            worker.state = state
            np.testing.assert_array_equal(worker.run(which * HELD), 2 * number * which * HELD)


def test_state_passes_between_workers_of_a_device(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as first, gx.Worker(running_sum(), backend=backend) as second:
        state = first.state
        second.state = state
        for number in range(1, 20):
            worker = (first, second)[number % 2]
            worker.schedule(HELD)
            if number % 5 == 0:
                np.testing.assert_array_equal(state.get(), number * HELD)
        np.testing.assert_array_equal(second.run(HELD), 40 * HELD)
    # It outlives the Workers.
    np.testing.assert_array_equal(state.get(), 20 * HELD)


def test_foreign_state_is_refused_naming_both(worker: gx.Worker, backend: Backend) -> None:
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as other:
        with pytest.raises(gx.InputError, match=r"lstm.initial_h.*expected held"):
            worker.state = other.state
        with pytest.raises(gx.InputError, match="The snapshot holds"):
            worker.state.restore(other.state.snapshot())
    elsewhere = next(each for each in BACKENDS if each is not backend.type)
    with gx.Worker(running_sum(), backend=elsewhere) as other, pytest.raises(gx.InputError, match="another device"):
        worker.state = other.state


def test_state_is_saved_and_loaded(worker: gx.Worker, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    worker.run(HELD)
    worker.state.save(path)
    worker.run(HELD)
    worker.state.load(path)
    np.testing.assert_array_equal(worker.run(HELD), 4 * HELD)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_bad_state_files_are_refused_and_change_nothing(worker: gx.Worker, tmp_path: Path) -> None:
    worker.run(HELD)
    path, other = tmp_path / "state", tmp_path / "other"
    worker.state.save(path)
    content = path.read_bytes()
    with gx.Worker(running_sum((1, WIDTH)), backend=CPU) as narrow:
        narrow.state.save(other)
    for bad, words in ((content[:-1], "holds no state"), (b"", "holds no state"), (content[:9], "holds no state")):
        path.write_bytes(bad)
        with pytest.raises(gx.InputError, match=words):
            worker.state.load(path)
    renamed = content.replace(b'"held"', b'"hold"')
    path.write_bytes(renamed)
    with pytest.raises(gx.InputError, match="holds hold; the model's memories are held"):
        worker.state.load(path)
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU) as fixed, pytest.raises(gx.InputError, match="'held' expects"):
        fixed.state.load(other)
    np.testing.assert_array_equal(worker.state.get(), HELD)


def test_model_with_memories_is_not_recorded(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match=r"\(held\) move on. Use schedule\(\).*take turns"):
        worker.record(HELD)


def test_memory_shows_its_shape_once_a_run_told_it(worker: gx.Worker) -> None:
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
