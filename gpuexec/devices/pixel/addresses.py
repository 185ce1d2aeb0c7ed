"""Address ranges for textures, which have no addresses of their own, and the textures named in a launch's arguments.

So all that counts bytes from an address (regions, bindings, recordings, copies) works with textures, and only launches
and copies look up the texture.
"""

from __future__ import annotations

import bisect
import struct
import threading
from typing import Generic, Protocol, TypeVar

import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import align
from gpuexec.errors import DeviceError, KernelError

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


class TextureFinder(Protocol):
    """Lookup of the texture at an address."""

    def __call__(self, address: int, *, is_write: bool) -> tuple[int, int]:
        """Return the texture object, or the surface object of a written one, and the byte offset within it."""


def name_textures(arguments: PackedArguments, find: TextureFinder) -> PackedArguments:
    """Replace the addresses in arguments by ``Texture`` and ``Surface`` structs of ``kernels/pixel/texture.cuh``.

    Raises:
        KernelError: The launch is in no plan, so nothing says what it writes.
    """
    command = arguments.command
    if command is None:
        raise KernelError("A device with textures launches what plans and copies ask for, no other kernels.")
    values: list[np.generic | bytes | None] = []
    for position, (kind, item) in enumerate(zip(arguments.kinds(), arguments.items(), strict=True)):
        if kind == "P8":
            found = find(int(item), is_write=position in command.writes) if item else (0, 0)
            values.append(struct.pack("<2Q", *found))
        else:
            values.append(item.tobytes() if isinstance(item, np.void) else item)
    return PackedArguments(values, command, arguments.origin)
