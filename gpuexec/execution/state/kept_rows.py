"""Parts of what memories hold: the first rows of those that grow, and sequences of a batch in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.errors import InputError
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
    starts = tuple([min(start, length) for start in held.starts])
    if held.array is not None:
        rows = held.array[(slice(None),) * axis + (slice(length),)]
        return Carried(held.names, cropped, held.fence, array=np.ascontiguousarray(rows), starts=starts)
    caches = held.caches
    if caches is None:  # dense bytes are bytes of a capacity that is used up
        assert held.owners is not None and held.regions is not None
        owned = [OwnedBytes(*row) for row in zip(held.owners, held.regions, strict=True)]
        caches = list_caches(owned, spec, axis, held.stream)
    made = Carried(held.names, cropped, held.fence, held.stream, None, held.regions, held.owners, caches, starts)
    caches[0].holders.add(made)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Sequences of a batch.

    Attributes:
        held: What memories hold, all alike, its bytes known.
        index: Of the sequences, in the order in which they are taken.
    """

    held: Carried
    index: Sequence[int]

    def measure(
        self, starts: Sequence[int], axis: int, rows: int | None, most: int | None = None
    ) -> list[tuple[int, int]]:
        """Return the first row and the number of rows of each, of the last ``most``, along the axis they grow by."""
        if rows is None:
            return [(0, 0)] * len(self.index)
        length = self.held.known.shape[rows]
        least = 0 if most is None else max(0, length - most)
        begun = [max(least, start) for start in starts] or [least] * self.held.known.shape[axis]
        return [(begun[each], length - begun[each]) for each in self.index]

    def count_passed(self, starts: Sequence[int], rows: int) -> list[int]:
        """Return how many rows each had so far, those that are gone included."""
        length = self.held.known.shape[rows]
        return [length - (starts[each] if starts else 0) for each in self.index]


def gather(
    backend: Backend,
    parts: Sequence[Sequences],
    starts: Sequence[Sequence[int]],
    axis: int,
    rows: int | None,
    most: int | None = None,
) -> tuple[Carried, ...]:
    """Return sequences of batches as one batch, copied on the device, after what makes them.

    Shorter ones end where the longest does, behind zeros.

    Args:
        backend: Where they lie.
        parts: The sequences; contents of the same memories, in any order.
        starts: Of each part, the rows in front of its sequences that are none of theirs; empty: none.
        axis: Of the batch.
        rows: Of the rows that sequences grow by; None: they don't.
        most: How many of the last rows are taken; None: all.

    Raises:
        InputError: Sequences of different lengths grow along an axis in front of that of the batch.
    """
    if rows is not None and rows < axis:
        lengths = {part.held.known.shape[rows] for part in parts}
        if len(lengths) > 1 or most is not None or any(any(each) for each in starts):
            raise InputError(
                f"Memory {parts[0].held.names[0]!r} grows along axis {rows}, in front of the batch on axis {axis}: its"
                " sequences have one length.",
                value=parts[0].held.names[0],
            )
        rows = None
    measured = [part.measure(each, axis, rows, most) for part, each in zip(parts, starts, strict=True)]
    length = max(count for each in measured for _, count in each)
    has_gaps = any(length > count for each in measured for _, count in each)
    spec = parts[0].held.known
    shape = [*spec.shape]
    shape[axis] = sum(len(part.index) for part in parts)
    if rows is not None:
        shape[rows] = length
    made = spec.with_shape(tuple(shape))
    kept: tuple[int, ...] = ()
    if rows is not None:
        passed = [part.count_passed(each, rows) for part, each in zip(parts, starts, strict=True)]
        begins = tuple([length - count for each in passed for count in each])
        kept = begins if any(begins) else ()
    if backend.device.target.has_textures or any(part.held.array is not None for part in parts):
        return _gather_on_host(backend, parts, measured, made, kept, axis, rows)
    names, caches = parts[0].held.names, parts[0].held.caches
    whole = made if caches is None else _widen(caches[0].whole, made, axis, rows)
    with backend.transfers.lock:
        stream = backend.transfers.open()
        blocks = [backend.device.allocate(max(1, whole.nbytes), stream) for _ in names]
        for part in parts:
            for each in part.held.fence.events:
                stream.wait(each)
        for name, block in zip(names, blocks, strict=True):
            if has_gaps and whole.nbytes:
                stream.fill(block.address, b"\0", whole.nbytes)
            first = 0
            for part, found in zip(parts, measured, strict=True):
                _copy_sequences(stream, part, found, name, (block.address, whole), (first, length), axis, rows)
                first += len(part.index)
        event = backend.device.create_event()
        stream.record(event)
        for part in parts:
            if part.held.caches is not None and part.held.caches[0].stream is not None:
                # An earlier state of the same bytes may be gone on from, which appends over rows that are read here.
                part.held.caches[0].stream.wait(event)
    used = [each for part in parts for each in (*[r.memory for r in part.held.regions or ()], part.held)]
    backend.deferred_free.hold(event, *used, *blocks)
    placed = tuple([Region(block, 0, whole.nbytes) for block in blocks])
    moved = Carried(names, made, Fence.of(event), regions=placed, owners=tuple(blocks), starts=kept)
    if caches is not None:
        # No stream's work appends there: the next run takes the rows over to bytes of its own.
        owned = [OwnedBytes(block, region) for block, region in zip(blocks, placed, strict=True)]
        moved.caches = list_caches(owned, whole, caches[0].axis, None)
        moved.caches[0].holders.add(moved)
    return (moved,)


