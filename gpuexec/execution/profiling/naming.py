"""Unique names of threads and streams in a profile."""

from __future__ import annotations

import threading
import weakref

from gpuexec.devices.device import Device, Stream


class Naming:
    """Unique names: the first of a kind is named for the kind, later ones get a number.

    Names keep nothing alive. The caller holds a lock.
    """

    def __init__(self) -> None:
        self._threads: weakref.WeakKeyDictionary[threading.Thread, str] = weakref.WeakKeyDictionary()
        self._streams: dict[str, weakref.WeakKeyDictionary[Stream, str]] = {}
        self._taken: set[tuple[str, str]] = set()

    def name_thread(self) -> str:
        """Return a unique name of the calling thread: its own, if no other had it before."""
        thread = threading.current_thread()
        name = self._threads.get(thread)
        return self._threads.setdefault(thread, self._choose("", thread.name)) if name is None else name

    def name_stream(self, device: Device, stream: Stream, kind: str) -> str:
        """Return a unique name of a stream among those of its device for a kind of work."""
        streams = self._streams.setdefault(kind, weakref.WeakKeyDictionary())
        name = streams.get(stream)
        return streams.setdefault(stream, self._choose(device.name, kind)) if name is None else name

    def _choose(self, place: str, wanted: str) -> str:
        name, number = wanted, 1
        while (place, name) in self._taken:
            number += 1
            name = f"{wanted} {number}"
        self._taken.add((place, name))
        return name
