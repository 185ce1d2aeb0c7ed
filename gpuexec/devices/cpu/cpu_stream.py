"""Streams and events of the CPU device. A stream is a thread that takes work in order, so issuing never waits."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import ByteArray, Event, Function, TimedEvent
from gpuexec.devices.latch import Wakeup
from gpuexec.devices.work_thread import Work, WorkThread
from gpuexec.errors import KernelError
from gpuexec.ir.command import LaunchConfig


class CpuEvent:
    """An event that is done once its stream's thread has reached it, with the error of the work before it."""

    def __init__(self) -> None:
        self._changed = Wakeup()
        self._lock = threading.Lock()
        self._wanted = self._reached = self._numbered = 0
        self._error: BaseException | None = None

    def is_done(self) -> bool:
        """Return whether the work recorded is done."""
        return self._reached >= self._wanted

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; raise what the work raised."""
        wanted = self._wanted
        if not self._changed.wait_for(lambda: self._reached >= wanted, timeout_s):
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

    def announce(self, number: int) -> None:
        """Make a record the current one of the event, before the stream reaches it."""
        with self._lock:
            self._wanted = max(self._wanted, number)

    def reach(self, number: int, error: BaseException | None) -> None:
        """Mark a record as reached."""
        with self._lock:
            # The error first: a thread that sees the record reached reads the error next.
            self._error = error
            self._reached = max(self._reached, number)
        self._changed.notify()

    def wait_for(self, number: int) -> BaseException | None:
        """Wait until a record is reached; return its error."""
        self._changed.wait_for(lambda: self._reached >= number)
        return self._error

    @property
    def last_record(self) -> int:
        """Number of the last record announced."""
        return self._wanted


class CpuTimedEvent(CpuEvent):
    """An event that notes the time when its stream's thread reached it, in seconds of ``clock``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._reached_s = 0.0

    def reach(self, number: int, error: BaseException | None) -> None:
        """Mark a record as reached now."""
        self._reached_s = self._clock()
        super().reach(number, error)

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return how much later than ``since`` this was reached; raise what the work raised."""
        assert isinstance(since, CpuTimedEvent)
        if self._error is not None:
            raise self._error
        return (self._reached_s - since._reached_s) * 1e3


class CpuStream:
    """A thread that runs queued work in order.

    An error belongs to the run it happened in: events recorded after that run carry it, the next run forgets it. An
    error waited for is passed on: to the run that comes next, or to the next event where no run comes.
    """

    handle = 0

    def __init__(self) -> None:
        self._run_error: BaseException | None = None
        self._waited_error: BaseException | None = None
        self._thread = WorkThread("gpuexec-cpu-stream")
        # A stream without references ends its thread, without waiting. Not at exit: the thread is a daemon.
        weakref.finalize(self, self._thread.stop).atexit = False

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        """Refuse: this device has no kernels."""
        raise KernelError("The CPU device runs host calls, not kernels.")

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
        number = event.number()

        def reach() -> Callable[[], None]:
            error = self._waited_error or self._run_error
            # A timed event does not consume the pending error.
            if not isinstance(event, CpuTimedEvent):
                self._waited_error = None
            return lambda: event.reach(number, error)

        self._put(reach)
        # Announced last: if the record is interrupted before, the event keeps its state instead of waiting for ever.
        event.announce(number)

    def wait(self, event: Event) -> None:
        """Let later work wait for the event's last record; its error is passed on."""
        assert isinstance(event, CpuEvent)
        number = event.last_record

        def wait() -> None:
            self._waited_error = event.wait_for(number) or self._waited_error

        self._put(wait)

    def run(self, work: Callable[[], None], is_first: bool) -> None:
        """Add a run, or a further part of one; nothing of it runs after an error."""

        def run() -> None:
            earlier = None if is_first else self._run_error
            self._run_error, self._waited_error = self._waited_error or earlier, None
            if self._run_error is None:
                try:
                    work()
                except BaseException as error:
                    self._run_error = error

        self._put(run)

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

    def _put(self, work: Work) -> None:
        def run() -> Callable[[], None] | None:
            try:
                return work()
            except BaseException as error:
                # A failing copy must not end the thread: its error goes to the next event.
                self._waited_error = error
                return None

        self._thread.put(run)


def fill_bytes(target: ByteArray, pattern: bytes) -> None:
    """Write a pattern of 1, 2, 4 or 8 bytes all over an array."""
    target.view(f"u{len(pattern)}")[...] = np.frombuffer(pattern, f"u{len(pattern)}")[0]


def _bytes_at(address: int, nbytes: int) -> ByteArray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _move(destination: int, source: int, nbytes: int) -> None:
    ctypes.memmove(destination, source, nbytes)
