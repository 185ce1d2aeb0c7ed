"""Clock alignment between devices and the host, by events of known time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuexec.devices.device import Device, TimedEvent
from gpuexec.devices.transfers import close_stream

# A GPU reports the time between events as a float, so the reference event is renewed after this long.
_LASTS_MS = 10_000.0


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A reference event, and its time by the host's clock."""

    event: TimedEvent
    host_ms: float
    device: Device


class Alignment:
    """Reference events by device. ``read_ms`` reads the host's clock."""

    def __init__(self, read_ms: Callable[[], float]) -> None:
        self._read_ms = read_ms
        self._bases: dict[int, Base] = {}

    def find(self, device: Device) -> Base:
        """Return a recent reference event of a device, recorded on a stream of its own without waiting for work."""
        base = self._bases.get(id(device))
        if base is None or self._read_ms() - base.host_ms > _LASTS_MS:
            # On an idle stream an event is reached at once; the first one wakes the stream up.
            stream = device.create_stream()
            for _ in range(2):
                event = device.create_timed_event()
                stream.record(event)
                event.synchronize()
            # The device is kept alive, so that no other can have its id.
            base = self._bases[id(device)] = Base(event, self._read_ms(), device)
            close_stream(stream)
        return base
