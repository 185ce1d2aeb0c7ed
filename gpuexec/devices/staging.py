"""Pinned staging memory for copies, reused once the copies that use it are done."""

from __future__ import annotations

import threading

from gpuexec.devices.deferred_free import is_over
from gpuexec.devices.device import Device, Event, MemoryBlock
from gpuexec.devices.revision import Revision

_SMALLEST = 4096


class Staging:
    """A pool of pinned blocks of power-of-two sizes.

    A block given back with an event is not handed out before that event is done. ``revision`` changes with `nbytes`.
    """

    def __init__(self, device: Device, revision: Revision | None = None) -> None:
        self._device, self._revision = device, revision or Revision()
        self._free: dict[int, list[tuple[MemoryBlock, Event | None]]] = {}
        # Reentrant: garbage collection may return blocks in the middle of a call.
        self._lock = threading.RLock()
        self.nbytes = 0

    def take(self, nbytes: int) -> MemoryBlock:
        """Return a block of at least ``nbytes``."""
        size = max(_SMALLEST, 1 << max(nbytes - 1, 0).bit_length())
        with self._lock:
            rows = self._free.get(size, [])
            for position, (memory, event) in enumerate(rows):
                if event is None or event.is_done():
                    del rows[position]
                    return memory
        memory = self._device.allocate_pinned(size)
        with self._lock:
            self.nbytes += size
            self._revision.number += 1
        return memory

    def give_back(self, memory: MemoryBlock, event: Event | None = None) -> None:
        """Return a block to the pool, where it is reused once ``event`` is done."""
        with self._lock:
            self._free.setdefault(memory.nbytes, []).append((memory, event))

    def trim(self) -> int:
        """Free the idle blocks; return their bytes."""
        with self._lock:
            rows, self._free = self._free, {}
            given = 0
            for memory, event in [row for each in rows.values() for row in each]:
                if event is not None and not is_over(event):
                    self.give_back(memory, event)
                    continue
                memory.free()
                given += memory.nbytes
            self.nbytes -= given
            self._revision.number += 1
            return given
