"""Batcher: joins requests of many callers into runs of one Worker, along the batch axis."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.latch import Wakeup
from gpuexec.errors import CancelledError, ClosedError, InputError, ModelError, OutOfMemoryError, StateError, as_failure
from gpuexec.execution.resources.exclusive_caller import is_interrupt
from gpuexec.execution.resources.unclosed import warn_unless_closed
from gpuexec.execution.results.given import Inputs
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.runs.inputs import HostArray, InputReader
from gpuexec.execution.worker import Worker
from gpuexec.ir.spec import is_container
from gpuexec.model.model import Model
from gpuexec.model.outputs import Outputs
from gpuexec.planner.classes import bucket_end
from gpuexec.system.pickling import not_picklable
from gpuexec.system.threads import start_thread

Array = np.ndarray[Any, Any]
# Of a task, to be settled in its loop, or of a thread.
_Answer = asyncio.Future[Outputs[Any]] | Future[Outputs[Any]]
_Outcome = Outputs[Any] | BaseException


@not_picklable("Send its model, and make a Worker and a Batcher of that there.")
class Batcher:
    """Joins requests of many tasks and threads into runs of one Worker, and answers them in order.

    A request is what `Worker.run` takes, with a batch axis of one row or more, and its answer is what that gives: its
    own rows of each output. Requests that wait are joined along axis 0 in the order in which they came, up to
    ``max_batch`` rows and up to one whose other axes differ. A request that does not fit the model is refused by the
    call, before it is joined to others; where a joined run fails, its requests run again one by one, and only those
    fail that fail alone.

    On the CPU, whose small runs are fastest in sizes that come again, a batch is filled up to a power of two with
    copies of its last row.

    To ask: `run_async` in a task, `run` in a thread, `submit` for a future. At the end: `close`, `close_async`, or
    `with` and `async with`. What the model gives for a row must not depend on the other rows of its batch.

    Args:
        worker: Runs the batches, from a thread of the Batcher's: to profile them, give it a `Profiler`. It is the
            Batcher's until that is closed, and stays open then.
        max_batch: The most rows of a run.
        max_delay_ms: How long the first request of a batch waits for others while the Worker could take it. 0: what
            came while the Worker was busy runs together, and nothing waits beside an idle device.
        max_waiting: How many requests may wait; those that come then are refused at once.

    Raises:
        InputError: A number is out of range, or ``max_batch`` beyond the range declared of the batch axis. An input or
            output has no batch axis: each has a free axis 0, those of the inputs all of one name. Inputs or outputs are
            sequences, optionals or maps.
        StateError: The model has memories: what they hold belongs to one sequence of runs.
        ClosedError: The Worker is closed.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker, gx.Batcher(worker, max_batch=64) as batcher:
        ...     futures = [batcher.submit(image[None]) for image in x]      # run_async in a task
        ...     answers = [future.result()["logits"] for future in futures]
        >>> len(answers), answers[0].shape
        (8, (1, 10))
    """

    def __init__(
        self, worker: Worker, *, max_batch: int = 64, max_delay_ms: float = 0.0, max_waiting: int = 1024
    ) -> None:
        if not isinstance(worker, Worker):
            raise InputError(f"worker must be a Worker, got {type(worker).__name__}.")
        for name, number in (("max_batch", max_batch), ("max_waiting", max_waiting)):
            if not isinstance(number, int) or number < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {number!r}.")
        if not isinstance(max_delay_ms, (int, float)) or not max_delay_ms >= 0:
            raise InputError(f"max_delay_ms must be a number, at least 0, got {max_delay_ms!r}.")
        worker._engine.check_open()
        _check_model(worker.model, max_batch)
        self._worker, self._max_batch = worker, max_batch
        engine = worker._engine
        self._reader = InputReader(worker.model, engine.backend, engine.stream)
        self._dispatcher = _Dispatcher(worker, max_batch, max_delay_ms / 1e3, max_waiting)
        self._unclosed = warn_unless_closed(self, "A Batcher", "close(), or use `with` or `async with`")
        weakref.finalize(self, self._dispatcher.end, cancels=False).atexit = False

    async def run_async(self, inputs: Inputs) -> Outputs[Any]:
        """Ask, and wait for the answer; the loop goes on. A task that is cancelled takes back a request not under way.

        Args:
            inputs: As for `run`.

        Raises:
            InputError: As by `submit`.
            StateError: As by `submit`.
            CancelledError: The Batcher was closed by an interrupt.
            GpuexecError: What the run raised.
        """
        self._worker._engine.check_open()
        answer: asyncio.Future[Outputs[Any]] = asyncio.get_running_loop().create_future()
        self._dispatcher.put(self._read(inputs, answer))
        return await answer

    def run(self, inputs: Inputs) -> Outputs[Any]:
        """Ask, and wait for the answer; from any thread.

        Args:
            inputs: As for `Worker.run`, all of them, on the host.

        Raises:
            InputError: As by `submit`.
            StateError: As by `submit`.
            CancelledError: The Batcher was closed by an interrupt.
            GpuexecError: What the run raised.
        """
        answer = self.submit(inputs)
        try:
            return answer.result()
        finally:
            answer.cancel()  # where the caller was interrupted; an answer that is there stays

    def submit(self, inputs: Inputs) -> Future[Outputs[Any]]:
        """Queue a request and return at once; from any thread. Cancelling the future takes it back if it still waits.

        Args:
            inputs: As for `run`. Arrays are read when they are joined: leave them as they are until the answer is
                there.

        Raises:
            InputError: An input is missing, misspelt, of the wrong dtype or shape, or on a device; inputs have
                different numbers of rows, or more than ``max_batch``.
            StateError: ``max_waiting`` requests wait already.
            ClosedError: The Batcher or its Worker is closed.
        """
        self._worker._engine.check_open()
        answer: Future[Outputs[Any]] = Future()
        self._dispatcher.put(self._read(inputs, answer))
        return answer

    def _read(self, inputs: Inputs, answer: _Answer) -> _Request:
        """Return a request, checked against the model."""
        arrays: dict[str, Array] = {}
        for name, item in self._reader.accept(inputs, {}, copy=False).items():
            if not isinstance(item, HostArray) or item.array is None:
                raise InputError(
                    f"Input {name!r} expects an array of the host, got one of a device: requests are joined on the"
                    " host. Read it back, or give it to a Worker.",
                    value=name,
                )
            arrays[name] = item.array
        rows = {array.shape[0] for array in arrays.values()}
        if len(rows) > 1:
            counts = ", ".join(f"{name!r} has {array.shape[0]}" for name, array in arrays.items())
            raise InputError(f"All inputs of a request must have the same number of rows; {counts}.")
        (count,) = rows
        if count > self._max_batch:
            raise InputError(f"A request has at most max_batch={self._max_batch} rows (axis 0 of inputs), got {count}.")
        return _Request(arrays, count, tuple([array.shape[1:] for array in arrays.values()]), answer)

    def close(self) -> None:
        """Refuse further requests and wait until those there are answered; twice is harmless. The Worker stays open."""
        self._unclosed.detach()
        self._dispatcher.end(cancels=False)
        self._dispatcher.join()

    async def close_async(self) -> None:
        """Close as `close` does, without blocking the loop."""
        await asyncio.to_thread(self.close)

    def _leave(self, kind: type[BaseException] | None) -> None:
        # Who was interrupted waits for nothing any more.
        if kind is not None and is_interrupt(kind):
            self._dispatcher.end(cancels=True)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind)
        self.close()

    async def __aenter__(self) -> Batcher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind)
        await self.close_async()


def _check_model(model: Model, max_batch: int) -> None:
    """Check that a model's inputs and outputs have rows that can be joined and parted.

    Raises:
        InputError: They have not.
        StateError: It has memories.
    """
    if model.memories:
        names = ", ".join(memory.input for memory in model.memories)
        raise StateError(f"Requests of several callers can't share a model's memories ({names}).")
    batch: tuple[str, str] | None = None  # the name of the axis, and the input that it is known by
    if not model.inputs:
        raise InputError("Requests are joined along axis 0 of inputs, and the model has none.")
    for port in (*model.inputs, *model.outputs):
        dims, is_input = port.spec.dims, port in model.inputs
        kind = "Input" if is_input else "Output"
        if is_container(port.spec.dtype):
            raise InputError(f"{kind} {port.name!r} ({port.spec}) can't be joined: it is no tensor.", value=port.name)
        if dims is None:
            if is_input:
                raise InputError(f"Input {port.name!r} declares no axes; axis 0 must be the batch.", value=port.name)
            continue  # the runs show it
        first = dims[0] if dims else None
        if not dims or isinstance(first, int):
            raise InputError(
                f"{kind} {port.name!r} ({port.spec}) has no batch axis: axis 0 must be free.", value=port.name
            )
        if not is_input or first is None:
            continue
        batch = batch or (first, port.name)
        if first != batch[0]:
            raise InputError(
                f"Input {port.name!r} ({port.spec}) has no batch axis: axis 0 must be {batch[0]!r}, as in input"
                f" {batch[1]!r}.",
                value=port.name,
            )
        bound = model.dims.get(first)
        high = bound[1] if isinstance(bound, tuple) else bound
        if high is not None and max_batch > high:
            raise InputError(f"max_batch={max_batch} is beyond {high}, which the model declares of {first!r}.")


@dataclass(slots=True, eq=False)
class _Request:
    """What one caller asks, and the future of its answer.

    ``shapes`` are those of the inputs beyond axis 0. ``is_alone``: it failed among others, and is tried by itself.
    """

    inputs: dict[str, Array]
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    answer: _Answer
    since: float = 0.0
    is_alone: bool = False

    def begin(self) -> bool:
        """Return whether the answer is still wanted; a future of a thread can't be cancelled any more then."""
        if self.is_alone or not isinstance(self.answer, Future):
            return not self.answer.cancelled()
        return self.answer.set_running_or_notify_cancel()


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch on the device, with the readbacks of its outputs by name."""

    batch: list[_Request]
    readbacks: dict[str, ReadbackRequest]

    def is_done(self) -> bool:
        """Return whether all outputs are on the host."""
        return all(request.is_done() for request in self.readbacks.values())


class _Dispatcher:
    """A thread that takes requests from a queue, runs them and answers.

    On devices with kernels a batch is put on the stream while the one before it is under way; on the CPU the thread
    computes it. The thread holds the dispatcher and not the Batcher, which may be collected.
    """

    def __init__(self, worker: Worker, max_batch: int, max_delay_s: float, max_waiting: int) -> None:
        self._worker, self._max_batch = worker, max_batch
        self._max_delay_s, self._max_waiting = max_delay_s, max_waiting
        self._computes_here = not worker._engine.backend.device.target.has_kernels
        self._max_pending = len(worker._engine.frames)
        self._lock, self._wakeup = threading.Lock(), Wakeup()
        self._waiting: deque[_Request] = deque()
        self._rows = 0  # of those that wait
        self._pending: deque[_PendingBatch] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="gpuexec-batcher", daemon=True)
        start_thread(self._thread)

    def put(self, request: _Request) -> None:
        """Queue a request.

        Raises:
            StateError: Too many wait.
            ClosedError: It is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("The Batcher is closed.")
            if len(self._waiting) >= self._max_waiting:
                self._drop_cancelled()
            if len(self._waiting) >= self._max_waiting:
                raise StateError(
                    f"{self._max_waiting} requests wait already (max_waiting): ask again later, or ask fewer at once."
                )
            request.since = time.monotonic()
            last = self._waiting[-1] if self._waiting else None
            self._waiting.append(request)
            self._rows += request.rows
            # In between, nothing changes for the thread.
            wakes = last is None or self._rows >= self._max_batch or last.shapes != request.shapes
        if wakes:
            self._wakeup.notify()

    def end(self, *, cancels: bool) -> None:
        """Refuse further requests; end the thread once all are answered, or those under way where it cancels."""
        dropped: Sequence[_Request] = ()
        with self._lock:
            self._is_closed = True
            if cancels:
                dropped, self._waiting, self._rows = [*self._waiting], deque(), 0
        error = CancelledError("The Batcher was closed by an interrupt.")
        _settle([(request, error) for request in dropped if request.begin()])
        self._wakeup.notify()

    def join(self) -> None:
        """Wait for the thread's end, unless this is that thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            self._wakeup.wait_for(self._has_work)
            if self._has_landed():
                self._land(self._pending.popleft())
                continue
            if not self._has_room():
                return  # closed, and all are answered
            with self._lock:
                since = self._waiting[0].since if self._waiting else 0.0
            self._wakeup.wait_for(self._is_due, max(0.0, since + self._max_delay_s - time.monotonic()))
            if not self._has_landed():
                self._launch(self._take())

    def _has_work(self) -> bool:
        return self._has_landed() or self._has_room() or (self._is_closed and not self._waiting and not self._pending)

    def _has_landed(self) -> bool:
        return bool(self._pending) and self._pending[0].is_done()

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._pending) < self._max_pending

    def _is_due(self) -> bool:
        """Return whether the batch is as large as it gets, or something else is to be done first."""
        if self._is_closed or self._has_landed():
            return True
        with self._lock:
            rows, first = 0, None
            for request in self._waiting:
                first = first or request
                rows += request.rows
                if rows >= self._max_batch or request.is_alone or request.shapes != first.shapes:
                    return True
        return first is None

    def _take(self) -> list[_Request]:
        """Return the next requests that can be joined, without those that were cancelled."""
        batch: list[_Request] = []
        rows = 0
        with self._lock:
            while self._waiting:
                request = self._waiting[0]
                is_apart = request.is_alone or (
                    bool(batch) and (batch[0].is_alone or request.shapes != batch[0].shapes)
                )
                if batch and (is_apart or rows + request.rows > self._max_batch):
                    break
                self._waiting.popleft()
                self._rows -= request.rows
                if request.begin():
                    batch.append(request)
                    rows += request.rows
        return batch

    def _drop_cancelled(self) -> None:
        self._waiting = deque([request for request in self._waiting if not request.answer.cancelled()])
        self._rows = sum([request.rows for request in self._waiting])

    def _launch(self, batch: list[_Request]) -> None:
        """Run a batch, or put it on the stream."""
        if not batch:
            return
        rows = sum([request.rows for request in batch])
        # The CPU repeats few sizes faster than it meets many, and the rows beside them cost less than that.
        size = min(bucket_end(rows), self._max_batch) if self._computes_here else rows
        try:
            joined = _join(batch, size - rows)
            if self._computes_here:
                outcomes = _part(batch, dict(self._worker.run(joined).items()), size)
            else:
                outputs = self._worker.schedule(joined).outputs
                pending = _PendingBatch(batch, {name: tensor.readback_request() for name, tensor in outputs.items()})
        except BaseException as error:
            self._fail(batch, error)
            return
        if self._computes_here:
            _settle(outcomes)
            return
        self._pending.append(pending)
        with contextlib.suppress(OutOfMemoryError):  # no room for the thread that calls back: a wait looks by itself
            for request in pending.readbacks.values():
                request.add_done_callback(lambda _: self._wakeup.notify())

    def _land(self, pending: _PendingBatch) -> None:
        """Answer a batch whose run is over."""
        batch = pending.batch
        try:
            found = {name: request.result() for name, request in pending.readbacks.items()}
            outcomes = _part(batch, found, sum([request.rows for request in batch]))
        except BaseException as error:
            self._fail(batch, error)
            return
        _settle(outcomes)

    def _fail(self, batch: list[_Request], error: BaseException) -> None:
        """Answer a request by the error that it met alone, or have those that met it together run one by one."""
        if len(batch) == 1:
            _settle([(batch[0], as_failure(error, "The run of a batch"))])
            return
        for request in batch:
            request.is_alone = True
        with self._lock:
            self._waiting.extendleft(reversed(batch))
            self._rows += sum([request.rows for request in batch])


def _join(batch: Sequence[_Request], missing: int) -> dict[str, Array]:
    """Return the inputs of all requests, and their last row so many times more."""
    if len(batch) == 1 and not missing:
        return batch[0].inputs
    joined: dict[str, Array] = {}
    for name in batch[0].inputs:
        arrays = [request.inputs[name] for request in batch]
        if missing:
            last = next(array for array in reversed(arrays) if len(array))[-1:]
            arrays.append(np.broadcast_to(last, (missing, *last.shape[1:])))
        joined[name] = np.concatenate(arrays)
    return joined


def _part(batch: Sequence[_Request], found: Mapping[str, Array], size: int) -> list[tuple[_Request, _Outcome]]:
    """Return for each request its rows of the outputs of so many rows, as arrays of its caller's own."""
    if len(batch) == 1 and batch[0].rows == size:
        return [(batch[0], Outputs(found))]
    for name, array in found.items():
        if array.ndim == 0 or array.shape[0] != size:
            error = f"Output {name!r} has the shape {array.shape} for {size} rows: axis 0 is no batch axis."
            return [(request, ModelError(error, value=name)) for request in batch]
    parted: list[tuple[_Request, _Outcome]] = []
    first = 0
    for request in batch:
        last = first + request.rows
        parted.append((request, Outputs({name: array[first:last].copy() for name, array in found.items()})))
        first = last
    return parted


def _settle(outcomes: Sequence[tuple[_Request, _Outcome]]) -> None:
    """Set results or errors in order; those of tasks in their loops, each of which is woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[_Answer, _Outcome]]] = {}
    for request, outcome in outcomes:
        if isinstance(request.answer, Future):
            _set([(request.answer, outcome)])
        else:
            loops.setdefault(request.answer.get_loop(), []).append((request.answer, outcome))
    for loop, settled in loops.items():
        with contextlib.suppress(RuntimeError):  # a loop that is closed has no tasks left
            loop.call_soon_threadsafe(_set, settled)


def _set(settled: Sequence[tuple[_Answer, _Outcome]]) -> None:
    for answer, outcome in settled:
        if answer.done():
            continue  # a task that was cancelled meanwhile
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
