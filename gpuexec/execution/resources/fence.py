"""Fences: completion of work that may not be on its stream yet."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gpuexec.devices.completion import Completion
from gpuexec.devices.device import Device, Event, Stream
from gpuexec.devices.latch import Wakeup
from gpuexec.devices.working_here import wake_deferred
from gpuexec.errors import GpuexecError, StateError


class Fence:
    """The events of a piece of work and of what it depends on, known once the work is on its stream.

    Attributes:
        events: The events; empty before the work is issued.
        failure: Why the work will never run, if so.
        stepper: The thread that schedules the work piece by piece, if one does: it must not wait for itself.
    """

    def __init__(self) -> None:
        self.events: tuple[Event, ...] = ()
        self.failure: BaseException | None = None
        self._is_issued, self._has_succeeded, self._changed = False, False, Wakeup()
        self._lock = threading.Lock()
        # What is called once it is issued, and whether somebody wants that.
        self._waiting: deque[tuple[Callable[[], None], Callable[[], bool]]] = deque()
        self.stepper: int | None = None

    @staticmethod
    def of(*events: Event) -> Fence:
        """Return a fence of work that is on its stream."""
        fence = Fence()
        fence.issue(events)
        return fence

    def issue(self, events: tuple[Event, ...], failure: BaseException | None = None) -> bool:
        """Set the events of work now on its stream, or the ``failure`` for which it never will be; False if set before.

        Args:
            events: The newest first: when it is done, so are the others.
            failure: The error that waits raise.
        """
        is_first = False
        with self._lock:
            if not self._is_issued:
                self.events, self.failure = events, failure
                is_first = self._is_issued = True
                self._changed.notify()
        # What an interrupt left of them the next call finds.
        while self._waiting:
            try:
                callback, _ = self._waiting.popleft()
            except IndexError:  # another thread was here first
                break
            callback()
        return is_first

    def when_issued(self, callback: Callable[[], None], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Call back once the work is on its stream: now, if it is. Callbacks don't raise.

        Args:
            callback: What to call.
            is_wanted: Whether somebody waits for what the callback does; see `is_wanted`.
        """
        with self._lock:
            if not self._is_issued:
                self._waiting.append((callback, is_wanted))
                return
        callback()

    def is_wanted(self) -> bool:
        """Return whether somebody waits for the work to be issued: a thread, or what a callback stands for."""
        return self._changed.has_waiters() or any(is_wanted() for _, is_wanted in list(self._waiting))

    def when_done(self, completion: Completion, callback: Callable[[], None]) -> None:
        """Call back once the work is done: now, if it is or never will be, else on the completion thread."""

        def watch() -> None:
            if not self.events or self.events[0].is_done():
                callback()
            else:
                completion.call(self.events[0], lambda _: callback())

        self.when_issued(watch)

    def is_issued(self) -> bool:
        """Return whether the work is on its stream, or never will be."""
        return self._is_issued

    def is_done(self) -> bool:
        """Return whether all work is done, or never will be; never waits."""
        return self._is_issued and all(event.is_done() for event in self.events)

    def has_failed(self) -> bool:
        """Return whether the work is known to have failed; never waits."""
        if self.failure is not None:
            return True
        if self._has_succeeded or not self.is_done():
            return False
        try:
            self.synchronize()
        except GpuexecError:
            return True
        self._has_succeeded = True
        return False

    def wait_issued(self, timeout_s: float | None = None) -> bool:
        """Wait until the work is on its stream; False when the time ran out.

        Raises:
            StateError: This thread schedules the work piece by piece, and has not finished.
            GpuexecError: The work will never run.
        """
        if self.stepper == threading.get_ident() and not self._is_issued:
            raise StateError(
                "The run is not wholly scheduled: finish iterating schedule_iterable(), or taking steps, before waiting"
                " for its results."
            )
        if not self._wait_issued(timeout_s):
            return False
        if self.failure is not None:
            raise self.failure
        return True

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done, or the time ran out (False).

        Raises:
            StateError: This thread schedules the work piece by piece, and has not finished.
            GpuexecError: What the work raised.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if not self.wait_issued(timeout_s):
            return False
        for event in self.events:
            if not event.synchronize(None if end is None else max(end - time.monotonic(), 0.0)):
                return False
        return True

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until done, however it ends; False when the time ran out."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        is_done = self._wait_issued(timeout_s)
        for event in self.events:
            with contextlib.suppress(GpuexecError):
                is_done &= event.synchronize(None if end is None else max(end - time.monotonic(), 0.0))
        return is_done

    def _wait_issued(self, timeout_s: float | None) -> bool:
        if not self._is_issued:
            wake_deferred()
        return self._is_issued or self._changed.wait_for(self.is_issued, timeout_s)

    async def wait(self, completion: Completion) -> None:
        """Wait until done without blocking the loop; raises what the work raised."""
        if not self.is_done():
            await wait_in_loop(lambda notify: self.when_done(completion, notify))
        self.synchronize()


def settle_stream(device: Device, stream: Stream) -> None:
    """Wait for a stream, however its work ends: a failed run has raised its error already."""
    with contextlib.suppress(GpuexecError):
        event = device.create_event()
        stream.record(event)
        event.synchronize()


def when_all_issued(fences: Sequence[Fence], callback: Callable[[], None]) -> None:
    """Call back once all of these are issued: now, if they are."""
    left = next((place for place, fence in enumerate(fences) if not fence.is_issued()), None)
    if left is None:
        callback()
    else:
        fences[left].when_issued(lambda: when_all_issued(fences[left + 1 :], callback))


async def wait_in_loop(subscribe: Callable[[Callable[[], None]], None]) -> None:
    """Suspend the running task until the subscribed callback comes, from whatever thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            # The loop was closed meanwhile: nobody is left to notify.
            if not loop.is_closed():
                raise

    subscribe(notify)
    await future
