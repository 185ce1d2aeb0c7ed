"""Driver thread of a Worker: takes runs on, in order, that wait for something outside their stream."""

from __future__ import annotations

from collections.abc import Callable

from gpuexec.devices.latch import Wakeup
from gpuexec.devices.work_thread import WorkThread


class DriverThread:
    """Thread that makes calls in order. Starts with the first call; calls don't raise."""

    def __init__(self) -> None:
        self._thread = WorkThread("gpuexec-driver")
        self._finished = Wakeup()

    def put(self, call: Callable[[], None]) -> None:
        """Add a call.

        Raises:
            OutOfMemoryError: The thread can't be started; the call will not be made.
        """

        def work() -> Callable[[], None]:
            call()
            return self._finished.notify

        self._thread.put(work)

    def is_busy(self) -> bool:
        """Return whether calls are waiting here; what must come after them has to queue behind."""
        return not self._thread.is_done()

    def is_current(self) -> bool:
        """Return whether this is the driver thread itself."""
        return self._thread.is_current()

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until no call is waiting here; False when the time ran out."""
        return self._finished.wait_for(self._thread.is_done, timeout_s)

    def close(self) -> None:
        """End the thread once its calls are through."""
        self._thread.stop()
