"""Devices, streams, events and memory of the stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.devices.cupy_standin.standin import Standin


class Device:
    def __init__(self, standin: Standin, ordinal: int) -> None:
        self._current, self.id = standin.current, ordinal
        self.entered = 0

    def __enter__(self) -> Device:
        self.entered += 1
        self._current.depth = getattr(self._current, "depth", 0) + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._current.depth -= 1


class Stream:
    """A stream of the stand-in that a subclass names; of its own, or another package's."""

    _standin: Standin

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self._standin._require_current()
        self.below = self._standin._call(self._standin.device.create_stream)
        self.ptr = self._standin.handles.add(self.below)

    @classmethod
    def from_external(cls, external: Any) -> Stream:
        """Return a stream of another package by the CUDA stream protocol."""
        version, handle = external.__cuda_stream__()
        assert version == 0
        stream = cls.__new__(cls)
        stream.ptr, stream.below = handle, cls._standin.handles[handle]
        return stream

    def record(self, event: Event) -> Event:
        self._standin._call(self.below.record, event.below)
        return event

    def wait_event(self, event: Event) -> None:
        self._standin._call(self.below.wait, event.below)

    def is_capturing(self) -> bool:
        return self._standin._call(self.below.is_capturing)  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self._standin._call(self.below.synchronize)


class Event:
    def __init__(self, standin: Standin, block: bool, disable_timing: bool) -> None:
        assert block or not disable_timing  # who waits for one of ours sleeps
        standin._require_current()
        create = standin.device.create_event if disable_timing else standin.device.create_timed_event
        self._standin, self.below = standin, standin._call(create)
        self.ptr = standin.handles.add(self.below)

    def synchronize(self) -> None:
        self._standin._call(self.below.synchronize)
