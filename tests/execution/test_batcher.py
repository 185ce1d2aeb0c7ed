"""Batcher: requests of tasks and threads share runs, are answered in order, and fail alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.execution.held import opening
from tests.model.small_models import (
    CPU,
    GATES,
    affine,
    expect_affine,
    gated,
    hold,
    make_model,
    ramp,
    two_inputs,
)

Array = np.ndarray[Any, Any]
FOREVER_MS = 3_600_000.0


class CountingWorker(gx.Worker):
    """Keeps how many rows each run had; ``scheduled`` is set by each that goes onto a stream."""

    def __init__(self, model: gx.Model, **options: Any) -> None:
        super().__init__(model, **options)
        self.sizes: list[int] = []
        self.scheduled = threading.Semaphore(0)

    def run(self, inputs: Any = None, **options: Any) -> Any:
        self.sizes.append(len(next(iter(inputs.values()))))
        return super().run(inputs, **options)

    def schedule(self, inputs: Any = None, **options: Any) -> gx.Run:
        run = super().schedule(inputs, **options)
        self.sizes.append(len(next(iter(inputs.values()))))
        self.scheduled.release()
        return run


@contextmanager
def busy_batcher(**options: Any) -> Iterator[tuple[gx.Batcher, CountingWorker, Future[Any], threading.Event]]:
    """Yield a Batcher of y = x + 1 that is at a first request, its Worker, that request's future, and what ends it."""
    model, number = gated()
    worker = CountingWorker(model, backend=CPU)
    with worker, gx.Batcher(worker, **options) as batcher, opening(GATES.open[number]):
        first = batcher.submit(ramp(1, 3))
        assert GATES.entered[number].wait(60)
        yield batcher, worker, first, GATES.open[number]


@pytest.mark.parametrize("device", ["cpu", "simulator"])
def test_each_request_is_answered_by_its_own_rows(device: str) -> None:
    x = ramp(12, 3)
    parts = [x[:1], x[1:4], x[4:4], x[4:5], x[5:12]]

    async def ask(worker: gx.Worker) -> list[Any]:
        async with gx.Batcher(worker, max_batch=12, max_delay_ms=FOREVER_MS) as batcher:
            return await asyncio.gather(*(batcher.run_async({"left": part, "right": 2 * part}) for part in parts))

    with gx.Worker(two_inputs(), backend=device) as worker:
        answers = asyncio.run(ask(worker))
        assert worker.report().runs == 1
    for part, answer in zip(parts, answers, strict=True):
        assert answer.names == ("sum", "difference")
        np.testing.assert_array_equal(answer["sum"], 3 * part)
        np.testing.assert_array_equal(answer["difference"], -part)


def test_answers_are_the_callers_own() -> None:
    with (
        gx.Worker(affine(), backend=CPU) as worker,
        gx.Batcher(worker, max_batch=2, max_delay_ms=FOREVER_MS) as batcher,
    ):
        first, second = batcher.submit(ramp(1, 3)), batcher.submit(ramp(1, 3))
        first.result()[0][...] = 0
        assert first.result()[0].base is None
        np.testing.assert_array_equal(second.result()[0], expect_affine(ramp(1, 3)))


def test_what_came_while_the_worker_was_busy_runs_together_up_to_the_limit() -> None:
    answered: list[int] = []
    with busy_batcher(max_batch=4) as (batcher, worker, _, gate):
        answers = [batcher.submit(ramp(rows, 3)) for rows in (1, 2, 2, 1, 3)]
        for number, answer in enumerate(answers):
            answer.add_done_callback(lambda _, number=number: answered.append(number))  # type: ignore[misc]
        gate.set()
    # Of one row, then of three, and a row more of each that fills it up to four.
    assert worker.sizes == [1, 4, 4, 4]
    assert answered == [0, 1, 2, 3, 4]


def test_requests_of_other_shapes_are_not_joined_and_keep_their_places() -> None:
    worker = CountingWorker(affine(("n", "m")), backend=CPU)
    shapes = [(1, 3), (1, 3), (2, 5), (1, 3)]
    with worker, gx.Batcher(worker, max_batch=4, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit(ramp(*shape)) for shape in shapes]
        # The last waits for others until it is closed.
        for answer, shape in zip(answers[:3], shapes, strict=False):
            np.testing.assert_array_equal(answer.result()[0], expect_affine(ramp(*shape)))
        assert not answers[3].done()
    assert worker.sizes == [2, 2, 1] and answers[3].done()


