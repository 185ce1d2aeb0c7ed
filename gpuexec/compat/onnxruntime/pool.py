"""Pool of Workers over one model, each lent to one caller at a time, so that many threads may run a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuexec.devices.latch import Wakeup
from gpuexec.execution.worker import Worker


class WorkerPool:
    """A bounded pool of Workers; callers wait while all are lent.

    The one returned last is lent first, so that its plans and kernels are reused.

    Args:
        make: Makes a Worker.
        max_workers: How many there may be.
    """

    def __init__(self, make: Callable[[], Worker], max_workers: int) -> None:
        self._make, self._max_workers = make, max_workers
        self._idle: list[Worker] = []
        self._count = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._changed = Wakeup()

    @contextmanager
    def lending(self) -> Iterator[Worker]:
        """Lend a Worker; one lent by a closed pool is closed when it is returned."""
        worker = self._take()
        try:
            yield worker
        finally:
            with self._lock:
                # A Worker closed by an interrupt is not lent again.
                is_kept = not (self._is_closed or worker.is_closed)
                if is_kept:
                    self._idle.append(worker)
                else:
                    self._count -= 1
            self._changed.notify()
            if not is_kept:
                worker.close()

    def close(self) -> None:
        """Close the Workers, lent ones when they are returned. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        self._changed.notify()
        for worker in idle:
            worker.close()

    def _take(self) -> Worker:
        while True:
            self._changed.wait_for(lambda: bool(self._idle) or self._count < self._max_workers)
            with self._lock:
                if self._idle:
                    return self._idle.pop()
                # Another waiter may have taken it first.
                if self._count < self._max_workers:
                    self._count += 1
                    break
        try:
            return self._make()
        except BaseException:
            with self._lock:
                self._count -= 1
            self._changed.notify()
            raise
