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
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, TypeVar

from gpuexec.errors import ClosedError, InputError, OutOfMemoryError
from gpuexec.system import blas, knobs
from gpuexec.system.cores import current_core, return_to, stay_off

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
# Addresses that a thread needs beside its stack before it can signal that it has started.
_MANY = 4  # parts of work for each thread, from which on threads are kept apart while they share it
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


def check_threads(threads: object) -> int:
    """Return how many threads somebody asked for.

    Raises:
        InputError: It is no whole number from 1 to 4096.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= knobs.MOST_THREADS:
        raise InputError(f"threads must be a whole number from 1 to {knobs.MOST_THREADS}, got {threads!r}.")
    return threads


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
    """What holds for the calls of one thread.

    Attributes:
        most: How many threads share their work; None: one per core.
        is_sharing: Whether such do now.
        is_computing: Whether it is within `computing`.
    """

    most: int | None = None
    is_sharing = False
    is_computing = False


_here = _Here()


class _Computing:
    """Context of work that so many threads may share, with NumPy's BLAS on one."""

    __slots__ = ("_most",)

    def __init__(self, most: int | None) -> None:
        self._most = most

    def __enter__(self) -> None:
        """Begin."""
        _here.most, _here.is_computing = self._most, True
        limit = blas.own_limit()
        if limit is not None:
            limit.hold(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        """End."""
        end_computing()


def computing(most: int | None) -> AbstractContextManager[None]:
    """Return the context in which a thread computes a run, with at most so many threads; None: one per core.

    NumPy's products take no threads of the library's meanwhile, in the whole process (`gpuexec.system.blas`). It is the
    outermost of its kind: where it ends, all end.
    """
    return _Computing(most)


def end_computing() -> None:
    """End what `computing` of this thread began and an interrupt left; once more does nothing."""
    limit = blas.own_limit()
    if limit is not None:
        limit.release(threading.get_ident())
    _here.most, _here.is_computing = None, False


def computing_here() -> AbstractContextManager[None]:
    """Return `computing` for one per core, or nothing more where this thread computes already."""
    return _NOTHING if _here.is_computing else _Computing(None)


_NOTHING = contextlib.nullcontext()


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
    if _here.is_sharing:
        return 1
    most = _here.most or knobs.compute_threads()
    if _here.is_computing:
        _here.most = most  # until the run ends: asking takes as long as a small product
    return most


def is_sharing() -> bool:
    """Return whether this thread is at work that others share: it does best in calls that seldom take a lock."""
    return _here.is_sharing


def share_work(count: int, work: Callable[[int], None]) -> None:
    """Call ``work`` with each number below ``count``, on this thread and on those of other cores that are free.

    All calls have ended when this returns. A call may run beside others, each in no particular order, and sees what is
    set in the caller's context (`contextvars`, hence `numpy.errstate`). How many threads there are is said by
    ``GPUEXEC_CPU_THREADS``, `computing` and `shared_by`; work within such work takes none beside its own.

    Raises:
        BaseException: What the first call raised that did; later numbers are left out then.
    """
    sharing = _Shared(count, work)
    most = min(count, count_sharing())
    for _ in range(most - 1):
        place: dict[str, bool] = {}
        try:
            find_pool(most).submit(partial(contextvars.copy_context().run, sharing.help, place))
            sharing.places.append(place)
        except OutOfMemoryError:  # no room for threads: the caller does it all
            break
    sharing.run()


class _Shared:
    """Numbers that several threads take one after the other.

    Attributes:
        places: Of those that may help, each taken by whoever comes first: a thread that helps, or the end.
    """

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        self._count, self._work = count, work
        self._numbers = itertools.count()
        self.places: list[dict[str, bool]] = []
        self._ended: list[None] = []
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._error: BaseException | None = None
        # Where the caller is, and those that help: on one core they would stand in each other's way.
        self._core, self._helping = current_core(), list[int | None]()

    def run(self) -> None:
        """Take numbers until none is left, then wait for the threads that are at theirs."""
        try:
            self._take(is_caller=True)
        except BaseException as error:
            self._error = self._error or error
        is_over = False
        while not is_over:
            try:
                helping = sum([place.setdefault("", False) for place in self.places])
                while len(self._ended) < helping:
                    self._changed.get()
                is_over = True
            except BaseException as error:  # an interrupt: those that help end with the numbers that they are at
                self._error = self._error or error
        if self._error is not None:
            raise self._error

    def help(self, place: dict[str, bool]) -> None:
        """Take numbers beside the caller; one who comes late finds nothing to do."""
        if not place.setdefault("", True):
            return
        try:
            self._take(is_caller=False)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._ended.append(None)
            self._changed.put(None)

    def _take(self, *, is_caller: bool) -> None:
        """Take numbers until none is left: where there are many, off the cores of the others until then.

        Of few, one who helps and finds itself beside the caller moves once.
        """
        before, _here.is_sharing = _here.is_sharing, not is_caller or bool(self.places)
        is_long = self._count > _MANY * (1 + len(self.places))
        cores, is_placed = None, not is_long
        if not is_caller and self._core is not None:
            if is_long:
                cores, is_placed = stay_off([self._core]), True
            elif current_core() == self._core:
                return_to(stay_off([self._core]))
            self._helping.append(current_core())
        try:
            for number in self._numbers:
                if number >= self._count or self._error is not None:
                    return
                if is_caller and self._helping and not is_placed:
                    cores, is_placed = stay_off(self._helping), True
                self._work(number)
        finally:
            _here.is_sharing = before
            return_to(cores)


_pool: WorkPool | None = None
_pool_lock = threading.Lock()


def find_pool(threads: int) -> WorkPool:
    """Return the process's threads beside those that call, with room for so many less one."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkPool(max(1, threads - 1), "gpuexec-cores")
        _pool.max_threads = max(_pool.max_threads, threads - 1)
        return _pool


def _forget_pool() -> None:
    """Forget the pool in a forked child, which has none of its parent's threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
