"""Address ranges for textures, which have no addresses of their own.

So all that counts bytes from an address (regions, bindings, recordings, copies) works with textures, and only launches
and copies look up the texture.
"""

from __future__ import annotations

import bisect
import threading
from typing import Generic, TypeVar

from gpuexec.devices.device import align
from gpuexec.errors import DeviceError

_FIRST = 1 << 48  # beyond the addresses of a GPU's own memory
Holder = TypeVar("Holder")


class AddressSpace(Generic[Holder]):
    """Address ranges and their holders. Thread-safe; an address is never reused."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._starts: list[int] = []
        self._held: dict[int, tuple[int, Holder]] = {}
        # Reentrant: garbage collection may release a range in the middle of a call.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return how many ranges there are."""
        with self._lock:
            return len(self._starts)

    def reserve(self, nbytes: int, holder: Holder) -> int:
        """Reserve a range for ``holder``; return its first address."""
        with self._lock:
            start = self._next
            # A gap, so that the end of one range is not the start of the next.
            self._next += align(nbytes + 1)
            self._starts.append(start)
            self._held[start] = (nbytes, holder)
            return start

    def release(self, start: int) -> None:
        """Remove a range."""
        with self._lock:
            self._held.pop(start, None)
            index = bisect.bisect_left(self._starts, start)
            if index < len(self._starts) and self._starts[index] == start:
                del self._starts[index]

    def find(self, address: int, nbytes: int = 0) -> tuple[Holder, int]:
        """Return the holder of a range of addresses, and the offset from the holder's first address.

        Raises:
            DeviceError: It lies in no texture.
        """
        with self._lock:
            index = bisect.bisect_right(self._starts, address) - 1
            if index >= 0:
                start = self._starts[index]
                size, holder = self._held[start]
                if address + nbytes <= start + size:
                    return holder, address - start
        raise DeviceError(f"{nbytes} bytes at {address:#x} lie in no texture of this device.")
