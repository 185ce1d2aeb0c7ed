"""Large arrays on the CPU: read where they lie and handed over without copies, and still nobody's but the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.cpu import cpu_execution, cpu_memory
from gpuexec.devices.cpu.cpu_memory import LARGE_NBYTES
from gpuexec.execution.results.content import HANDED_NBYTES
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES
from tests.model.small_models import CPU, Array, affine, expect_affine, make_model, ramp, two_inputs

ROWS = max(IN_PLACE_NBYTES, HANDED_NBYTES) // 12 + 1


def large(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((ROWS, 3)).astype(np.float32)


@pytest.fixture
def worker() -> Iterator[gx.Worker]:
    with gx.Worker(affine(), backend=CPU) as made:
        yield made


@pytest.fixture
def pair() -> Iterator[gx.Worker]:
    with gx.Worker(two_inputs(), backend=CPU) as made:
        yield made


def count_pinned(worker: gx.Worker) -> int:
    return worker.memory_stats()["pinned"]


def test_an_input_given_again_is_not_copied(worker: gx.Worker) -> None:
    x = large()
    worker.run(x)
    assert count_pinned(worker) >= x.nbytes
    worker.wait_for_completion()
    before = count_pinned(worker)
    for copy in (None, None, False):
        worker.run(x, copy=copy)
        assert count_pinned(worker) == before
    worker.run(x, copy=True)
    assert count_pinned(worker) >= before + x.nbytes


def test_small_arrays_and_runs_that_nobody_waits_for_are_copied(worker: gx.Worker) -> None:
    small = ramp(4, 3)
    for _ in range(3):
        worker.run(small)
    small[...] = 0
    np.testing.assert_array_equal(worker.run()[0], expect_affine(ramp(4, 3)))
    for number in range(4):
        x = large(number)
        run = worker.schedule(x)
        x[...] = 0
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(large(number)))


def test_arrays_change_between_runs_and_results_stay(worker: gx.Worker) -> None:
    x, results = large(), []
    for number in range(6):
        x[...] = large(number)
        results.append(worker.run(x)[0])
    for number, y in enumerate(results):
        np.testing.assert_array_equal(y, expect_affine(large(number)))
        assert y.flags.writeable and not np.shares_memory(y, x)
    assert not any(np.shares_memory(a, b) for k, a in enumerate(results) for b in results[:k])


def test_results_may_be_written(worker: gx.Worker) -> None:
    x = large()
    for _ in range(5):
        (y,) = worker.run(x)
        np.testing.assert_array_equal(y, expect_affine(large()))
        y[...] = np.nan
    np.testing.assert_array_equal(x, large())


def test_an_input_that_was_copied_stays_set(pair: gx.Worker) -> None:
    left, right = large(1), large(2)
    pair.run([left, right])
    left[...] = 0
    for seed in (3, 4):
        np.testing.assert_array_equal(pair.run({"right": large(seed)})[0], large(1) + large(seed))
    for _ in range(3):
        pair.run([left, right], copy=True)
    right[...] = 0
    np.testing.assert_array_equal(pair.run({"left": left})[1], left - large(2))


def test_an_input_that_was_read_in_place_is_not_kept(pair: gx.Worker) -> None:
    for _ in range(2):
        pair.run([large(1), large(2)])
    for leave_out in (pair.run, pair.schedule):
        with pytest.raises(gx.InputError, match=r"'right' is missing.*copy=True"):
            leave_out({"left": large(3)})
    np.testing.assert_array_equal(pair.run([large(3), large(4)])[0], large(3) + large(4))


def test_the_tensors_of_a_run_are_its_results(worker: gx.Worker) -> None:
    x = large()
    (y,) = worker.run(x)
    assert np.shares_memory(y, np.asarray(worker.peek_output(), copy=False))
    np.testing.assert_array_equal(worker.read_output(), y)
    tensor = worker.peek_output()
    (z,) = worker.run(x, copy=True)
    with pytest.raises(gx.StaleError):
        np.asarray(tensor, copy=False)
    z[...] = 0
    np.testing.assert_array_equal(worker.read_output(), y)


def unalign(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    raw[...] = x.reshape(-1).view(np.uint8)
    return raw.view(x.dtype).reshape(x.shape)


def lock(x: Array) -> Array:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "lay",
    [
        unalign,
        lock,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.broadcast_to(x[:1], x.shape),
    ],
    ids=["unaligned", "read-only", "Fortran order", "strided", "reversed", "stretched"],
)
def test_any_layout_gives_the_same(worker: gx.Worker, lay: Callable[[Array], Array]) -> None:
    for seed in range(3):
        x = lay(large(seed))
        (y,) = worker.run(x)
        np.testing.assert_array_equal(y, expect_affine(x))
        assert not np.shares_memory(x, y)


def test_inputs_may_be_one_array_or_overlap(pair: gx.Worker) -> None:
    x = np.concatenate([large(1), large(2)])
    for _ in range(3):
        np.testing.assert_array_equal(pair.run([x[:ROWS], x[:ROWS]])[0], 2 * x[:ROWS])
        total, difference = pair.run([x[:ROWS], x[5 : ROWS + 5]])
        np.testing.assert_array_equal(total, x[:ROWS] + x[5 : ROWS + 5])
        np.testing.assert_array_equal(difference, x[:ROWS] - x[5 : ROWS + 5])
        assert not np.shares_memory(total, difference)


def test_an_input_that_is_an_output_is_given_as_a_copy() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    with gx.Worker(make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3), "z": ("n", 3)}), backend=CPU) as worker:
        x = large()
        for _ in range(3):
            y, z = worker.run(x)
            np.testing.assert_array_equal(y, x)
            np.testing.assert_array_equal(z, -x)
            y[...] = 0
            np.testing.assert_array_equal(x, large())


def test_results_are_inputs_of_the_next_run(worker: gx.Worker) -> None:
    y, expected = large(), large()
    for _ in range(5):
        (y,), expected = worker.run(y), expect_affine(expected)
        np.testing.assert_array_equal(y, expected)
    worker.run(large())
    for _ in range(3):
        (y,) = worker.run(worker.peek_output())
    np.testing.assert_array_equal(y, expect_affine(expect_affine(expect_affine(expect_affine(large())))))


def test_sizes_of_one_class_keep_no_more_than_they_need(worker: gx.Worker) -> None:
    for rows in (2 * ROWS, ROWS + 7, ROWS, 5, ROWS):
        x = np.concatenate([large(1), large(2)])[:rows]
        (y,) = worker.run(x)
        np.testing.assert_array_equal(y, expect_affine(x))
        base = y
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert base.nbytes <= 1.5 * y.nbytes + 4096


def test_results_that_are_kept_count_for_no_limit() -> None:
    with gx.Worker(affine(), backend=CPU, max_bytes=10 * 12 * ROWS) as worker:
        x = large()
        kept = [worker.run(x)[0] for _ in range(20)]
        assert worker.memory_stats()["frames"] <= 4 * 12 * ROWS
    for y in kept:  # they outlive the Worker
        np.testing.assert_array_equal(y, expect_affine(x))


def test_an_interrupt_leaves_the_worker_usable(worker: gx.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    x = large()
    worker.run(x)
    run = cpu_execution.Call.run
    left = [True]

    def interrupt(self: cpu_execution.Call, bindings: object, row: object) -> None:
        run(self, bindings, row)  # type: ignore[arg-type]
        if left:
            left.pop()
            raise KeyboardInterrupt

    monkeypatch.setattr(cpu_execution.Call, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.run(x)
    x[...] = large(1)
    for _ in range(3):
        np.testing.assert_array_equal(worker.run(x)[0], expect_affine(large(1)))


def test_two_workers_read_one_array_side_by_side() -> None:
    x, model, results = large(), affine(), dict[int, list[Array]]()

    def serve(number: int) -> None:
        with gx.Worker(model, backend=CPU) as worker:
            results[number] = [worker.run(x)[0] for _ in range(4)]

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [y for number in range(2) for y in results[number]]
    for k, y in enumerate(made):
        np.testing.assert_array_equal(y, expect_affine(x))
        assert not any(np.shares_memory(y, other) for other in made[:k])


def test_memory_of_results_is_used_again_once_nobody_holds_them(
    worker: gx.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.resize(large(), (LARGE_NBYTES // 12 + 1, 3))
    expected, device, made = expect_affine(x), worker._engine.backend.device, list[int]()
    device.trim()
    for _ in range(3):
        worker.run(x)
    allocate = cpu_memory._allocate
    monkeypatch.setattr(cpu_memory, "_allocate", lambda nbytes: (made.append(nbytes), allocate(nbytes))[1])
    for _ in range(3):
        worker.run(x)
    assert not [nbytes for nbytes in made if nbytes >= LARGE_NBYTES]
    (y,) = worker.run(x)
    part, cached = y[5:9], device.cached_nbytes
    del y
    assert device.cached_nbytes == cached
    held = [worker.run(x)[0] for _ in range(3)]
    np.testing.assert_array_equal(part, expected[5:9])
    cached = device.cached_nbytes
    del part
    assert device.cached_nbytes >= cached + x.nbytes
    for k, y in enumerate(held):
        np.testing.assert_array_equal(y, expected)
        assert not any(np.shares_memory(y, other) for other in held[:k])