def list_caches(
    owners: Sequence[OwnedBytes], whole: TensorSpec, axis: int, stream: Stream | None
) -> tuple[CacheBytes, ...]:
    """Return bytes with room behind the rows for memories that grow together."""
    holders = RowHolders()
    return tuple([CacheBytes(owner, whole, axis, stream, holders) for owner in owners])


def _gather_on_host(
    backend: Backend,
    parts: Sequence[Sequences],
    measured: Sequence[Sequence[tuple[int, int]]],
    spec: TensorSpec,
    starts: tuple[int, ...],
    axis: int,
    rows: int | None,
) -> tuple[Carried, ...]:
    made = []
    for name in parts[0].held.names:
        whole = np.zeros(spec.shape, spec.dtype)
        put = np.moveaxis(whole, axis, 0) if rows is None else np.moveaxis(whole, (axis, rows), (0, 1))
        number = 0
        for part, found in zip(parts, measured, strict=True):
            read = read_content(backend, part.held, part.held.names.index(name))
            taken = np.moveaxis(read, axis, 0) if rows is None else np.moveaxis(read, (axis, rows), (0, 1))
            for each, (first, count) in zip(part.index, found, strict=True):
                if rows is None:
                    put[number] = taken[each]
                elif count:
                    put[number, -count:] = taken[each, first:]
                number += 1
        made.append(Carried((name,), spec, Fence.of(), array=whole, starts=starts))
    return tuple(made)


def _copy_sequences(
    stream: Stream,
    part: Sequences,
    measured: Sequence[tuple[int, int]],
    name: str,
    target: tuple[int, TensorSpec],
    places: tuple[int, int],
    axis: int,
    rows: int | None,
) -> None:
    """Copy the sequences of one memory of a part.

    Args:
        stream: Where to.
        part: The sequences.
        measured: The first row of each, and how many.
        name: Of the memory.
        target: Address and spec of the whole bytes that they go to.
        places: Of the first sequence there, and the length of the longest.
        axis: Of the batch.
        rows: Of the rows.
    """
    held, (address, put), (number, length) = part.held, target, places
    assert held.regions is not None
    place = held.names.index(name)
    source = held.regions[place].address
    read = held.known if held.caches is None else held.caches[place].whole
    for taken, (first, count) in zip(part.index, measured, strict=True):
        if rows is None or (count == length and not first and read.shape[rows:] == put.shape[rows:]):
            depth, from_row, to_row, run = axis + 1, 0, 0, 1  # a sequence lies there as it did
        else:
            depth, from_row, to_row, run = rows + 1, first, length - count, count
        _copy_runs(stream, (source, read, taken, from_row), (address, put, number, to_row), depth, run, axis)
        number += 1


def _copy_runs(
    stream: Stream,
    source: tuple[int, TensorSpec, int, int],
    target: tuple[int, TensorSpec, int, int],
    depth: int,
    run: int,
    axis: int,
) -> None:
    """Copy one sequence, by runs of rows: each a dense range of both.

    Args:
        stream: Where to.
        source: Address, spec, number of the sequence, and its first row.
        target: The same of where it goes.
        depth: The axes from this one on are a row.
        run: Rows of a run.
        axis: Of the batch; axes between that and the rows are walked.
    """
    (read_at, read, taken, first), (put_at, put, number, to) = source, target
    row = prod(read.shape[depth:]) * read.dtype.itemsize
    if not row * run:
        return
    between = prod(read.shape[axis + 1 : depth - 1]) if depth > axis + 1 else 1
    of_read, of_put = (each.shape[depth - 1] if depth > axis + 1 else 1 for each in (read, put))
    for outer in range(prod(read.shape[:axis])):
        for middle in range(between):
            from_row = ((outer * read.shape[axis] + taken) * between + middle) * of_read + first
            to_row = ((outer * put.shape[axis] + number) * between + middle) * of_put + to
            stream.copy(put_at + to_row * row, read_at + from_row * row, run * row)


def _widen(whole: TensorSpec, made: TensorSpec, axis: int, rows: int | None) -> TensorSpec:
    """Return the spec of whole bytes for another batch."""
    shape = [*whole.shape]
    shape[axis] = made.shape[axis]
    if rows is not None:
        shape[rows] = max(shape[rows], made.shape[rows])
    return whole.with_shape(tuple(shape))
