"""Work queues served by threads: the streams of host devices.

All are daemons: a process that ends does not wait for them.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from gpuexec.devices.latch import Latch, Wakeup
from gpuexec.devices.working_here import MAX_NESTED, caller, defer_wake, wake_deferred
from gpuexec.errors import ClosedError, OutOfMemoryError
from gpuexec.system.threads import start_thread

Work = Callable[[], Callable[[], Any] | None]


class ReusableThread(threading.Thread):
    """A thread that may serve another queue when its own has ended, since a short-lived Worker needs two or three."""

    _IDLE_NAME = "gpuexec-idle"
    # Starting a thread costs some 0.2 ms; keeping an idle one costs the addresses of its stack.
    _MAX_IDLE = 8
    _IDLE_S = 1.0
    # Reentrant: garbage collection may queue work in the middle of this.
    _lock = threading.RLock()
    _idle: ClassVar[list[ReusableThread]] = []

    @classmethod
    def call(cls, target: Callable[[], None], name: str) -> threading.Thread:
        """Run a call on an idle thread, or on a new one; return the thread.

        Raises:
            OutOfMemoryError: There is no idle thread, and none can be started; the call will not be made.
        """
        with cls._lock:
            if cls._idle:
                thread = cls._idle.pop()
                thread.name = name
                thread._calls.put(target)
                return thread
        thread = cls(target, name)
        start_thread(thread)
        return thread

    @classmethod
    def forget_idle(cls) -> None:
        """Forget idle threads in a forked child, which has none of its parent's threads."""
        cls._lock, cls._idle = threading.RLock(), []

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._calls.put(target)

    def run(self) -> None:
        """Run calls until none has come for a while."""
        call: Callable[[], None] | None = self._calls.get()
        while call is not None:
            call()
            call = None  # with its references, until the next call comes
            call = self._wait()

    def _wait(self) -> Callable[[], None] | None:
        self.name = self._IDLE_NAME
        with self._lock:
            if len(self._idle) >= self._MAX_IDLE:
                return None
            self._idle.append(self)
        try:
            return self._calls.get(timeout=self._IDLE_S)
        except Empty:
            with self._lock:
                if self in self._idle:
                    self._idle.remove(self)
                # A thread taken meanwhile has its call; or an interrupt came in between, and it gets none.
                return None if self._calls.empty() else self._calls.get()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ReusableThread.forget_idle)


