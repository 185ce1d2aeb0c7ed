"""Parts of what memories hold: the first rows of one that grows, and sequences of a batch in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.results.place import Place
from gpuexec.execution.state.bytes import CacheBytes, fetch
from gpuexec.execution.state.carried import Carried
from gpuexec.ir.spec import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class OwnedBytes:
    """Bytes, and what keeps them; see `gpuexec.execution.resources.exchange_pool.Lent`."""

    owner: object
    region: Region


def crop(held: Carried, axis: int, length: int) -> Carried:
    """Return the first rows of what a memory holds along an axis: the same bytes, nothing is copied on a device."""
    spec = held.place.spec
    shape = (*spec.shape[:axis], length, *spec.shape[axis + 1 :])
    cropped = spec.with_shape(shape)
    if held.array is not None:
        rows = held.array[(slice(None),) * axis + (slice(length),)]
        return Carried(Place(held.place.name, cropped), held.fence, array=np.ascontiguousarray(rows))
    cache = held.cache
    if cache is None:  # dense bytes are bytes of a capacity that is used up
        cache = CacheBytes(OwnedBytes(held.owner, held.place.region), spec, axis, held.stream)
    place = Place(held.place.name, cropped, held.place.region)
    made = Carried(place, held.fence, held.stream, owner=held.owner, cache=cache)
    cache.hold(made)
    return made


def reorder(backend: Backend, held: Carried, index: Sequence[int], axis: int) -> Carried:
    """Return the sequences of a batch that an index names, copied on the device, after what makes them.

    Args:
        backend: Where they lie.
        held: What a memory holds, its bytes known.
        index: Of the sequences, in the new order.
        axis: Of the batch.
    """
    place, array = held.place, held.array
    if array is None and backend.device.target.has_textures:
        array = fetch(backend, place, held.fence, held.cache, held.owner)
    if array is not None:
        array = np.ascontiguousarray(np.take(array, index, axis))
        return Carried(Place(place.name, TensorSpec(array.shape, array.dtype)), Fence.of(), array=array)
    spec = place.spec
    whole = spec if held.cache is None else held.cache.whole
    made, made_whole = (
        each.with_shape((*each.shape[:axis], len(index), *each.shape[axis + 1 :])) for each in (spec, whole)
    )
    chunk = prod(whole.shape[axis + 1 :]) * whole.dtype.itemsize
    with backend.transfers.lock:
        stream = backend.transfers.open()
        block = backend.device.allocate(max(1, made_whole.nbytes), stream)
        for event in held.fence.events:
            stream.wait(event)
        for outer in range(prod(whole.shape[:axis])):
            for place_in, taken in enumerate(index):
                source = place.region.address + (outer * whole.shape[axis] + taken) * chunk
                target = block.address + (outer * len(index) + place_in) * chunk
                if chunk:
                    stream.copy(target, source, chunk)
        event = backend.device.create_event()
        stream.record(event)
        if held.cache is not None and held.cache.stream is not None:
            # An earlier state of the same bytes may be gone on from, which appends over rows that are read here.
            held.cache.stream.wait(event)
    backend.deferred_free.hold(event, place.region.memory, held.owner, held.cache, block)
    region = Region(block, 0, made_whole.nbytes)
    # No stream's work appends there: the next run takes the rows over to bytes of its own.
    moved = Carried(Place(place.name, made, region), Fence.of(event), owner=block)
    if held.cache is not None:
        moved.cache = CacheBytes(OwnedBytes(block, region), made_whole, held.cache.axis, None)
        moved.cache.hold(moved)
    return moved