def test_cpu_runs_powers_of_two_up_to_the_limit_and_devices_what_there_is() -> None:
    for device, sizes in (("cpu", [1, 2, 4, 4, 6, 6]), ("simulator", [1, 2, 3, 4, 5, 6])):
        worker = CountingWorker(affine(), backend=device)
        with worker, gx.Batcher(worker, max_batch=6) as batcher:
            for rows in range(1, 7):
                (y,) = batcher.run(ramp(rows, 3))
                np.testing.assert_array_equal(y, expect_affine(ramp(rows, 3)))
            (nothing,) = batcher.run(ramp(0, 3))
            assert nothing.shape == (0, 3)
        assert worker.sizes == [*sizes, 0]


def test_strings_are_joined_too() -> None:
    graph = helper.make_graph(
        [helper.make_node("StringConcat", ["x", "x"], ["y"])],
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    with gx.Worker(model, backend=CPU) as worker, gx.Batcher(worker, max_batch=3, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit({"x": np.array(texts)}) for texts in (["a"], ["bcd", "é"])]
        assert [answer.result()[0].tolist() for answer in answers] == [["aa"], ["bcdbcd", "éé"]]
        assert worker.report().runs == 1


BAD = {
    "name": ({"left": ramp(1, 3), "rihgt": ramp(1, 3)}, r"no input 'rihgt'; it has left, right"),
    "missing": ({"left": ramp(1, 3)}, r"input 'right' \(float32\[n,3\]\) is missing"),
    "dtype": ([ramp(1, 3), ramp(1, 3).astype(np.float64)], r"Input 'right' expects float32, got float64"),
    "shape": ([ramp(1, 3), ramp(1, 4)], r"Input 'right' expects float32\[n,3\], got float32\[1,4\]"),
    "axes": ([ramp(3), ramp(1, 3)], r"Input 'left' expects float32\[n,3\], got float32\[3\]"),
    "rows": ([ramp(1, 3), ramp(2, 3)], r"'n' is 2, but 1 in input 'left'"),
    "too many rows": ([ramp(5, 3), ramp(5, 3)], r"at most max_batch=4 rows \(axis 0 of inputs\), got 5"),
}


@pytest.mark.parametrize("name", BAD)
def test_request_that_does_not_fit_is_refused_by_the_call_and_no_other(name: str) -> None:
    given, message = BAD[name]

    async def ask(worker: gx.Worker) -> list[Any]:
        good = [ramp(2, 3), ramp(2, 3)]
        async with gx.Batcher(worker, max_batch=4, max_delay_ms=FOREVER_MS) as batcher:
            asked = [batcher.run_async(inputs) for inputs in (good, given, good)]
            return await asyncio.gather(*asked, return_exceptions=True)

    with gx.Worker(two_inputs(), backend=CPU) as worker:
        first, error, last = asyncio.run(ask(worker))
        assert worker.report().runs == 1
    with pytest.raises(gx.InputError, match=message):
        raise error
    np.testing.assert_array_equal(first[0], 2 * ramp(2, 3))
    np.testing.assert_array_equal(last[0], 2 * ramp(2, 3))


def test_arrays_of_a_device_are_refused_by_name() -> None:
    with gx.Worker(affine(), backend=CPU) as worker, gx.Worker(affine(), backend="simulator") as other:
        tensor = other.schedule(ramp(1, 3)).peek_output()
        with (
            gx.Batcher(worker) as batcher,
            pytest.raises(gx.InputError, match=r"Input 'x' expects an array of the host"),
        ):
            batcher.submit({"x": tensor})


def looked_up() -> gx.Model:
    """y = table[x], which no index beyond the table has."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"], name="look")],
        "looked_up",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor("table", TensorProto.FLOAT, (4, 2), ramp(4, 2).tobytes(), raw=True)],
    )
    return gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())


@pytest.mark.parametrize("device", ["cpu", "simulator"])
def test_request_whose_run_fails_fails_alone(device: str) -> None:
    given = [ramp(1, 3), np.full((2, 3), 3e38, np.float32), ramp(2, 3)]
    worker = gx.Worker(affine(), backend=device, watch="raise")
    with worker, gx.Batcher(worker, max_batch=5, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit(x) for x in given]
        with pytest.raises(gx.NonFiniteError, match="double"):
            answers[1].result()
        for answer, x in ((answers[0], given[0]), (answers[2], given[2])):
            np.testing.assert_array_equal(answer.result()[0], expect_affine(x))


def test_request_whose_content_an_operator_refuses_fails_alone() -> None:
    worker = gx.Worker(looked_up(), backend=CPU)
    with worker, gx.Batcher(worker, max_batch=3, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit(np.array([index])) for index in (1, 99, 2)]
        with pytest.raises(gx.GpuexecError, match="look"):
            answers[1].result()
        for answer, index in ((answers[0], 1), (answers[2], 2)):
            np.testing.assert_array_equal(answer.result()[0], ramp(4, 2)[[index]])


def test_full_queue_refuses_at_once_and_what_is_cancelled_makes_room() -> None:
    with busy_batcher(max_waiting=2) as (batcher, worker, _, gate):
        waiting = [batcher.submit(ramp(1, 3)) for _ in range(2)]
        with pytest.raises(gx.StateError, match="2 requests wait already"):
            batcher.submit(ramp(1, 3))
        assert waiting[0].cancel()
        last = batcher.submit(ramp(1, 3) + 5)
        gate.set()
        np.testing.assert_array_equal(last.result()[0], ramp(1, 3) + 6)
    assert worker.sizes == [1, 2] and waiting[0].cancelled()


def test_task_that_is_cancelled_takes_its_request_back() -> None:
    async def ask() -> None:
        with busy_batcher() as (batcher, worker, _, gate):
            tasks = [asyncio.ensure_future(batcher.run_async(ramp(rows, 3))) for rows in (1, 2, 4)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            gate.set()
            kept = await asyncio.gather(tasks[0], tasks[2])
            assert [len(answer[0]) for answer in kept] == [1, 4] and tasks[1].cancelled()
            assert worker.sizes == [1, 8]

    asyncio.run(ask())


def test_request_under_way_that_is_cancelled_leaves_its_batch_alone() -> None:
    async def ask() -> None:
        model, number = gated()
        with gx.Worker(model, backend=CPU) as worker, opening(GATES.open[number]) as gate:
            async with gx.Batcher(worker, max_batch=2, max_delay_ms=FOREVER_MS) as batcher:
                tasks = [asyncio.ensure_future(batcher.run_async(ramp(1, 3))) for _ in range(2)]
                assert await asyncio.to_thread(GATES.entered[number].wait, 60)
                tasks[0].cancel()
                gate.set()
                np.testing.assert_array_equal((await tasks[1])[0], ramp(1, 3) + 1)
                assert tasks[0].cancelled()

    asyncio.run(ask())


def test_loops_and_threads_share_a_run() -> None:
    with (
        gx.Worker(affine(), backend=CPU) as worker,
        gx.Batcher(worker, max_batch=6, max_delay_ms=FOREVER_MS) as batcher,
    ):
        answers: dict[int, Array] = {}

        def ask(number: int) -> None:
            x = ramp(1, 3) + number
            answers[number] = (batcher.run(x) if number % 2 else asyncio.run(batcher.run_async(x)))[0]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert worker.report().runs == 1
    for number, answer in answers.items():
        np.testing.assert_array_equal(answer, expect_affine(ramp(1, 3) + number))


def test_answers_to_a_loop_that_ended_hold_nobody_up() -> None:
    with busy_batcher() as (batcher, _, _, gate):

        async def leave() -> None:
            asyncio.ensure_future(batcher.run_async(ramp(1, 3)))  # noqa: RUF006
            await asyncio.sleep(0)

        asyncio.run(leave())
        after = batcher.submit(ramp(2, 3))
        gate.set()
        np.testing.assert_array_equal(after.result()[0], ramp(2, 3) + 1)


def test_next_batch_is_on_the_stream_while_one_is_under_way() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    stream = backend.device.create_stream()
    with CountingWorker(affine(), backend=backend, stream=stream) as worker, gx.Batcher(worker) as batcher:
        with opening(hold(stream)) as gate:
            answers = []
            for number in range(2):
                answers.append(batcher.submit(ramp(1, 3) + number))
                assert worker.scheduled.acquire(timeout=60)
            # There are two frames: a third batch waits, and grows.
            answers += [batcher.submit(ramp(1, 3) + number) for number in (2, 3)]
            assert worker.report().runs == 2 and not any(answer.done() for answer in answers)
            gate.set()
        for number, answer in enumerate(answers):
            np.testing.assert_array_equal(answer.result()[0], expect_affine(ramp(1, 3) + number))
        assert worker.report().runs == 3


def test_closing_answers_what_waits_and_refuses_the_rest() -> None:
    worker = gx.Worker(affine(), backend=CPU)
    with worker:
        batcher = gx.Batcher(worker, max_batch=64, max_delay_ms=FOREVER_MS)
        answers = [batcher.submit(ramp(1, 3)) for _ in range(3)]
        batcher.close()
        batcher.close()
        assert all(answer.done() for answer in answers)
        with pytest.raises(gx.ClosedError, match="The Batcher is closed"):
            batcher.run(ramp(1, 3))
        assert not worker.is_closed


def test_block_left_by_an_interrupt_gives_up_what_waits() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        batcher = gx.Batcher(worker, max_delay_ms=FOREVER_MS)
        answer = batcher.submit(ramp(1, 3))
        with pytest.raises(KeyboardInterrupt), batcher:
            raise KeyboardInterrupt
        with pytest.raises(gx.CancelledError, match="closed by an interrupt"):
            answer.result()
        assert worker.report().runs == 0


def test_closed_worker_is_an_error_of_each_request() -> None:
    worker = gx.Worker(affine(), backend=CPU)
    with gx.Batcher(worker, max_batch=3, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit(ramp(1, 3)) for _ in range(2)]
        worker.close()
        with pytest.raises(gx.ClosedError, match="The Worker is closed"):
            batcher.submit(ramp(1, 3))
    for answer in answers:
        with pytest.raises(gx.ClosedError, match="The Worker is closed"):
            answer.result()


def test_batcher_that_was_forgotten_warns_and_ends_its_thread() -> None:
    with gx.Worker(affine(), backend=CPU) as worker:
        batchers = [gx.Batcher(worker)]
        thread = batchers[0]._dispatcher._thread
        with pytest.warns(ResourceWarning, match=r"A Batcher, made at .* was never closed"):
            batchers.clear()
        thread.join(60)
        assert not thread.is_alive()


def test_outputs_without_the_rows_of_a_batch_are_an_error() -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("m", 3)})
    with gx.Worker(model, backend=CPU) as worker, gx.Batcher(worker, max_batch=2, max_delay_ms=FOREVER_MS) as batcher:
        answers = [batcher.submit(ramp(1, 3)) for _ in range(2)]
        for answer in answers:
            with pytest.raises(gx.ModelError, match=r"Output 'y' has the shape \(4, 3\) for 2 rows"):
                answer.result()


def summed(inputs: dict[str, Any], output: tuple[int | str, ...]) -> gx.Model:
    return make_model([helper.make_node("Sum", list(inputs), ["y"])], inputs, {"y": output})


REFUSED = {
    "fixed input": (lambda: summed({"x": (2, 3)}, (2, 3)), r"Input 'x' \(float32\[2,3\]\) has no batch axis"),
    "scalar input": (lambda: summed({"x": ()}, ()), r"Input 'x' \(float32\[\]\) has no batch axis"),
    "two axes": (
        lambda: summed({"x": ("n", 3), "z": ("m", 3)}, ("n", 3)),
        r"Input 'z' \(float32\[m,3\]\) has no batch axis: axis 0 must be 'n', as in input 'x'",
    ),
    "fixed output": (
        lambda: make_model([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)], {"x": ("n", 3)}, {"y": (1, 1)}),
        r"Output 'y' \(float32\[1,1\]\) has no batch axis",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_without_a_batch_axis_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with gx.Worker(make(), backend=CPU) as worker, pytest.raises(gx.InputError, match=message):
        gx.Batcher(worker)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number, at least 1, got 0"),
        ({"max_batch": 2.0}, "max_batch must be a whole number, at least 1, got 2.0"),
        ({"max_waiting": 0}, "max_waiting must be a whole number, at least 1, got 0"),
        ({"max_delay_ms": -1}, "max_delay_ms must be a number, at least 0, got -1"),
        ({"max_delay_ms": float("nan")}, "max_delay_ms must be a number, at least 0, got nan"),
        ({"max_batch": 9}, "max_batch=9 is beyond 8, which the model declares of 'n'"),
    ],
)
def test_options_out_of_range_are_refused(options: Any, message: str) -> None:
    data = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "bounded",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
    ).SerializeToString()
    worker = gx.Worker(gx.load(data, dims={"n": (1, 8)}), backend=CPU)
    with worker, pytest.raises(gx.InputError, match=message):
        gx.Batcher(worker, **options)


def test_model_with_memories_and_what_is_no_worker_are_refused() -> None:
    model = two_inputs().bind_state({"sum": "left"})
    with (
        gx.Worker(model, backend=CPU) as worker,
        pytest.raises(gx.StateError, match=r"share a model's memories \(left\)"),
    ):
        gx.Batcher(worker)
    with pytest.raises(gx.InputError, match="worker must be a Worker, got Model"):
        gx.Batcher(model)  # type: ignore[arg-type]
    closed = gx.Worker(affine(), backend=CPU)
    closed.close()
    with pytest.raises(gx.ClosedError):
        gx.Batcher(closed)
