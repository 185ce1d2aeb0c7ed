"""Transfers of values between host and device in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream, begin_host_read, begin_host_write
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.geometry import round_up
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.mapped import read_content

Array = np.ndarray[Any, Any]


class HostTransfers:
    """Transfers between host and device on one stream; the caller holds the lock for issuing."""

    def __init__(self, planning: PlanningContext, stream: Stream, pool: ExchangePool) -> None:
        self._planning, self._backend, self._stream, self._pool = planning, planning.backend, stream, pool

    def locate(self, location: ValueLocation) -> Region:
        """Return the bytes of a value on the device; uploaded where they are not there yet."""
        if location.region is None:
            assert location.array is not None, "a value is nowhere"
            if location.is_weight:
                location.region = self._planning.weights.place_array(location.array, self._stream)
            else:
                self._upload(location, np.ascontiguousarray(read_content(location.array)).reshape(-1).view(np.uint8))
        assert location.region is not None
        return location.region

    def fetch(self, values: Sequence[ValueLocation]) -> Fetch:
        """Start to read values back: exactly those bytes, in one copy."""
        return Fetch(self._backend, self._stream, values, [self.locate(location) for location in values])

    def _upload(self, location: ValueLocation, raw: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        lent = self._pool.lend(raw.nbytes)
        location.region, location.owner = lent.region, lent
        if location.spec.size == 1:
            self._stream.fill(location.region.address, raw.tobytes(), 1)
        elif raw.nbytes:
            staging = self._backend.staging
            block = staging.take(raw.nbytes)
            assert block.array is not None
            begin_host_write(block, raw.nbytes)
            block.array[: raw.nbytes] = raw
            self._stream.copy_to_device(location.region.address, block.array[: raw.nbytes])
            event = self._backend.device.create_event()
            self._stream.record(event)
            staging.give_back(block, event)


class Fetch:
    """A readback of values under way.

    Attributes:
        before: Done when the work before the copy is.
        after: Done when the content is there.
        nbytes: Bytes of pinned memory it takes, each value at a multiple of 8.
    """

    def __init__(
        self, backend: Backend, stream: Stream, values: Sequence[ValueLocation], regions: Sequence[Region]
    ) -> None:
        self._values, self._regions = values, regions
        *self._places, self.nbytes = accumulate((_pad(location.spec.nbytes) for location in values), initial=0)
        self._staging = backend.staging
        self._block = self._staging.take(self.nbytes) if backend.device.target.has_kernels else None
        self.before, self.after = backend.device.create_event(), backend.device.create_event()
        try:
            stream.record(self.before)
            self._copy(stream)
            stream.record(self.after)
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """Set the content of the values, once it is on the host."""
        if self._block is not None:
            begin_host_read(self._block, self.nbytes)
        for location, region, place in zip(self._values, self._regions, self._places, strict=True):
            source, first = (region.memory, region.offset) if self._block is None else (self._block, place)
            location.array, location.is_computed = _take_out(source, first, location.spec), True

    def close(self) -> None:
        """Return the pinned memory; the copy of a cancelled run is still on the stream."""
        if self._block is not None:
            self._staging.give_back(self._block, self.after)

    def _copy(self, stream: Stream) -> None:
        if self._block is None:
            return
        assert self._block.array is not None
        for location, region, place in zip(self._values, self._regions, self._places, strict=True):
            if location.spec.nbytes:
                stream.copy_to_host(self._block.array[place : place + location.spec.nbytes], region.address)


def _pad(nbytes: int) -> int:
    """Round up to what any dtype may start at."""
    return round_up(nbytes, 8)


def _take_out(memory: MemoryBlock, first: int, spec: TensorSpec) -> Array:
    """Copy content out of host memory."""
    if not spec.nbytes:
        return np.empty(spec.shape, spec.dtype)
    assert memory.array is not None
    return memory.array[first : first + spec.nbytes].copy().view(spec.dtype).reshape(spec.shape)
