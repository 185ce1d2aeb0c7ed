"""Streams and events of the CPU device.

A stream is a queue of work that a thread takes in order, so issuing never waits. Who waits for an event does the work
up to it, unless the thread is at it already.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import ByteArray, Event, Function, TimedEvent
from gpuexec.devices.latch import Wakeup
from gpuexec.devices.work_thread import Work, WorkThread, is_interruptible
from gpuexec.errors import CancelledError, KernelError, as_failure
from gpuexec.ir.command import LaunchConfig


class CpuEvent:
    """An event that is done once its stream has reached it, with the error of the work before it."""

    def __init__(self) -> None:
        self._changed = Wakeup()
        self._lock = threading.Lock()
        # The last record announced, and the queue that reaches it.
        self._wanted: tuple[int, WorkThread | None] = (0, None)
        self._reached = self._numbered = 0
        self._error: BaseException | None = None

    def is_done(self) -> bool:
        """Return whether the work recorded is done."""
        return self._reached >= self._wanted[0]

    def has_reached(self, number: int) -> bool:
        """Return whether a record is reached."""
        return self._reached >= number

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; raise what the work raised."""
        number, work = self._wanted
        if not self._wait(number, work, timeout_s):
            return False
        error = self._error
        if error is not None:
            raise error
        return True

    def number(self) -> int:
        """Return the number of a new record, which counts once it is announced."""
        with self._lock:
            self._numbered += 1
            return self._numbered

    def announce(self, number: int, work: WorkThread | None = None) -> None:
        """Make a record the current one of the event, before it is reached by work of that queue, if one is given."""
        with self._lock:
            if number > self._wanted[0]:
                self._wanted = (number, work)

    def reach(self, number: int, error: BaseException | None) -> None:
        """Mark a record as reached; twice is harmless."""
        with self._lock:
            if number >= self._reached:
                # The error first: a thread that sees the record reached reads the error next.
                self._error = error
                self._reached = number
        self._changed.notify()

    def wait_for(self, number: int, work: WorkThread | None) -> BaseException | None:
        """Wait until a record is reached by a queue; return its error."""
        self._wait(number, work, None)
        return self._error

    @property
    def last_record(self) -> tuple[int, WorkThread | None]:
        """Number of the last record announced, and the queue that reaches it."""
        return self._wanted

    def _wait(self, number: int, work: WorkThread | None, timeout_s: float | None) -> bool:
        wait_for = self._changed.wait_for if work is None else partial(work.wait, self._changed)
        return wait_for(lambda: self._reached >= number, timeout_s)


class CpuTimedEvent(CpuEvent):
    """An event that notes the time when its stream reached it, in seconds of ``clock``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._reached_s = 0.0

    def reach(self, number: int, error: BaseException | None) -> None:
        """Mark a record as reached now."""
        if not self.has_reached(number):
            self._reached_s = self._clock()
        super().reach(number, error)

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return how much later than ``since`` this was reached; raise what the work raised."""
        assert isinstance(since, CpuTimedEvent)
        if self._error is not None:
            raise self._error
        return (self._reached_s - since._reached_s) * 1e3


