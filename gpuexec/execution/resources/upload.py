"""Upload of weights through two pinned blocks, however many bytes they are.

While one block is copied to the device the other is filled, from a file by ranges or from an array. So beside the
weights themselves the host holds two blocks, and of a mapped file it touches no page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Event, MemoryBlock, Region, Stream, align, begin_host_write
from gpuexec.devices.transfers import close_stream
from gpuexec.errors import AccessError, GpuexecError
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.system.mapped import FileRange, FileSource, find_range, find_source, read_content
from gpuexec.system.progress import Progress, ProgressCallback

Array = np.ndarray[Any, Any]
BLOCK_NBYTES = 16 << 20
_BLOCKS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """Content to upload, packed where there is a form; ``name`` is for messages."""

    name: str
    array: Array
    form: PackedForm | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.array.nbytes if self.form is None else self.form.spec.nbytes


def upload(
    backend: Backend, parcels: Sequence[Parcel], stream: Stream, report: ProgressCallback | None = None
) -> tuple[list[Region], Event]:
    """Return a region for each parcel, and an event behind the last copy. All of them, or none.

    What fits one block goes onto ``stream`` and nothing is waited for; what does not has a stream of its own, so that
    the caller waits for its own copies only.

    Args:
        backend: Whose device.
        parcels: What to copy; files are read from here.
        stream: Of the caller.
        report: Called after every piece; what it raises ends the upload.

    Raises:
        OutOfMemoryError: The device has no room.
        AccessError: A file changed since it was opened, or can't be read; names the file and the value.
    """
    check_unchanged(parcels)
    regions: list[Region] = []
    total = sum(parcel.nbytes for parcel in parcels)
    own = backend.device.create_stream() if total > BLOCK_NBYTES else None
    uploader = _Uploader(backend, own or stream, total, report)
    try:
        for parcel in parcels:
            nbytes = parcel.nbytes
            regions.append(Region(backend.device.allocate(max(nbytes, 1)), 0, nbytes))
        for parcel, region in zip(parcels, regions, strict=True):
            uploader.send(parcel, region.address)
        check_unchanged(parcels)
        event = uploader.finish()
        # Should the caller be interrupted before it has them.
        backend.deferred_free.hold(event, *[region.memory for region in regions])
        return regions, event
    except BaseException:
        uploader.abandon()
        for region in regions:
            region.memory.free()
        raise
    finally:
        close_stream(own)


def check_unchanged(parcels: Sequence[Parcel]) -> None:
    """Check that the files weights lie in are those that were opened.

    Raises:
        AccessError: One was written to; names the file and a value in it.
    """
    checked: set[FileSource] = set()
    for parcel in parcels:
        source = find_source(parcel.array)
        if source is not None and source not in checked:
            checked.add(source)
            with _naming(parcel):
                source.check_unchanged()


def read_parcel(parcel: Parcel) -> Array:
    """Return the content of a parcel on the host, read where it lies in a file, and packed where it shall be.

    Raises:
        AccessError: The file changed since it was opened, or can't be read; names the file and the value.
    """
    with _naming(parcel):
        return read_content(parcel.array) if parcel.form is None else parcel.form.pack(parcel.array)


class _Uploader:
    """Fills blocks and has them copied, in turn."""

    def __init__(self, backend: Backend, stream: Stream, total: int, report: ProgressCallback | None) -> None:
        self._backend, self._stream, self._report = backend, stream, report
        self._done, self._total = 0, total
        self._blocks: list[tuple[MemoryBlock, Event | None]] = []
        self._turn = self._used = 0

    def send(self, parcel: Parcel, address: int) -> None:
        """Copy a parcel to an address, piece by piece."""
        for at, piece in _divide(parcel):
            nbytes, done = piece.nbytes, 0
            while done < nbytes:
                block = self._find_room()
                count = min(nbytes - done, block.nbytes - self._used)
                assert block.array is not None
                begin_host_write(block, count, self._used)
                window = block.array[self._used : self._used + count]
                if isinstance(piece, FileRange):
                    with _naming(parcel):
                        piece.source.read_into(piece.offset + done, window.data)
                else:
                    window[...] = piece[done : done + count]
                self._stream.copy_to_device(address + at + done, window)
                self._used += align(count)
                done += count
                self._done += count
                if self._report is not None:
                    self._report(Progress("upload", parcel.name, self._done, self._total))

    def finish(self) -> Event:
        """Return an event behind all copies; the blocks go back once it is done."""
        event = self._record()
        self._give_back(event)
        return event

    def abandon(self) -> None:
        """Wait until no copy is under way, however they end."""
        with contextlib.suppress(GpuexecError):
            event = self._record()
            event.synchronize()
            self._give_back(event)

    def _find_room(self) -> MemoryBlock:
        """Return the block whose turn it is, with room behind what is used of it."""
        if not self._blocks:
            self._blocks.append((self._take(), None))
        block, _ = self._blocks[self._turn]
        if self._used < block.nbytes:
            return block
        self._blocks[self._turn] = block, self._record()
        self._turn, self._used = (self._turn + 1) % _BLOCKS, 0
        if self._turn == len(self._blocks):
            self._blocks.append((self._take(), None))
        block, copied = self._blocks[self._turn]
        if copied is not None:
            copied.synchronize()
        return block

    def _take(self) -> MemoryBlock:
        return self._backend.staging.take(min(max(self._total, 1), BLOCK_NBYTES))

    def _record(self) -> Event:
        event = self._backend.device.create_event()
        self._stream.record(event)
        return event

    def _give_back(self, event: Event) -> None:
        while self._blocks:  # each once, though an interrupt comes in between
            block, _ = self._blocks.pop()
            self._backend.staging.give_back(block, event)


def _divide(parcel: Parcel) -> Iterator[tuple[int, FileRange | Array]]:
    """Yield the content of a parcel in order, with its place in bytes: as ranges of a file, or as bytes."""
    array = parcel.array if parcel.form is None else read_parcel(parcel)
    found = find_range(array)
    if found is not None:
        yield 0, found
    elif array.flags.c_contiguous:
        yield 0, array.reshape(-1).view(np.uint8)
    else:
        at = 0
        for part in _cut(array):
            content = read_parcel(Parcel(parcel.name, part))
            yield at, np.ascontiguousarray(content).reshape(-1).view(np.uint8)
            at += part.nbytes


def _cut(array: Array) -> Iterator[Array]:
    """Yield an array that is not dense in parts, none much larger than a block, in order."""
    if array.nbytes <= BLOCK_NBYTES or not array.ndim:
        yield array
        return
    rows = BLOCK_NBYTES // array[0].nbytes
    for first in range(0, array.shape[0], max(rows, 1)):
        if rows:
            yield array[first : first + rows]
        else:
            yield from _cut(array[first])


@contextlib.contextmanager
def _naming(parcel: Parcel) -> Iterator[None]:
    """Add the value to what is said of its file."""
    try:
        yield
    except AccessError as error:
        raise AccessError(f"Weight %{parcel.name}: {error}", value=parcel.name) from error
