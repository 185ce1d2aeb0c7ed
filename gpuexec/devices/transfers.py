"""Copy stream of a device, apart from the streams of runs, so that a copy does not wait for later runs."""

from __future__ import annotations

import threading

from gpuexec.devices.deferred_free import DeferredFree
from gpuexec.devices.device import Device, Stream


class Transfers:
    """The copy stream, made when first used, with the lock of its callers.

    Attributes:
        lock: Held while work is put on the stream, without waiting for anything: the waits of one copy must not come
            between the commands of another.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Stream | None = None
        # NOTE: taken directly by `with`: an interrupt can't come between, as it may in a context manager written in
        # Python.
        self.lock = threading.RLock()

    def open(self) -> Stream:
        """Return the stream; the caller holds its lock."""
        if self._stream is None:
            self._stream = self._device.create_stream()
        return self._stream

    def hold(self, deferred_free: DeferredFree, *objects: object) -> None:
        """Keep objects alive until all work now on the stream is done: for work whose own event was interrupted."""
        with self.lock:
            if self._stream is not None:
                event = self._device.create_event()
                self._stream.record(event)
                deferred_free.hold(event, *objects)

    def close(self) -> None:
        """Close the stream; the next use makes a new one. The caller has waited for the copies."""
        with self.lock:
            stream, self._stream = self._stream, None
        close_stream(stream)


def close_stream(stream: Stream | None) -> None:
    """Close a stream that was created here, on devices whose streams need closing."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
