"""Address map of the simulator's memory: which block an address lies in, live, retired or freed."""

from __future__ import annotations

import bisect
import threading

# How far past a block an address is still said to lie past it, and how many freed blocks are remembered for messages.
_NEAR_BYTES = 1 << 16
_REMEMBERED = 1024


class AddressMap:
    """The live blocks of memory, by address. Thread-safe."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._freed: dict[int, int] = {}
        self._retired: set[int] = set()
        # Reentrant: garbage collection may remove a block in the middle of a call.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of all live blocks, retired ones included."""
        with self._lock:
            return sum(self._sizes.values())

    def add(self, address: int, nbytes: int) -> None:
        """Add a block."""
        with self._lock:
            # Every start has a size, wherever an interrupt strikes.
            self._sizes[address] = nbytes
            bisect.insort(self._starts, address)
            self._freed.pop(address, None)

    def remove(self, address: int) -> None:
        """Remove a block."""
        with self._lock:
            self._starts.pop(bisect.bisect_left(self._starts, address))
            self._retired.discard(address)
            self._freed[address] = self._sizes.pop(address)
            while len(self._freed) > _REMEMBERED:
                del self._freed[next(iter(self._freed))]

    @property
    def has_retired(self) -> bool:
        """True if any block is retired."""
        return bool(self._retired)

    def retire(self, address: int) -> None:
        """Refuse new uses of a block that was freed while work under way still uses it."""
        with self._lock:
            self._retired.add(address)

    def renew(self, address: int) -> None:
        """Allow uses of a retired block again."""
        with self._lock:
            self._retired.discard(address)

    def find(self, address: int, nbytes: int = 0, *, is_running: bool = False) -> tuple[int, int] | None:
        """Return address and size of the block that contains a whole range, if there is one.

        Those retired are found by what ``is_running`` alone.
        """
        with self._lock:
            index = bisect.bisect_right(self._starts, address) - 1
            if index < 0:
                return None
            start = self._starts[index]
            size = self._sizes[start]
            if start in self._retired and not is_running:
                return None
            return (start, size) if address + nbytes <= start + size else None

    def holds(self, address: int, nbytes: int, *, is_running: bool = False) -> bool:
        """Return whether a range lies within one block."""
        return self.find(address, nbytes, is_running=is_running) is not None

    def is_retired(self, address: int) -> bool:
        """Return whether an address lies in a block that is retired."""
        return self.find(address) is None and self.find(address, is_running=True) is not None

    def describe(self, address: int) -> str:
        """Describe where an invalid address lies."""
        with self._lock:
            retired = {start: self._sizes[start] for start in self._retired}
            for start, size in (self._freed | retired).items():
                if start <= address < start + size:
                    return f"address {address:#x} lies in {size} bytes that were freed"
            index = bisect.bisect_right(self._starts, address) - 1
            if index >= 0:
                start = self._starts[index]
                past = address - start - self._sizes[start]
                if past < 0:
                    return f"address {address:#x} is byte {address - start} of an allocation of {self._sizes[start]}"
                if past < _NEAR_BYTES:
                    return (
                        f"address {address:#x} lies {past} bytes past the end of an allocation of {self._sizes[start]}"
                    )
            return f"address {address:#x} lies in no allocation"
