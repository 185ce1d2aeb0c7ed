"""Layer times: measured by events on their stream, kept with the plans.

Times are picked up once the events are done, so measuring waits for nothing; and since they lie with the plan, they are
known in later runs and for other sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from gpuexec.devices.device import Device, Stream, TimedEvent
from gpuexec.errors import GpuexecError

# How far a new measurement moves what is known: one that was disturbed is forgotten in a few runs.
_WEIGHT = 0.5


class LayerTimes:
    """Times of layers in milliseconds, smoothed over runs."""

    __slots__ = ("_known_ms",)

    def __init__(self) -> None:
        self._known_ms: dict[Hashable, float] = {}

    def find(self, layer: Hashable) -> float | None:
        """Return the time of a layer; None while it was not measured."""
        return self._known_ms.get(layer)

    def note(self, layer: Hashable, ms: float) -> None:
        """Take in a measurement."""
        before = self._known_ms.get(layer, ms)
        self._known_ms[layer] = before + _WEIGHT * (ms - before)


@dataclass(frozen=True, slots=True)
class _Lap:
    times: LayerTimes
    layer: Hashable
    start: TimedEvent
    end: TimedEvent


class Stopwatch:
    """Times layers on one stream."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device, self._stream = device, stream
        self._laps: deque[_Lap] = deque()

    def mark(self) -> TimedEvent:
        """Put an event on the stream."""
        event = self._device.create_timed_event()
        self._stream.record(event)
        return event

    def expect(self, times: LayerTimes, layer: Hashable, start: TimedEvent, end: TimedEvent) -> None:
        """Note the time of a layer once its events are done."""
        self._laps.append(_Lap(times, layer, start, end))

    def collect(self) -> None:
        """Note the times of all layers that are done by now; waits for none."""
        while self._laps and self._laps[0].end.is_done():
            lap = self._laps.popleft()
            try:
                ms = lap.end.elapsed_ms(lap.start)
            except GpuexecError:
                continue  # a layer that failed has no time, and its run reports the error
            lap.times.note(lap.layer, ms)
