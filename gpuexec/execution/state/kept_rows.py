"""Parts of what memories hold: the first rows of those that grow, and sequences of a batch in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.state.bytes import CacheBytes, RowHolders
from gpuexec.execution.state.carried import Carried, read_content
from gpuexec.ir.spec import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class OwnedBytes:
    """Bytes, and what keeps them; see `gpuexec.execution.resources.exchange_pool.Lent`."""

    owner: object
    region: Region


def crop(held: Carried, axis: int, length: int) -> Carried:
    """Return the first rows of what memories hold along an axis: the same bytes, nothing is copied on a device."""
    spec = held.known
    cropped = spec.with_shape((*spec.shape[:axis], length, *spec.shape[axis + 1 :]))
    if held.array is not None:
        rows = held.array[(slice(None),) * axis + (slice(length),)]
        return Carried(held.names, cropped, held.fence, array=np.ascontiguousarray(rows))
    caches = held.caches
    if caches is None:  # dense bytes are bytes of a capacity that is used up
        assert held.owners is not None and held.regions is not None
        owned = [OwnedBytes(*row) for row in zip(held.owners, held.regions, strict=True)]
        caches = list_caches(owned, spec, axis, held.stream)
    made = Carried(held.names, cropped, held.fence, held.stream, None, held.regions, held.owners, caches)
    caches[0].holders.add(made)
    return made


def reorder(backend: Backend, held: Carried, index: Sequence[int], axis: int) -> tuple[Carried, ...]:
    """Return the sequences of a batch that an index names, copied on the device, after what makes them.

    Args:
        backend: Where they lie.
        held: What memories hold, their bytes known.
        index: Of the sequences, in the new order.
        axis: Of the batch.
    """
    if held.array is not None or backend.device.target.has_textures:
        made = []
        for place, name in enumerate(held.names):
            array = np.ascontiguousarray(np.take(read_content(backend, held, place), index, axis))
            made.append(Carried((name,), TensorSpec(array.shape, array.dtype), Fence.of(), array=array))
        return tuple(made)
    spec, regions = held.known, held.regions
    assert regions is not None
    whole = spec if held.caches is None else held.caches[0].whole
    taken, taken_whole = (
        each.with_shape((*each.shape[:axis], len(index), *each.shape[axis + 1 :])) for each in (spec, whole)
    )
    with backend.transfers.lock:
        stream = backend.transfers.open()
        blocks = [backend.device.allocate(max(1, taken_whole.nbytes), stream) for _ in regions]
        for each in held.fence.events:
            stream.wait(each)
        for block, region in zip(blocks, regions, strict=True):
            _copy_sequences(stream, whole, index, axis, region.address, block.address)
        event = backend.device.create_event()
        stream.record(event)
        if held.caches is not None and held.caches[0].stream is not None:
            # An earlier state of the same bytes may be gone on from, which appends over rows that are read here.
            held.caches[0].stream.wait(event)
    memory = [region.memory for region in regions]
    backend.deferred_free.hold(event, *memory, held.owners, held.caches, *blocks)
    placed = tuple([Region(block, 0, taken_whole.nbytes) for block in blocks])
    moved = Carried(held.names, taken, Fence.of(event), regions=placed, owners=tuple(blocks))
    if held.caches is not None:
        # No stream's work appends there: the next run takes the rows over to bytes of its own.
        owned = [OwnedBytes(block, region) for block, region in zip(blocks, placed, strict=True)]
        moved.caches = list_caches(owned, taken_whole, held.caches[0].axis, None)
        moved.caches[0].holders.add(moved)
    return (moved,)


def list_caches(
    owners: Sequence[OwnedBytes], whole: TensorSpec, axis: int, stream: Stream | None
) -> tuple[CacheBytes, ...]:
    """Return bytes with room behind the rows for memories that grow together."""
    holders = RowHolders()
    return tuple([CacheBytes(owner, whole, axis, stream, holders) for owner in owners])


def _copy_sequences(
    stream: Stream, whole: TensorSpec, index: Sequence[int], axis: int, source: int, target: int
) -> None:
    chunk = prod(whole.shape[axis + 1 :]) * whole.dtype.itemsize
    if not chunk:
        return
    for outer in range(prod(whole.shape[:axis])):
        for place, taken in enumerate(index):
            read, written = (outer * whole.shape[axis] + taken) * chunk, (outer * len(index) + place) * chunk
            stream.copy(target + written, source + read, chunk)
