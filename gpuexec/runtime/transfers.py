"""A stream for copies apart from the runs, so that a copy does not wait for later runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gpuexec.runtime.device import Device, Stream


class Transfers:
    """The stream, made when first used, and a lock: what a copy waits for must not get between another's commands."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Stream | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def issuing(self) -> Iterator[Stream]:
        """Give the stream to one thread at a time; nothing is waited for meanwhile."""
        with self._lock:
            if self._stream is None:
                self._stream = self._device.create_stream()
            yield self._stream

    def close(self) -> None:
        """Close the stream; the next use makes a new one. The caller has waited for the copies."""
        with self._lock:
            stream, self._stream = self._stream, None
        close_stream(stream)


def close_stream(stream: Stream | None) -> None:
    """Close a stream of one's own where its device has something to close."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
