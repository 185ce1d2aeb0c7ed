"""Values on their way between host and device in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gpuexec.geometry import round_up
from gpuexec.mapped import bring
from gpuexec.resources.pool import ExchangePool
from gpuexec.resources.weights import Share
from gpuexec.running.held import Held
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Memory, Region, Stream, begin_host_read, begin_host_write
from gpuexec.spec import TensorSpec

Array = np.ndarray[Any, Any]


class Crossing:
    """The way between host and device on one stream; whoever uses it may issue there."""

    def __init__(self, backend: Backend, stream: Stream, pool: ExchangePool, weights: Share) -> None:
        self._backend, self._stream, self._pool, self._weights = backend, stream, pool, weights

    def locate(self, held: Held) -> Region:
        """Return the bytes of a value on the device, where they are brought if they are not there yet."""
        if held.region is None:
            assert held.array is not None, "a value is nowhere"
            if held.is_weight:
                held.region = self._weights.place_array(held.array, self._stream)
            else:
                self._bring(held, np.ascontiguousarray(bring(held.array)).reshape(-1).view(np.uint8))
        assert held.region is not None
        return held.region

    def fetch(self, values: Sequence[Held]) -> Fetch:
        """Start to bring the content of values to the host: exactly those bytes, in one go."""
        return Fetch(self._backend, self._stream, values, [self.locate(held) for held in values])

    def _bring(self, held: Held, raw: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        lent = self._pool.lend(raw.nbytes)
        held.region, held.owner = lent.region, lent
        if held.spec.size == 1:
            self._stream.fill(held.region.address, raw.tobytes(), 1)
        elif raw.nbytes:
            staging = self._backend.staging
            block = staging.take(raw.nbytes)
            assert block.array is not None
            begin_host_write(block, raw.nbytes)
            block.array[: raw.nbytes] = raw
            self._stream.copy_to_device(held.region.address, block.array[: raw.nbytes])
            event = self._backend.device.create_event()
            self._stream.record(event)
            staging.give_back(block, event)


class Fetch:
    """Content under way to the host.

    Attributes:
        before: Done when the work before the copy is.
        after: Done when the content is there.
        nbytes: Bytes of pinned memory it takes, each value at a multiple of 8.
    """

    def __init__(self, backend: Backend, stream: Stream, values: Sequence[Held], regions: Sequence[Region]) -> None:
        self._values, self._regions = values, regions
        *self._places, self.nbytes = accumulate((_pad(held.spec.nbytes) for held in values), initial=0)
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
        """Give the values their content, which is there."""
        if self._block is not None:
            begin_host_read(self._block, self.nbytes)
        for held, region, place in zip(self._values, self._regions, self._places, strict=True):
            source, first = (region.memory, region.offset) if self._block is None else (self._block, place)
            held.array, held.is_computed = _take_out(source, first, held.spec), True

    def close(self) -> None:
        """Give the pinned memory back; the copy of a run that is given up is still on the stream."""
        if self._block is not None:
            self._staging.give_back(self._block, self.after)

    def _copy(self, stream: Stream) -> None:
        if self._block is None:
            return
        assert self._block.array is not None
        for held, region, place in zip(self._values, self._regions, self._places, strict=True):
            if held.spec.nbytes:
                stream.copy_to_host(self._block.array[place : place + held.spec.nbytes], region.address)


def _pad(nbytes: int) -> int:
    """Round up to what any dtype may start at."""
    return round_up(nbytes, 8)


def _take_out(memory: Memory, first: int, spec: TensorSpec) -> Array:
    """Return content that lies in memory of the host as an array of its own."""
    if not spec.nbytes:
        return np.empty(spec.shape, spec.dtype)
    assert memory.array is not None
    return memory.array[first : first + spec.nbytes].copy().view(spec.dtype).reshape(spec.shape)
