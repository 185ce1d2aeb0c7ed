"""Deferred release: objects kept alive until the work that uses them is done."""

from __future__ import annotations

import threading
from collections import deque

from gpuexec.devices.device import Event
from gpuexec.errors import DeviceError


class DeferredFree:
    """Objects kept alive by events; those whose event is done are released whenever something is added.

    A caller may drop an input, an output or a request while a copy or a kernel still uses its bytes. Rows are released
    in the order they came, so that adding stays cheap.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[Event, tuple[object, ...]]] = deque()
        # Reentrant: dropping an object may run code that comes back here.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._rows)

    def hold(self, event: Event, *objects: object) -> None:
        """Keep objects alive until an event is done."""
        with self._lock:
            self.prune()
            self._rows.append((event, objects))

    def prune(self) -> None:
        """Release the objects that are no longer in use."""
        with self._lock:
            while self._rows and is_over(self._rows[0][0]):
                self._rows.popleft()


def is_over(event: Event) -> bool:
    """Return whether the work of an event touches memory no more: it is done, or the device is lost."""
    try:
        return event.is_done()
    except DeviceError:
        # The device is lost: nothing runs there any more.
        return True