class WorkThread:
    """A queue of work run in order by a thread that starts when it is first needed and sleeps when idle.

    Knows no stream, so that a stream forgotten by all can end it. An interrupt in `put` loses at most the work of that
    call: unfinished work is stored in one place, and tokens in the queue only wake the thread.

    Serving the queue is a role that one thread has at a time: its own, or one that waits for the work (`wait`) and does
    it meanwhile. Work runs in a context of the queue's own (`contextvars`), whoever runs it, so that what a caller has
    set (as by `numpy.errstate`) is not seen there. Whoever waits without the role wakes the thread first, which takes
    the role once it is free.

    Work must not raise, but for an exception that comes from outside (KeyboardInterrupt) in work put by `put_shared`:
    such work is called once more, by whoever has the role next.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        # The unfinished work, the current item first; and what the work before it has left to call.
        self._open: deque[Work] = deque()
        self._announce: Callable[[], Any] | None = None
        # Reentrant: garbage collection may stop a thread in the middle of its own bookkeeping.
        self._lock = threading.RLock()
        self._role, self._context = threading.Lock(), contextvars.Context()
        self._thread: threading.Thread | None = None
        # The thread itself, under one key: of two that an interrupted start left, the later ends at once.
        self._server: dict[str, int] = {}
        self._is_stopped, self._ended = False, Latch()

    def put(self, work: Work) -> None:
        """Queue work for the thread; the callable it returns is called once the work counts as done.

        Raises:
            ClosedError: The thread was stopped.
            OutOfMemoryError: The thread can't be started; nothing was queued.
        """
        with self._lock:
            if self._is_stopped:
                raise ClosedError("The stream is closed.")
            self._start()
            self._open.append(work)
            self._tokens.put(True)

    def put_shared(self, work: Work, *, is_brief: bool = False) -> None:
        """Queue work for whoever serves the queue: a caller that waits (see `working_here`), or else the thread.

        Args:
            work: As for `put`; called once more where an interrupt ended it.
            is_brief: Whether it is done in no time: then it is done in the call, where nothing else is queued.

        Raises:
            ClosedError: The thread was stopped.
            OutOfMemoryError: The thread can't be started; nothing was queued.
        """
        with self._lock:
            if self._is_stopped:
                raise ClosedError("The stream is closed.")
            is_next = is_brief and not self._open
            is_deferred = is_next or defer_wake(self)
            if not is_deferred and (self._thread is None or not self._thread.is_alive()):
                self._start()
            self._open.append(work)
            if not is_deferred:
                self._tokens.put(True)
        if is_next:
            self.serve(lambda: not self._open or self._open[0] is not work)
            if self._open and not defer_wake(self):
                self.wake()

    def wait(self, changed: Wakeup, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for what the queued work brings about; without a timeout, do the work if nobody does.

        Args:
            changed: Notified by the work.
            is_over: Whether it has come about.
            timeout_s: How long to wait; None: until it is over.

        Returns:
            False when the time ran out.
        """
        if is_over():
            return True
        if timeout_s is None:
            self.serve(is_over)
        if is_over():
            return True
        self.wake()
        wake_deferred()
        return changed.wait_for(is_over, timeout_s)

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Run queued work in order until ``is_over``, unless another thread serves the queue."""
        nested = caller.nested
        if nested >= MAX_NESTED:
            return
        held: list[bool] = []
        try:
            held.extend(map(self._role.acquire, (False,)))
            if held[0]:
                caller.nested = nested + 1
                self._context.run(self._advance, is_over)
        except BaseException:
            if held and held[0]:
                with contextlib.suppress(OutOfMemoryError):
                    self.wake()
            raise
        finally:
            caller.nested = nested
            if held and held[0]:
                self._role.release()

    def wake(self) -> None:
        """Have the thread do what is left, once nobody else serves the queue; nothing is waited for.

        Raises:
            OutOfMemoryError: The thread can't be started.
        """
        with self._lock:
            if not self._is_stopped:
                self._start()
                self._tokens.put(True)

    def is_done(self) -> bool:
        """Return whether the queue is empty and the last work finished."""
        return not self._open

    def is_current(self) -> bool:
        """Return whether the caller runs on the thread."""
        return self._server.get("") == threading.get_ident()

    def stop(self) -> None:
        """Let the thread end after the queued work. A second call does nothing."""
        with self._lock:
            if not self._is_stopped:
                if self._open:
                    with contextlib.suppress(OutOfMemoryError):
                        self._start()
                self._is_stopped = True
                self._tokens.put(False)

    def join(self) -> None:
        """Wait for the end of a stopped thread."""
        if not self.is_current():
            self._ended.wait_for(self.has_ended)

    def has_ended(self) -> bool:
        """Return whether it was stopped and nothing is left to do."""
        thread = self._thread
        return self._is_stopped and (self._ended.is_set() or thread is None or not thread.is_alive())

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = ReusableThread.call(self._serve, self._name)

    def _serve(self) -> None:
        own = threading.get_ident()
        if self._server.setdefault("", own) != own:
            return
        goes_on = True
        while goes_on:
            goes_on = self._tokens.get()
            with self._role:
                self._context.run(self._advance, _never)
        self._server.clear()
        self._ended.set()

    def _advance(self, is_over: Callable[[], bool]) -> None:
        while True:
            if self._announce is not None:
                self._announce()
                self._announce = None
            if not self._open or is_over():
                return
            # NOTE: an interrupt comes as a call returns: what is to be announced is stored before the work is taken
            # from the queue.
            announce = self._open[0]()
            self._announce = announce
            self._open.popleft()
            del announce  # with its references, until the next call comes


def _never() -> bool:
    return False


def is_interruptible() -> bool:
    """Return whether an exception in the present thread may come from outside, and is none of the work's."""
    return not isinstance(threading.current_thread(), ReusableThread)
