"""Device memory of the inputs of a Method: planned, or from an allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuexec.devices.device import MemoryBlock, Region
from gpuexec.execution.resources.memory import Allocate


@dataclass(frozen=True, slots=True)
class InputSlot:
    """Planned memory of an input: on the device, and on the host, where it is copied first (the same on a CPU)."""

    place: Region
    window: Region


class InputPlaces:
    """Has a place for each input that needs one, as large as its largest content so far.

    Args:
        allocate: Gives places to inputs that have no slot.
        slots: Planned memory by input.
    """

    def __init__(self, allocate: Allocate, slots: Mapping[str, InputSlot]) -> None:
        self._allocate, self._slots = allocate, dict(slots)
        self._blocks: dict[str, MemoryBlock] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(slot.place.nbytes for slot in self._slots.values()) + sum(b.nbytes for b in self._blocks.values())

    def find_slot(self, name: str) -> InputSlot | None:
        """Return the planned memory of an input, if there is some."""
        return self._slots.get(name)

    def reserve(self, name: str, nbytes: int) -> Region:
        """Return the place of an input; what runs in flight use of one that it outgrew lives on with them.

        Raises:
            OutOfMemoryError: There is no room.
        """
        slot = self._slots.get(name)
        if slot is not None:
            return Region(slot.place.memory, slot.place.offset, nbytes)
        memory = self._blocks.get(name)
        if memory is None or memory.nbytes < nbytes:
            memory = self._blocks[name] = self._allocate(max(nbytes, 1))
        return Region(memory, 0, nbytes)

    def holds(self, region: Region) -> bool:
        """Return whether bytes are among those that an allocator gave."""
        first, last = region.address, region.address + region.nbytes
        return any(first < each.address + each.nbytes and each.address < last for each in self._blocks.values())

    def give_back(self) -> None:
        """Free memory that is not planned; it is allocated anew as large as needed."""
        self._blocks.clear()

    def clear(self) -> None:
        """Free all memory."""
        self._blocks.clear()
        self._slots.clear()