class CpuStream:
    """A queue of work that one thread at a time runs in order: the stream's own, or one that waits for an event.

    An error belongs to the run it happened in: events recorded after that run carry it, the next run forgets it. An
    error waited for is passed on: to the run that comes next, or to the next event where no run comes. A run whose work
    an interrupt of the thread that waits ended is cancelled; all other work is done once more.
    """

    handle = 0

    def __init__(self) -> None:
        self._run_error: BaseException | None = None
        self._waited_error: BaseException | None = None
        # Whether what is issued next begins a run.
        self._begins = True
        self._thread = WorkThread("gpuexec-cpu-stream")
        # A stream without references ends its thread, without waiting. Not at exit: the thread is a daemon.
        weakref.finalize(self, self._thread.stop).atexit = False

    def begin_run(self) -> None:
        """Let what follows be another run, which forgets the error of the one before."""
        self._begins = True

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Refuse: this device has no kernels."""
        raise KernelError("The CPU device runs host calls, not kernels.")

    launch_dependent = launch

    def copy_to_device(self, address: int, source: ByteArray) -> None:
        """Copy host bytes; they are read at the call, as from pageable memory."""
        taken = source.copy()
        self._put_unless_failed(lambda: _move(address, taken.ctypes.data, taken.nbytes))

    def copy_to_host(self, destination: ByteArray, address: int) -> None:
        """Copy bytes to host memory."""
        self._put_unless_failed(lambda: _move(destination.ctypes.data, address, destination.nbytes))

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy between addresses."""
        self._put_unless_failed(lambda: _move(destination, source, nbytes))

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write a pattern repeatedly."""
        self._put_unless_failed(lambda: fill_bytes(_bytes_at(address, len(pattern) * count), pattern))

    def record(self, event: Event) -> None:
        """Let the event stand for all work issued so far."""
        assert isinstance(event, CpuEvent)
        number, is_timed = event.number(), isinstance(event, CpuTimedEvent)
        found: list[BaseException | None] = []
        begins, self._begins = self._begins, False

        def reach() -> Callable[[], None]:
            if not found:
                if begins:
                    self._run_error = None
                found.append(self._waited_error or self._run_error)
            # A timed event does not consume the pending error.
            if not is_timed:
                self._waited_error = None
            return lambda: event.reach(number, found[0])

        # The time of a timed event is that of the work which comes next, not that of the call.
        self._put(reach, is_brief=not is_timed)
        # Announced last: if the record is interrupted before, the event keeps its state instead of waiting for ever.
        event.announce(number, self._thread)

    def wait(self, event: Event) -> None:
        """Let later work wait for the event's last record; its error is passed on."""
        assert isinstance(event, CpuEvent)
        number, work = event.last_record

        def wait() -> None:
            self._waited_error = event.wait_for(number, work) or self._waited_error

        self._put(wait, is_brief=event.has_reached(number))

    def run(self, work: Callable[[], None], settle: Callable[[], None] = lambda: None) -> None:
        """Add a part of a run; nothing of it runs after an error.

        Args:
            work: Of the run.
            settle: Waits for what is left of ``work`` where an interrupt ended it.
        """
        part, self._begins = _Part(self, work, self._begins, settle), False
        self._put(part)

    def is_done(self) -> bool:
        """Return whether all work issued is done."""
        return self._thread.is_done()

    def is_capturing(self) -> bool:
        """Return False: there are no graphs here."""
        return False

    def synchronize(self) -> None:
        """Wait for all work issued; raise what the last run raised."""
        event = CpuEvent()
        self.record(event)
        event.synchronize()

    def close(self) -> None:
        """End the thread once its work is done. A second call does nothing."""
        self._thread.stop()

    def _put_unless_failed(self, work: Callable[[], None]) -> None:
        def run() -> None:
            if self._waited_error is None:
                work()

        self._put(run)

    def _put(self, work: Work, *, is_brief: bool = False) -> None:
        def run() -> Callable[[], None] | None:
            try:
                return work()
            except BaseException as error:
                if not isinstance(error, Exception) and is_interruptible():
                    raise
                # A failing copy must not end the thread: its error goes to the next event.
                self._waited_error = error
                return None

        self._thread.put_shared(run, is_brief=is_brief)


class _Part:
    """A run on a stream, or a part of one, as work that may be called once more after an interrupt."""

    __slots__ = ("_has_begun", "_is_first", "_is_over", "_settle", "_stream", "_work")

    def __init__(self, stream: CpuStream, work: Callable[[], None], is_first: bool, settle: Callable[[], None]) -> None:
        self._stream, self._work, self._is_first, self._settle = stream, work, is_first, settle
        self._has_begun = self._is_over = False

    def __call__(self) -> None:
        stream = self._stream
        if self._has_begun:
            self._end_interrupted()
            return
        earlier = None if self._is_first else stream._run_error
        # NOTE: no call between these stores, hence no interrupt.
        stream._run_error, stream._waited_error = stream._waited_error or earlier, None
        self._has_begun = True
        if stream._run_error is None:
            try:
                self._work()
            except BaseException as error:
                stream._run_error = as_failure(error, "The run")
                if not isinstance(error, Exception) and is_interruptible():
                    raise
        self._is_over = True

    def _end_interrupted(self) -> None:
        if not self._is_over:
            self._settle()
            stream = self._stream
            if stream._run_error is None:
                stream._run_error = CancelledError(
                    "The run was cancelled: the caller who did its work was interrupted."
                )
            self._is_over = True


def fill_bytes(target: ByteArray, pattern: bytes) -> None:
    """Write a pattern of 1, 2, 4 or 8 bytes all over an array."""
    target.view(f"u{len(pattern)}")[...] = np.frombuffer(pattern, f"u{len(pattern)}")[0]


def _bytes_at(address: int, nbytes: int) -> ByteArray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _move(destination: int, source: int, nbytes: int) -> None:
    ctypes.memmove(destination, source, nbytes)
