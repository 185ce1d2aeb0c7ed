"""Bringing results to the host without blocking: a copy into pinned memory, and an event that says when it is there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from gpuexec.errors import CancelledError, PendingError
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Event, Memory
from gpuexec.spec import TensorSpec

Array = np.ndarray[Any, Any]


class Fence:
    """When work is done: the events of a run and of the runs it depends on, known once the run is on its stream."""

    def __init__(self) -> None:
        self._events: tuple[Event, ...] = ()
        self._issued = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def issue(self, events: tuple[Event, ...], failure: BaseException | None = None) -> None:
        """Say that the work is on its stream (or will never be: ``failure``)."""
        with self._lock:
            self._events, self._failure = events, failure
            self._issued.set()
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_issued(self, callback: Callable[[], None]) -> None:
        """Call back once the work is on its stream: now, if it is."""
        with self._lock:
            if not self._issued.is_set():
                self._waiting.append(callback)
                return
        callback()

    @property
    def events(self) -> tuple[Event, ...]:
        """The events; empty before the work is issued."""
        return self._events

    @property
    def failure(self) -> BaseException | None:
        """Why the work will never run, if so."""
        return self._failure

    def is_issued(self) -> bool:
        """Return whether the work is on its stream."""
        return self._issued.is_set()

    def is_done(self) -> bool:
        """Return whether all work is done; never waits."""
        return self._issued.is_set() and all(event.is_done() for event in self._events)

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done, or the time ran out (False). Raises what the work raised."""
        if not self._issued.wait(timeout_s):
            return False
        if self._failure is not None:
            raise self._failure
        # The newest event first: the others are then done, and only tell their errors.
        return all([event.synchronize(timeout_s) for event in self._events])


class ReadbackRequest:
    """A copy to the host in flight. Poll `is_done`, await it, or wait in `result`; all as often as wanted.

    Made by `Tensor.readback_request`. The device data stays where it is.
    """

    def __init__(self, backend: Backend, spec: TensorSpec, address: int, source: Fence, guard: Callable[[Event], None], owner: object) -> None:
        self._backend, self.spec, self._address, self._source, self._guard = backend, spec, address, source, guard
        self._owner: object = owner
        self._fence = Fence()
        self._lock = threading.Lock()
        self._cancelled = False
        self._block: Memory | None = None
        self._callbacks: list[Callable[[ReadbackRequest], None]] | None = None
        source.when_issued(self._start)

    def _start(self) -> None:
        """Put the copy on the readback stream, behind the work that makes the data."""
        if self._source.failure is not None:
            self._fence.issue((), self._source.failure)
            return
        backend, nbytes = self._backend, self.spec.nbytes
        block = self._block = backend.staging.take(max(nbytes, 1))
        assert block.array is not None
        stream, event = backend.readback_stream, backend.device.create_event()
        for each in self._source.events:
            stream.wait(each)
        if nbytes:
            stream.copy_to_host(block.array[:nbytes], self._address)
        stream.record(event)
        self._guard(event)
        # Requests come and go by the thousand; the block goes back when nobody holds this one or a view of it.
        weakref.finalize(self, backend.staging.give_back, block, event)
        self._fence.issue((event, *self._source.events))

    def is_done(self) -> bool:
        """Return whether the data is on the host, or never will be; never waits."""
        return self._cancelled or self._fence.is_done()

    def is_cancelled(self) -> bool:
        """Return whether `cancel` came before the data."""
        return self._cancelled

    def cancel(self) -> bool:
        """Give up the request; False if it is done already. A copy under way ends unseen."""
        with self._lock:
            if self._cancelled or self._fence.is_done():
                return False
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks or [], []
        for callback in callbacks:
            callback(self)
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            CancelledError: The request was cancelled.
            GpuexecError: What the run raised.
        """
        if self._cancelled:
            raise CancelledError("The readback was cancelled.")
        return self._fence.synchronize(timeout_s)

    def result(self, timeout_s: float | None = None) -> Array:
        """Return the data as an array of the caller's own, waiting for it if need be.

        Raises:
            PendingError: The time ran out.
        """
        return self.view(timeout_s).copy()

    def view(self, timeout_s: float | None = None) -> Array:
        """Return the data as a read-only view of the pinned bytes; the view keeps them."""
        if not self.wait(timeout_s):
            raise PendingError(f"The readback is not done after {timeout_s} s.")
        return np.asarray(_Pinned(self)).view(self.spec.dtype).reshape(self.spec.shape)

    def add_done_callback(self, callback: Callable[[ReadbackRequest], None]) -> None:
        """Call back once done or cancelled, from the completion thread; at once if that is so now."""
        with self._lock:
            first = self._callbacks is None
            if not self._cancelled:
                self._callbacks = [*(self._callbacks or []), callback]
        if self._cancelled:
            callback(self)
        elif first:
            self._fence.when_issued(self._watch)

    def _watch(self) -> None:
        if not self._fence.events:
            self._resolve(None)
            return
        self._backend.completion.call(self._fence.events[0], self._resolve)

    def _resolve(self, error: BaseException | None) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, Array]:
        yield from wait_in_loop(self.add_done_callback).__await__()
        return self.result()


class _Pinned:
    """The pinned bytes of a request as NumPy sees them; an array made of it keeps the request."""

    def __init__(self, request: ReadbackRequest) -> None:
        assert request._block is not None
        self.request = request
        self.__array_interface__ = {
            "shape": (request.spec.nbytes,),
            "typestr": "|u1",
            "data": (request._block.address, True),
            "version": 3,
        }


async def wait_in_loop(subscribe: Callable[[Callable[[Any], None]], None]) -> None:
    """Suspend the running task until the subscribed callback comes, from whatever thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def notify(_: Any) -> None:
        # A loop that closed meanwhile has nobody left to tell.
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve)

    subscribe(notify)
    await future
