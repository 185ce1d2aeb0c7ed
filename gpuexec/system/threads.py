"""Threads: started with a check of the room for them, and pools of them that share a queue."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, TypeVar

from gpuexec.errors import ClosedError, OutOfMemoryError
from gpuexec.system import knobs

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
# Addresses that a thread needs beside its stack before it can signal that it has started.
_BESIDE_STACK_BYTES = 8 << 20
_USUAL_STACK_BYTES = 8 << 20


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        OutOfMemoryError: The process has no room for one more, or may have no more; names the limit to raise. The
            thread was not started.
    """
    # NOTE: a thread that runs out of memory on its first lines never signals that it has started, and `Thread.start`
    # waits for that for ever. So the room is checked first.
    _check_addresses(thread.name)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None  # it came amid the call, which let go of a lock that it did not hold
        raise OutOfMemoryError(
            f"The system refused to start a thread ({thread.name}): {error}. The process has {threading.active_count()}"
            " threads; raise the limits of threads (ulimit -u, or pids.max of the container) or of memory (ulimit -v)."
        ) from error


def _check_addresses(name: str) -> None:
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return  # a system without this information
    stack = threading.stack_size()
    if not stack:
        usual, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = _USUAL_STACK_BYTES if usual == resource.RLIM_INFINITY else usual
    needed = stack + _BESIDE_STACK_BYTES
    if used + needed > limit:
        raise OutOfMemoryError(
            f"A thread ({name}) needs {needed} bytes of addresses, and the process has {used} of the {limit} that its"
            " limit allows. Raise the limit of its address space: ulimit -v unlimited (RLIMIT_AS)."
        )


class WorkPool:
    """Threads that share a queue, started on demand.

    Args:
        max_threads: How many there may be.
        name: Theirs.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self.max_threads, self._name = max_threads, name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Unfinished calls: when there are more than threads, another thread is started.
        self._open = 0
        self._is_closed = False

    def submit(self, call: Callable[[], object]) -> None:
        """Queue a call for one of the threads, in the order of the submissions. It must not raise.

        Raises:
            ClosedError: The pool is closed.
            OutOfMemoryError: There is no thread, and none can be started; the call will not be made.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"The threads {self._name} are closed.")
            if self._open >= len(self._threads) and len(self._threads) < self.max_threads:
                thread = threading.Thread(target=self._serve, name=f"{self._name}_{len(self._threads)}", daemon=True)
                try:
                    start_thread(thread)
                    self._threads.append(thread)
                except OutOfMemoryError:
                    if not self._threads:
                        raise
            self._open += 1
            self._calls.put(call)

    def close(self) -> None:
        """Let the threads end after the submitted calls. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._calls.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of a closed pool's threads; False when the time ran out."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # with its references, until the next call comes
            with self._lock:
                self._open -= 1


def in_threads(
    items: Sequence[_Item], work: Callable[[_Item], _Made], most: int, name: str
) -> Iterator[tuple[int, _Made]]:
    """Yield what threads make of items, with each one's number, in the order in which they are done.

    Items are begun in their order. The threads are daemons, so a process ends though they are at work. Where this is
    left early (an error, an interrupt, a generator closed) no more items are begun, and those under way are not waited
    for.

    Args:
        items: What to work on.
        work: Called with each of them, in any thread.
        most: How many threads there may be.
        name: Theirs.

    Raises:
        BaseException: What the first call raised that did.
    """
    pool = WorkPool(max(1, min(len(items), most)), name)
    ended: SimpleQueue[tuple[int, Callable[[], _Made]]] = SimpleQueue()
    is_over = threading.Event()

    def call(number: int) -> None:
        if not is_over.is_set():
            try:
                made = work(items[number])
                ended.put((number, lambda: made))
            except BaseException as error:
                ended.put((number, partial(_raise, error)))

    try:
        for number in range(len(items)):
            try:
                pool.submit(partial(call, number))
            except OutOfMemoryError:  # no room for a thread: the caller does it
                call(number)
        for _ in items:
            number, result = ended.get()
            yield number, result()
    finally:
        is_over.set()
        pool.close()


def _raise(error: BaseException) -> NoReturn:
    raise error


class _Here(threading.local):
    """What holds for the calls of one thread: how many threads share their work (None: one per core), and do now."""

    most: int | None = None
    is_sharing = False


_here = _Here()


@contextlib.contextmanager
def shared_by(most: int | None) -> Iterator[None]:
    """Let at most so many threads share what this thread does meanwhile; None: as many as there are cores."""
    before, _here.most = _here.most, most
    try:
        yield
    finally:
        _here.most = before


def count_sharing() -> int:
    """Return how many threads share the work of this one, itself included."""
    return _here.most or knobs.compute_threads()


def is_sharing() -> bool:
    """Return whether this thread is at work that others share: it does best in calls that seldom take a lock."""
    return _here.is_sharing


def share_work(count: int, work: Callable[[int], None]) -> None:
    """Call ``work`` with each number below ``count``, on this thread and on those of other cores that are free.

    All calls have ended when this returns. A call may run beside others, each in no particular order, and sees what is
    set in the caller's context (`contextvars`, hence `numpy.errstate`). How many threads there are is said by
    ``GPUEXEC_THREADS`` and `shared_by`.

    Raises:
        BaseException: What the first call raised that did; later numbers are left out then.
    """
    sharing, helpers = _Sharing(count, work), 0
    for _ in range(min(count, count_sharing()) - 1):
        try:
            _find_pool().submit(partial(contextvars.copy_context().run, sharing.help))
            helpers += 1
        except OutOfMemoryError:  # no room for threads: the caller does it all
            break
    sharing.run(is_shared=helpers > 0)


class _Sharing:
    """Numbers that several threads take one after the other."""

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        self._count, self._work = count, work
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._helping, self._is_over = 0, False
        self._error: BaseException | None = None

    def run(self, *, is_shared: bool) -> None:
        """Take numbers until none is left, then wait for the threads that are at theirs."""
        try:
            self._take(is_shared=is_shared)
        except BaseException as error:
            self._note(error)
        while not self._is_over or self._helping:
            try:
                with self._changed:
                    self._is_over = True
                    self._changed.wait_for(lambda: not self._helping)
            except BaseException as error:  # an interrupt: those that help end with the numbers that they are at
                self._note(error)
        if self._error is not None:
            raise self._error

    def help(self) -> None:
        """Take numbers beside the caller; one who comes late finds nothing to do."""
        with self._changed:
            if self._is_over:
                return
            self._helping += 1
        try:
            self._take(is_shared=True)
        except BaseException as error:
            self._note(error)
        finally:
            with self._changed:
                self._helping -= 1
                self._changed.notify()

    def _take(self, *, is_shared: bool) -> None:
        before, _here.is_sharing = _here.is_sharing, is_shared
        try:
            for number in self._numbers:
                if number >= self._count or self._error is not None:
                    return
                self._work(number)
        finally:
            _here.is_sharing = before

    def _note(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error


_pool: WorkPool | None = None
_pool_lock = threading.Lock()


def _find_pool() -> WorkPool:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkPool(max(1, knobs.compute_threads() - 1), "gpuexec-cores")
        return _pool


def _forget_pool() -> None:
    """Forget the pool in a forked child, which has none of its parent's threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
