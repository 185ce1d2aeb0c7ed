"""Host inputs of a replay: fixed places on the device, filled through pinned blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ALIGNMENT, Event, MemoryBlock, Region, Stream, align, begin_host_write
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]
_BLOCKS = 2


class InputHome:
    """Room on the device for each input, and pinned blocks laid out alike, so that neighbours go in one copy.

    A block is used again once the copy from it is done. Two are made at once; a third only where both are still read.

    Args:
        backend: Where.
        specs: Of the inputs, by name.
    """

    def __init__(self, backend: Backend, specs: Mapping[str, TensorSpec]) -> None:
        self._backend, self._specs = backend, dict(specs)
        self._offsets: dict[str, int] = {}
        total = 0
        for name, spec in specs.items():
            self._offsets[name] = total
            total += align(spec.nbytes)
        self._nbytes = max(total, 1)
        self.memory: MemoryBlock = backend.device.allocate(self._nbytes)
        self._blocks: list[tuple[MemoryBlock, Event | None]] = [
            (backend.staging.take(self._nbytes), None) for _ in range(_BLOCKS)
        ]

    def locate(self, name: str) -> Region:
        """Return where an input lies on the device."""
        return Region(self.memory, self._offsets[name], self._specs[name].nbytes)

    def stage(self, arrays: Mapping[str, Array]) -> MemoryBlock:
        """Copy arrays into a pinned block; `upload` takes it from there."""
        block = self._take_block()
        assert block.array is not None
        begin_host_write(block, self._nbytes)
        for name, array in arrays.items():
            start, spec = self._offsets[name], self._specs[name]
            window = block.array[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)
            np.copyto(window, array)
        return block

    def upload(self, stream: Stream, block: MemoryBlock, names: Mapping[str, object]) -> None:
        """Copy the named inputs from a block to the device, in the stream's order, neighbours together."""
        assert block.array is not None
        start = end = 0
        for name, offset in self._offsets.items():
            nbytes = self._specs[name].nbytes
            if name not in names or not nbytes:
                continue
            if end and offset - end < ALIGNMENT:
                end = offset + nbytes
                continue
            self._copy(stream, block, start, end)
            start, end = offset, offset + nbytes
        self._copy(stream, block, start, end)

    def give_back(self, block: MemoryBlock, event: Event | None) -> None:
        """Return a block, free once ``event`` is done."""
        self._blocks.append((block, event))

    def unpin(self) -> None:
        """Return the pinned blocks; each is used again once the copy from it is done."""
        for block, event in self._blocks:
            self._backend.staging.give_back(block, event)
        self._blocks.clear()

    def free(self) -> None:
        """Free all memory; the caller has waited."""
        self.unpin()
        self.memory.free()

    def _take_block(self) -> MemoryBlock:
        for position, (block, event) in enumerate(self._blocks):
            if event is None or event.is_done():
                del self._blocks[position]
                return block
        return self._backend.staging.take(self._nbytes)

    def _copy(self, stream: Stream, block: MemoryBlock, start: int, end: int) -> None:
        if end > start:
            assert block.array is not None
            stream.copy_to_device(self.memory.address + start, block.array[start:end])
